"""Where an exchange is stored: the session it belongs to, and the messages of it that are new."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.ids import new_session_id, new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.gateway.client_sessions import (
    MAIN,
    RETRY_WINDOW_S,
    ClientSession,
    Join,
    Joiner,
    Thread,
    client_session,
    derived_session_id,
    leading_system,
    looks_like_side_call,
    scope_of,
    tenant_key,
)
from metis.gateway.exchange import Exchange
from metis.gateway.stored_exchange import Priced, new_session, note
from metis.gateway.stored_messages import (
    StoredMessages,
    answered_calls,
    last_run_start,
    run_of_calls,
    system_texts,
)
from metis.session.conversation import USAGE_KIND
from metis.store.append import PreparedMessage
from metis.store.entries import PARENT_KIND, AnyEntry, ErrorEntry, RewindEntry, entry_of
from metis.store.exchanges import ExchangeJob, ExchangeRow, HistoryEnd
from metis.store.records import SessionRecord
from metis.store.spool import EXCHANGE_KIND, SESSION_KIND
from metis.wire.call import CanonicalRequest

SIDE_KIND = "gateway.side_call"
"""The kind of the sidecar entry for a side call without usage."""
SYSTEM_KIND = "gateway.system"
"""The kind of the sidecar entry with a system prompt that changed within a conversation."""
_MAX_NOTE_BYTES = 256 * 1024
_MAX_SESSIONS = 20_000
_MAX_NAME = 200
_MAX_ATTEMPT = 2
_FIRST_ERROR = 400


Resolution = Literal["known", "new", "search"]
"""Whether the conversation of a request is in memory, begins with it, or may be in the store."""


def name_session(exchange: Exchange) -> None:
    """Set the session of an exchange without a history: that of its client, or a new one."""
    client = client_session(exchange.headers, exchange.request)
    if client is None:
        exchange.session_id = exchange.session_id or new_session_id()
    else:
        key = tenant_key(exchange.tenant)
        exchange.session_id = derived_session_id("session", key, client.key)


def resolve(
    exchange: Exchange, request: CanonicalRequest, joiner: Joiner, *, now_s: float, is_final: bool
) -> Resolution:
    """Set the session of an exchange, unless the store must be searched first.

    With `is_final` what is not in memory counts as new.
    """
    client = client_session(exchange.headers, request)
    messages = request.messages
    join = Join(scope_of(exchange, client), "", joiner.chain(messages))
    length, end = joiner.longest(join)
    if client is None:
        if not is_final and not join.chain.has_response(length) and join.chain.last_response >= 0:
            return "search"
        _resolve_by_prefix(exchange, request, join, (length, end), now_s)
    else:
        is_known = joiner.thread(join.scope) is not None or client.agent is not None
        is_whole = join.chain.last_response < length
        if not is_final and not (is_known and is_whole):
            return "search"
        _resolve_by_header(exchange, request, join, joiner, client)
    exchange.session_id = join.session_id
    exchange.facts = {**exchange.facts, "join": join}
    return "new" if end is None else "known"


def _resolve_by_prefix(
    exchange: Exchange,
    request: CanonicalRequest,
    join: Join,
    prefix: tuple[int, HistoryEnd | None],
    now_s: float,
) -> None:
    length, end = prefix
    messages = request.messages
    if end is not None:
        is_retry = length == len(messages) and now_s - end.used_s < RETRY_WINDOW_S
        if is_retry or join.chain.has_response(length):
            join.session_id = end.session_id
            return
    if looks_like_side_call(request):
        join.kind = "side"
        join.session_id = derived_session_id("side", tenant_key(exchange.tenant))
        return
    join.session_id = new_session_id()


def _resolve_by_header(
    exchange: Exchange,
    request: CanonicalRequest,
    join: Join,
    joiner: Joiner,
    client: ClientSession,
) -> None:
    tenant = tenant_key(exchange.tenant)
    main_id = derived_session_id("session", tenant, client.key)
    thread = joiner.thread(join.scope)
    length, end = joiner.longest(join)
    if end is not None and length:
        join.session_id = end.session_id
        return
    system = join.chain.system
    if client.agent is not None or client.parent_key is not None:
        join.kind = "agent"
        if client.agent is not None:
            join.session_id = derived_session_id("agent", join.scope)
            join.parent_session_id = main_id
        else:
            join.session_id = main_id
            join.parent_session_id = derived_session_id("session", tenant, client.parent_key or "")
        return
    is_side = looks_like_side_call(request)
    if thread is None:
        join.kind = "side" if is_side else MAIN
        join.session_id = main_id
        if not is_side:
            joiner.set_thread(join.scope, Thread(main_id, system, bool(request.tools)))
    elif is_side or (thread.has_tools and not request.tools):
        join.kind, join.session_id = "side", main_id
    elif thread.has_tools and system != thread.system:
        first = next(filter(None, join.chain.digests), "")
        join.kind = "agent"
        join.session_id = derived_session_id("agent", join.scope, first)
        join.parent_session_id = main_id
    else:
        join.session_id = main_id


class PlannedExchange(Struct):
    """An exchange that is ready to be stored."""

    exchange: Exchange
    priced: Priced
    record: bytes
    job: ExchangeJob
    scope: str = ""
    ends: Sequence[tuple[str, int, HistoryEnd]] = ()
    attempt: int = 0
    is_spooled: bool = False
    is_emitted: bool = False


class Planner:
    """Makes the write job of an exchange, and notes where its history ends."""

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._sessions: dict[str, bool] = {}
        """Which sessions exist, and whether more than side calls made them."""
        self._lock = Lock()
        """Large exchanges are planned in a thread."""

    def remember_session(self, session_id: str, *, is_side: bool = False) -> None:
        """Note that a session exists in the store."""
        with self._lock:
            self._sessions[session_id] = not is_side
            while len(self._sessions) > _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]

    def remember_ends(self, scope: str, ends: Mapping[str, HistoryEnd]) -> None:
        """Note the ends of histories that the store knows."""
        for digest, end in ends.items():
            self.remember_session(end.session_id)
            if digest == MAIN:
                self._joiner.set_thread(scope, Thread.from_end(end))
            elif self._joiner.end(scope, digest) is None:
                self._joiner.add(scope, digest, end)

    def forget(self, planned: PlannedExchange) -> None:
        """Take back what was noted about an exchange that could not be stored."""
        self._sessions.pop(planned.exchange.session_id, None)
        self._joiner.forget(planned.scope, [digest for digest, _, _ in planned.ends])

    def plan(
        self,
        exchange: Exchange,
        priced: Priced,
        record: bytes,
        *,
        is_brief: bool = False,
        attempt: int = 0,
    ) -> PlannedExchange:
        """Return the job of an exchange; with `is_brief` it stores the record and no messages.

        Each attempt assumes less of what is stored: the second that calls have results already,
        the third nothing, so that it stores the whole history again as a thread of its own.
        """
        tenant = tenant_key(exchange.tenant)
        row = ExchangeRow(exchange.id, exchange.session_id, tenant, record.decode())
        join: Join | None = exchange.facts.get("join")
        request = exchange.request
        planned = PlannedExchange(exchange, priced, record, ExchangeJob(row), attempt=attempt)
        if is_brief or request is None or join is None or exchange.kind != "chat":
            return planned
        if join.kind == "side":
            planned.job = self._side_call(exchange, request, priced, row)
        else:
            self._plan_thread(planned, row, request, join)
        return planned

    def _plan_thread(
        self, planned: PlannedExchange, row: ExchangeRow, request: CanonicalRequest, join: Join
    ) -> None:
        exchange = planned.exchange
        session, items = self._new_session(exchange, request)
        start, end = self._parent(join, request.messages, planned.attempt)
        system = self._system_key(join)
        is_new_prompt = bool(system) and self._joiner.end(join.scope, system) is None
        if end is None:
            end, start = self._system_end(join, request.messages, planned.attempt)
        elif is_new_prompt:
            items.append(note(exchange, SYSTEM_KIND, {"system": system_texts(request.messages)}))
        stored = StoredMessages(exchange, _call_map(request.messages[:start], end), end)
        ends = self._plan_request(request, start, join, stored, items)
        if is_new_prompt and not any(digest == system for digest, _, _ in ends):
            ends.append((system, -1, HistoryEnd(exchange.session_id, "", is_stored=True)))
        if not stored.count and end is not None and join.chain.digests[-1]:
            self._joiner.add(join.scope, join.chain.digests[-1], end)
        ends += self._plan_response(planned, join, stored, items)
        if end is not None and answered_calls(request.messages[start:]):
            end.are_calls_answered = True
        for digest, _, one in ends:
            self._joiner.add(join.scope, digest, one)
        thread = self._joiner.thread(join.scope)
        if session is not None and thread is not None and thread.session_id == session.id:
            ends.append((MAIN, -1, HistoryEnd(session.id, "", (thread.encoded(),))))
        planned.scope, planned.ends = join.scope, ends
        planned.job = ExchangeJob(
            row,
            items,
            session=session,
            parent=end,
            rewind=None if end is not None else _rewind(exchange),
            scope=join.scope,
            ends=ends,
        )

    def _plan_request(
        self,
        request: CanonicalRequest,
        start: int,
        join: Join,
        stored: StoredMessages,
        items: list[PreparedMessage | AnyEntry],
    ) -> list[tuple[str, int, HistoryEnd]]:
        """Add the messages of a request that are new; return the ends that they make."""
        ends: list[tuple[str, int, HistoryEnd]] = []
        lead = len(leading_system(request.messages))
        for position, message in enumerate(request.messages[start:], start):
            items.append(stored.add(message))
            if position + 1 == lead:
                ends.append((self._system_key(join), stored.count - 1, stored.end()))
        if stored.count and join.chain.digests[-1]:
            ends.append((join.chain.digests[-1], stored.count - 1, stored.end()))
        return ends

    def _plan_response(
        self,
        planned: PlannedExchange,
        join: Join,
        stored: StoredMessages,
        items: list[PreparedMessage | AnyEntry],
    ) -> Iterator[tuple[str, int, HistoryEnd]]:
        """Add what came back: the response, only its usage, or an error; yield its end."""
        exchange, response = planned.exchange, planned.priced.message
        if response is not None and response.content:
            items.append(stored.add_response(response))
            yield join.chain.extended([response]).digests[-1], stored.count - 1, stored.end()
        elif planned.priced.usage is not None:
            items.append(note(exchange, USAGE_KIND, _usage_data(exchange, planned.priced.usage)))
        if exchange.error is not None or exchange.status >= _FIRST_ERROR:
            items.append(_error_entry(exchange))

    def _parent(
        self, join: Join, messages: Sequence[Message], attempt: int
    ) -> tuple[int, HistoryEnd | None]:
        """Return the longest stored prefix that the other messages can follow, and its end."""
        if attempt > 1:
            return 0, None
        length, end = self._joiner.longest(join)
        if end is None or not (attempt or end.are_calls_answered):
            return length, end
        # A call has one result (M-140). A history with another result is a branch that begins
        # before the call, which is stored again with an id of its own.
        if answered_calls(messages[length:]) & set(run_of_calls(messages[:length])):
            return self._joiner.longest(join, last_run_start(messages[:length]))
        return length, end

    def _system_key(self, join: Join) -> str:
        return f"system:{join.session_id}:{join.chain.system}" if join.chain.system else ""

    def _system_end(
        self, join: Join, messages: Sequence[Message], attempt: int
    ) -> tuple[HistoryEnd | None, int]:
        """Return the end of the stored system prompt, if a thread began with the same."""
        system = self._system_key(join)
        end = self._joiner.end(join.scope, system) if system and attempt < _MAX_ATTEMPT else None
        if end is None or not end.message_id:
            return None, 0
        return end, len(leading_system(messages))

    def _new_session(
        self, exchange: Exchange, request: CanonicalRequest
    ) -> tuple[SessionRecord | None, list[PreparedMessage | AnyEntry]]:
        """Return the session to create, if it is new, and its first entries.

        A side call, such as that for a title, may come first; it does not name the directory that
        the agent works in, so that the session is written again with the first other call.
        """
        join: Join = exchange.facts["join"]
        is_side = join.kind == "side"
        is_whole = self._sessions.get(exchange.session_id)
        if is_whole is not None and (is_whole or is_side):
            return None, []
        session = new_session(exchange, request)
        self.remember_session(exchange.session_id, is_side=is_side)
        if is_whole is not None:
            return session, []
        data = {
            "client": exchange.headers.get("user-agent", "")[:_MAX_NAME],
            "kind": join.kind,
            "workspace_path": session.workspace_path,
        }
        items: list[PreparedMessage | AnyEntry] = [note(exchange, SESSION_KIND, data)]
        if join.parent_session_id is not None:
            items.append(note(exchange, PARENT_KIND, {"session_id": join.parent_session_id}))
        return session, items

    def _side_call(
        self, exchange: Exchange, request: CanonicalRequest, priced: Priced, row: ExchangeRow
    ) -> ExchangeJob:
        """Return the job of a side call: one journal entry, which no thread and no model sees."""
        session, items = self._new_session(exchange, request)
        messages = [*request.messages, *([priced.message] if priced.message else [])]
        side_call: dict[str, Any] = {
            "messages": [
                {"role": message.role.value, "content": msgspec.to_builtins(message.content)}
                for message in messages
            ],
        }
        if len(msgspec.json.encode(side_call)) > _MAX_NOTE_BYTES:
            side_call = {"message_count": len(messages)}
        data = {"exchange": exchange.id, "side_call": side_call}
        kind = SIDE_KIND
        if priced.usage is not None:
            kind, data = USAGE_KIND, {**data, **_usage_data(exchange, priced.usage)}
        items.append(note(exchange, kind, data))
        if exchange.status >= _FIRST_ERROR:
            items.append(_error_entry(exchange))
        return ExchangeJob(row, items, session=session)


def _call_map(messages: Sequence[Message], end: HistoryEnd | None) -> dict[str, str]:
    """Return the stored ids of the calls of the last response, by the ids in the request."""
    if end is None or not end.call_ids:
        return {}
    return dict(zip(reversed(run_of_calls(messages)), reversed(end.call_ids), strict=False))


def _usage_data(exchange: Exchange, usage: Usage) -> dict[str, Any]:
    return {
        "model": exchange.model_id,
        "usage": msgspec.to_builtins(usage),
        "exchange": exchange.id,
    }


def _rewind(exchange: Exchange) -> RewindEntry:
    return RewindEntry(
        id=new_ulid(),
        session_id=exchange.session_id,
        created_at=exchange.started_at,
        reason="a client of the gateway began another thread",
    )


def _error_entry(exchange: Exchange) -> AnyEntry:
    return ErrorEntry(
        id=new_ulid(),
        session_id=exchange.session_id,
        created_at=exchange.started_at,
        text=exchange.error or f"HTTP {exchange.status}",
        status=exchange.status or None,
        provider=exchange.provider or None,
        data={"exchange": exchange.id},
    )


def spooled_entries(planned: PlannedExchange) -> list[AnyEntry]:
    """Return the entries with which a later process stores an exchange."""
    exchange, entries = planned.exchange, list[AnyEntry]()
    items = planned.job.items
    if planned.job.session is not None and not any(
        getattr(item, "kind", "") == SESSION_KIND for item in items
    ):
        entries.append(note(exchange, SESSION_KIND, {}))
    if planned.job.rewind is not None and planned.job.session is None:
        entries.append(planned.job.rewind)
    entries += [entry_of(i.message) if isinstance(i, PreparedMessage) else i for i in items]
    data = {"tenant": tenant_key(exchange.tenant), "record": planned.record.decode()}
    record = note(exchange, EXCHANGE_KIND, data)
    return [*entries, replace(record, id=exchange.id)]
