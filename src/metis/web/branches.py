"""The branches of a conversation, which begin where it was rewound, repeated or edited.

A run of messages without a fork is one branch. Each branch is listed before the branches that begin
in it, with its depth, so that a deep tree needs no recursion.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.message import Message, Role
from metis.store.entries import AnyEntry
from metis.store.queries import title_of
from metis.store.threads import Threads

MAX_BRANCHES = 500
"""How many branches a page lists."""
MAX_DEPTH = 8
"""How far branches are indented."""
_TITLE_LENGTH = 90


class Child(Struct, frozen=True):
    """A conversation that began in another one: a fork, or the work of a sub-agent."""

    id: str
    kind: str
    title: str
    place: str
    """The message or the tool call at which it began; empty if that is not recorded."""


class BranchView(Struct, kw_only=True):
    """A branch as the tree shows it."""

    first_id: str
    last_id: str
    tip_id: str
    """The newest message that follows the branch: its link shows the thread that ends there."""
    depth: int
    count: int
    title: str
    """The beginning of its first text."""
    reason: str
    """Why it is a branch of its own; empty for the beginning of the conversation."""
    models: str
    time: str
    cost: Decimal
    is_current: bool
    """Whether the next message would follow it."""
    is_retracted: bool
    children: list[Child]


def branches(
    history: Iterable[AnyEntry], children: Sequence[Child]
) -> tuple[list[BranchView], list[Child], bool]:
    """Return the branches, the children that belong to none of them, and whether there are more."""
    threads = Threads(history)
    nodes = {node.message.id: node for node in threads.nodes()}
    followers: dict[str, list[str]] = {}
    for message_id, node in nodes.items():
        # A message with several parents continues the last of them.
        parent = node.parents[-1] if node.parents and node.parents[-1] in nodes else ""
        followers.setdefault(parent, []).append(message_id)
    current = {message.id for message in threads.path()}
    by_place: dict[str, list[Child]] = {}
    for child in children:
        by_place.setdefault(child.place, []).append(child)
    rows: list[BranchView] = []
    stack = [(start, 0) for start in reversed(followers.get("", []))]
    while stack and len(rows) < MAX_BRANCHES:
        start, depth = stack.pop()
        run = [start]
        while len(next_ids := followers.get(run[-1], [])) == 1:
            run.append(next_ids[0])
        stack += [(follower, depth + 1) for follower in reversed(next_ids)]
        messages = [nodes[message_id].message for message_id in run]
        siblings = followers[nodes[start].parents[-1] if depth else ""]
        rows.append(
            _branch(
                messages,
                depth=min(depth, MAX_DEPTH),
                reason=_reason(start, [nodes[item].message for item in siblings]),
                is_current=run[-1] in current and not any(item in current for item in next_ids),
                is_retracted=any(threads.is_retracted(item) for item in run),
                children=_children_of(messages, by_place),
                tip_id=_newest_below(run[-1], followers),
            )
        )
    unplaced = [child for group in by_place.values() for child in group]
    return rows, unplaced, bool(stack)


def _children_of(messages: Sequence[Message], by_place: dict[str, list[Child]]) -> list[Child]:
    """Return the children that began in a run of messages; each is listed once."""
    if not by_place:
        return []
    places = [
        place
        for message in messages
        for place in (
            message.id,
            *(block.id for block in message.content if isinstance(block, ToolUseBlock)),
        )
    ]
    return [child for place in places for child in by_place.pop(place, ())]


def _newest_below(message_id: str, followers: dict[str, list[str]]) -> str:
    while next_ids := followers.get(message_id):
        message_id = next_ids[-1]
    return message_id


def _reason(start: str, siblings: Sequence[Message]) -> str:
    """Return why a branch began, from its first message and those of its siblings."""
    if len(siblings) < 2 or siblings[0].id == start:  # noqa: PLR2004 - a single child is no branch
        return ""
    message = next(item for item in siblings if item.id == start)
    if message.metadata.origin == "rewind":
        return "rewound"
    if message.role is Role.ASSISTANT:
        return "answered again"
    if any(message.content == item.content for item in siblings if item.id != start):
        return "asked again"
    return "another prompt" if message.role is Role.USER else "another history"


def _branch(  # noqa: PLR0913 - what a row shows, all by name
    messages: Sequence[Message],
    *,
    depth: int,
    reason: str,
    is_current: bool,
    is_retracted: bool,
    children: list[Child],
    tip_id: str,
) -> BranchView:
    titles = (title_of(item.content) for item in messages if item.role is not Role.SYSTEM)
    title = next(filter(None, titles), "")
    models = dict.fromkeys(item.metadata.model for item in messages if item.metadata.model)
    costs = [item.metadata.usage.cost_usd for item in messages if item.metadata.usage is not None]
    return BranchView(
        first_id=messages[0].id,
        last_id=messages[-1].id,
        tip_id=tip_id,
        depth=depth,
        count=len(messages),
        title=title if len(title) <= _TITLE_LENGTH else f"{title[:_TITLE_LENGTH]}…",
        reason=reason,
        models=", ".join(models),
        time=messages[0].created_at.strftime("%Y-%m-%d %H:%M"),
        cost=sum(costs, Decimal(0)),
        is_current=is_current,
        is_retracted=is_retracted,
        children=children,
    )
