"""Codex rollouts: JSON lines of model items, events and turn settings.

The items are those of the Responses protocol, so the codec of that protocol reads and writes them.
A run of model items is one message. Early versions wrote the items without an envelope.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus, Usage
from metis.interchange.codex_items import (
    INPUT_ROLES,
    ITEM_TYPES,
    META_TYPES,
    NOT_A_PROMPT,
    NOTE_ITEMS,
    PROTOCOL,
    SIMPLE_CALLS,
    event_text,
    is_record,
    item_text,
    parent_thread,
    summary_texts,
    time_of,
    usage_of_counts,
)
from metis.interchange.codex_records import CodexRecords, item_of, normal_item
from metis.interchange.session_draft import ForeignSession, SessionDraft, priced
from metis.interchange.source import ForeignRecord, Source
from metis.store.entries import CompactionEntry, KnownEntry, RewindEntry
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.blocks import decode_parts
from metis.wire.openai_responses.items import OutputRun
from metis.wire.openai_responses.tool_calls import decode_tool_output
from metis.wire.original_form import form_metadata
from metis.wire.response import new_usage
from metis.wire.tool_ids import CallIds


class Codex(CodexRecords):
    """`$CODEX_HOME/sessions/YYYY/MM/DD/rollout-*.jsonl`, also compressed."""

    def fits(self, source: Source) -> bool:
        """Return whether the first lines are records of a rollout, with or without envelopes."""
        records = source.sample_records()
        # Grok has items of the Responses protocol beside messages of its own.
        if any(record.get("type") in ("assistant", "user", "system") for record in records):
            return any(isinstance(record.get("payload"), dict) for record in records)
        return any(is_record(record) for record in records)

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a rollout."""
        yield _Reader(self, source).read()


class _Unit:
    """Records that become entries together."""

    def __init__(self, kind: str, record: ForeignRecord) -> None:
        self.kind = kind
        self.records = [record]
        self.is_open = False
        self.usage: Usage | None = None
        self.model: str | None = None
        self.response = ""


class _DraftCalls(CallIds):
    """Gives calls the ids of a draft, and records whether a result has a call."""

    def __init__(self, draft: SessionDraft) -> None:
        super().__init__(draft.session_id)
        self._draft = draft
        self.name = ""
        self.at = 0
        self.has_call = True

    def of_call(self, wire_id: str, *, is_id: bool = True) -> str:
        foreign_id = wire_id if wire_id and is_id else None
        return self._draft.open_call(foreign_id, self.name, self.at)

    def of_result(self, wire_id: str, *, is_id: bool = True) -> str:
        foreign_id = wire_id if wire_id and is_id else None
        matched = self._draft.match_result(foreign_id, self.name)
        self.has_call = matched is not None
        return matched or super().of_result(wire_id, is_id=is_id)


