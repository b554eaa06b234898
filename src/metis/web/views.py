"""View values of the pages, computed from messages and journal entries."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.value import UnknownBlock
from metis.catalog.models import is_model_id
from metis.catalog.tables import catalog
from metis.interchange.html import markdown_html
from metis.projection.loss import Loss
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
)
from metis.store.threads import Threads
from metis.verify.request_diff import aligned_lines, body_lines
from metis.wire.call import AdapterOptions, WireRequest

PAGE = 50
"""How many rows or messages one page has."""
MAX_LINES = 4000
"""How many lines of a request a page shows of each side."""
DEFAULT_TARGETS = (
    "anthropic:claude-sonnet-4-6",
    "openai:gpt-5",
    "gemini:gemini-3.5-flash",
    "ollama:llama3.2",
)
_MAX_TEXT = 200_000
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MARKS = {" ": "equal", "<": "first", ">": "second", "|": "changed"}


class BlockView(Struct, frozen=True, kw_only=True):
    """A block as a page shows it."""

    kind: str
    title: str = ""
    html: str = ""
    """Safe HTML: Markdown in which markup of the model stays text."""
    text: str = ""
    image: str = ""
    """The data URL of an image."""
    is_error: bool = False
    is_folded: bool = False
    media: str = ""
    """The media type of bytes that can be saved: a document, audio, video."""
    result: "BlockView | None" = None
    """The result of a call."""


class MessageView(Struct, frozen=True, kw_only=True):
    """A message as a page shows it."""

    id: str
    role: str
    model: str
    time: str
    blocks: list[BlockView]
    tokens: str = ""
    cost: str = ""
    status: str = ""
    is_swap: bool = False
    """Whether another model answered before."""


class NoteView(Struct, frozen=True, kw_only=True):
    """A journal entry between two messages: a swap, a summary, a rewind, an error."""

    id: str
    kind: str
    title: str
    text: str = ""
    time: str
    link: str = ""
    """The conversation that it leads to."""


class DiffView(Struct, frozen=True, kw_only=True):
    """One request as two targets would receive it."""

    heads: tuple[str, str]
    rows: list[tuple[str, str, str]]
    """The kind of each pair of lines, and the lines."""
    losses: tuple[list[Loss], list[Loss]]
    is_cut: bool


class LaneRow(Struct, frozen=True, kw_only=True):
    """What each target does not receive of one message."""

    message: MessageView
    cells: list[list[Loss]]


def timeline(history: Sequence[AnyEntry]) -> list[MessageView | NoteView]:
    """Return entries for a page: messages with the results of their calls, and notes."""
    results = {
        block.tool_use_id: (entry.message, block)
        for entry in history
        if isinstance(entry, MessageEntry)
        for block in entry.message.content
        if isinstance(block, ToolResultBlock)
    }
    shown: list[MessageView | NoteView] = []
    paired: set[str] = set()
    swapped = ""
    for entry in history:
        if isinstance(entry, MessageEntry):
            message = entry.message
            calls = [block.id for block in message.content if isinstance(block, ToolUseBlock)]
            paired.update(call for call in calls if call in results)
            answers = [block for block in message.content if isinstance(block, ToolResultBlock)]
            if message.role is Role.TOOL and all(b.tool_use_id in paired for b in answers):
                continue  # it is shown with its call
            view = _message_view(message, results)
            if message.role is Role.ASSISTANT:
                is_swap = bool(swapped and view.model and view.model != swapped)
                view = replace(view, is_swap=is_swap)
                swapped = view.model or swapped
            shown.append(view)
        elif (note := _note(entry)) is not None:
            shown.append(note)
    return shown


def _note(entry: AnyEntry) -> NoteView | None:  # noqa: PLR0911 - one for each kind of entry
    time = entry.created_at.strftime("%Y-%m-%d %H:%M:%S")
    note = partial(NoteView, id=entry.id, time=time)
    match entry:
        case SwapEntry():
            reason = f" ({entry.reason})" if entry.reason else ""
            return note(kind="swap", title=f"From here on {entry.to_model} responds{reason}")
        case CompactionEntry():
            size = f" {entry.tokens_before:,} tokens" if entry.tokens_before else " the history"
            return note(kind="compaction", title=f"A summary replaces{size}", text=entry.summary)
        case RewindEntry():
            return note(kind="rewind", title="Rewound", text=entry.note or entry.to_id or "")
        case RetractionEntry():
            return note(kind="rewind", title=f"Retracted {entry.message_id}")
        case ErrorEntry():
            return note(kind="error", title=entry.kind or "error", text=_cut(entry.text))
        case ForkEntry():
            source = entry.source_session_id
            return note(kind="fork", title=f"Forked from {source}", link=source)
        case BookmarkEntry():
            return note(kind="bookmark", title=f"Bookmark {entry.name}")
        case _:
            return None


def message_views(messages: Sequence[Message]) -> list[MessageView]:
    """Return messages for a page."""
    return [_message_view(message, {}) for message in messages]


def _message_view(
    message: Message, results: Mapping[str, tuple[Message, ToolResultBlock]]
) -> MessageView:
    metadata = message.metadata
    usage = metadata.usage
    return MessageView(
        id=message.id,
        role=str(message.role),
        model=metadata.model or "",
        time=message.created_at.strftime("%Y-%m-%d %H:%M:%S"),
        blocks=[
            _with_result(_block_view(block, message.role), block, results)
            for block in message.content
        ],
        tokens="" if usage is None else f"{usage.prompt_tokens:,} in · {usage.output_tokens:,} out",
        cost="" if usage is None else format_usd(usage.cost_usd),
        status="" if metadata.status == "complete" else str(metadata.status),
    )


def _with_result(
    view: BlockView,
    block: ContentBlock,
    results: Mapping[str, tuple[Message, ToolResultBlock]],
) -> BlockView:
    if not isinstance(block, ToolUseBlock) or block.id not in results:
        return view
    message, result = results[block.id]
    return replace(view, result=_block_view(result, message.role))


def _block_view(block: ContentBlock, role: Role) -> BlockView:  # noqa: PLR0911 - one for each kind of block
    match block:
        case TextBlock():
            text = _cut(block.text)
            if role is Role.ASSISTANT:
                return BlockView(kind="text", html=markdown_html(text))
            is_long = role in (Role.SYSTEM, Role.DEVELOPER)
            return BlockView(kind="text", text=text, title="instructions", is_folded=is_long)
        case ThinkingBlock():
            seal = f" · sealed by {block.issuer}" if block.signature else ""
            title = f"thinking{seal}"
            return BlockView(kind="thinking", title=title, text=_cut(block.text), is_folded=True)
        case RedactedThinkingBlock():
            title = f"thinking that only {block.issuer or 'its issuer'} can read"
            return BlockView(kind="sealed", title=title, is_folded=True)
        case ToolUseBlock():
            raw = block.invalid.raw if block.invalid else _json(block.input)
            is_error = block.invalid is not None
            return BlockView(kind="call", title=block.name, text=_cut(raw), is_error=is_error)
        case ToolResultBlock():
            text = "\n".join(part.text for part in block.content if isinstance(part, TextBlock))
            others = [part.type for part in block.content if not isinstance(part, TextBlock)]
            text = "\n".join([text, *(f"({kind})" for kind in others)])
            title = "failed result" if block.is_error else "result"
            is_error = block.is_error
            return BlockView(kind="result", title=title, text=_cut(text), is_error=is_error)
        case ImageBlock() if block.source.kind == "base64" and block.media_type in _IMAGE_TYPES:
            url = f"data:{block.media_type};base64,{block.source.data}"
            return BlockView(kind="image", image=url, title=block.media_type)
        case DocumentBlock() | AudioBlock() | VideoBlock() if block.source.kind == "base64":
            name = getattr(block, "name", None) or block.type
            size = f"{len(block.source.data) * 3 // 4:,} bytes"
            media = block.media_type
            return BlockView(kind="media", title=f"{name} ({media}, {size})", media=media)
        case OpaqueBlock():
            title = f"part that only {block.issuer} understands"
            text = _cut(bytes(block.raw).decode("utf-8", "replace"))
            return BlockView(kind="sealed", title=title, text=text, is_folded=True)
        case _:
            is_unknown = isinstance(block, UnknownBlock)
            raw = bytes(block.raw) if is_unknown else msgspec.json.encode(block)
            text = _cut(raw.decode("utf-8", "replace"))
            return BlockView(kind="other", title=str(block.type), text=text, is_folded=True)


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}\n… ({len(text):,} characters; the export has them all)"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def format_usd(amount: Decimal) -> str:
    """Return an amount with the digits that it has."""
    return f"${amount.normalize():f}"


def targets() -> list[str]:
    """Return the models that a request can be compared for: those with an alias."""
    models = catalog()
    return sorted(set(models.aliases.values()) | set(DEFAULT_TARGETS))


def wire_request(messages: Sequence[Message], target: str) -> WireRequest:
    """Return what a model would receive for a history.

    Raises:
        MetisError: there is no such provider, or the history cannot be sent.
    """
    provider, _, name = target.partition(":")
    adapter = adapters.get(provider)
    model = target if name and is_model_id(target) else None
    return adapter.to_wire(messages, (), AdapterOptions(model=model))


def request_diff(messages: Sequence[Message], first: str, second: str) -> DiffView:
    """Return one request as two models would receive it.

    Raises:
        MetisError: one of them cannot receive it.
    """
    wires = wire_request(messages, first), wire_request(messages, second)
    bodies = [body_lines(msgspec.json.decode(wire.body)) for wire in wires]
    is_cut = any(len(lines) > MAX_LINES for lines in bodies)
    pairs = aligned_lines(bodies[0][:MAX_LINES], bodies[1][:MAX_LINES])
    return DiffView(
        heads=(f"{first} · POST {wires[0].path}", f"{second} · POST {wires[1].path}"),
        rows=[(MARKS[mark], one, other) for mark, one, other in pairs],
        losses=(wires[0].losses, wires[1].losses),
        is_cut=is_cut,
    )


def loss_lane(
    messages: Sequence[Message], names: Sequence[str]
) -> tuple[list[LaneRow], list[list[Loss]], Mapping[str, str]]:
    """Return the losses of each target by message, its other losses, and errors by target.

    Other losses belong to no message, such as those of options.
    """
    by_message: list[dict[str, list[Loss]]] = []
    faults: dict[str, str] = {}
    for name in names:
        groups: dict[str, list[Loss]] = {}
        try:
            losses = wire_request(messages, name).losses
        except MetisError as error:
            faults[name], losses = str(error), []
        for loss in losses:
            groups.setdefault(loss.message_id, []).append(loss)
        by_message.append(groups)
    rows = [
        LaneRow(message=view, cells=[groups.get(view.id, []) for groups in by_message])
        for view in message_views(messages)
        if any(view.id in groups for groups in by_message)
    ]
    ids = {message.id for message in messages}
    others = [
        [loss for key, losses in groups.items() if key not in ids for loss in losses]
        for groups in by_message
    ]
    return rows, others, faults


def request_history(history: Sequence[AnyEntry], message_id: str | None) -> list[Message]:
    """Return the history that a response was generated from; the current one without an id."""
    threads = Threads()
    for entry in history:
        threads.add(entry)
        if entry.id == message_id and isinstance(entry, MessageEntry):
            messages = threads.view(entry.id).messages
            return messages[:-1] if entry.message.role is Role.ASSISTANT else messages
    return threads.view().messages
