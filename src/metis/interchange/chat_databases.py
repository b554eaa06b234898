"""SQLite databases with conversations: `logs.db` of llm, and sessions of the OpenAI Agents SDK."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.errors import ForeignDocumentError
from metis.canonical.message import Role
from metis.interchange.database import MAGIC, open_database, table_names
from metis.interchange.foreign_content import (
    Call,
    Part,
    Result,
    objects,
    opaque,
    provider_model,
    role_of,
    text_parts,
    time_of,
)
from metis.interchange.framework_messages import responses_messages
from metis.interchange.message_list import ForeignConversation, ForeignMessage, MessageListFormat
from metis.interchange.source import Source
from metis.wire.json_access import Wire, maybe_count, maybe_object, maybe_text
from metis.wire.response import new_usage

Row = sqlite3.Row


class Llm(MessageListFormat):
    """`logs.db` of the program llm: its message store, and the older table of responses."""

    name = "llm"
    system = "llm"

    def fits(self, source: Source) -> bool:
        """Return whether the database has the tables of llm."""
        tables = table_names(source, self.name)
        return {"responses", "conversations"} <= tables or {"threads", "turns", "parts"} <= tables

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of the database."""
        tables = table_names(source, self.name)
        try:
            with closing(open_database(source, self.name)) as database:
                if {"threads", "turns", "parts"} <= tables:
                    yield from _llm_threads(database)
                if {"responses", "conversations"} <= tables:
                    yield from _llm_conversations(database, tables)
        except sqlite3.Error as error:
            raise ForeignDocumentError(str(error), format=self.name, line=1) from None


def _llm_threads(database: sqlite3.Connection) -> Iterator[ForeignConversation]:
    sql = "SELECT id, name, tip_message_hash FROM threads ORDER BY datetime_utc, id"
    for thread in database.execute(sql).fetchall():
        chain: list[Row] = []
        visited: set[str] = set()
        current: Any = thread["tip_message_hash"]
        while current is not None and current not in visited:
            visited.add(current)
            message = database.execute(
                "SELECT * FROM messages WHERE hash = ?", (current,)
            ).fetchone()
            if message is None:
                break
            chain.append(message)
            current = message["parent_hash"]
        turns = database.execute("SELECT * FROM turns WHERE thread_id = ?", (thread["id"],))
        by_tip = {str(turn["tip_message_hash"]): turn for turn in turns}
        yield ForeignConversation(
            foreign_id=str(thread["id"]),
            title=str(thread["name"] or ""),
            messages=[
                _llm_message(database, message, by_tip.get(str(message["hash"])), at)
                for at, message in enumerate(reversed(chain), 1)
            ],
        )


def _llm_message(
    database: sqlite3.Connection, message: Row, turn: Row | None, at: int
) -> ForeignMessage:
    rows = database.execute(
        "SELECT * FROM parts WHERE message_hash = ? ORDER BY position", (message["hash"],)
    )
    parts: list[Part] = []
    for row in rows:
        payload = _json(row["payload"])
        text = row["text"] if row["text"] is not None else payload.get("text")
        name, foreign_id = str(row["tool_name"] or "tool"), maybe_text(payload.get("tool_call_id"))
        match row["type"]:
            case "text":
                parts.append(TextBlock(str(text or "")))
            case "reasoning":
                parts.append(ThinkingBlock(str(text or "")))
            case "tool_call":
                parts.append(Call(foreign_id, name, payload.get("arguments") or {}))
            case "tool_result":
                output = payload.get("output") if "output" in payload else text
                parts.append(Result(foreign_id, name, text_parts(output, "llm")))
            case _:
                parts.append(opaque({"type": str(row["type"]), **payload}, "llm"))
    role = role_of(message["role"], Role.USER) or Role.USER
    usage = None
    if turn is not None and role is Role.ASSISTANT:
        usage = new_usage(
            latency_ms=maybe_count(turn["duration_ms"]) or 0,
            input_tokens=maybe_count(turn["input_tokens"]) or 0,
            output_tokens=maybe_count(turn["output_tokens"]) or 0,
        )
    return ForeignMessage(
        role=role,
        parts=parts or [TextBlock("")],
        at=at,
        key=str(message["hash"]),
        time=None if turn is None else time_of(turn["datetime_utc"]),
        model=None if turn is None else provider_model(turn["resolved_model"] or turn["model"]),
        usage=usage,
        response_id=None if turn is None else str(turn["id"]),
    )


