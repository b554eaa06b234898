"""Output items of OpenAI Responses: a run of items of the model is one canonical message."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Raw

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
from metis.wire.json_access import Wire, maybe_list, maybe_text
from metis.wire.openai_responses.blocks import (
    AnyThinking,
    decode_part,
    decode_reasoning_item,
    encode_foreign_thinking,
    encode_reasoning_item,
    opaque_block,
    part_of,
)
from metis.wire.openai_responses.tool_calls import (
    CUSTOM,
    FUNCTION,
    CallIndex,
    decode_call,
    encode_call,
)
from metis.wire.openai_responses.types import Part
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import CallIds

MessageForm = Mapping[str, Any]
"""How one message of the wire was spelled."""
STRING_FORM: MessageForm = {}
"""The entry of a message that is a role and a string."""
TYPED_FORM: MessageForm = {"keys": {"type": "message"}}
"""The entry of a message that says what it is, as all are that were not spelled here."""

_OWN_KEYS = frozenset({"role", "content"})
_TEXT = "output_text"
_KEYS_OF_TEXT = 3
_make_text = raw_constructor(TextBlock)


def decode_output_message(wire: Wire) -> tuple[list[TextBlock], MessageForm] | None:
    """The texts of a message, and how it was spelled; None if it holds what is no text."""
    keys = {key: value for key, value in wire.items() if key not in _OWN_KEYS}
    content = wire.get("content")
    if isinstance(content, str):
        return [_make_text(content)], {"keys": keys} if keys else STRING_FORM
    return _decode_parts(maybe_list(content), keys)


def _decode_parts(
    parts: Sequence[Any], keys: dict[str, Any]
) -> tuple[list[TextBlock], MessageForm] | None:
    texts: list[TextBlock] = []
    extras: list[Any] = []
    for wire in parts:
        quick = _decode_plain_part(wire)
        if quick is not None:
            texts.append(quick[0])
            extras.append(quick[1])
            continue
        part = part_of(wire)
        block = None if part is None else decode_part(part, "")
        if part is None or not isinstance(block, TextBlock):
            return None
        extra = _part_form(part)
        if _encode_part(block, extra) != wire:
            extra = {"wire": wire}
        texts.append(block)
        extras.append(extra)
    return (texts, {"keys": keys, "parts": extras}) if texts else None


def _decode_plain_part(wire: Any) -> tuple[TextBlock, dict[str, Any]] | None:
    """A part of text without citations, as most are; None asks for a longer look."""
    if type(wire) is not dict or wire.get("annotations") != [] or wire.get("type") != _TEXT:  # pyright: ignore[reportUnknownMemberType] - JSON
        return None
    part: Wire = wire  # pyright: ignore[reportUnknownVariableType] - JSON
    text = part.get("text")
    if type(text) is not str:
        return None
    if len(part) == _KEYS_OF_TEXT:
        return _make_text(text), {}
    if len(part) == _KEYS_OF_TEXT + 1 and type(part.get("logprobs")) is list:
        return _make_text(text), {"logprobs": part["logprobs"]}
    return None


def _part_form(part: Part) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if part.type != _TEXT:
        extra["type"] = part.type
    elif part.annotations is UNSET:
        extra["bare"] = True
    if part.logprobs is not UNSET:
        extra["logprobs"] = part.logprobs
    return extra


def encode_foreign_citation(citation: Citation) -> Wire | None:
    """The annotation for a page that another provider cited."""
    if citation.url is None:
        return None
    return {
        "type": "url_citation",
        "start_index": citation.start or 0,
        "end_index": citation.end or 0,
        "title": citation.title or "",
        "url": citation.url,
    }


def _is_native_citation(citation: Citation) -> bool:
    """Whether a citation is in the words of this protocol; others of the name nest the page."""
    return citation.raw is not None and "url" in citation.raw and "type" in citation.raw


def _encode_part(block: TextBlock, extra: Mapping[str, Any]) -> Wire:
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        part = part_of(whole)
        if part is not None and decode_part(part, "") == block:
            return whole
        extra = {}
    kind = extra.get("type", _TEXT)
    if kind == "refusal":
        return {"type": kind, "refusal": block.text}
    wire: Wire = {"type": kind, "text": block.text}
    if kind == _TEXT and not (extra.get("bare") and not block.citations):
        wire["annotations"] = [note.raw for note in block.citations if note.raw is not None]
    if "logprobs" in extra:
        wire["logprobs"] = extra["logprobs"]
    return wire


def encode_output_message(texts: Sequence[TextBlock], entry: MessageForm) -> Wire:
    """The message for texts that were spelled like this."""
    wire: Wire = {"role": "assistant", **entry.get("keys", {})}
    extras: Sequence[Any] | None = entry.get("parts")
    if extras is None:
        wire["content"] = texts[0].text
    else:
        wire["content"] = [_encode_part(*each) for each in zip(texts, extras, strict=True)]
    return wire


def encode_foreign_message(block: TextBlock, item_id: str) -> Wire:
    """A text of another provider as a message of this one."""
    part: Wire = {
        "type": _TEXT,
        "text": block.text,
        "annotations": [note.raw for note in block.citations if _is_native_citation(note)],
        "logprobs": [],
    }
    return {
        "type": "message",
        "id": item_id,
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def text_count(entry: MessageForm) -> int:
    """How many texts a message holds."""
    parts = entry.get("parts")
    return 1 if parts is None else len(parts)


def is_refused(entries: Sequence[MessageForm]) -> bool:
    """Whether a model declined to answer in one of its messages."""
    return any(
        extra.get("type") == "refusal" for entry in entries for extra in entry.get("parts", ())
    )


ItemPurpose = Literal["history", "echo", "stateless", "answer"]
"""Why items are written: a client's own history, an answer sent back, the same to a provider that
keeps nothing, or an answer to a client."""

STRING_RUN: Mapping[str, Any] = {"texts": [STRING_FORM]}
"""How a run was spelled that is one message, a role and a string."""

_IMAGE_CALL = "image_generation_call"
_PNG = "png"


class OutputRun:
    """Items of the model while they are read."""

    def __init__(self, ids: CallIds, issuer: str) -> None:
        self.blocks: list[ContentBlock] = []
        self.texts: list[MessageForm] = []
        self._issuer = issuer
        self._call_ids = ids
        self._ids: dict[str, str] = {}
        self._calls: dict[str, Any] = {}
        self._thoughts: dict[str, Any] = {}
        self._pictures: dict[str, Any] = {}

    def say(self, words: str, entry: MessageForm = STRING_FORM) -> None:
        """Take a message that is a role and a string, with its type or without."""
        self.blocks.append(_make_text(words))
        self.texts.append(entry)

    def take(self, wire: Wire) -> None:
        """Take an item of any kind."""
        kind = wire.get("type")
        if kind in ("message", None) and wire.get("role") == "assistant":
            said = decode_output_message(wire)
            if said is not None:
                self._add_said(*said)
                return
        elif kind == "reasoning":
            thought = decode_reasoning_item(wire, self._issuer)
            if thought is not None:
                self._add_thought(*thought)
                return
        else:
            call = decode_call(wire, self._call_ids)
            if call is not None:
                self._add_call(*call)
                return
        self._add_whole(wire)

    def spelling(self) -> dict[str, Any]:
        """How the run was spelled."""
        found: dict[str, Any] = {}
        if self._ids:
            found["ids"] = self._ids
        if self._calls:
            found["calls"] = self._calls
        if self._thoughts:
            found["thoughts"] = self._thoughts
        if self._pictures:
            found["pictures"] = self._pictures
        if any(entry != TYPED_FORM for entry in self.texts):
            found["texts"] = self.texts
        return found

    def _add_call(self, block: ToolUseBlock, theirs: str, extra: dict[str, Any]) -> None:
        self.blocks.append(block)
        if theirs:
            self._ids[block.id] = theirs
        if extra:
            self._calls[block.id] = extra

    def _add_thought(self, block: AnyThinking, extra: dict[str, Any]) -> None:
        if extra:
            self._thoughts[_thought_key(block, self.blocks)] = extra
        self.blocks.append(block)

    def _add_said(self, texts: Sequence[TextBlock], entry: MessageForm) -> None:
        self.blocks += texts
        self.texts.append(entry)

    def _add_whole(self, wire: Wire) -> None:
        picture = _decode_image(wire, self._issuer)
        if picture is None:
            self.blocks.append(opaque_block(wire, self._issuer))
            return
        self.blocks.append(picture)
        kept = {key: value for key, value in wire.items() if key not in ("type", "id", "result")}
        self._pictures[str(picture.id)] = kept


def _thought_key(block: AnyThinking, before: Sequence[ContentBlock]) -> str:
    """The name of a thought in its run: the provider's, or its number if that is no name."""
    own, others = block.id, [each for each in before if isinstance(each, AnyThinking)]
    if own and all(each.id != own for each in others):
        return own
    return f"#{len(others)}"


