"""Threads: which messages a head stands for, derived from the journal of a session.

A message follows the message before it, or the parents that it names, in their order. Nothing is
ever rewritten: a step back moves the tip, a retraction takes a message and what follows it out of
sight, a summary stands for what came before the part that is kept. Every function here is pure; one
pass over the entries makes the index, one pass over a thread makes its view.
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
"""Finds a message of another session by its id, and the ids of those that it follows."""

_FOREIGN_ID_LENGTH = 25
"""Ids of that many letters and digits are those of gpt2099."""


class View(Struct, frozen=True):
    """What a model is shown of a thread, and the options that hold at its end."""

    messages: list[Message]
    options: dict[str, Any]
    head: str | None
    """The message at the end; None if there is none."""


class _Node(Struct, gc=False):
    """One message of a thread, or a note that stands like one."""

    message: Message
    parents: tuple[str, ...]
    order: int
    """Its place in the journal; what another session holds has none and says 0."""
    names: tuple[tuple[str, int], ...] = ()
    """The bookmarks that those who follow inherit, each with the number of its move."""


class Threads:
    """The threads of a journal; entries are added in their order."""

    def __init__(self, entries: Iterable[AnyEntry] = (), *, lookup: Lookup | None = None) -> None:
        self._lookup = lookup
        self._nodes: dict[str, _Node] = {}
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
        """Every name and the message where it is now."""
        return self._bookmarks

    def add(self, entry: AnyEntry) -> None:
        """Take the next entry of the journal.

        Raises:
            UnknownHeadError: it names a message that is not there.
            CycleError: a message would follow itself.
            BookmarkError: a name that no bookmark may have.
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

    def resolve(self, headish: str | None = None) -> str | None:
        """The id of a message from an id or a bookmark; without either, the tip."""
        if headish is None:
            return self._tip
        if headish in self._nodes:
            return headish
        found = self._bookmarks.get(headish)
        if found is None and self._find(headish) is None:
            raise UnknownHeadError(headish)
        return found or headish

    def path(self, headish: str | None = None) -> list[Message]:
        """Every message that leads to a head, oldest first, each once, retracted ones left out."""
        return [node.message for node in self._visible(self.resolve(headish))]

    def view(self, headish: str | None = None) -> View:
        """What a model is shown at a head: the path with summaries in place of what they sum up."""
        head = self.resolve(headish)
        whole = [node.message for node in self._visible(head)]
        shown = [
            message
            for message in self._summed_up(whole)
            if message.metadata.status is not MessageStatus.PARTIAL
        ]
        return View(shown, merged_options(whole), whole[-1].id if whole else None)

    def options(self, headish: str | None = None) -> dict[str, Any]:
        """The options of every message on the way to a head, merged in order."""
        return merged_options(self.path(headish))

    def _add_message(self, message: Message) -> None:
        known = self._nodes.get(message.id)
        if known is not None:  # a message that has come further
            known.message = message
            return
        parents = message.metadata.parents
        if parents:
            self._check_parents(message.id, parents)
        elif self._tip is not None:
            parents = (self._tip,)
        self._add_node(message, parents)
        self._tip = message.id

    def _add_node(self, message: Message, parents: tuple[str, ...]) -> None:
        node = self._nodes[message.id] = _Node(message, parents, len(self._nodes) + 1)
        names = self._nodes[parents[-1]].names if parents else ()
        if names:
            # A name that was moved or taken away since is not carried on.
            node.names = tuple(each for each in names if self._moves[each[0]] == each[1])
            self._bookmarks.update((name, message.id) for name, _ in node.names)

    def _check_parents(self, own: str, parents: Sequence[str]) -> None:
        for parent in parents:
            if parent == own:
                raise CycleError(own)
            if self._find(parent) is None:
                raise UnknownHeadError(parent)

    def _move_bookmark(self, entry: BookmarkEntry) -> None:
        check_bookmark(entry.name)
        if self._bookmarks.get(entry.name) != entry.message_id:
            self._place(entry.name, entry.message_id)

    def _place(self, name: str, target: str | None) -> None:
        """Put a name on a message; nobody who bore it before passes it on any more."""
        self._moves[name] = self._moves.get(name, 0) + 1
        if target is None:
            self._bookmarks.pop(name, None)
            return
        node = self._find_known(target)
        node.names = (*(each for each in node.names if each[0] != name), (name, self._moves[name]))
        self._bookmarks[name] = target

    def _rewind(self, entry: RewindEntry) -> None:
        head = entry.head_id or self._tip
        target = entry.to_id
        if target is not None:
            self._find_known(target)
        if entry.note is not None:
            self._add_node(_note(entry), () if target is None else (target,))
            target = entry.id
        self._move_thread(head, target)

    def _retract(self, entry: RetractionEntry) -> None:
        node = self._find_known(entry.message_id)
        self._retracted.add(entry.message_id)
        before = node.parents[0] if node.parents else None
        for head in {self._tip, *self._bookmarks.values()}:
            if head is not None and self._is_below(head, entry.message_id):
                self._move_thread(head, before)

    def _is_below(self, head: str, ancestor: str) -> bool:
        """Whether a head follows a message; only what came after that message is looked at."""
        oldest = self._find_known(ancestor).order
        seen = {head}
        stack = [head]
        while stack:
            own = stack.pop()
            if own == ancestor:
                return True
            node = self._find_known(own)
            if node.order > oldest:
                fresh = [parent for parent in node.parents if parent not in seen]
                seen.update(fresh)
                stack += fresh
        return False

    def _move_thread(self, head: str | None, target: str | None) -> None:
        """The end of a thread is elsewhere now: its tip, and the bookmarks that stood there."""
        if head == self._tip:
            self._tip = target
        for name in [name for name, place in self._bookmarks.items() if place == head]:
            self._place(name, target)

    def _visible(self, head: str | None) -> list[_Node]:
        if head is None:
            return []
        if not self._retracted:
            return self._chain(head) or [node for _, node in self._ancestors(head)]
        gone = set[str]()
        kept: list[_Node] = []
        for own, node in self._ancestors(head):
            if own in self._retracted or any(parent in gone for parent in node.parents):
                gone.add(own)
            else:
                kept.append(node)
        return kept

    def _chain(self, head: str) -> list[_Node] | None:
        """The way to a head where each message has one parent; None if it is not so simple."""
        chain = [self._find_known(head)]
        while len(parents := chain[-1].parents) == 1:
            if len(chain) > len(self._nodes):
                return None
            chain.append(self._nodes.get(parents[0]) or self._find_known(parents[0]))
        chain.reverse()
        return None if parents else chain

    def _ancestors(self, head: str) -> Iterator[tuple[str, _Node]]:
        """The way to a head: parents before children, in their order, each once."""
        done = set[str]()
        open_ = set[str]()
        stack = [head]
        while stack:
            own = stack[-1]
            if own in done:
                stack.pop()
                continue
            node = self._find_known(own)
            waiting = [parent for parent in node.parents if parent not in done]
            if not waiting:
                stack.pop()
                open_.discard(own)
                done.add(own)
                yield own, node
                continue
            open_.add(own)
            if not open_.isdisjoint(waiting):
                raise CycleError(own)
            stack.extend(reversed(waiting))

    def _find_known(self, own: str) -> _Node:
        node = self._find(own)
        if node is None:
            raise UnknownHeadError(own)
        return node

    def _find(self, own: str) -> _Node | None:
        node = self._nodes.get(own)
        if node is None and self._lookup is not None:
            found = self._lookup(own)
            if found is not None:
                node = self._nodes[own] = _Node(found[0], tuple(found[1]), 0)
        return node

    def _summed_up(self, messages: list[Message]) -> list[Message]:
        if not self._summaries or not messages:
            return messages
        places = {message.id: place for place, message in enumerate(messages)}
        for head, entry in reversed(self._summaries):
            if head is not None and head in places:
                return _with_summary(messages, entry, places, places[head])
        return messages


