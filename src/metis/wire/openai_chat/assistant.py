"""Assistant messages of Chat Completions: thinking, text, media and tool calls.

The protocol spreads over several keys what is one list of blocks in the canonical form. The
order is always thinking, content, refusal, media, calls.

Thinking has three names, two of which may carry the same text (T52): `reasoning_content`
(DeepSeek) and `reasoning` (vLLM) hold text; `reasoning_details` is OpenRouter's list of typed
parts, some of them signed or encrypted, which must come back as it was (T55).
"""

from collections.abc import Collection, Mapping, Sequence
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
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_chat.blocks import (
    PROTOCOL,
    WireIdOf,
    decode_call,
    decode_legacy_call,
    decode_part,
    decode_parts,
    encode_call,
    encode_function,
    encode_parts,
    is_empty,
    is_same_call,
    opaque_block,
)
from metis.wire.openai_values import decode_index, encode_page
from metis.wire.original_form import EMPTY
from metis.wire.seals import is_envelope, value_of
from metis.wire.tool_ids import CallIds

TEXT_KEYS = ("reasoning_content", "reasoning")
"""The keys under which hosts send the text of thinking."""
DETAILS_KEY = "reasoning_details"
"""The key under which OpenRouter sends typed parts of thinking."""

AnyThinking = ThinkingBlock | RedactedThinkingBlock

EXTRA_KEY = "extra_content"
"""The key under which Google's host has what is no part of the protocol."""

_ANY_AUDIO = "audio/*"
_CALL = "tool_call"


def decode_thinking(wire: Wire, issuer: str) -> tuple[list[AnyThinking], dict[str, Any]]:
    """Decode the thinking of a message; also return the keys that carried it.

    The value of a key is true if it is the text of the blocks, else what the key held.
    """
    keys: dict[str, Any] = {}
    details = maybe_list(wire.get(DETAILS_KEY))
    thinking = decode_reasoning_details(details, issuer)
    if thinking:
        keys[DETAILS_KEY] = details
    for key in TEXT_KEYS:
        text = wire.get(key)
        if not isinstance(text, str) or not text:
            continue
        if not thinking_text(thinking):
            thinking.insert(0, ThinkingBlock(text, issuer=issuer))
        keys[key] = True if thinking_text(thinking) == text else text
    return thinking, keys


def decode_reasoning_details(details: Sequence[Any], issuer: str) -> list[AnyThinking]:
    """Decode OpenRouter's typed parts of thinking; parts of unknown form are left out."""
    blocks = (_decode_detail(maybe_object(detail), issuer) for detail in details)
    return [block for block in blocks if block is not None]


def _decode_detail(wire: Wire, issuer: str) -> AnyThinking | None:
    item_id, form = maybe_text(wire.get("id")), maybe_text(wire.get("format"))
    data = wire.get("data")
    if isinstance(data, str):
        return RedactedThinkingBlock(data, item_id, form, issuer)
    text, signature = wire.get("text", wire.get("summary")), wire.get("signature")
    if isinstance(text, str) or isinstance(signature, str):
        return ThinkingBlock(maybe_text(text) or "", maybe_text(signature), item_id, form, issuer)
    return None


def encode_thinking(content: Sequence[ContentBlock], keys: Mapping[str, Any]) -> Wire:
    """Encode thinking under the keys that it came with; of typed parts those that are left.

    Gemini behind OpenRouter answers 400 unless every detail comes back that it sealed (T55), so
    that only a caller who removes one of them leaves it out.
    """
    blocks = [block for block in content if isinstance(block, AnyThinking)]
    if not keys or not blocks:
        return {}
    text = thinking_text(blocks)
    wire: Wire = {key: text if value is True else value for key, value in keys.items()}
    details: Sequence[Any] = keys.get(DETAILS_KEY) or ()
    present = {*map(_sealed_part, blocks)}
    remaining = [detail for detail in details if _is_left(detail, present)]
    if len(remaining) < len(details):
        wire = {key: text for key, value in keys.items() if value is True}
        if remaining:
            wire[DETAILS_KEY] = remaining
    return wire


def _is_left(detail: Any, present: Collection[tuple[str, str | None]]) -> bool:
    """Whether the block of a typed part is still there; parts of unknown form have none."""
    block = _decode_detail(maybe_object(detail), "")
    return block is None or _sealed_part(block) in present


def thinking_text(blocks: Sequence[ContentBlock]) -> str:
    """Return the readable text of the thinking among these blocks."""
    return "".join(block.text for block in blocks if isinstance(block, ThinkingBlock))