def _decode_image(wire: Wire, issuer: str) -> ArtifactBlock | None:
    """A picture that the model made; one that is not there yet, or no more, is only its item."""
    own, data = wire.get("id"), wire.get("result")
    if wire.get("type") != _IMAGE_CALL or not isinstance(own, str) or not isinstance(data, str):
        return None
    if not data or not own:
        return None
    media_type = f"image/{maybe_text(wire.get('output_format')) or _PNG}"
    return ArtifactBlock(MediaSource("base64", data, issuer), media_type, id=own)


def encode_items(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    calls: CallIndex,
    form: ItemPurpose = "history",
    message_id: str = "",
) -> list[Any]:
    """The items for the blocks of a message of the model."""
    return list(_iter_items(content, spelling, calls, form, message_id))


def _iter_items(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    calls: CallIndex,
    form: ItemPurpose,
    message_id: str,
) -> Iterator[Any]:
    entries = _message_forms(content, spelling)
    extras: Mapping[str, Any] = spelling.get("calls") or EMPTY
    is_foreign = form == "answer" and not spelling
    skipped = 0
    for index, block in enumerate(content):
        if skipped:
            skipped -= 1
        elif type(block) is TextBlock:
            if is_foreign:
                yield encode_foreign_message(block, item_id("msg", message_id, index))
                continue
            entry = next(entries, TYPED_FORM)
            skipped = text_count(entry) - 1
            texts = content[index : index + skipped + 1]
            yield _for_purpose(encode_output_message(texts, entry), form)  # pyright: ignore[reportArgumentType] - `_entries` has seen that they are texts
        elif type(block) is ToolUseBlock:
            wire = encode_call(block, extras.get(block.id) or EMPTY, calls.wire_id(block.id))
            yield _foreign_call(wire, block) if is_foreign else _for_purpose(wire, form)
        else:
            own = item_id("rs", message_id, index) if is_foreign else None
            other = _encode_other(block, spelling, content[:index], own)
            if isinstance(other, Raw):
                yield other
            elif other is not None:
                yield _for_purpose(other, form)


