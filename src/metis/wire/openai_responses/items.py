"""What a model said, thought, made and called: a run of items, and one message of ours.

The items of a run stay together and in order, because a thought and the item that follows it are
refused without each other (T62). What an item says beyond its block is kept beside the blocks: of
calls by our id, of thoughts and pictures by the provider's, of messages in their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.value import made
from metis.wire.openai_responses.calls import (
    CUSTOM,
    FUNCTION,
    Calls,
    decode_call,
    encode_call,
)
from metis.wire.openai_responses.parts import opaque
from metis.wire.openai_responses.said import (
    EASY,
    TYPED,
    Entry,
    decode_said,
    encode_answered,
    encode_said,
    size_of,
)
from metis.wire.openai_responses.thoughts import (
    Thought,
    decode_thought,
    encode_foreign,
    encode_thought,
)
from metis.wire.shape import Wire, maybe_text
from metis.wire.spelling import NOTHING
from metis.wire.tool_ids import CallIds

Form = Literal["history", "echo", "stateless", "answer"]
"""Why items are written: a client's own history, an answer sent back, the same to a provider that
keeps nothing, or an answer to a client."""

EASY_RUN: Mapping[str, Any] = {"texts": [EASY]}
"""How a run was spelled that is one message, a role and a string."""

_PICTURE = "image_generation_call"
_PNG = "png"
_make_text = made(TextBlock)


class Run:
    """Items of the model while they are read."""

    def __init__(self, ids: CallIds, issuer: str) -> None:
        self.blocks: list[ContentBlock] = []
        self.texts: list[Entry] = []
        self._issuer = issuer
        self._call_ids = ids
        self._ids: dict[str, str] = {}
        self._calls: dict[str, Any] = {}
        self._thoughts: dict[str, Any] = {}
        self._pictures: dict[str, Any] = {}

    def say(self, words: str, entry: Entry = EASY) -> None:
        """Take a message that is a role and a string, with its type or without."""
        self.blocks.append(_make_text(words))
        self.texts.append(entry)

    def take(self, wire: Wire) -> None:
        """Take an item of any kind."""
        kind = wire.get("type")
        if kind in ("message", None) and wire.get("role") == "assistant":
            said = decode_said(wire)
            if said is not None:
                self._add_said(*said)
                return
        elif kind == "reasoning":
            thought = decode_thought(wire, self._issuer)
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
        if any(entry != TYPED for entry in self.texts):
            found["texts"] = self.texts
        return found

    def _add_call(self, block: ToolUseBlock, theirs: str, extra: dict[str, Any]) -> None:
        self.blocks.append(block)
        if theirs:
            self._ids[block.id] = theirs
        if extra:
            self._calls[block.id] = extra

    def _add_thought(self, block: Thought, extra: dict[str, Any]) -> None:
        if extra:
            self._thoughts[_thought_key(block, self.blocks)] = extra
        self.blocks.append(block)

    def _add_said(self, texts: Sequence[TextBlock], entry: Entry) -> None:
        self.blocks += texts
        self.texts.append(entry)

    def _add_whole(self, wire: Wire) -> None:
        picture = _picture(wire, self._issuer)
        if picture is None:
            self.blocks.append(opaque(wire, self._issuer))
            return
        self.blocks.append(picture)
        kept = {key: value for key, value in wire.items() if key not in ("type", "id", "result")}
        self._pictures[str(picture.id)] = kept


def _thought_key(block: Thought, before: Sequence[ContentBlock]) -> str:
    """The name of a thought in its run: the provider's, or its number if that is no name."""
    own, others = block.id, [each for each in before if isinstance(each, Thought)]
    if own and all(each.id != own for each in others):
        return own
    return f"#{len(others)}"


