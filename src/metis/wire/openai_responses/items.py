"""Output items of OpenAI Responses: a run of items of the model is one canonical message.

The items of a run stay together and in order, because OpenAI rejects a reasoning item without the
item that followed it, and vice versa (T62). Data of an item that its block does not contain is
stored in the original form: for calls by tool_use_id, for thinking and images by the provider's id,
for messages in order.

An output message may have several parts, each of which is a block. Its original form contains the
keys of the message, and the data of each part that is not in its block. An empty form means a role
and a string. Text of another provider is encoded with the type `message`, which OpenAI does not
require but other servers of the protocol do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw

from metis.canonical.blocks import (
    ArtifactBlock,
    Citation,
    ContentBlock,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.value import raw_constructor
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.blocks import (
    AnyThinking,
    OriginalForm,
    decode_part,
    decode_reasoning_item,
    encode_foreign_thinking,
    encode_reasoning_item,
    opaque_block,
)
from metis.wire.openai_responses.message_forms import (
    STRING_FORM,
    TYPED_FORM,
    MessageForm,
    message_forms,
    text_count,
    text_mark,
)
from metis.wire.openai_responses.tool_calls import (
    CUSTOM,
    FUNCTION,
    CallIndex,
    decode_call,
    encode_call,
)
from metis.wire.openai_values import encode_page
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import CallIds

ItemPurpose = Literal["history", "echo", "stateless", "response"]
"""The purpose of encoding items: the history of a client's request (`history`), a response that is
sent back to a provider that stores it (`echo`) or does not store it (`stateless`), or a response
for a client (`response`)."""

STRING_RUN: Mapping[str, Any] = {"texts": [STRING_FORM]}
"""The original form of a run of one message with a role and a string."""

_TEXT = "output_text"
_PARAGRAPH = "\n\n"
_IMAGE_CALL = "image_generation_call"
_PLAIN = {"type", "id", "role", "content", "status"}
_PLAIN_PART: Wire = {"type": _TEXT, "annotations": [], "logprobs": []}
_TYPES_WITH_ID = frozenset({"message", "reasoning", FUNCTION, CUSTOM})
_new_text = raw_constructor(TextBlock)


def _decode_output_message(wire: Wire) -> tuple[list[TextBlock], MessageForm] | None:
    """Decode a message into its texts and its original form; None if a part is not text."""
    keys = {key: value for key, value in wire.items() if key not in ("role", "content")}
    content = wire.get("content")
    if isinstance(content, str):
        return [_new_text(content)], {"keys": keys} if keys else STRING_FORM
    texts: list[TextBlock] = []
    part_forms: list[Any] = []
    for wire_part in maybe_list(content):
        decoded = _decode_output_part(wire_part)
        if decoded is None:
            return None
        texts.append(decoded[0])
        part_forms.append(decoded[1])
    return (texts, {"keys": keys, "parts": part_forms}) if texts else None


def _decode_output_part(wire: Any) -> tuple[TextBlock, OriginalForm] | None:
    block = decode_part(wire, "")
    if not isinstance(block, TextBlock):
        return None
    form: OriginalForm = {}
    if wire["type"] != _TEXT:
        form["type"] = wire["type"]
    elif "annotations" not in wire:
        form["bare"] = True
    if "logprobs" in wire:
        form["logprobs"] = wire["logprobs"]
    return block, form if _encode_output_part(block, form) == wire else {"wire": wire}


def _encode_output_part(block: TextBlock, form: Mapping[str, Any]) -> Wire:
    """Encode a text as a part of an output message; its original form is used if unchanged."""
    original: Wire | None = form.get("wire")
    if original is not None:
        if decode_part(original, "") == block:
            return original
        form = {}
    kind = form.get("type", _TEXT)
    if kind == "refusal":
        return {"type": kind, "refusal": block.text}
    wire: Wire = {"type": kind, "text": block.text}
    if kind == _TEXT and not (form.get("bare") and not block.citations):
        wire["annotations"] = [
            annotation.raw for annotation in block.citations if annotation.raw is not None
        ]
    if "logprobs" in form:
        wire["logprobs"] = form["logprobs"]
    return wire


def _encode_output_message(texts: Sequence[TextBlock], form: MessageForm) -> Wire:
    wire: Wire = {"role": "assistant", **form.get("keys", {})}
    part_forms: Sequence[Any] | None = form.get("parts")
    if part_forms is None:
        wire["content"] = texts[0].text
    else:
        parts = zip(texts, part_forms, strict=True)
        wire["content"] = [_encode_output_part(text, part_form) for text, part_form in parts]
    return wire


def encode_foreign_message(block: TextBlock, item_id: str) -> Wire:
    """Encode a text of another provider as an output message."""
    annotations = (annotation.raw for annotation in block.citations if annotation.raw is not None)
    part: Wire = {
        "type": _TEXT,
        "text": block.text,
        # Annotations of Chat Completions have the same type but nest the page: left out.
        "annotations": [
            annotation for annotation in annotations if "url" in annotation and "type" in annotation
        ],
        "logprobs": [],
    }
    return {
        "type": "message",
        "id": item_id,
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def encode_foreign_citation(citation: Citation) -> Wire | None:
    """Encode another provider's citation as an annotation; None if it cites no web page."""
    page = encode_page(citation)
    return None if page is None else {"type": "url_citation", **page}


