"""Assistant messages of Chat Completions: thinking, text, media and tool calls.

One list of blocks in the canonical form is several keys in this protocol. The order of the blocks
is always thinking, content, refusal, media, calls.

Hosts use three keys for thinking, and may send the same text under two of them (T52):
`reasoning_content` (DeepSeek) and `reasoning` (vLLM) contain text; `reasoning_details` is
OpenRouter's list of typed parts, some of them signed or encrypted, which must be sent back
unchanged (T55).
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
from metis.projection.blocks import SIGNATURE_ON_NEXT
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
"""The key of Google's OpenAI-compatible host for values outside of the protocol."""

_ANY_AUDIO = "audio/*"
_CALL = "tool_call"


def decode_thinking(wire: Wire, issuer: str) -> tuple[list[AnyThinking], dict[str, Any]]:
    """Decode the thinking of a message into blocks and the keys that contained it.

    The value of a key is True if it contained the text of the blocks, else its JSON value.
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
    """Decode OpenRouter's typed parts of thinking; parts of unknown types are left out."""
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
    """Encode thinking under its original keys, with the typed parts whose blocks still exist.

    Gemini behind OpenRouter answers 400 if a sealed part is missing (T55), so that a part is left
    out only if the caller has removed its block.
    """
    blocks = [block for block in content if isinstance(block, AnyThinking)]
    if not keys or not blocks:
        return {}
    text = thinking_text(blocks)
    wire: Wire = {key: text if value is True else value for key, value in keys.items()}
    details: Sequence[Any] = keys.get(DETAILS_KEY) or ()
    present = {*map(_sealed_part, blocks)}
    remaining = [detail for detail in details if _is_present(detail, present)]
    if len(remaining) < len(details):
        wire = {key: text for key, value in keys.items() if value is True}
        if remaining:
            wire[DETAILS_KEY] = remaining
    return wire


def _is_present(detail: Any, present: Collection[tuple[str, str | None]]) -> bool:
    """Whether the block of a typed part still exists; parts of unknown types have no block."""
    block = _decode_detail(maybe_object(detail), "")
    return block is None or _sealed_part(block) in present


def thinking_text(blocks: Sequence[ContentBlock]) -> str:
    """Return the readable text of the thinking among these blocks."""
    return "".join(block.text for block in blocks if isinstance(block, ThinkingBlock))


def _sealed_part(block: AnyThinking) -> tuple[str, str | None]:
    """Return the text and signature, or the data, that identify a block of thinking."""
    if isinstance(block, ThinkingBlock):
        return block.text, block.signature
    return block.data, None