def _picture(wire: Wire, issuer: str) -> ArtifactBlock | None:
    """A picture that the model made; one that is not there yet, or no more, is only its item."""
    own, data = wire.get("id"), wire.get("result")
    if wire.get("type") != _PICTURE or not isinstance(own, str) or not isinstance(data, str):
        return None
    if not data or not own:
        return None
    media_type = f"image/{maybe_text(wire.get('output_format')) or _PNG}"
    return ArtifactBlock(MediaSource("base64", data, issuer), media_type, id=own)


def encode_items(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    calls: Calls,
    form: Form = "history",
    message_id: str = "",
) -> list[Any]:
    """The items for the blocks of a message of the model."""
    return list(_encode(content, spelling, calls, form, message_id))


def _encode(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    calls: Calls,
    form: Form,
    message_id: str,
) -> Iterator[Any]:
    entries = _entries(content, spelling)
    extras: Mapping[str, Any] = spelling.get("calls") or NOTHING
    is_foreign = form == "answer" and not spelling
    skipped = 0
    for index, block in enumerate(content):
        if skipped:
            skipped -= 1
        elif type(block) is TextBlock:
            if is_foreign:
                yield encode_answered(block, item_id("msg", message_id, index))
                continue
            entry = next(entries, TYPED)
            skipped = size_of(entry) - 1
            texts = content[index : index + skipped + 1]
            yield _shown(encode_said(texts, entry), form)  # pyright: ignore[reportArgumentType] - `_entries` has seen that they are texts
        elif type(block) is ToolUseBlock:
            wire = encode_call(block, extras.get(block.id) or NOTHING, calls.wire_id(block.id))
            yield _named(wire, block) if is_foreign else _shown(wire, form)
        else:
            own = item_id("rs", message_id, index) if is_foreign else None
            other = _encode_other(block, spelling, content[:index], own)
            if isinstance(other, Raw):
                yield other
            elif other is not None:
                yield _shown(other, form)


def item_id(kind: str, message_id: str, index: int) -> str:
    """The id of an item that we make up for a client."""
    return f"{kind}_{message_id}_{index}"


def _named(wire: Wire, block: ToolUseBlock) -> Wire:
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
                return encode_foreign(block, own)
            extras: Mapping[str, Any] = spelling.get("thoughts") or NOTHING
            return encode_thought(block, extras.get(_thought_key(block, before)) or NOTHING)
        case ArtifactBlock():
            return encode_picture(block, spelling, own)
        case OpaqueBlock():
            return block.raw if own is None else None
        case _:
            return None


def encode_picture(
    block: ArtifactBlock, spelling: Mapping[str, Any], own: str | None
) -> Wire | None:
    """The item for a picture; None if it is none, or does not lie here."""
    name = block.id if own is None else own.replace("rs", "ig", 1)
    if block.source.kind != "base64" or name is None or not block.media_type.startswith("image/"):
        return None
    pictures: Mapping[str, Any] = spelling.get("pictures") or NOTHING
    kept = pictures.get(name, {"status": "completed"})
    return {"type": _PICTURE, "id": name, "result": block.source.data, **kept}


def _entries(content: Sequence[ContentBlock], spelling: Mapping[str, Any]) -> Iterator[Entry]:
    """How the messages of a run were spelled, if it still holds as many texts as it did."""
    entries: Sequence[Entry] | None = spelling.get("texts")
    if not entries:
        return iter(())
    sizes = [size_of(entry) for entry in entries]
    return iter(entries) if _runs(content, sizes) else iter(())


def _runs(content: Sequence[ContentBlock], sizes: Sequence[int]) -> bool:
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


def _shown(wire: Wire, form: Form) -> Wire:
    """An item for where it goes: an answer that is sent back says nothing with null."""
    if form in ("history", "answer"):
        return wire
    if form == "stateless" and wire.get("type") in _NAMED:
        # A provider that keeps nothing looks for ids in vain (T07).
        wire = {key: value for key, value in wire.items() if key != "id"}
    if wire.get("type") == "reasoning":
        return {key: value for key, value in wire.items() if value is not None}
    return wire


_NAMED = frozenset({"message", "reasoning", FUNCTION, CUSTOM})
