"""Assistant messages of Chat Completions: thinking, text, media and tool calls.

The protocol spreads over several keys what is one list of blocks in the canonical form. The
order is always thinking, content, refusal, media, calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    Citation,
    ContentBlock,
    ImageBlock,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.openai_chat.blocks import (
    PROTOCOL,
    WireIdOf,
    as_text,
    decode_call,
    decode_function_call,
    decode_part,
    decode_parts,
    encode_call,
    encode_function,
    encode_parts,
    is_empty,
    is_same_call,
    opaque_block,
)
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import CallIds

TEXT_KEYS = ("reasoning_content", "reasoning")
"""The names under which hosts send clear text."""
DETAILS_KEY = "reasoning_details"
"""The name under which OpenRouter sends typed parts."""

AnyThinking = ThinkingBlock | RedactedThinkingBlock


def decode_thinking(wire: Wire, issuer: str) -> tuple[list[AnyThinking], dict[str, Any]]:
    """The thoughts of a message, and under which names they were told.

    A name stands for the clear text of the thoughts (true), or for a value of its own.
    """
    names: dict[str, Any] = {}
    details = maybe_list(wire.get(DETAILS_KEY))
    thoughts = decode_reasoning_details(details, issuer)
    if thoughts:
        names[DETAILS_KEY] = details
    for name in TEXT_KEYS:
        text = wire.get(name)
        if not isinstance(text, str) or not text:
            continue
        if not thinking_text(thoughts):
            thoughts.insert(0, ThinkingBlock(text, issuer=issuer))
        names[name] = True if thinking_text(thoughts) == text else text
    return thoughts, names


def decode_reasoning_details(details: Sequence[Any], issuer: str) -> list[AnyThinking]:
    """The thoughts that a list of typed parts holds."""
    found = (_decode_detail(maybe_object(detail), issuer) for detail in details)
    return [thought for thought in found if thought is not None]


def _decode_detail(wire: Wire, issuer: str) -> AnyThinking | None:
    own, kind = as_text(wire.get("id")), as_text(wire.get("format"))
    data = wire.get("data")
    if isinstance(data, str):
        return RedactedThinkingBlock(data, own, kind, issuer)
    text, signature = wire.get("text", wire.get("summary")), wire.get("signature")
    if isinstance(text, str) or isinstance(signature, str):
        return ThinkingBlock(as_text(text) or "", as_text(signature), own, kind, issuer)
    return None


def encode_thinking(content: Sequence[ContentBlock], names: Mapping[str, Any]) -> Wire:
    """The keys that say the thoughts of a message again; none if they are not as they were."""
    thoughts = [block for block in content if isinstance(block, AnyThinking)]
    if not names or not thoughts:
        return {}
    told = [
        _sealed_part(thought)
        for thought in decode_reasoning_details(names.get(DETAILS_KEY) or (), "")
    ]
    if not set(told) <= {_sealed_part(thought) for thought in thoughts}:
        return {}
    text = thinking_text(thoughts)
    return {name: text if value is True else value for name, value in names.items()}


def thinking_text(blocks: Sequence[ContentBlock]) -> str:
    """What can be read of the thoughts among these blocks."""
    return "".join(block.text for block in blocks if isinstance(block, ThinkingBlock))


def _sealed_part(thought: AnyThinking) -> tuple[str, str | None]:
    if isinstance(thought, ThinkingBlock):
        return thought.text, thought.signature
    return thought.data, None


_SOUND = "audio/*"
_CALL = "tool_call"
_LARGEST = 2**63


def decode_assistant(
    wire: Wire, ids: CallIds, issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """The blocks of an assistant message, and how they were spelled."""
    spelling: dict[str, Any] = {}
    thoughts, spelling["thoughts"] = decode_thinking(wire, issuer)
    blocks: list[ContentBlock] = [*thoughts, *_decode_content(wire, issuer, spelling)]
    refusal = wire.get("refusal")
    if isinstance(refusal, str) and refusal:
        spelling["refusal"] = refusal
        blocks.append(TextBlock(refusal))
    blocks += _decode_attached(wire, issuer, spelling)
    blocks += _decode_calls(wire, ids, issuer, spelling)
    return tuple(blocks), spelling


def _decode_content(wire: Wire, issuer: str, spelling: dict[str, Any]) -> list[ContentBlock]:
    content = wire.get("content")
    blocks: list[ContentBlock] = []
    if isinstance(content, str) and content:
        blocks = [TextBlock(content)]
    elif isinstance(content, list):
        spelling["parts"] = True
        blocks, spelling["blocks"] = decode_parts(maybe_list(content), issuer)
        for index, block in enumerate(blocks):
            if not isinstance(block, TextBlock | AnyThinking | OpaqueBlock):
                blocks[index] = opaque_block(maybe_list(content)[index], block.type, issuer)
    return _with_citations(blocks, wire, spelling)


def _with_citations(
    blocks: list[ContentBlock], wire: Wire, spelling: dict[str, Any]
) -> list[ContentBlock]:
    """The blocks with the annotations of the message at their first text."""
    notes = maybe_list(wire.get("annotations"))
    place = next((n for n, block in enumerate(blocks) if isinstance(block, TextBlock)), None)
    if not notes or place is None or not all(isinstance(note, dict) for note in notes):
        return blocks
    spelling["annotated"] = True
    text = blocks[place]
    cited = TextBlock(text.text if isinstance(text, TextBlock) else "", _decode_citations(notes))
    return [*blocks[:place], cited, *blocks[place + 1 :]]


def _decode_citations(notes: Sequence[Wire]) -> tuple[Citation, ...]:
    return tuple(_decode_citation(note) for note in notes)


def _decode_citation(wire: Wire) -> Citation:
    kind = wire.get("type")
    inner = maybe_object(wire.get("url_citation"))
    return Citation(
        kind=kind if isinstance(kind, str) else "unknown",
        url=as_text(inner.get("url")),
        title=as_text(inner.get("title")),
        start=_as_count(inner.get("start_index")),
        end=_as_count(inner.get("end_index")),
        raw=wire,
    )


def _as_count(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < _LARGEST else None


def _decode_attached(wire: Wire, issuer: str, spelling: dict[str, Any]) -> list[ContentBlock]:
    """What the model made: a voice, pictures."""
    blocks: list[ContentBlock] = []
    for name in ("audio", "images"):
        made = _artifacts(name, wire.get(name), issuer)
        if made:
            spelling.setdefault("attached", {})[name] = wire[name]
            blocks += made
    return blocks


def _artifacts(name: str, value: Any, issuer: str) -> list[ArtifactBlock]:
    if name == "images":
        pictures = [decode_part(part) for part in maybe_list(value)]
        return [
            ArtifactBlock(MediaSource(block.source.kind, block.source.data), block.media_type)
            for block in pictures
            if isinstance(block, ImageBlock)
        ]
    audio = maybe_object(value)
    own, data = as_text(audio.get("id")) or None, as_text(audio.get("data"))
    if data:
        source = MediaSource("base64", data)
    elif own:
        source = MediaSource("file_id", own, issuer)
    else:
        return []
    told = as_text(audio.get("transcript"))
    return [ArtifactBlock(source, _SOUND, id=own, transcript=told)]


def _decode_calls(
    wire: Wire, ids: CallIds, issuer: str, spelling: dict[str, Any]
) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    theirs: dict[str, str] = {}
    odd: dict[str, Wire] = {}
    for call in maybe_list(wire.get("tool_calls")):
        block, own = decode_call(call, ids, issuer)
        if isinstance(block, ToolUseBlock) and own is not None:
            theirs[block.id] = own
            if not own or encode_call(block, theirs.__getitem__) != call:
                odd[block.id] = call
        blocks.append(block)
    legacy = decode_function_call(wire.get("function_call"), ids)
    if legacy is not None:
        spelling["function_call"] = {legacy.id: wire["function_call"]}
        blocks.append(legacy)
    spelling["ids"], spelling["calls"] = theirs, odd
    return blocks


def encode_assistant(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    wire_id: WireIdOf,
    *,
    is_answer: bool = False,
) -> Wire:
    """The assistant message for blocks: as part of a history, or as an answer to a client.

    An answer shows the thoughts of other providers as clear text, a history keeps them back.
    """
    calls, legacy = _encode_calls(content, spelling, wire_id, is_answer=is_answer)
    attached = _encode_attached(content, spelling)
    refusal = _refusal(content, spelling)
    wire: Wire = {"role": "assistant", **encode_thinking(content, spelling.get("thoughts") or {})}
    is_foreign = is_answer and not spelling
    wire["content"] = (
        _joined_text(content) if is_foreign else _encode_content(content, spelling, refusal)
    )
    if wire["content"] is None and not (calls or legacy or attached or refusal):
        wire["content"] = ""
    if refusal is not None:
        wire["refusal"] = refusal.text
    wire |= attached
    wire |= legacy
    if calls:
        wire["tool_calls"] = calls
    if spelling.get("annotated"):
        wire["annotations"] = _encode_citations(content)
    if is_foreign:
        wire |= _encode_asides(content)
    return wire


def _joined_text(content: Sequence[ContentBlock]) -> str | None:
    """The texts of an answer from elsewhere: clients read one string, as a stream gives it."""
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return "".join(texts) if texts else None


def _encode_asides(content: Sequence[ContentBlock]) -> Wire:
    """What an answer from elsewhere says beside its text: thoughts, and the pages it cites."""
    asides: Wire = {}
    if text := thinking_text(content):
        asides["reasoning_content"] = text
    if notes := encode_annotations(content):
        asides["annotations"] = notes
    return asides


def encode_annotations(content: Sequence[ContentBlock]) -> list[Wire]:
    """What texts cite, with places in the one string that they become."""
    notes: list[Wire] = []
    begun = 0
    for block in content:
        if isinstance(block, TextBlock):
            notes += (_shifted(note.raw, begun) for note in block.citations if note.raw)
            begun += len(block.text)
    return notes


def _shifted(note: Mapping[str, Any], begun: int) -> Wire:
    """A note on a text that begins later, now that it is a part of one string."""
    page = maybe_object(note.get("url_citation"))
    places = {key: page[key] + begun for key in ("start_index", "end_index") if key in page}
    return {**note, "url_citation": {**page, **places}}


def _encode_content(
    content: Sequence[ContentBlock], spelling: Mapping[str, Any], refusal: TextBlock | None
) -> Any:
    blocks = [
        block
        for block in content
        if block is not refusal
        and isinstance(block, TextBlock | ThinkingBlock | OpaqueBlock)
        and not (isinstance(block, OpaqueBlock) and block.kind == _CALL)
    ]
    if not spelling.get("parts"):
        blocks = [block for block in blocks if not isinstance(block, ThinkingBlock)]
        match blocks:
            case []:
                return None
            case [TextBlock() as only]:
                return only.text
            case _:
                pass
    return encode_parts(blocks, spelling.get("blocks") or {}) or None


def _encode_calls(
    content: Sequence[ContentBlock],
    spelling: Mapping[str, Any],
    wire_id: WireIdOf,
    *,
    is_answer: bool,
) -> tuple[list[Any], Wire]:
    old: Mapping[str, Wire] = spelling.get("function_call") or {}
    calls: list[Any] = []
    legacy: Wire = {}
    for block in content:
        if isinstance(block, OpaqueBlock) and block.kind == _CALL:
            calls.append(block.raw)
        elif not isinstance(block, ToolUseBlock):
            continue
        elif block.id in old:
            same = is_same_call(block, {"function": old[block.id]})
            legacy["function_call"] = old[block.id] if same else encode_function(block)
        else:
            kept = original_call(block, spelling, wire_id, is_answer=is_answer)
            calls.append(kept or encode_call(block, wire_id))
    return calls, legacy


def original_call(
    block: ToolUseBlock, spelling: Mapping[str, Any], wire_id: WireIdOf, *, is_answer: bool = False
) -> Wire | None:
    """A call as it came; in a history with an id, and without what its host had left empty.

    None if nothing is kept of it, or if the block says something else by now.
    """
    call = spelling.get("calls", EMPTY).get(block.id)
    if call is None or not is_same_call(block, call):
        return None
    if is_answer:
        return call
    if not call.get("id"):
        call = {**call, "id": wire_id(block.id)}
    if "response" in spelling:
        return {key: value for key, value in call.items() if not is_empty(value)}
    return call


def _encode_attached(content: Sequence[ContentBlock], spelling: Mapping[str, Any]) -> Wire:
    attached: Mapping[str, Any] = spelling.get("attached") or {}
    if not attached:
        return {}
    made = [block for block in content if isinstance(block, ArtifactBlock)]
    issuer = next((block.source.issuer for block in made if block.source.issuer), PROTOCOL)
    return {
        name: value
        for name, value in attached.items()
        if all(one in made for one in _artifacts(name, value, issuer))
    }


def _refusal(content: Sequence[ContentBlock], spelling: Mapping[str, Any]) -> TextBlock | None:
    told = spelling.get("refusal")
    texts = (block for block in reversed(content) if isinstance(block, TextBlock))
    return next((block for block in texts if told and block.text == told), None)


def encode_foreign_citation(citation: Citation) -> Wire | None:
    """The note for a page that another provider cited."""
    if citation.url is None:
        return None
    page: Wire = {
        "start_index": citation.start or 0,
        "end_index": citation.end or 0,
        "title": citation.title or "",
        "url": citation.url,
    }
    return {"type": "url_citation", "url_citation": page}


def _encode_citations(content: Sequence[ContentBlock]) -> list[Any]:
    texts = (block for block in content if isinstance(block, TextBlock))
    return [note.raw for text in texts for note in text.citations if note.raw is not None]