class _Reader:
    """Reads one rollout."""

    def __init__(
        self, file_format: Codex, source: Source, *, has_events_only: bool = False
    ) -> None:
        self._file_format = file_format
        self._source = source
        self._draft = SessionDraft(file_format, "")
        self._calls = _DraftCalls(self._draft)
        self._units: deque[_Unit] = deque()
        self._run: _Unit | None = None
        self._last_run: _Unit | None = None
        self._model: str | None = None
        self._provider = "openai"
        self._total: Any = None
        self._last_text: str | None = None
        self._prompt: _Unit | None = None
        # A fork copies turns with their ids; the number of the run tells a response from its copy.
        self._turn, self._turn_runs = "", 0
        self._has_events_only = has_events_only
        self._has_responses = self._has_event_texts = False
        # The message before each turn, and the newest message.
        self._before_turns: list[str | None] = []
        self._last_id: str | None = None

    def read(self) -> ForeignSession:
        records = self._file_format.records(self._source)
        first: list[ForeignRecord] = []
        for record in records:
            first.append(record)
            if record.fields:
                break
        self._start(first[-1].fields if first else {})
        for record in chain(first, records):
            self._add(record)
            self._emit()
        self._settle_prompt({})
        if self._last_run is not None:
            self._last_run.is_open = False
        self._emit()
        if self._has_event_texts and not self._has_responses and not self._has_events_only:
            # Only the events for the screen contain the responses of the model.
            return _Reader(self._file_format, self._source, has_events_only=True).read()
        return self._draft.session()

    def _start(self, fields: Wire) -> None:
        payload = maybe_object(fields.get("payload")) or fields
        foreign_id = maybe_text(payload.get("id")) or maybe_text(payload.get("session_id"))
        identity = self._source.identity or self._source.content_digest()
        is_meta = fields.get("type") in ("session_meta", None)
        self._draft = SessionDraft(self._file_format, (foreign_id if is_meta else None) or identity)
        self._calls = _DraftCalls(self._draft)
        if is_meta and (parent := parent_thread(payload)):
            self._draft.time(time_of(fields))
            self._draft.set_parent(parent)

    def _add(self, record: ForeignRecord) -> None:
        fields = record.fields
        kind = maybe_text(fields.get("type"))
        payload = maybe_object(fields.get("payload"))
        if payload:
            self._note(kind or "", payload)
            is_event = kind == "event_msg" and payload.get("type") != "user_message"
            text = event_text(payload) if is_event else None
            self._has_event_texts = self._has_event_texts or text is not None
        item = item_of(fields)
        self._settle_prompt(item)
        if item is not None:
            self._add_item(item, record)
        elif payload.get("type") == "user_message" and maybe_text(payload.get("message")):
            # Usually the prompt is an item as well, right before its event or right after it.
            unit = _Unit("prompt", record)
            if self._last_text != payload["message"]:
                unit.is_open = True
                self._prompt = unit
            else:
                unit.kind = "meta"
            self._units.append(unit)
        elif payload.get("type") == "thread_rolled_back" and kind == "event_msg":
            self._close_run()
            self._units.append(_Unit("rewind", record))
        elif self._has_events_only and kind == "event_msg" and event_text(payload) is not None:
            self._close_run()
            self._units.append(_Unit("event", record))
        elif kind == "compacted" and payload:
            self._close_run()
            self._units.append(_Unit("compacted", record))
        else:
            is_meta = kind in META_TYPES or "record_type" in fields or "instructions" in fields
            self._units.append(_Unit("meta" if is_meta else "unknown", record))

    def _settle_prompt(self, item: Wire | None) -> None:
        """Decide with the next item whether the event of a prompt is the only record of it."""
        prompt = self._prompt
        if prompt is None or item is None:
            return
        self._prompt, prompt.is_open = None, False
        payload = maybe_object(prompt.records[0].fields.get("payload"))
        if item.get("role") == "user" and item_text(item) == payload.get("message"):
            prompt.kind = "meta"
        else:
            self._close_run()

    def _add_item(self, item: Wire, record: ForeignRecord) -> None:
        kind, role = maybe_text(item.get("type")), maybe_text(item.get("role"))
        is_output = kind in ("tool_search_output", "function_result") or (
            kind is not None and kind.endswith(("_output", "tool_result"))
        )
        if is_output or role in INPUT_ROLES:
            self._close_run()
            self._units.append(_Unit("result" if is_output else "input", record))
            self._last_text = None if is_output else item_text(item)
            return
        if kind not in (None, "message") and kind not in ITEM_TYPES | SIMPLE_CALLS.keys():
            self._units.append(_Unit("meta" if kind in NOTE_ITEMS else "unknown", record))
            return
        self._has_responses = True
        if self._run is not None:
            self._run.records.append(record)
            return
        if self._last_run is not None:
            self._last_run.is_open = False
        unit = _Unit("run", record)
        unit.is_open, unit.model = True, self._model
        if self._turn:
            self._turn_runs += 1
            unit.response = f"{self._turn}#{self._turn_runs}"
        self._run = self._last_run = unit
        self._units.append(unit)

    def _close_run(self) -> None:
        self._run = None

    def _note(self, kind: str, payload: Wire) -> None:
        draft = self._draft
        draft.cwd = draft.cwd or maybe_text(payload.get("cwd")) or ""
        if kind == "session_meta":
            draft.version = maybe_text(payload.get("cli_version")) or draft.version
            self._provider = maybe_text(payload.get("model_provider")) or self._provider
        elif kind == "turn_context":
            turn = maybe_text(payload.get("turn_id")) or ""
            if turn != self._turn:
                self._turn, self._turn_runs = turn, 0
            name = maybe_text(payload.get("model"))
            self._model = f"{self._provider}:{name}" if name else self._model
        elif payload.get("type") == "token_count":
            self._count(maybe_object(payload.get("info")))
        elif payload.get("type") == "thread_name_updated":
            draft.title = maybe_text(payload.get("thread_name")) or draft.title

    def _count(self, info: Wire) -> None:
        """Add a token count to the newest response; an event that repeats the total is ignored."""
        counts, total = maybe_object(info.get("last_token_usage")), info.get("total_token_usage")
        if not counts or self._last_run is None or (total is not None and total == self._total):
            return
        self._total = total
        usage = usage_of_counts(counts)
        before = self._last_run.usage
        if usage is not None and before is not None:
            usage = new_usage(
                latency_ms=0,
                input_tokens=before.input_tokens + usage.input_tokens,
                output_tokens=before.output_tokens + usage.output_tokens,
                cached_input_tokens=before.cached_input_tokens + usage.cached_input_tokens,
                reasoning_output_tokens=before.reasoning_output_tokens
                + usage.reasoning_output_tokens,
            )
        self._last_run.usage = usage or before

    # Entries

    def _emit(self) -> None:
        while self._units and not self._units[0].is_open:
            unit = self._units.popleft()
            first = unit.records[0]
            self._draft.time(time_of(first.fields))
            entry = self._entry(unit)
            if entry is None and unit.kind == "meta":
                self._draft.add_record(first)
            elif entry is None:
                self._draft.add_unknown_record(first)
            elif self._draft.add_unit([entry], unit.records, self._file_format.store_unit):
                self._note_turn(entry)

    def _entry(self, unit: _Unit) -> KnownEntry | Message | None:
        """Return the entry of a unit; None if it is stored as it is."""
        if unit.kind == "run":
            return self._response(unit)
        read: dict[str, Callable[[ForeignRecord], KnownEntry | Message | None]] = {
            "prompt": self._event_prompt,
            "input": self._input,
            "result": self._result,
            "event": self._event_response,
            "rewind": self._rewind,
            "compacted": self._summary,
        }
        return read[unit.kind](unit.records[0]) if unit.kind in read else None

    def _note_turn(self, entry: KnownEntry | Message) -> None:
        """Note where turns begin, for records that go back some turns."""
        if isinstance(entry, RewindEntry):
            self._last_id = entry.to_id
        if not isinstance(entry, Message):
            return
        texts = [block.text for block in entry.content if isinstance(block, TextBlock)]
        if entry.role is Role.USER and not "".join(texts).lstrip().startswith(NOT_A_PROMPT):
            self._before_turns.append(self._last_id)
        self._last_id = entry.id

    def _rewind(self, record: ForeignRecord) -> RewindEntry:
        payload = maybe_object(record.fields.get("payload"))
        count = min(maybe_count(payload.get("num_turns")) or 0, len(self._before_turns))
        target = self._before_turns[-count] if count else self._last_id
        del self._before_turns[len(self._before_turns) - count :]
        return RewindEntry(
            id=self._draft.next_id(),
            session_id=self._draft.session_id,
            created_at=self._draft.time(time_of(record.fields)),
            details={"num_turns": payload.get("num_turns")},
            to_id=target,
        )

    def _event_response(self, record: ForeignRecord) -> Message:
        """Return the message of an event, for a rollout that has no items of the model."""
        payload = maybe_object(record.fields.get("payload"))
        kind, text = event_text(payload) or ("", "")
        block = ThinkingBlock(text) if kind == "reasoning" else TextBlock(text)
        is_prompt = kind == "user"
        model = None if is_prompt else self._model
        return self._draft.message(
            Role.USER if is_prompt else Role.ASSISTANT,
            (block,),
            created_at=time_of(record.fields),
            foreign={"event": payload.get("type")},
            model=model,
            provider=None if model is None else model.partition(":")[0],
        )

    def _response(self, unit: _Unit) -> Message:
        run = OutputRun(self._calls, self._provider)
        for record in unit.records:
            item = normal_item(item_of(record.fields) or {})
            self._calls.name = maybe_text(item.get("name")) or str(item.get("type"))
            self._calls.at = record.at
            run.add(item)
        moment = self._draft.time(time_of(unit.records[0].fields))
        model = unit.model
        if model is None:
            name = maybe_text(unit.records[0].fields.get("model"))
            model = f"{self._provider}:{name}" if name else None
        foreign: Wire = {"bare": True} if "payload" not in unit.records[0].fields else {}
        if unit.response:
            foreign["response"] = unit.response
        return self._draft.message(
            Role.ASSISTANT,
            run.blocks,
            created_at=moment,
            foreign=foreign,
            model=model,
            provider=None if model is None else model.partition(":")[0],
            **form_metadata(PROTOCOL, run.original_form()),
            usage=priced(unit.usage, model, moment),
        )

    def _input(self, record: ForeignRecord) -> Message:
        item = normal_item(item_of(record.fields) or {})
        content = item.get("content")
        foreign: Wire = {} if "payload" in record.fields else {"bare": True}
        blocks: Sequence[ContentBlock]
        original_form: Wire = {}
        if isinstance(content, list):
            blocks, originals = decode_parts(maybe_list(content), self._provider)
            original_form = {"parts": True, "blocks": originals}
        else:
            blocks = (TextBlock(content if isinstance(content, str) else ""),)
            foreign["text"] = True
        return self._draft.message(
            INPUT_ROLES[str(item.get("role"))],
            blocks,
            created_at=time_of(record.fields),
            foreign=foreign,
            **form_metadata(PROTOCOL, original_form),
        )

    def _event_prompt(self, record: ForeignRecord) -> Message:
        text = maybe_text(maybe_object(record.fields.get("payload")).get("message")) or ""
        return self._draft.message(
            Role.USER,
            (TextBlock(text),),
            created_at=time_of(record.fields),
            foreign={"event": True},
        )

    def _result(self, record: ForeignRecord) -> Message | None:
        item = normal_item(item_of(record.fields) or {})
        self._calls.has_call = True
        self._calls.name = maybe_text(item.get("name")) or ""
        # None for the output of a server-side tool search, which has no call that a client runs.
        decoded = decode_tool_output(item, self._calls, self._provider)
        if decoded is None:
            return None
        result, original_form = decoded
        foreign: Wire = {} if "payload" in record.fields else {"bare": True}
        moment = time_of(record.fields)
        if not self._calls.has_call:
            return self._draft.orphan_result(
                result.content, record.at, "$.payload", created_at=moment, foreign=foreign
            )
        name = self._draft.tool_name(result.tool_use_id)
        return self._draft.message(
            Role.TOOL,
            (result,),
            created_at=moment,
            foreign=foreign,
            parent_tool_use_id=result.tool_use_id,
            **form_metadata(PROTOCOL, original_form),
            outcome=Outcome(status=OutcomeStatus.SUCCESS, tool_name=name),
        )

    def _summary(self, record: ForeignRecord) -> CompactionEntry:
        payload = maybe_object(record.fields.get("payload"))
        text = maybe_text(payload.get("message")) or "\n\n".join(summary_texts(payload))
        return CompactionEntry(
            id=self._draft.next_id(),
            session_id=self._draft.session_id,
            created_at=self._draft.time(time_of(record.fields)),
            summary=text,
        )