class OutputRun:
    """A run of items of the model while it is decoded."""

    def __init__(self, ids: CallIds, issuer: str) -> None:
        self.blocks: list[ContentBlock] = []
        self.message_forms: list[MessageForm] = []
        self._issuer = issuer
        self._ids = ids
        self._wire_ids: dict[str, str] = {}
        self._call_forms: dict[str, Any] = {}
        self._thinking_forms: dict[str, Any] = {}
        # Most runs have no thinking, and a history has hundreds of runs.
        self._thinking_keys: _ThinkingKeys | None = None
        self._image_forms: dict[str, Any] = {}

    @property
    def has_refusal(self) -> bool:
        """Whether one of the messages contains a refusal."""
        parts = (part for form in self.message_forms for part in form.get("parts", ()))
        return any(part.get("type") == "refusal" for part in parts)

    def add_text(self, text: str, form: MessageForm = STRING_FORM) -> None:
        """Add a message with a role and a string, with or without a type."""
        self.blocks.append(_new_text(text))
        self.message_forms.append(form)

    def add(self, wire: Wire) -> None:
        """Add an item of any type."""
        kind = wire.get("type")
        if kind in ("message", None) and wire.get("role") == "assistant":
            message = _decode_output_message(wire)
            if message is not None:
                self.blocks += message[0]
                self.message_forms.append(message[1])
                return
        elif kind == "reasoning":
            item = decode_reasoning_item(wire, self._issuer)
            if item is not None:
                block, form = item
                if self._thinking_keys is None:
                    self._thinking_keys = _ThinkingKeys()
                key = self._thinking_keys.add(block)
                if form:
                    self._thinking_forms[key] = form
                self.blocks.append(block)
                return
        else:
            call = decode_call(wire, self._ids)
            if call is not None:
                self._add_call(*call)
                return
        self._add_other(wire)

    def original_form(self) -> OriginalForm:
        """Return the original form of the run."""
        stored: OriginalForm = {}
        if self._wire_ids:
            stored["ids"] = self._wire_ids
        if self._call_forms:
            stored["calls"] = self._call_forms
        if self._thinking_forms:
            stored["thoughts"] = self._thinking_forms
        if self._image_forms:
            stored["pictures"] = self._image_forms
        # A typed message needs no form, because it is the default encoding of a text.
        if any(form != TYPED_FORM for form in self.message_forms):
            stored["texts"] = self.message_forms
            if self.message_forms != [STRING_FORM]:
                stored["marks"] = [
                    text_mark(block) for block in self.blocks if type(block) is TextBlock
                ]
        return stored

    def _add_call(self, block: ToolUseBlock, wire_id: str, form: OriginalForm) -> None:
        self.blocks.append(block)
        if wire_id:
            self._wire_ids[block.id] = wire_id
        if form:
            self._call_forms[block.id] = form

    def _add_other(self, wire: Wire) -> None:
        image = _decode_image(wire, self._issuer)
        if image is None:
            self.blocks.append(opaque_block(wire, self._issuer))
            return
        self.blocks.append(image)
        keys = {key: value for key, value in wire.items() if key not in ("type", "id", "result")}
        self._image_forms[str(image.id)] = keys


class _ThinkingKeys:
    """Assigns a key to each thinking block of a run: its id, or its number if that is repeated."""

    def __init__(self) -> None:
        self._count = 0
        self._used: set[str] = set()

    def add(self, block: AnyThinking) -> str:
        """Return the key of the next thinking block."""
        number, block_id = self._count, block.id
        self._count += 1
        # A missing or repeated id does not identify the block.
        if not block_id or block_id in self._used:
            return f"#{number}"
        self._used.add(block_id)
        return block_id


def _decode_image(wire: Wire, issuer: str) -> ArtifactBlock | None:
    """Decode a generated image; None for other items and for images without data."""
    item_id, data = wire.get("id"), wire.get("result")
    if wire.get("type") != _IMAGE_CALL or not isinstance(item_id, str) or not isinstance(data, str):
        return None
    if not data or not item_id:
        return None
    media_type = f"image/{maybe_text(wire.get('output_format')) or 'png'}"
    return ArtifactBlock(MediaSource("base64", data, issuer), media_type, id=item_id)


