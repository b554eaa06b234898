"""Messages of opencode: its parts as blocks, its steps as messages, and back.

`opencode` has the files that hold them.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus, Usage
from metis.interchange.session_draft import SessionDraft, priced
from metis.interchange.session_format import RecordWriter
from metis.projection.loss import Change
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

_SILENT_PARTS = frozenset(
    {"step-start", "step-finish", "snapshot", "patch", "agent", "subtask", "retry", "compaction"}
)
# The key of each provider's sealed part in the metadata of a reasoning part, and its issuer.
_SEALS = (
    ("anthropic", "signature", "anthropic"),
    ("openai", "reasoningEncryptedContent", "openai"),
    ("google", "thoughtSignature", "gemini"),
)
_PROVIDERS = {"google": "gemini"}


def user_messages(parts: Sequence[Wire], at: int, draft: SessionDraft) -> list[Message]:
    """Return a prompt as a message."""
    blocks = [block for part in parts if (block := _block(part, at, draft)) is not None]
    return [draft.message(Role.USER, blocks)]


def response_messages(
    info: Wire, parts: Sequence[Wire], at: int, draft: SessionDraft
) -> Iterator[Message]:
    """Yield the steps of a response, each with the results of its calls."""
    model = _model(info)
    moment = draft.time(None)
    for step in _steps(parts):
        blocks: list[ContentBlock] = []
        results: list[tuple[str, Wire]] = []
        for part in step:
            if part.get("type") == "tool":
                name = maybe_text(part.get("tool")) or "tool"
                state = maybe_object(part.get("state"))
                call = draft.open_call(maybe_text(part.get("callID")), name, at)
                blocks.append(ToolUseBlock(call, name, maybe_object(state.get("input"))))
                results.append((name, part))
            elif (block := _block(part, at, draft, is_model=True)) is not None:
                blocks.append(block)
        usage = next((_usage(p) for p in step if p.get("type") == "step-finish"), None)
        yield draft.message(
            Role.ASSISTANT,
            blocks,
            model=model,
            provider=None if model is None else model.partition(":")[0],
            usage=priced(usage, model, moment),
        )
        for name, part in results:
            result = _result(name, part, draft)
            if result is not None:
                yield result


def _steps(parts: Sequence[Wire]) -> list[list[Wire]]:
    steps: list[list[Wire]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    return steps


def _model(info: Wire) -> str | None:
    chosen = maybe_object(info.get("model"))
    provider = maybe_text(info.get("providerID")) or maybe_text(chosen.get("providerID"))
    name = maybe_text(info.get("modelID")) or maybe_text(chosen.get("modelID"))
    return f"{_PROVIDERS.get(provider, provider)}:{name}" if provider and name else None


def _block(
    part: Wire, at: int, draft: SessionDraft, *, is_model: bool = False
) -> ContentBlock | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "reasoning", "text": str(text)}:
            return _thinking(text, maybe_object(part.get("metadata")))
        case {"type": "file", "mime": str(media_type), "url": str(url)} if not is_model:
            return _file(media_type, url, maybe_text(part.get("filename")))
        case _:
            if maybe_text(part.get("type")) not in _SILENT_PARTS:
                reason = "not in the canonical form; stored to write it back"
                draft.add_loss(str(part.get("type")), reason, at=at)
            return None


def _thinking(text: str, metadata: Wire) -> ThinkingBlock:
    for name, key, issuer in _SEALS:
        sealed = maybe_text(maybe_object(metadata.get(name)).get(key))
        if sealed is not None:
            item_id = maybe_text(maybe_object(metadata.get(name)).get("itemId"))
            return ThinkingBlock(text, sealed, item_id, issuer=issuer)
    return ThinkingBlock(text)


def _file(media_type: str, url: str, name: str | None) -> ContentBlock:
    head, comma, data = url.partition(",")
    is_inline = head.startswith("data:") and head.endswith(";base64") and comma
    if media_type.startswith("image/"):
        if is_inline:
            return ImageBlock(ImageSource("base64", data), media_type)
        kind = "url" if url.startswith(("http:", "https:")) else "file_ref"
        return ImageBlock(ImageSource(kind, url), media_type or ANY_IMAGE_TYPE)
    source = MediaSource("base64", data) if is_inline else MediaSource("file_ref", url)
    return DocumentBlock(source, media_type, name)


def _result(name: str, part: Wire, draft: SessionDraft) -> Message | None:
    state = maybe_object(part.get("state"))
    status = state.get("status")
    if status not in ("completed", "error"):
        return None
    tool_use_id = draft.match_result(maybe_text(part.get("callID")), name)
    if tool_use_id is None:
        return None
    is_error = status == "error"
    text = maybe_text(state.get("error" if is_error else "output")) or ""
    content: list[ContentBlock] = [TextBlock(text)]
    for file in map(maybe_object, maybe_list(state.get("attachments"))):
        media_type, url = maybe_text(file.get("mime")), maybe_text(file.get("url"))
        if media_type and url:
            content.append(_file(media_type, url, maybe_text(file.get("filename"))))
    outcome = OutcomeStatus.ERROR if is_error else OutcomeStatus.SUCCESS
    return draft.message(
        Role.TOOL,
        (ToolResultBlock(tool_use_id, tuple(content), is_error),),
        parent_tool_use_id=tool_use_id,
        outcome=Outcome(status=outcome, tool_name=name),
    )


def plain_parts(messages: Sequence[Message], writer: RecordWriter) -> list[Wire]:
    """Return the parts that follow from messages alone; everything else in a record is residue."""
    parts: list[Wire] = []
    by_call: dict[str, int] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                by_call[block.id] = len(parts)
                parts.append(_tool_part(block, writer))
            elif isinstance(block, ToolResultBlock) and block.tool_use_id in by_call:
                part = parts[by_call[block.tool_use_id]]
                part["state"] = {**part["state"], **result_state(block)}
            elif (part := _encode(block)) is not None:
                parts.append(part)
    return parts


def _tool_part(block: ToolUseBlock, writer: RecordWriter) -> Wire:
    state = {"status": "running", "input": block.input}
    return {"type": "tool", "callID": writer.wire_id(block.id), "tool": block.name, "state": state}


def _encode(block: ContentBlock) -> Wire | None:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ThinkingBlock():
            part: Wire = {"type": "reasoning", "text": block.text}
            for name, key, issuer in _SEALS:
                if block.signature is not None and block.issuer == issuer:
                    sealed = {key: block.signature}
                    if block.id is not None:
                        sealed["itemId"] = block.id
                    part["metadata"] = {name: sealed}
            return part
        case ImageBlock() if block.source.kind == "base64":
            return _file_part(block.media_type, block.source.data)
        case DocumentBlock() if block.source.kind == "base64":
            part = _file_part(block.media_type, block.source.data)
            return part if block.name is None else {**part, "filename": block.name}
        case _:
            return None


def _file_part(media_type: str, data: str) -> Wire:
    return {"type": "file", "mime": media_type, "url": f"data:{media_type};base64,{data}"}


def result_state(block: ToolResultBlock) -> Wire:
    """Return the state of a call that has its result."""
    text = "".join(part.text for part in block.content if isinstance(part, TextBlock))
    if block.is_error:
        return {"status": "error", "error": text}
    state: Wire = {"status": "completed", "output": text}
    files = [part for inner in block.content if (part := _encode(inner)) and part["type"] == "file"]
    return {**state, "attachments": files} if files else state


def new_parts(entry: MessageEntry, writer: RecordWriter) -> Iterator[Wire]:
    """Yield the parts of a message."""
    is_model = entry.message.role is Role.ASSISTANT
    for index, block in enumerate(entry.message.content):
        path = f"$.content[{index}]"
        if isinstance(block, ToolUseBlock):
            part = _tool_part(block, writer)
            part["state"] |= {"title": "", "metadata": {}, "time": _span(entry)}
            yield part
        elif isinstance(block, ThinkingBlock) and block.signature is None:
            reason = "thinking without a signature cannot be sent again"
            writer.add_loss(entry, block.type, reason, path=path)
        elif (part := _encode(block)) is None or part == {"type": "text", "text": ""}:
            if part is None:
                writer.add_loss(entry, block.type, "opencode has no part for it", path=path)
        else:
            yield {**part, "time": _span(entry)} if is_model else part


def report_result(entry: MessageEntry, writer: RecordWriter) -> None:
    """Add a loss for parts of a result that opencode has no field for."""
    block = entry.message.content[0]
    if not isinstance(block, ToolResultBlock):
        return
    texts = [part for part in block.content if isinstance(part, TextBlock)]
    lost = [part for part in block.content if _encode(part) is None]
    if len(texts) > 1 or lost or (block.is_error and len(texts) < len(block.content)):
        reason = "texts are joined; opencode has no field for other parts of the result"
        writer.add_loss(entry, "tool_result", reason, path="$.content[0]", change=Change.ALTERED)


def new_record(entry: KnownEntry, role: str, parts: Sequence[Wire], writer: RecordWriter) -> Wire:
    """Return a new record of an entry: its info, and its parts with ids."""
    session = writer.foreign_id
    message_id = f"msg_{entry.id}"
    now = to_milliseconds(entry.created_at)
    info: Wire = {"id": message_id, "sessionID": session, "role": role, "time": {"created": now}}
    model = (entry.message.metadata.model if isinstance(entry, MessageEntry) else None) or ""
    provider, _, name = model.partition(":")
    if role == "user":
        chosen = {"providerID": provider or "unknown", "modelID": name or "unknown"}
        info |= {"agent": "build", "model": chosen}
    else:
        usage = entry.message.metadata.usage if isinstance(entry, MessageEntry) else None
        info["time"] = {"created": now, "completed": now}
        info |= {
            "parentID": writer.state.get("user") or message_id,
            "modelID": name or "unknown",
            "providerID": provider or "unknown",
            "mode": "build",
            "agent": "build",
            "path": {"cwd": writer.options.cwd, "root": writer.options.cwd},
            "cost": 0,
            "tokens": _tokens(usage),
            "finish": "stop",
        }
        start: Wire = {"type": "step-start"}
        end: Wire = {"type": "step-finish", "reason": "stop", "cost": 0, "tokens": _tokens(usage)}
        parts = [start, *parts, end]
    numbered = [
        {"id": f"prt_{entry.id}{index:04}", "sessionID": session, "messageID": message_id, **part}
        for index, part in enumerate(parts)
    ]
    return {"info": info, "parts": numbered}


def _span(entry: KnownEntry) -> Wire:
    moment = to_milliseconds(entry.created_at)
    return {"start": moment, "end": moment}


def _usage(part: Wire) -> Usage | None:
    tokens = maybe_object(part.get("tokens"))
    if not tokens:
        return None
    cache = maybe_object(tokens.get("cache"))
    reasoning = maybe_count(tokens.get("reasoning")) or 0
    return new_usage(
        latency_ms=0,
        input_tokens=maybe_count(tokens.get("input")) or 0,
        output_tokens=(maybe_count(tokens.get("output")) or 0) + reasoning,
        cached_input_tokens=maybe_count(cache.get("read")) or 0,
        cache_creation_input_tokens=maybe_count(cache.get("write")) or 0,
        reasoning_output_tokens=reasoning,
    )


def _tokens(usage: Usage | None) -> Wire:
    if usage is None:
        return {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    reasoning = usage.reasoning_output_tokens
    cache = {"read": usage.cached_input_tokens, "write": usage.cache_creation_input_tokens}
    output = usage.output_tokens - reasoning
    return {"input": usage.input_tokens, "output": output, "reasoning": reasoning, "cache": cache}


def to_milliseconds(moment: datetime) -> int:
    """Return a time as opencode states it."""
    return int(moment.timestamp() * 1000)


def time_of(info: Wire) -> datetime | None:
    """Return when a message was written."""
    created = maybe_count(maybe_object(info.get("time")).get("created"))
    # A number that is out of range for a date is treated as no time.
    return None if created is None or created > 2**53 // 1000 else _date(created)


def _date(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