def view(
    entries: Iterable[AnyEntry], head: str | None = None, *, lookup: Lookup | None = None
) -> View:
    """What a model is shown at a head of a journal; at its tip if none is given."""
    return Threads(entries, lookup=lookup).view(head)


def resolve(
    entries: Iterable[AnyEntry], headish: str, *, lookup: Lookup | None = None
) -> str | None:
    """The id of the message that an id or a bookmark names."""
    return Threads(entries, lookup=lookup).resolve(headish)


def check_bookmark(name: str) -> str:
    """The name itself, if a bookmark may have it: printable, and not like an id."""
    if not name.strip() or not name.isprintable():
        raise BookmarkError(name, "a bookmark has a printable name")
    upper = name.upper()
    is_foreign = len(name) == _FOREIGN_ID_LENGTH and name.isascii() and name.isalnum()
    if ULID_PATTERN.fullmatch(upper) or is_foreign:
        raise BookmarkError(name, "a bookmark may not look like an id")
    return name


def merged_options(messages: Iterable[Message]) -> dict[str, Any]:
    """The options of messages, merged deeply in their order; the later one wins, lists whole."""
    merged: dict[str, Any] = {}
    for message in messages:
        if message.metadata.options:
            merged = merge_options(merged, message.metadata.options)
    return merged


def merge_options(base: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of a later turn: objects are merged, all else is replaced."""
    merged = dict(base)
    for key, value in delta.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            ours, theirs = cast("dict[str, Any]", below), cast("dict[str, Any]", value)
            merged[key] = merge_options(ours, theirs)
        else:
            merged[key] = value
    return merged


def _with_summary(
    messages: list[Message], entry: CompactionEntry, places: Mapping[str, int], head: int
) -> list[Message]:
    """Instructions at the start, the summary, and the part that is kept."""
    start = head + 1
    if entry.first_kept_id is not None:
        start = min(places.get(entry.first_kept_id, start), start)
    while 0 < start < len(messages) and messages[start].role == Role.TOOL:
        start -= 1  # a result is never kept without its call
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