def _sealed_part(block: AnyThinking) -> tuple[str, str | None]:
    if isinstance(block, ThinkingBlock):
        return block.text, block.signature
    return block.data, None


def decode_assistant(
    wire: Wire, ids: CallIds, issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """Decode an assistant message to its blocks and their original form."""
    form: dict[str, Any] = {}
    thinking, form["thoughts"] = decode_thinking(wire, issuer)
    blocks: list[ContentBlock] = [*thinking, *_decode_content(wire, issuer, form)]
    refusal = wire.get("refusal")
    if isinstance(refusal, str) and refusal:
        form["refusal"] = refusal
        blocks.append(TextBlock(refusal))
    blocks += _decode_media(wire, issuer, form)
    blocks += _decode_calls(wire, ids, issuer, form, [value_of(block) for block in thinking])
    return tuple(blocks), form


def _decode_content(wire: Wire, issuer: str, form: dict[str, Any]) -> list[ContentBlock]:
    content = wire.get("content")
    blocks: list[ContentBlock] = []
    if isinstance(content, str) and content:
        blocks = [TextBlock(content)]
    elif isinstance(content, list):
        form["parts"] = True
        blocks, form["blocks"] = decode_content_parts(maybe_list(content), issuer)
    return _with_citations(blocks, wire, form)


def decode_content_parts(
    parts: list[Any], issuer: str
) -> tuple[list[ContentBlock], dict[str, Wire]]:
    """Decode the parts of an assistant's content to blocks and their original forms."""
    blocks, forms = decode_parts(parts, issuer)
    for index, block in enumerate(blocks):
        # Canonical assistant messages hold no media of a user, so such a part stays opaque.
        if not isinstance(block, TextBlock | AnyThinking | OpaqueBlock):
            blocks[index] = opaque_block(parts[index], block.type, issuer)
    return blocks, forms


def _with_citations(
    blocks: list[ContentBlock], wire: Wire, form: dict[str, Any]
) -> list[ContentBlock]:
    """Attach the annotations of the message to its first text."""
    # Annotations have indexes into the content as one string, and name no part of it.
    notes = maybe_list(wire.get("annotations"))
    first = next((n for n, block in enumerate(blocks) if isinstance(block, TextBlock)), None)
    if not notes or first is None or not all(isinstance(note, dict) for note in notes):
        return blocks
    form["annotated"] = True
    block = blocks[first]
    text = block.text if isinstance(block, TextBlock) else ""
    cited = TextBlock(text, tuple(map(_decode_citation, notes)))
    return [*blocks[:first], cited, *blocks[first + 1 :]]


def _decode_citation(wire: Wire) -> Citation:
    kind = wire.get("type")
    page = maybe_object(wire.get("url_citation"))
    return Citation(
        kind=kind if isinstance(kind, str) else "unknown",
        url=maybe_text(page.get("url")),
        title=maybe_text(page.get("title")),
        start=decode_index(page.get("start_index")),
        end=decode_index(page.get("end_index")),
        raw=wire,
    )


def _decode_media(wire: Wire, issuer: str, form: dict[str, Any]) -> list[ContentBlock]:
    """Decode the audio and the images that the model made."""
    blocks: list[ContentBlock] = []
    for key in ("audio", "images"):
        artifacts = _artifacts(key, wire.get(key), issuer)
        if artifacts:
            form.setdefault("attached", {})[key] = wire[key]
            blocks += artifacts
    return blocks


def _artifacts(key: str, value: Any, issuer: str) -> list[ArtifactBlock]:
    if key == "images":
        images = [decode_part(part) for part in maybe_list(value)]
        return [
            ArtifactBlock(MediaSource(block.source.kind, block.source.data), block.media_type)
            for block in images
            if isinstance(block, ImageBlock)
        ]
    audio = maybe_object(value)
    audio_id, data = maybe_text(audio.get("id")) or None, maybe_text(audio.get("data"))
    if data:
        source = MediaSource("base64", data)
    elif audio_id:
        source = MediaSource("file_id", audio_id, issuer)
    else:
        return []
    transcript = maybe_text(audio.get("transcript"))
    # The format of the audio was an option of the request; a response does not repeat it.
    return [ArtifactBlock(source, _ANY_AUDIO, id=audio_id, transcript=transcript)]


def _decode_calls(
    wire: Wire, ids: CallIds, issuer: str, form: dict[str, Any], seals: Collection[str | None]
) -> list[ContentBlock]:
    """Decode calls, with the envelopes beside them that are not among `seals` already."""
    blocks: list[ContentBlock] = []
    wire_ids: dict[str, str] = {}
    original_calls: dict[str, Wire] = {}
    for each in maybe_list(wire.get("tool_calls")):
        call, envelope = _opened_call(each)
        if envelope is not None and envelope not in seals:
            blocks.append(ThinkingBlock("", envelope, issuer=issuer))
        block, wire_id = decode_call(call, ids, issuer)
        if isinstance(block, ToolUseBlock) and wire_id is not None:
            wire_ids[block.id] = wire_id
            if not wire_id or encode_call(block, wire_ids.__getitem__) != call:
                original_calls[block.id] = call
        blocks.append(block)
    legacy_call = decode_legacy_call(wire.get("function_call"), ids)
    if legacy_call is not None:
        form["function_call"] = {legacy_call.id: wire["function_call"]}
        blocks.append(legacy_call)
    form["ids"], form["calls"] = wire_ids, original_calls
    return blocks


def encode_assistant(
    content: Sequence[ContentBlock],
    form: Mapping[str, Any],
    wire_id_of: WireIdOf,
    *,
    is_response: bool = False,
) -> Wire:
    """Encode an assistant message: as part of a history, or as a response to a client.

    A response shows the thinking of other providers as text, a history leaves it out.
    """
    calls, legacy_call = _encode_calls(content, form, wire_id_of, is_response=is_response)
    is_foreign = is_response and not form
    if is_foreign and calls:
        calls = _with_seals(calls, content)
    media = _encode_media(content, form)
    refusal = _refusal_block(content, form)
    wire: Wire = {"role": "assistant", **encode_thinking(content, form.get("thoughts") or {})}
    wire["content"] = (
        _joined_text(content) if is_foreign else _encode_content(content, form, refusal)
    )
    # Hosts accept null only beside something else, such as calls (T85).
    if wire["content"] is None and not (calls or legacy_call or media or refusal):
        wire["content"] = ""
    if refusal is not None:
        wire["refusal"] = refusal.text
    wire |= media
    wire |= legacy_call
    if calls:
        wire["tool_calls"] = calls
    if form.get("annotated"):
        texts = (block for block in content if isinstance(block, TextBlock))
        wire["annotations"] = [
            note.raw for text in texts for note in text.citations if note.raw is not None
        ]
    if is_foreign:
        if text := thinking_text(content):
            wire["reasoning_content"] = text
        if details := _sealed_details(content):
            wire[DETAILS_KEY] = details
        if notes := encode_annotations(content):
            wire["annotations"] = notes
    return wire


def _with_seals(calls: list[Any], content: Sequence[ContentBlock]) -> list[Any]:
    """Return calls with the seals that belong to them where clients of Gemini look for them.

    Google's host of this protocol has the signature of a call beside its function, and clients of
    it keep that key alone. Thinking with text has its seal among the typed parts only.
    """
    places = [index for index, block in enumerate(content) if type(block) is ToolUseBlock]
    if len(places) != len(calls):
        return calls
    sealed: list[Any] = []
    for call, index in zip(calls, places, strict=True):
        before = content[index - 1] if index else None
        signature = before.signature if type(before) is ThinkingBlock and not before.text else None
        if signature is not None and is_envelope(signature):
            call = {**call, EXTRA_KEY: {"google": {"thought_signature": signature}}}  # noqa: PLW2901
        sealed.append(call)
    return sealed


def _opened_call(call: Any) -> tuple[Any, str | None]:
    """Return a call without the envelope beside its function, and the envelope."""
    wire = maybe_object(call)
    google = maybe_object(maybe_object(wire.get(EXTRA_KEY)).get("google"))
    signature = maybe_text(google.get("thought_signature"))
    if signature is None or not is_envelope(signature):
        return call, None
    return {key: value for key, value in wire.items() if key != EXTRA_KEY}, signature


def _sealed_details(content: Sequence[ContentBlock]) -> list[Wire]:
    """Encode thinking whose seals a client holds for another provider; nothing if it has none."""
    thinking = [block for block in content if isinstance(block, AnyThinking)]
    if not any(isinstance(block, RedactedThinkingBlock) or block.signature for block in thinking):
        return []
    details: list[Wire] = []
    for index, block in enumerate(thinking):
        if isinstance(block, RedactedThinkingBlock):
            detail: Wire = {"type": "reasoning.encrypted", "data": block.data}
        elif block.text:
            detail = {"type": "reasoning.text", "text": block.text}
            if block.signature:
                detail["signature"] = block.signature
        elif block.signature:
            detail = {"type": "reasoning.encrypted", "data": block.signature}
        else:
            continue
        details.append({**detail, "index": index})
    return details


def _joined_text(content: Sequence[ContentBlock]) -> str | None:
    """Join the texts of another provider's response: clients read one string, as in a stream."""
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return "".join(texts) if texts else None


def encode_annotations(content: Sequence[ContentBlock]) -> list[Wire]:
    """Encode the citations of texts that are joined to one string, with indexes into it."""
    notes: list[Wire] = []
    offset = 0
    for block in content:
        if isinstance(block, TextBlock):
            notes += (_shifted(note.raw, offset) for note in block.citations if note.raw)
            offset += len(block.text)
    return notes


def _shifted(note: Mapping[str, Any], offset: int) -> Wire:
    page = maybe_object(note.get("url_citation"))
    indexes = {
        key: page[key] + offset
        for key in ("start_index", "end_index")
        # Some servers write a text or nothing in place of a number.
        if type(page.get(key)) is int
    }
    return {**note, "url_citation": {**page, **indexes}} if indexes else {**note}


def encode_foreign_citation(citation: Citation) -> Wire | None:
    """Encode another provider's citation as an annotation; None if it cites no web page."""
    page = encode_page(citation)
    return None if page is None else {"type": "url_citation", "url_citation": page}


def _encode_content(
    content: Sequence[ContentBlock], form: Mapping[str, Any], refusal: TextBlock | None
) -> Any:
    blocks = [
        block
        for block in content
        if block is not refusal
        and isinstance(block, TextBlock | ThinkingBlock | OpaqueBlock)
        and not (isinstance(block, OpaqueBlock) and block.kind == _CALL)
    ]
    if not form.get("parts"):
        # Thinking is a content part of Mistral only; elsewhere it has keys of its own (T54).
        blocks = [block for block in blocks if not isinstance(block, ThinkingBlock)]
        match blocks:
            case []:
                return None
            case [TextBlock() as text]:
                return text.text
            case _:
                pass
    return encode_parts(blocks, form.get("blocks") or {}) or None


def _encode_calls(
    content: Sequence[ContentBlock],
    form: Mapping[str, Any],
    wire_id_of: WireIdOf,
    *,
    is_response: bool,
) -> tuple[list[Any], Wire]:
    """Encode `tool_calls`, and the key `function_call` of a message that came with one."""
    legacy_calls: Mapping[str, Wire] = form.get("function_call") or {}
    calls: list[Any] = []
    legacy_key: Wire = {}
    for block in content:
        if isinstance(block, OpaqueBlock) and block.kind == _CALL:
            calls.append(block.raw)
        elif not isinstance(block, ToolUseBlock):
            continue
        elif block.id in legacy_calls:
            legacy = legacy_calls[block.id]
            is_same = is_same_call(block, {"function": legacy})
            legacy_key["function_call"] = legacy if is_same else encode_function(block)
        else:
            original = original_call(block, form, wire_id_of, is_response=is_response)
            calls.append(original or encode_call(block, wire_id_of))
    return calls, legacy_key


def original_call(
    block: ToolUseBlock, form: Mapping[str, Any], wire_id_of: WireIdOf, *, is_response: bool = False
) -> Wire | None:
    """Return a call as it was received; None if it was not stored, or the block has changed.

    In a history it has an id, and none of the keys that its host had left empty.
    """
    call = form.get("calls", EMPTY).get(block.id)
    if call is None or not is_same_call(block, call):
        return None
    if is_response:
        return call
    if not call.get("id"):
        # Without an id no result could name the call.
        call = {**call, "id": wire_id_of(block.id)}
    if "response" in form:
        return {key: value for key, value in call.items() if not is_empty(value)}
    return call


def _encode_media(content: Sequence[ContentBlock], form: Mapping[str, Any]) -> Wire:
    attached: Mapping[str, Any] = form.get("attached") or {}
    if not attached:
        return {}
    # Media go back exactly as they came, or not at all.
    artifacts = [block for block in content if isinstance(block, ArtifactBlock)]
    issuer = next((block.source.issuer for block in artifacts if block.source.issuer), PROTOCOL)
    return {
        key: value
        for key, value in attached.items()
        if all(artifact in artifacts for artifact in _artifacts(key, value, issuer))
    }


def _refusal_block(content: Sequence[ContentBlock], form: Mapping[str, Any]) -> TextBlock | None:
    refusal = form.get("refusal")
    texts = (block for block in reversed(content) if isinstance(block, TextBlock))
    return next((block for block in texts if refusal and block.text == refusal), None)