def item_id(kind: str, message_id: str, index: int) -> str:
    """The id of an item that we make up for a client."""
    return f"{kind}_{message_id}_{index}"


def _foreign_call(wire: Wire, block: ToolUseBlock) -> Wire:
    """A call of another provider as a client expects it."""
    return {**wire, "id": block.id.replace("tu_", "fc_", 1), "status": "completed"}


def _encode_other(
    block: ContentBlock,
    spelling: Mapping[str, Any],
    before: Sequence[ContentBlock],
    own: str | None,
) -> Any:
    """The item for what is neither text nor call; `own` is the id of one that is foreign here."""
    match block:
        case ThinkingBlock() | RedactedThinkingBlock():
            if own is not None:
                return encode_foreign_thinking(block, own)
            extras: Mapping[str, Any] = spelling.get("thoughts") or EMPTY
            return encode_reasoning_item(block, extras.get(_thought_key(block, before)) or EMPTY)
        case ArtifactBlock():
            return encode_image(block, spelling, own)
        case OpaqueBlock():
            return block.raw if own is None else None
        case _:
            return None


def encode_image(block: ArtifactBlock, spelling: Mapping[str, Any], own: str | None) -> Wire | None:
    """The item for a picture; None if it is none, or does not lie here."""
    name = block.id if own is None else own.replace("rs", "ig", 1)
    if block.source.kind != "base64" or name is None or not block.media_type.startswith("image/"):
        return None
    pictures: Mapping[str, Any] = spelling.get("pictures") or EMPTY
    kept = pictures.get(name, {"status": "completed"})
    return {"type": _IMAGE_CALL, "id": name, "result": block.source.data, **kept}


def _message_forms(
    content: Sequence[ContentBlock], spelling: Mapping[str, Any]
) -> Iterator[MessageForm]:
    """How the messages of a run were spelled, if it still holds as many texts as it did."""
    entries: Sequence[MessageForm] | None = spelling.get("texts")
    if not entries:
        return iter(())
    sizes = [text_count(entry) for entry in entries]
    return iter(entries) if _fits_sizes(content, sizes) else iter(())


def _fits_sizes(content: Sequence[ContentBlock], sizes: Sequence[int]) -> bool:
    """Whether the texts among blocks come in runs that can be cut into these sizes."""
    left = list(sizes)
    open_run = 0
    for block in content:
        if type(block) is not TextBlock:
            if open_run:
                return False
        elif open_run:
            open_run -= 1
        elif left:
            open_run = left.pop(0) - 1
        else:
            return False
    return not left and not open_run


def _for_purpose(wire: Wire, form: ItemPurpose) -> Wire:
    """An item for where it goes: an answer that is sent back says nothing with null."""
    if form in ("history", "answer"):
        return wire
    if form == "stateless" and wire.get("type") in _KINDS_WITH_ID:
        # A provider that keeps nothing looks for ids in vain (T07).
        wire = {key: value for key, value in wire.items() if key != "id"}
    if wire.get("type") == "reasoning":
        return {key: value for key, value in wire.items() if value is not None}
    return wire


_KINDS_WITH_ID = frozenset({"message", "reasoning", FUNCTION, CUSTOM})
