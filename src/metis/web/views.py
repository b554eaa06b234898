"""What the pages show: values that are read from the store and computed from messages."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from metis import adapters
from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.catalog.models import is_model_id
from metis.catalog.tables import catalog
from metis.events.analytics import CostLine, cost_by
from metis.interchange.html import markdown_html
from metis.projection.loss import Loss
from metis.session.stored_calls import stored_calls
from metis.store import Overview, Store
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
_MARKS = {" ": "equal", "<": "first", ">": "second", "|": "changed"}


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


class DiffView(Struct, frozen=True, kw_only=True):
    """One request as two targets would receive it."""

    heads: tuple[str, str]
    rows: list[tuple[str, str, str]]
    """The kind of each pair of lines, and the lines."""
    losses: tuple[list[Loss], list[Loss]]
    is_cut: bool


class LaneRow(Struct, frozen=True, kw_only=True):
    """What each target does not get of one message."""

    message: MessageView
    cells: list[list[Loss]]


async def list_sessions(store: Store, page: int) -> tuple[list[Overview], bool]:
    """Return one page of sessions, newest first, and whether there are more."""
    overviews = await store.overviews((page + 1) * PAGE + 1)
    return overviews[page * PAGE : (page + 1) * PAGE], len(overviews) > (page + 1) * PAGE


def message_views(messages: Sequence[Message]) -> list[MessageView]:
    """Return messages for a page."""
    return [_message_view(message) for message in messages]


def _message_view(message: Message) -> MessageView:
    metadata = message.metadata
    usage = metadata.usage
    return MessageView(
        id=message.id,
        role=str(message.role),
        model=metadata.model or "",
        time=message.created_at.strftime("%Y-%m-%d %H:%M:%S"),
        blocks=[_block_view(block, message.role) for block in message.content],
        tokens="" if usage is None else f"{usage.prompt_tokens:,} in · {usage.output_tokens:,} out",
        cost="" if usage is None else format_usd(usage.cost_usd),
        status="" if metadata.status == "complete" else str(metadata.status),
    )


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
        case OpaqueBlock():
            title = f"part that only {block.issuer} understands"
            text = _cut(bytes(block.raw).decode("utf-8", "replace"))
            return BlockView(kind="sealed", title=title, text=text, is_folded=True)
        case _:
            text = _cut(msgspec.json.encode(block).decode("utf-8", "replace"))
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
        rows=[(_MARKS[mark], one, other) for mark, one, other in pairs],
        losses=(wires[0].losses, wires[1].losses),
        is_cut=is_cut,
    )


def loss_lane(
    messages: Sequence[Message], names: Sequence[str]
) -> tuple[list[LaneRow], list[list[Loss]], Mapping[str, str]]:
    """Return what each target does not get of each message, of the rest, and why one gets nothing.

    The second value are losses that belong to no message, such as options.
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


def up_to(messages: Sequence[Message], message_id: str | None) -> list[Message]:
    """Return the history that the response with an id was made from; all without an id."""
    for index, message in enumerate(messages):
        if message.id == message_id:
            end = index if message.role is Role.ASSISTANT else index + 1
            return list(messages[:end])
    return list(messages)


async def costs(store: Store, days: int) -> dict[str, Mapping[str, CostLine]]:
    """Return what was spent in the last days, by day, model and session."""
    since = datetime.now(UTC) - timedelta(days=days)
    calls = [event async for event in stored_calls(store, since=since)]
    return {
        "day": cost_by(calls, "day"),
        "model": cost_by(calls, "model"),
        "session": cost_by(calls, "session"),
    }


def cost_rows(lines: Mapping[str, CostLine]) -> list[dict[str, Any]]:
    """Return a table of costs with the share of the largest, for bars."""
    largest = max((line.cost_usd for line in lines.values()), default=Decimal(0))
    return [
        {
            "name": name,
            "calls": line.call_count,
            "input": line.input_tokens
            + line.cached_input_tokens
            + line.cache_creation_input_tokens,
            "cached": line.cached_input_tokens,
            "output": line.output_tokens,
            "cost": format_usd(line.cost_usd),
            "share": float(line.cost_usd / largest * 100) if largest else 0.0,
        }
        for name, line in lines.items()
    ]