def encode_items(
    content: Sequence[ContentBlock],
    form: Mapping[str, Any],
    calls: CallIndex,
    purpose: ItemPurpose = "history",
    message_id: str = "",
) -> Iterator[Any]:
    """Yield the items for the blocks of an assistant message."""
    forms = message_forms(content, form)
    call_forms: Mapping[str, Any] = form.get("calls") or EMPTY
    is_foreign = purpose == "response" and not form
    thinking_keys = _ThinkingKeys()
    skipped = 0
    for index, block in enumerate(content):
        if skipped:
            skipped -= 1
        elif type(block) is TextBlock:
            if is_foreign:
                yield encode_foreign_message(block, new_item_id("msg", message_id, index))
                continue
            # All texts of one message are encoded with the first of them.
            message_form = next(forms, TYPED_FORM)
            skipped = text_count(message_form) - 1
            texts = content[index : index + skipped + 1]
            yield _for_purpose(_encode_output_message(texts, message_form), purpose)  # pyright: ignore[reportArgumentType] - `_message_forms` has checked that they are texts
        elif type(block) is ToolUseBlock:
            if is_foreign:
                wire = calls.encode_foreign_call(block)
            else:
                call_id = calls.wire_id(block.id)
                wire = encode_call(block, call_forms.get(block.id) or EMPTY, call_id)
            yield _for_purpose(_with_broken_arguments(wire, block, purpose), purpose)
        else:
            foreign_id = new_item_id("rs", message_id, index) if is_foreign else None
            item = _encode_other(block, form, thinking_keys, foreign_id)
            if isinstance(item, Raw):
                yield item
            elif item is not None:
                yield _for_purpose(item, purpose)


def _with_broken_arguments(wire: Wire, block: ToolUseBlock, purpose: ItemPurpose) -> Wire:
    """Return a call of a response with its invalid arguments unchanged, marked as incomplete."""
    # A client would run the call if its arguments were an empty object (T161).
    invalid = block.invalid
    if purpose != "response" or invalid is None or wire.get("type") != FUNCTION:
        return wire
    if wire.get("arguments") == invalid.raw:
        return wire
    return {**wire, "arguments": invalid.raw, "status": "incomplete"}


def new_item_id(prefix: str, message_id: str, index: int) -> str:
    """Return an item id for a block of another provider."""
    return f"{prefix}_{message_id}_{index}"


def _encode_other(
    block: ContentBlock,
    form: Mapping[str, Any],
    thinking_keys: _ThinkingKeys,
    foreign_id: str | None,
) -> Any:
    """Encode a block other than text or call; `foreign_id` is the new id of another provider's."""
    match block:
        case ThinkingBlock() | RedactedThinkingBlock():
            if foreign_id is not None:
                return encode_foreign_thinking(block, foreign_id)
            forms: Mapping[str, Any] = form.get("thoughts") or EMPTY
            return encode_reasoning_item(block, forms.get(thinking_keys.add(block)) or EMPTY)
        case ArtifactBlock():
            return encode_image(block, form, foreign_id)
        case OpaqueBlock():
            # Clients reject an item of another protocol.
            return block.raw if foreign_id is None else None
        case _:
            return None


def encode_image(
    block: ArtifactBlock, form: Mapping[str, Any], foreign_id: str | None
) -> Wire | None:
    """Encode a generated image; None for other artifacts and for images without data."""
    item_id = block.id if foreign_id is None else foreign_id.replace("rs", "ig", 1)
    is_image = block.source.kind == "base64" and block.media_type.startswith("image/")
    if item_id is None or not is_image:
        return None
    forms: Mapping[str, Any] = form.get("pictures") or EMPTY
    kind = block.media_type.partition("/")[2]
    new_keys = {"status": "completed", **({} if kind == "png" else {"output_format": kind})}
    keys = forms.get(item_id, new_keys)
    return {"type": _IMAGE_CALL, "id": item_id, "result": block.source.data, **keys}


def _for_purpose(wire: Wire, purpose: ItemPurpose) -> Wire:
    if purpose in ("history", "response"):
        return wire
    if purpose == "stateless" and maybe_text(wire.get("type")) in _TYPES_WITH_ID:
        # With `store: false` OpenAI rejects ids of its own items with 400 or 404 (T07).
        wire = {key: value for key, value in wire.items() if key != "id"}
    if wire.get("type") == "reasoning":
        # OpenAI rejects null values of its own responses, such as `encrypted_content`, in requests.
        return {key: value for key, value in wire.items() if value is not None}
    return wire


def is_plain_item(wire: Wire) -> bool:
    """Whether a message contains nothing beyond the texts of its deltas."""
    if (
        wire.get("type") != "message"
        or wire.get("status") != "completed"
        or len(wire) != len(_PLAIN)
    ):
        return False
    return all(
        maybe_object(part) == {**_PLAIN_PART, "text": maybe_object(part).get("text")}
        for part in maybe_list(wire.get("content"))
    )