def decode_assistant(
    wire: Wire, ids: CallIds, issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """Decode an assistant message into its blocks and their original form."""
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
    """Decode the content parts of an assistant message into blocks and their original forms."""
    blocks, forms = decode_parts(parts, issuer)
    for index, block in enumerate(blocks):
        # Canonical assistant messages have no image or file input, so such a part is opaque.
        if not isinstance(block, TextBlock | AnyThinking | OpaqueBlock):
            blocks[index] = opaque_block(parts[index], block.type, issuer)
    return blocks, forms


def _with_citations(
    blocks: list[ContentBlock], wire: Wire, form: dict[str, Any]
) -> list[ContentBlock]:
    """Attach the annotations of the message to its first text."""
    # The indexes of annotations refer to the whole content as one string, not to a part.
    annotations = maybe_list(wire.get("annotations"))
    first = next((n for n, block in enumerate(blocks) if isinstance(block, TextBlock)), None)
    if (
        not annotations
        or first is None
        or not all(isinstance(annotation, dict) for annotation in annotations)
    ):
        return blocks
    form["annotated"] = True
    block = blocks[first]
    text = block.text if isinstance(block, TextBlock) else ""
    cited = TextBlock(text, tuple(map(_decode_citation, annotations)))
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
    """Decode the audio and the images that the model generated."""
    blocks: list[ContentBlock] = []
    for key in ("audio", "images"):
        artifacts = _artifacts(key, wire.get(key), issuer)
        if artifacts:
            form.setdefault("attached", {})[key] = wire[key]
            blocks += artifacts
    return blocks


def _artifacts(key: str, value: Any, issuer: str) -> list[ArtifactBlock]:
    """Decode generated images or audio; none if the value has another form."""
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
    """Decode calls and the seals next to them, except seals that are already among `seals`."""
    blocks: list[ContentBlock] = []
    wire_ids: dict[str, str] = {}
    original_calls: dict[str, Wire] = {}
    for entry in maybe_list(wire.get("tool_calls")):
        call, envelope = _split_envelope(entry)
        seal = envelope or call_signature(call)
        if seal is not None and seal not in seals:
            seal_format = SIGNATURE_ON_NEXT if envelope is None else None
            blocks.append(ThinkingBlock("", seal, format=seal_format, issuer=issuer))
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

    A response contains the thinking of other providers as text, a history does not.
    """
    calls, legacy_call = _encode_calls(content, form, wire_id_of, is_response=is_response)
    is_foreign = is_response and not form
    if calls and (is_foreign or not is_response):
        calls = _with_seals(calls, content, is_genuine=not is_response)
    media = _encode_media(content, form)
    refusal = _refusal_block(content, form)
    wire: Wire = {"role": "assistant", **encode_thinking(content, form.get("thoughts") or {})}
    wire["content"] = (
        _joined_text(content) if is_foreign else _encode_content(content, form, refusal)
    )
    # Hosts accept null content only in a message with calls or other content (T85).
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
            annotation.raw
            for text in texts
            for annotation in text.citations
            if annotation.raw is not None
        ]
    if is_foreign:
        if text := thinking_text(content):
            wire["reasoning_content"] = text
        if details := _sealed_details(content):
            wire[DETAILS_KEY] = details
        if annotations := encode_annotations(content):
            wire["annotations"] = annotations
    return wire


def _with_seals(
    calls: list[Any], content: Sequence[ContentBlock], *, is_genuine: bool
) -> list[Any]:
    """Return calls with their seals under the key where clients of Gemini expect them.

    Google's host of this protocol sends the signature of a call next to its function, and its
    clients return only that key. The seal of thinking with text is among the typed parts. A client
    gets envelopes, and the host its own (`is_genuine`) signatures, which clients of other protocols
    returned in envelopes.
    """
    indexes = [index for index, block in enumerate(content) if type(block) is ToolUseBlock]
    if len(indexes) != len(calls):
        return calls
    sealed: list[Any] = []
    for call, index in zip(calls, indexes, strict=True):
        previous = content[index - 1] if index else None
        signature = None
        if type(previous) is ThinkingBlock and not previous.text:
            signature = previous.signature
        is_own = type(previous) is ThinkingBlock and previous.format == SIGNATURE_ON_NEXT
        is_sealed = is_envelope(signature) != is_genuine and (is_own or not is_genuine)
        wire = maybe_object(call)
        if signature and is_sealed and wire and EXTRA_KEY not in wire:
            wire = {**wire, EXTRA_KEY: {"google": {"thought_signature": signature}}}
        sealed.append(wire or call)
    return sealed


def call_signature(call: Any) -> str | None:
    """Return the signature that Google's host sends next to the function of a call, or None."""
    extra = maybe_object(maybe_object(call).get(EXTRA_KEY))
    return maybe_text(maybe_object(extra.get("google")).get("thought_signature")) or None


def _split_envelope(call: Any) -> tuple[Any, str | None]:
    """Return a call without the envelope next to its function, and the envelope or None."""
    wire = maybe_object(call)
    signature = call_signature(wire)
    if signature is None or not is_envelope(signature):
        return call, None
    return {key: value for key, value in wire.items() if key != EXTRA_KEY}, signature


def _sealed_details(content: Sequence[ContentBlock]) -> list[Wire]:
    """Encode sealed thinking of another provider as typed parts; empty if nothing is sealed."""
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
    """Join the texts of another provider's response, because clients expect one string."""
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return "".join(texts) if texts else None


def encode_annotations(content: Sequence[ContentBlock]) -> list[Wire]:
    """Encode the citations of texts that are joined to one string, with indexes into it."""
    annotations: list[Wire] = []
    offset = 0
    for block in content:
        if isinstance(block, TextBlock):
            annotations += (
                _shifted(annotation.raw, offset) for annotation in block.citations if annotation.raw
            )
            offset += len(block.text)
    return annotations


def _shifted(annotation: Mapping[str, Any], offset: int) -> Wire:
    page = maybe_object(annotation.get("url_citation"))
    indexes = {
        key: page[key] + offset
        for key in ("start_index", "end_index")
        # Some servers send a string or nothing instead of a number.
        if type(page.get(key)) is int
    }
    return {**annotation, "url_citation": {**page, **indexes}} if indexes else {**annotation}


def encode_foreign_citation(citation: Citation) -> Wire | None:
    """Encode another provider's citation as an annotation; None if it cites no web page."""
    page = encode_page(citation)
    return None if page is None else {"type": "url_citation", "url_citation": page}


def _encode_content(
    content: Sequence[ContentBlock], form: Mapping[str, Any], refusal: TextBlock | None
) -> Any:
    """Encode `content`: null, a string for one text, or a list of parts."""
    blocks = [
        block
        for block in content
        if block is not refusal
        and isinstance(block, TextBlock | ThinkingBlock | OpaqueBlock)
        and not (isinstance(block, OpaqueBlock) and block.kind == _CALL)
    ]
    if not form.get("parts"):
        # Only Mistral has thinking as a content part; other hosts use separate keys (T54).
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
    """Encode the entries of `tool_calls`, and the deprecated key `function_call` if it was used."""
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
            is_unchanged = is_same_call(block, {"function": legacy})
            legacy_key["function_call"] = legacy if is_unchanged else encode_function(block)
        else:
            original = original_call(block, form, wire_id_of, is_response=is_response)
            calls.append(original or encode_call(block, wire_id_of))
    return calls, legacy_key


def original_call(
    block: ToolUseBlock, form: Mapping[str, Any], wire_id_of: WireIdOf, *, is_response: bool = False
) -> Wire | None:
    """Return the stored JSON of a call; None if there is none or the block has changed.

    In a history the call gets an id if it had none, and loses the empty keys of a response.
    """
    call = form.get("calls", EMPTY).get(block.id)
    if call is None or not is_same_call(block, call):
        return None
    if is_response:
        return call
    if not call.get("id"):
        # A result refers to its call by id.
        call = {**call, "id": wire_id_of(block.id)}
    if "response" in form:
        return {key: value for key, value in call.items() if not is_empty(value)}
    return call


def _encode_media(content: Sequence[ContentBlock], form: Mapping[str, Any]) -> Wire:
    attached: Mapping[str, Any] = form.get("attached") or {}
    if not attached:
        return {}
    # Media are sent back unchanged or not at all: the key has no form for edited media.
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