def _llm_conversations(
    database: sqlite3.Connection, tables: set[str]
) -> Iterator[ForeignConversation]:
    names = database.execute("SELECT id, name FROM conversations ORDER BY id").fetchall()
    for conversation in names:
        sql = "SELECT * FROM responses WHERE conversation_id = ? ORDER BY datetime_utc, id"
        messages: list[ForeignMessage] = []
        system: str | None = None
        for row in database.execute(sql, (conversation["id"],)).fetchall():
            instructions = row["system"]
            if instructions and instructions != system:
                system = str(instructions)
                messages.append(ForeignMessage(role=Role.SYSTEM, parts=[TextBlock(system)]))
            messages += _llm_response(database, row, tables)
        if messages:
            yield ForeignConversation(
                foreign_id=str(conversation["id"]),
                title=str(conversation["name"] or ""),
                messages=messages,
            )


def _llm_response(
    database: sqlite3.Connection, row: Row, tables: set[str]
) -> Iterator[ForeignMessage]:
    response_id, time, columns = str(row["id"]), time_of(row["datetime_utc"]), row.keys()
    prompt: list[Part] = []
    calls: list[Part] = []
    if {"tool_calls", "tool_results"} <= tables:
        sql = "SELECT * FROM tool_results WHERE response_id = ? ORDER BY id"
        for result in database.execute(sql, (row["id"],)):
            content = text_parts(result["output"], "llm")
            prompt.append(Result(maybe_text(result["tool_call_id"]), str(result["name"]), content))
        sql = "SELECT * FROM tool_calls WHERE response_id = ? ORDER BY id"
        for call in database.execute(sql, (row["id"],)):
            foreign_id, arguments = maybe_text(call["tool_call_id"]), call["arguments"]
            calls.append(Call(foreign_id, str(call["name"]), arguments or {}))
    if row["prompt"] or not prompt:
        prompt.append(TextBlock(str(row["prompt"] or "")))
    key = f"{response_id}-prompt"
    yield ForeignMessage(role=Role.USER, parts=prompt, key=key, time=time)
    counts = {
        name: row[name] if name in columns else 0 for name in ("input_tokens", "output_tokens")
    }
    text: list[Part] = [TextBlock(str(row["response"]))] if row["response"] else []
    yield ForeignMessage(
        role=Role.ASSISTANT,
        parts=[*text, *calls] or [TextBlock("")],
        key=response_id,
        time=time,
        model=provider_model(row["model"]),
        usage=new_usage(
            latency_ms=maybe_count(row["duration_ms"]) or 0,
            input_tokens=maybe_count(counts["input_tokens"]) or 0,
            output_tokens=maybe_count(counts["output_tokens"]) or 0,
        )
        if any(counts.values())
        else None,
        response_id=response_id,
    )


def _json(text: object) -> Wire:
    if not isinstance(text, str | bytes):
        return {}
    try:
        return maybe_object(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


class OpenAiAgents(MessageListFormat):
    """Sessions of the OpenAI Agents SDK: its SQLite database, or a saved state of a run."""

    name = "openai-agents"
    system = "openai-agents"

    def fits(self, source: Source) -> bool:
        """Return whether it is a database of sessions, or the state of a run."""
        if {"agent_sessions", "agent_messages"} <= table_names(source, self.name):
            return True
        document = maybe_object(source.sample_document())
        return "$schemaVersion" in document and "generated_items" in document

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the sessions of a database, or the one of a state."""
        if not source.sample().startswith(MAGIC):
            yield self._run_state(source)
            return
        try:
            with closing(open_database(source, self.name)) as database:
                for session in database.execute("SELECT session_id FROM agent_sessions").fetchall():
                    sql = "SELECT message_data FROM agent_messages WHERE session_id = ? ORDER BY id"
                    rows = database.execute(sql, (session["session_id"],))
                    items = [_json(row["message_data"]) for row in rows]
                    yield ForeignConversation(
                        foreign_id=str(session["session_id"]),
                        messages=list(responses_messages(items)),
                        losses=[("usage", "the database has no models or tokens")],
                    )
        except sqlite3.Error as error:
            raise ForeignDocumentError(str(error), format=self.name, line=1) from None

    def _run_state(self, source: Source) -> ForeignConversation:
        state = maybe_object(self.document(source))
        prompt = state.get("original_input")
        items: list[Wire] = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else objects(prompt)
        )
        generated = objects(state.get("session_items")) or objects(state.get("generated_items"))
        items += _raw_items(generated)
        return ForeignConversation(
            foreign_id=maybe_text(state.get("conversation_id"))
            or source.identity
            or source.content_digest(),
            version=str(state.get("$schemaVersion")),
            messages=list(responses_messages(items)),
        )


def _raw_items(items: Sequence[Wire]) -> list[Wire]:
    return [maybe_object(item.get("raw_item")) or item for item in items]
