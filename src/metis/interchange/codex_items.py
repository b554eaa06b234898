"""The records of a Codex rollout: their kinds, texts, times and token counts."""

from collections.abc import Iterator
from datetime import datetime

from metis.canonical.message import Role
from metis.canonical.metadata import Usage
from metis.interchange.conversion import parse_time
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

PROTOCOL = "openai_responses"
META_TYPES = frozenset(
    [
        "session_meta",
        "turn_context",
        "event_msg",
        "world_state",
        "inter_agent_communication",
        "inter_agent_communication_metadata",
        "realtime_item",
        "security_risk_score",
    ]
)
"""The records that are not messages; all are written back as they were."""
ITEM_TYPES = frozenset(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "web_search_call",
        "tool_search_call",
        "tool_search_output",
        "image_generation_call",
        "agent_message",
        "compaction",
        "compaction_summary",
    ]
)
# Keys of other programs' records that Codex records without an envelope do not have.
_FOREIGN_KEYS = {"parentId", "parentUuid", "uuid", "sessionId", "sessionID", "part"}
SIMPLE_CALLS = {"tool_call": "function_call", "tool_result": "function_call_output"}
# Items that Codex stores for itself.
NOTE_ITEMS = frozenset({"ghost_snapshot", "compaction_trigger"})
# Texts that Codex sends in the name of the user; they do not begin a turn.
NOT_A_PROMPT = (
    *("<environment_context>", "<user_instructions>", "# AGENTS.md instructions"),
    *("<turn_aborted>", "<skill>", "<user_shell_command>", "<subagent_notification>"),
    *("<permissions instructions>", "<collaboration_mode>", "<hook_prompt"),
)
INPUT_ROLES = {"user": Role.USER, "developer": Role.DEVELOPER, "system": Role.DEVELOPER}


def is_record(record: Wire) -> bool:
    """Return whether a record is one of a rollout, with or without an envelope."""
    kind, payload = maybe_text(record.get("type")), record.get("payload")
    if isinstance(payload, dict):
        return kind in ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
    if record.get("record_type") == "state":
        return True
    if "timestamp" in record and {"id", "instructions"} <= record.keys():
        return True
    has_time = "timestamp" in record or "created_at" in record
    is_bare_item = kind in ITEM_TYPES and kind != "message" and "message" not in record
    is_bare_message = kind in (None, "message") and isinstance(record.get("role"), str)
    has_content = isinstance(record.get("content"), str | list)
    foreign_keys = _FOREIGN_KEYS & record.keys()
    return (
        (has_time or is_bare_item)
        and not foreign_keys
        and (is_bare_item or (is_bare_message and has_content))
    )


def parent_thread(meta: Wire) -> str | None:
    """Return the thread that started a sub-agent."""
    spawned: Wire = maybe_object(meta.get("source"))
    for key in ("subagent", "thread_spawn"):
        spawned = maybe_object(spawned.get(key))
    parent = meta.get("parent_thread_id") or spawned.get("parent_thread_id")
    return maybe_text(parent) if parent != meta.get("id") else None


def event_text(payload: Wire) -> tuple[str, str] | None:
    """Return the kind and the text of an event for the screen; None if it is not a message."""
    item = maybe_object(payload.get("item"))
    match payload.get("type"), item.get("type"):
        case "agent_message", _:
            kind, text = "agent", maybe_text(payload.get("message"))
        case "agent_reasoning" | "agent_reasoning_raw_content", _:
            kind, text = "reasoning", maybe_text(payload.get("text"))
        case "item_completed", "UserMessage":
            kind, text = "user", item_text(item)
        case "item_completed", "AgentMessage":
            kind, text = "agent", item_text(item)
        case "item_completed", "Plan":
            kind, text = "agent", maybe_text(item.get("text"))
        case "item_completed", "Reasoning":
            texts = maybe_list(item.get("summary_text")) + maybe_list(item.get("raw_content"))
            kind, text = "reasoning", "\n".join(map(str, texts))
        case _:
            return None
    return (kind, text) if text else None


def item_text(item: Wire) -> str:
    """Return the texts of an item, each on a line."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    texts = (maybe_text(maybe_object(part).get("text")) for part in maybe_list(content))
    return "\n".join(text for text in texts if text)


def summary_texts(payload: Wire) -> Iterator[str]:
    """Yield the texts of the history that replaces the summarised messages."""
    for item in maybe_list(payload.get("replacement_history")):
        for part in maybe_list(maybe_object(item).get("content")):
            text = maybe_text(maybe_object(part).get("text"))
            if text:
                yield text


def usage_of_counts(counts: Wire) -> Usage | None:
    """Return the usage of a response; None if it has no counts."""
    total = maybe_count(counts.get("input_tokens")) or 0
    cached = min(maybe_count(counts.get("cached_input_tokens")) or 0, total)
    output = maybe_count(counts.get("output_tokens")) or 0
    reasoning = min(maybe_count(counts.get("reasoning_output_tokens")) or 0, output)
    if not total and not output:
        return None
    return new_usage(
        latency_ms=0,
        input_tokens=total - cached,
        cached_input_tokens=cached,
        output_tokens=output,
        reasoning_output_tokens=reasoning,
    )


def time_of(fields: Wire) -> datetime | None:
    """Return the time of a record; None if it has none."""
    text = maybe_text(fields.get("timestamp")) or maybe_text(fields.get("created_at"))
    return None if text is None else parse_time(text)
