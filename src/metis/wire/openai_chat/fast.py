"""Fast paths of Chat Completions: common messages of a request, and plain chunks of a stream."""

from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.streaming.arguments import parse_arguments_exactly
from metis.wire.json_access import Wire
from metis.wire.openai_chat.blocks import PROTOCOL
from metis.wire.tool_ids import CallIds

_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)
_make_image = raw_constructor(ImageBlock)
_make_source = raw_constructor(ImageSource)

_make_metadata = raw_constructor(MessageMetadata)
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_ROLES = {
    "assistant": _ASSISTANT,
    "developer": Role.DEVELOPER,
    "system": Role.SYSTEM,
    "user": _USER,
}

DecodedMessage = tuple[Role, tuple[ContentBlock, ...], MessageMetadata]
"""Who speaks in a message, its blocks, and how they were spelled."""


class Function(Struct, gc=False, forbid_unknown_fields=True):
    """What is called, and the arguments as the model wrote them."""

    arguments: str
    name: str


class Call(Struct, gc=False, forbid_unknown_fields=True):
    """One entry of `tool_calls`."""

    function: Function
    id: str
    type: Literal["function"]


class TextPart(Struct, tag="text", gc=False, forbid_unknown_fields=True):
    """A text among other parts."""

    text: str


class Link(Struct, gc=False, forbid_unknown_fields=True):
    """Where an image is, or the image itself."""

    url: str


class ImagePart(Struct, tag="image_url", gc=False, forbid_unknown_fields=True):
    """An image."""

    image_url: Link


class FastMessage(Struct, gc=False, forbid_unknown_fields=True):
    """A message of a request, whoever speaks."""

    role: str
    annotations: list[Any] | UnsetType | None = UNSET
    content: str | list[TextPart | ImagePart] | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType | None = UNSET


class FastRequest(Struct, forbid_unknown_fields=True):
    """A request of common messages, with the options that are known."""

    messages: list[FastMessage]
    audio: Any = UNSET
    frequency_penalty: Any = UNSET
    function_call: Any = UNSET
    functions: Any = UNSET
    logit_bias: Any = UNSET
    logprobs: Any = UNSET
    max_completion_tokens: Any = UNSET
    max_tokens: Any = UNSET
    metadata: Any = UNSET
    modalities: Any = UNSET
    model: Any = UNSET
    n: Any = UNSET
    parallel_tool_calls: Any = UNSET
    prediction: Any = UNSET
    presence_penalty: Any = UNSET
    prompt_cache_key: Any = UNSET
    provider: Any = UNSET
    reasoning: Any = UNSET
    reasoning_effort: Any = UNSET
    response_format: Any = UNSET
    safety_identifier: Any = UNSET
    seed: Any = UNSET
    service_tier: Any = UNSET
    stop: Any = UNSET
    store: Any = UNSET
    stream: Any = UNSET
    stream_options: Any = UNSET
    temperature: Any = UNSET
    thinking: Any = UNSET
    tool_choice: Any = UNSET
    tools: Any = UNSET
    top_logprobs: Any = UNSET
    top_p: Any = UNSET
    user: Any = UNSET
    verbosity: Any = UNSET
    web_search_options: Any = UNSET

    def options(self) -> Wire:
        """Everything but the messages, as it came."""
        stated = ((name, getattr(self, name)) for name in _OPTIONS)
        return {name: value for name, value in stated if value is not UNSET}


_OPTIONS = FastRequest.__struct_fields__[1:]


