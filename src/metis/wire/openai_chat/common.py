"""Messages of Chat Completions that come often, as Structs, and the short road to ours.

Keys that are not listed are not skipped: a body that holds one is read as plain JSON, and so is
what the short road does not know how to spell again. Both roads remember the same.
"""

from typing import Any, Literal

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
from metis.canonical.value import made
from metis.streaming.arguments import read_arguments
from metis.wire.openai_chat.parts import write_json
from metis.wire.shape import Wire
from metis.wire.tool_ids import CallIds

_make_text = made(TextBlock)
_make_call = made(ToolUseBlock)
_make_result = made(ToolResultBlock)
_make_thinking = made(ThinkingBlock)
_make_image = made(ImageBlock)
_make_source = made(ImageSource)

Found = tuple[tuple[ContentBlock, ...], dict[str, Any]]
"""The blocks of a message, and how they were spelled."""


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


class User(Struct, tag_field="role", tag="user", gc=False, forbid_unknown_fields=True):
    """What a person says."""

    content: str | list[TextPart | ImagePart]


class System(Struct, tag_field="role", tag="system", gc=False, forbid_unknown_fields=True):
    """Instructions."""

    content: str


class Developer(Struct, tag_field="role", tag="developer", gc=False, forbid_unknown_fields=True):
    """Instructions of the program."""

    content: str


class Tool(Struct, tag_field="role", tag="tool", gc=False, forbid_unknown_fields=True):
    """The result of a call."""

    content: str
    tool_call_id: str


class Assistant(Struct, tag_field="role", tag="assistant", gc=False, forbid_unknown_fields=True):
    """What the model said, in a history or as an answer."""

    annotations: list[Any] | UnsetType | None = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[Call] | UnsetType | None = UNSET


class Body(Struct, forbid_unknown_fields=True):
    """A request of common messages, with the options that are known."""

    messages: "list[Turn]"
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


_OPTIONS = Body.__struct_fields__[1:]

Turn = User | System | Developer | Tool | Assistant
"""A message of a request."""


def read_user(content: str | list[TextPart | ImagePart]) -> Found | None:
    """The blocks of what a person says; None if the long road has to be taken."""
    if isinstance(content, str):
        return (_make_text(content),), {}
    blocks: list[ContentBlock] = []
    for part in content:
        if type(part) is TextPart:
            blocks.append(_make_text(part.text))
        elif (image := _read_image(part)) is not None:
            blocks.append(image)
        else:
            return None
    return tuple(blocks), {"parts": True}


def _read_image(part: TextPart | ImagePart) -> ImageBlock | None:
    """An image that is in the request itself."""
    if type(part) is not ImagePart:
        return None
    head, comma, data = part.image_url.url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        return None
    media_type = head[5:-7]
    return None if ";" in media_type else _make_image(_make_source("base64", data), media_type)


def read_tool(turn: Tool, ids: CallIds) -> Found | None:
    """The result of a call."""
    theirs, text = turn.tool_call_id, turn.content
    if not theirs or not text:
        return None
    ours = ids.of_result(theirs)
    return (_make_result(ours, (_make_text(text),)),), {"ids": {ours: theirs}}


def read_assistant(said: Assistant, ids: CallIds, issuer: str) -> Found | None:
    """The blocks of what the model said; None if the long road has to be taken."""
    if said.annotations or (said.reasoning and said.reasoning_content):
        return None
    if not _are_usual(said.tool_calls):
        return None
    blocks: list[ContentBlock] = []
    spelling: dict[str, Any] = {}
    thoughts = _read_thoughts(said)
    if thoughts:
        name, text = thoughts
        blocks.append(_make_thinking(text, issuer=issuer))
        spelling["thoughts"] = {name: True}
    if said.content:
        blocks.append(_make_text(said.content))
    if said.tool_calls:
        _read_calls(said.tool_calls, ids, blocks, spelling)
    _spell_keys(said, spelling)
    return tuple(blocks), spelling


def _are_usual(calls: list[Call] | UnsetType | None) -> bool:
    if not calls:
        return calls is UNSET
    return all(call.id and call.function.name for call in calls)


def _read_thoughts(said: Assistant) -> tuple[str, str] | None:
    for name in ("reasoning_content", "reasoning"):
        text = getattr(said, name)
        if text:
            return name, text
    return None


def _read_calls(
    calls: list[Call], ids: CallIds, blocks: list[ContentBlock], spelling: dict[str, Any]
) -> None:
    theirs: dict[str, str] = {}
    odd: Wire = {}
    for call in calls:
        function = call.function
        own, text = call.id, function.arguments
        ours = ids.of_call(own)
        theirs[ours] = own
        arguments, invalid = read_arguments(text)
        blocks.append(_make_call(ours, function.name, arguments, invalid))
        if write_json(arguments) != text.encode():
            wire = {"arguments": text, "name": function.name}
            odd[ours] = {"function": wire, "id": own, "type": "function"}
    spelling["ids"] = theirs
    if odd:
        spelling["calls"] = odd


def _spell_keys(said: Assistant, spelling: dict[str, Any]) -> None:
    """Remember the keys that say nothing, and those that are not there."""
    keys: Wire = {}
    if said.content is UNSET:
        spelling["absent"] = ["content"]
    elif not said.content and said.content != (None if said.tool_calls else ""):
        keys["content"] = said.content
    for name in ("annotations", "reasoning", "reasoning_content", "refusal"):
        value = getattr(said, name)
        if value is not UNSET and not value:
            keys[name] = value
    if keys:
        spelling["keys"] = keys
