"""Threads: the paths of messages in a session, derived from its journal.

A message follows the previous message, or the parents that it names, in their order. No entry is
ever rewritten: a rewind moves the tip, a retraction hides a message and all that follow it, a
summary replaces earlier messages in the view. All functions are pure; one pass over the entries
builds the index, one pass over a thread builds its view.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import BookmarkError, CycleError, UnknownHeadError
from metis.canonical.ids import ULID_PATTERN
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
)

Lookup = Callable[[str], tuple[Message, Sequence[str]] | None]
"""Returns a message of another session by its id, with the ids of its parents."""

# gpt2099 has alphanumeric ids of this length (SCRU128); a bookmark must not look like one.
_FOREIGN_ID_LENGTH = 25
_MAX_BOOKMARK_LENGTH = 200


class View(Struct, frozen=True):
    """The messages of a thread that a model gets, and the options that apply at its end."""

    messages: list[Message]
    options: dict[str, Any]
    head: str | None
    """The id of the last message; None if there is none."""


class Node(Struct, gc=False):
    """One message of a thread, or the note of a rewind."""

    message: Message
    parents: tuple[str, ...]
    order: int
    """Its position in the journal; 0 for a message of another session."""
    bookmarks: tuple[tuple[str, int], ...] = ()
    """The bookmarks that later messages inherit, each with the number of its last move."""


class Threads:
    """The threads of a journal; entries are added in their order."""

    def __init__(self, entries: Iterable[AnyEntry] = (), *, lookup: Lookup | None = None) -> None:
        self._lookup = lookup
        self._nodes: dict[str, Node] = {}
        self._bookmarks: dict[str, str] = {}
        self._moves: dict[str, int] = {}
        self._retracted: set[str] = set()
        self._summaries: list[tuple[str | None, CompactionEntry]] = []
        self._tip: str | None = None
        for entry in entries:
            self.add(entry)

    @property
    def tip(self) -> str | None:
        """The message that the next one follows if it names no parents."""
        return self._tip

    @property
    def bookmarks(self) -> Mapping[str, str]:
        """Message ids by bookmark name."""
        return self._bookmarks

    def nodes(self) -> Iterable[Node]:
        """Return the messages of all threads with their parents, in the order of the journal."""
        return self._nodes.values()

    def is_retracted(self, message_id: str) -> bool:
        """Return whether a message was retracted."""
        return message_id in self._retracted

    def add(self, entry: AnyEntry) -> None:
        """Add the next entry of the journal.

        Raises:
            UnknownHeadError: the entry names an unknown message.
            CycleError: a message would follow itself.
            BookmarkError: the name is not allowed for a bookmark.
        """
        match entry:
            case MessageEntry():
                self._add_message(entry.message)
            case BookmarkEntry():
                self._move_bookmark(entry)
            case RewindEntry():
                self._rewind(entry)
            case RetractionEntry():
                self._retract(entry)
            case CompactionEntry():
                self._summaries.append((entry.head_id or self._tip, entry))
            case _:
                pass

    def resolve(self, reference: str | None = None) -> str | None:
        """Return the message id of an id or a bookmark; None is the tip.

        Raises:
            UnknownHeadError: there is no such message or bookmark.
        """
        if reference is None:
            return self._tip
        if reference in self._nodes:
            return reference
        bookmarked = self._bookmarks.get(reference)
        if bookmarked is None and self._find(reference) is None:
            raise UnknownHeadError(reference)
        return bookmarked or reference

    def path(self, reference: str | None = None) -> list[Message]:
        """Return the messages on the path to a head, oldest first, without retracted ones."""
        return [node.message for node in self._visible(self.resolve(reference))]

    def view(self, reference: str | None = None) -> View:
        """Return the view of a model at a head: the path, with a summary for old messages."""
        head = self.resolve(reference)
        path = [node.message for node in self._visible(head)]
        shown = [
            message
            for message in self._with_summary(path)
            if message.metadata.status is not MessageStatus.PARTIAL
        ]
        return View(shown, merged_options(path), path[-1].id if path else None)

    def options(self, reference: str | None = None) -> dict[str, Any]:
        """Return the options of every message on the path to a head, merged in order."""
        return merged_options(self.path(reference))

    def _add_message(self, message: Message) -> None:
        node = self._nodes.get(message.id)
        if node is not None:  # a partial message with more content
            node.message = message
            return
        parents = message.metadata.parents
        if parents:
            self._check_parents(message.id, parents)
        elif self._tip is not None:
            parents = (self._tip,)
        self._add_node(message, parents)
        self._tip = message.id

    def _add_node(self, message: Message, parents: tuple[str, ...]) -> None:
        node = self._nodes[message.id] = Node(message, parents, len(self._nodes) + 1)
        inherited = self._nodes[parents[-1]].bookmarks if parents else ()
        if inherited:
            # A bookmark that was moved or removed later is not inherited.
            node.bookmarks = tuple(
                (name, move) for name, move in inherited if self._moves[name] == move
            )
            self._bookmarks.update((name, message.id) for name, _ in node.bookmarks)

    def _check_parents(self, message_id: str, parents: Sequence[str]) -> None:
        for parent in parents:
            if parent == message_id:
                raise CycleError(message_id)
            if self._find(parent) is None:
                raise UnknownHeadError(parent)

    def _move_bookmark(self, entry: BookmarkEntry) -> None:
        problem = bookmark_problem(entry.name)
        if problem is not None:
            raise BookmarkError(entry.name, problem)
        if self._bookmarks.get(entry.name) != entry.message_id:
            self._set_bookmark(entry.name, entry.message_id)

    def _set_bookmark(self, name: str, target: str | None) -> None:
        """Set a bookmark on a message; messages after its old position no longer inherit it."""
        self._moves[name] = self._moves.get(name, 0) + 1
        if target is None:
            self._bookmarks.pop(name, None)
            return
        node = self._node(target)
        others = (bookmark for bookmark in node.bookmarks if bookmark[0] != name)
        node.bookmarks = (*others, (name, self._moves[name]))
        self._bookmarks[name] = target

    def _rewind(self, entry: RewindEntry) -> None:
        head = entry.head_id or self._tip
        target = entry.to_id
        if target is not None:
            self._node(target)
        # The note becomes a message after the target of the rewind.
        if entry.note is not None:
            self._add_node(_note(entry), () if target is None else (target,))
            target = entry.id
        self._move_thread(head, target)

    def _retract(self, entry: RetractionEntry) -> None:
        node = self._node(entry.message_id)
        self._retracted.add(entry.message_id)
        before = node.parents[0] if node.parents else None
        # Every thread with the message now ends before it.
        for head in {self._tip, *self._bookmarks.values()}:
            if head is not None and self._is_below(head, entry.message_id):
                self._move_thread(head, before)

    def _is_below(self, head: str, ancestor: str) -> bool:
        """Return whether a head follows a message; messages older than it are not visited."""
        oldest = self._node(ancestor).order
        visited = {head}
        stack = [head]
        while stack:
            message_id = stack.pop()
            if message_id == ancestor:
                return True
            node = self._node(message_id)
            if node.order > oldest:
                unvisited = [parent for parent in node.parents if parent not in visited]
                visited.update(unvisited)
                stack += unvisited
        return False

    def _move_thread(self, head: str | None, target: str | None) -> None:
        """Move the end of a thread: the tip, and the bookmarks at the old end."""
        if head == self._tip:
            self._tip = target
        for name in [name for name, at in self._bookmarks.items() if at == head]:
            self._set_bookmark(name, target)

    def _visible(self, head: str | None) -> list[Node]:
        if head is None:
            return []
        if not self._retracted:
            return self._chain(head) or [node for _, node in self._ancestors(head)]
        hidden = set[str]()
        visible: list[Node] = []
        for message_id, node in self._ancestors(head):
            if message_id in self._retracted or any(parent in hidden for parent in node.parents):
                hidden.add(message_id)
            else:
                visible.append(node)
        return visible

    def _chain(self, head: str) -> list[Node] | None:
        """Return the path to a head if each message has one parent, else None.

        Fast path of `_ancestors`: nearly every thread is such a chain, and this is several times
        as fast.
        """
        chain = [self._node(head)]
        while len(parents := chain[-1].parents) == 1:
            if len(chain) > len(self._nodes):
                return None  # a cycle
            # The direct lookup saves a call per message, and this runs in every turn.
            chain.append(self._nodes.get(parents[0]) or self._node(parents[0]))
        chain.reverse()
        return None if parents else chain

    def _ancestors(self, head: str) -> Iterator[tuple[str, Node]]:
        """Yield the path to a head: parents before children, in their order, each once."""
        done = set[str]()
        open_ = set[str]()
        stack = [head]
        while stack:
            message_id = stack[-1]
            if message_id in done:
                stack.pop()
                continue
            node = self._node(message_id)
            waiting = [parent for parent in node.parents if parent not in done]
            if not waiting:
                stack.pop()
                open_.discard(message_id)
                done.add(message_id)
                yield message_id, node
                continue
            open_.add(message_id)
            if not open_.isdisjoint(waiting):
                raise CycleError(message_id)
            stack.extend(reversed(waiting))

    def _node(self, message_id: str) -> Node:
        node = self._find(message_id)
        if node is None:
            raise UnknownHeadError(message_id)
        return node

    def _find(self, message_id: str) -> Node | None:
        node = self._nodes.get(message_id)
        if node is None and self._lookup is not None:
            foreign = self._lookup(message_id)
            if foreign is not None:
                node = self._nodes[message_id] = Node(foreign[0], tuple(foreign[1]), 0)
        return node

    def _with_summary(self, messages: list[Message]) -> list[Message]:
        if not self._summaries or not messages:
            return messages
        positions = {message.id: index for index, message in enumerate(messages)}
        for head, entry in reversed(self._summaries):
            if head is not None and head in positions:
                return _replace_by_summary(messages, entry, positions, positions[head])
        return messages


def view(
    entries: Iterable[AnyEntry], head: str | None = None, *, lookup: Lookup | None = None
) -> View:
    """Return the view of a model at a head of a journal, by default at its tip."""
    return Threads(entries, lookup=lookup).view(head)


def bookmark_problem(name: str) -> str | None:
    """Return why a name is not allowed for a bookmark; None if it is (G-044, G-045)."""
    if not name.strip() or not name.isprintable():
        return "a bookmark needs a printable name"
    if len(name) > _MAX_BOOKMARK_LENGTH:
        return f"a bookmark name has at most {_MAX_BOOKMARK_LENGTH} characters"
    is_foreign = len(name) == _FOREIGN_ID_LENGTH and name.isascii() and name.isalnum()
    if ULID_PATTERN.fullmatch(name.upper()) or is_foreign:
        return "a bookmark name must not look like an id"
    return None


def merged_options(messages: Iterable[Message]) -> dict[str, Any]:
    """Merge the options of messages in order; later values replace earlier ones, objects merge."""
    merged: dict[str, Any] = {}
    for message in messages:
        if message.metadata.options:
            merged = merge_options(merged, message.metadata.options)
    return merged


def merge_options(base: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options of a later turn into earlier ones: objects merge, other values replace."""
    merged = dict(base)
    for key, value in delta.items():
        earlier = merged.get(key)
        if isinstance(value, dict) and isinstance(earlier, dict):
            nested = cast("dict[str, Any]", earlier), cast("dict[str, Any]", value)
            merged[key] = merge_options(*nested)
        else:
            merged[key] = value
    return merged


def _replace_by_summary(
    messages: list[Message], entry: CompactionEntry, positions: Mapping[str, int], head: int
) -> list[Message]:
    """Return the system messages at the start, the summary, and the messages after it."""
    start = head + 1
    if entry.first_kept_id is not None:
        start = min(positions.get(entry.first_kept_id, start), start)
    while 0 < start < len(messages) and messages[start].role == Role.TOOL:
        start -= 1  # a tool result needs its call in the view
    lead = 0
    while lead < start and messages[lead].role == Role.SYSTEM:
        lead += 1
    return [*messages[:lead], _summary(entry), *messages[start:]]


def _summary(entry: CompactionEntry) -> Message:
    return Message(
        id=entry.id,
        session_id=entry.session_id,
        role=Role.USER,
        content=(TextBlock(entry.summary),),
        created_at=entry.created_at,
        metadata=MessageMetadata(origin="compaction"),
    )


def _note(entry: RewindEntry) -> Message:
    return Message(
        id=entry.id,
        session_id=entry.session_id,
        role=Role.DEVELOPER,
        content=(TextBlock(entry.note or ""),),
        created_at=entry.created_at,
        metadata=MessageMetadata(origin="rewind"),
    )