class FastMessageDecoder:
    """Reads the messages of one request."""

    def __init__(self, session_id: str, issuer: str) -> None:
        self._ids = CallIds(session_id)
        self._issuer = issuer
        self._bare = _make_metadata(origin=issuer)

    def read(self, turn: FastMessage) -> DecodedMessage | None:
        """What a message says; None if the long road has to be taken."""
        word, content = turn.role, turn.content
        is_plain = (
            turn.tool_calls is UNSET
            and turn.annotations is UNSET
            and turn.reasoning is UNSET
            and turn.reasoning_content is UNSET
            and turn.refusal is UNSET
        )
        if word == "tool":
            return self._read_result(turn.tool_call_id, content) if is_plain else None
        if turn.tool_call_id is not UNSET:
            return None
        if is_plain and type(content) is str and (content or word != "assistant"):
            role = _ROLES.get(word)
            said = (_make_text(content),) if content else ()
            return None if role is None else (role, said, self._bare)
        if word == "assistant":
            return self._read_assistant(turn)
        return self._read_parts(content) if is_plain and word == "user" else None

    def _read_result(self, theirs: str | UnsetType, content: object) -> DecodedMessage | None:
        """The result of a call."""
        if type(theirs) is not str or type(content) is not str or not theirs or not content:
            return None
        ours = self._ids.of_result(theirs)
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=ours,
            provider_raw={PROTOCOL: {"ids": {ours: theirs}}},
        )
        return _TOOL, (_make_result(ours, (_make_text(content),)),), metadata

    def _read_parts(self, content: object) -> DecodedMessage | None:
        """What a person says and shows."""
        if not isinstance(content, list):
            return None
        blocks: list[ContentBlock] = []
        for part in cast("list[TextPart | ImagePart]", content):
            if type(part) is TextPart:
                blocks.append(_make_text(part.text))
            elif (image := _read_image(part)) is not None:
                blocks.append(image)
            else:
                return None
        return _USER, tuple(blocks), self._spelled({"parts": True})

    def _read_assistant(self, said: FastMessage) -> DecodedMessage | None:
        """What the model said."""
        content, calls = said.content, said.tool_calls
        if said.annotations or (said.reasoning and said.reasoning_content):
            return None
        if isinstance(content, list) or (not calls and calls is not UNSET):
            return None
        blocks: list[ContentBlock] = []
        spelling: dict[str, Any] = {}
        thought = said.reasoning_content or said.reasoning
        if thought:
            name = "reasoning_content" if said.reasoning_content else "reasoning"
            blocks.append(_make_thinking(thought, None, None, None, self._issuer))
            spelling["thoughts"] = {name: True}
        if content:
            blocks.append(_make_text(content))
        if calls and not self._read_calls(calls, blocks, spelling):
            return None
        if not content or not (
            said.annotations is UNSET
            and said.reasoning is UNSET
            and said.reasoning_content is UNSET
            and said.refusal is UNSET
        ):
            _store_empty_keys(said, spelling)
        return _ASSISTANT, tuple(blocks), self._spelled(spelling)

    def _read_calls(
        self, calls: list[Call], blocks: list[ContentBlock], spelling: dict[str, Any]
    ) -> bool:
        """Take in calls; false if one has no id or no name."""
        theirs: dict[str, str] = {}
        odd: Wire = {}
        of_call = self._ids.of_call
        for call in calls:
            function = call.function
            own, name, text = call.id, function.name, function.arguments
            if not own or not name:
                return False
            ours = of_call(own)
            theirs[ours] = own
            arguments, invalid, is_exact = parse_arguments_exactly(text)
            blocks.append(_make_call(ours, name, arguments, invalid))
            if not is_exact:
                wire = {"arguments": text, "name": name}
                odd[ours] = {"function": wire, "id": own, "type": "function"}
        spelling["ids"] = theirs
        if odd:
            spelling["calls"] = odd
        return True

    def _spelled(self, spelling: dict[str, Any]) -> MessageMetadata:
        if not spelling:
            return self._bare
        return _make_metadata(origin=self._issuer, provider_raw={PROTOCOL: spelling})


def _read_image(part: TextPart | ImagePart) -> ImageBlock | None:
    """An image that is in the request itself."""
    if type(part) is not ImagePart:
        return None
    head, comma, data = part.image_url.url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        return None
    media_type = head[5:-7]
    return None if ";" in media_type else _make_image(_make_source("base64", data), media_type)


def _store_empty_keys(said: FastMessage, spelling: dict[str, Any]) -> None:
    """Remember the keys that say nothing, and those that are not there."""
    keys: Wire = {}
    if said.content is UNSET:
        spelling["absent"] = ["content"]
    elif not said.content and said.content != (None if said.tool_calls else ""):
        keys["content"] = said.content
    if said.annotations is not UNSET and not said.annotations:
        keys["annotations"] = said.annotations
    if said.reasoning is not UNSET and not said.reasoning:
        keys["reasoning"] = said.reasoning
    if said.reasoning_content is not UNSET and not said.reasoning_content:
        keys["reasoning_content"] = said.reasoning_content
    if said.refusal is not UNSET:
        keys["refusal"] = said.refusal
    if keys:
        spelling["keys"] = keys


class _ChunkFunction(Struct, gc=False, forbid_unknown_fields=True):
    arguments: str
    name: None = None


class _ChunkCall(Struct, gc=False, forbid_unknown_fields=True):
    function: _ChunkFunction
    index: int
    id: None = None
    type: str | None = None


class PlainDelta(Struct, gc=False, forbid_unknown_fields=True):
    """What a plain chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_ChunkCall] | None = None
    role: str | None = None
    refusal: None = None
    channel: str | None = None
    token_id: int | None = None


class _Choice(Struct, gc=False):
    delta: PlainDelta
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    error: None = None


class PlainChunk(Struct, gc=False):
    """One chunk with one choice that goes on with what it had begun."""

    choices: tuple[_Choice]
    usage: None = None
    error: None = None


read_plain_chunk = msgspec.json.Decoder(PlainChunk).decode
"""The chunk in some bytes; raises what msgspec raises if it is not plain."""
