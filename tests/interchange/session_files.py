"""Sample session files of five programs: thinking, parallel calls, an image and an error."""

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
PROMPT, ANSWER = "which owls are here?", "Two owls."
CALLS = ("call_owl_1", "call_owl_2")
RESULTS = ("owl 1", "owl 2 failed")
SEALED = "c2VhbGVkIGJ5IGl0cyBpc3N1ZXI="
SESSION_ID = "11111111-2222-4333-8444-555555555555"
OPEN_DATABASES: list[sqlite3.Connection] = []


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def claude_file(directory: Path, cwd: str) -> Path:
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    user = [{"type": "text", "text": PROMPT}, {"type": "image", "source": source}]
    contents: list[tuple[str, list[dict[str, Any]]]] = [
        ("user", user),
        ("assistant", [{"type": "thinking", "thinking": "owls?", "signature": SEALED}]),
        *(
            (
                "assistant",
                [{"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "ls"}}],
            )
            for call in CALLS
        ),
        *(
            (
                "user",
                [{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": n == 1}],
            )
            for n, (call, text) in enumerate(zip(CALLS, RESULTS, strict=True))
        ),
        ("assistant", [{"type": "text", "text": ANSWER}]),
    ]
    records: list[dict[str, Any]] = []
    for number, (role, content) in enumerate(contents, 1):
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message |= {"id": "msg_2" if number == len(contents) else "msg_1", "type": "message"}
            message |= {"model": "claude-sonnet-4-5"}
            message |= {"usage": {"input_tokens": 100, "output_tokens": 20}}
        records.append(
            {
                "parentUuid": _uuid(number - 1) if number > 1 else None,
                "isSidechain": False,
                "userType": "external",
                "cwd": cwd,
                "sessionId": SESSION_ID,
                "version": "2.1.0",
                "type": role,
                "message": message,
                "uuid": _uuid(number),
                "timestamp": f"2026-05-08T10:00:{number:02}.000Z",
            }
        )
    return write_lines(directory / "claude" / f"{SESSION_ID}.jsonl", records)


def _uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def codex_file(directory: Path, cwd: str) -> Path:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}
    items: list[dict[str, Any]] = [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": PROMPT}, image],
        },
        {"type": "reasoning", "summary": [], "encrypted_content": SEALED},
        *(
            {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": call}
            for call in CALLS
        ),
        *(
            {"type": "function_call_output", "call_id": call, "output": text}
            for call, text in zip(CALLS, RESULTS, strict=True)
        ),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": ANSWER}],
        },
    ]
    moment = "2026-05-08T10:00:00.000Z"
    meta = {"id": SESSION_ID, "timestamp": moment, "cwd": cwd, "originator": "codex_cli_rs"}
    meta |= {"cli_version": "0.60.0", "source": "cli", "model_provider": "openai"}
    records: list[dict[str, Any]] = [
        {"timestamp": moment, "type": "session_meta", "payload": meta},
        *({"timestamp": moment, "type": "response_item", "payload": item} for item in items),
    ]
    return write_lines(directory / "codex" / f"rollout-{SESSION_ID}.jsonl", records)


def gemini_file(directory: Path, cwd: str) -> Path:
    moment = "2026-05-08T10:00:00.000Z"
    calls: list[dict[str, Any]] = [
        {"functionCall": {"id": call, "name": "run_shell_command", "args": {}}} for call in CALLS
    ]
    calls[0]["thoughtSignature"] = SEALED
    outputs = [
        {
            "functionResponse": {
                "id": call,
                "name": "run_shell_command",
                "response": {"output": text},
            }
        }
        for call, text in zip(CALLS, RESULTS, strict=True)
    ]
    inline = {"inlineData": {"mimeType": "image/png", "data": IMAGE}}
    records: list[dict[str, Any]] = [
        {"sessionId": SESSION_ID, "projectHash": "0", "startTime": moment, "lastUpdated": moment},
        {"id": "1", "timestamp": moment, "type": "user", "content": [{"text": PROMPT}, inline]},
        {
            "id": "2",
            "timestamp": moment,
            "type": "gemini",
            "content": calls,
            "model": "gemini-2.5-pro",
        },
        {"id": "3", "timestamp": moment, "type": "user", "content": outputs},
        {
            "id": "4",
            "timestamp": moment,
            "type": "gemini",
            "content": ANSWER,
            "model": "gemini-2.5-pro",
        },
    ]
    _ = cwd
    return write_lines(directory / "gemini" / "session-2026-05-08T10-00-11111111.jsonl", records)


def opencode_file(directory: Path, cwd: str) -> Path:
    time = {"created": 1778234400000, "completed": 1778234401000}
    session = "ses_owls"

    def part(number: int, message: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"id": f"prt_{number}", "sessionID": session, "messageID": message, **fields}

    def tool(number: int, call: str, text: str) -> dict[str, Any]:
        state: dict[str, Any] = {"input": {}, "time": {"start": 1, "end": 2}}
        if number:
            state |= {"status": "error", "error": text}
        else:
            state |= {"status": "completed", "output": text, "title": "", "metadata": {}}
        fields = {"type": "tool", "callID": call, "tool": "bash", "state": state}
        return part(10 + number, "msg_2", fields)

    image = {"type": "file", "mime": "image/png", "url": f"data:image/png;base64,{IMAGE}"}
    document = {
        "info": {"id": session, "directory": cwd, "title": "owls", "version": "1", "time": time},
        "messages": [
            {
                "info": {"id": "msg_1", "sessionID": session, "role": "user", "time": time},
                "parts": [
                    part(1, "msg_1", {"type": "text", "text": PROMPT}),
                    part(2, "msg_1", image),
                ],
            },
            {
                "info": {
                    "id": "msg_2",
                    "sessionID": session,
                    "role": "assistant",
                    "time": time,
                    "providerID": "anthropic",
                    "modelID": "claude-sonnet-4-5",
                },
                "parts": [
                    tool(n, call, text)
                    for n, (call, text) in enumerate(zip(CALLS, RESULTS, strict=True))
                ],
            },
            {
                "info": {"id": "msg_3", "sessionID": session, "role": "assistant", "time": time},
                "parts": [part(20, "msg_3", {"type": "text", "text": ANSWER})],
            },
        ],
    }
    path = directory / "opencode.json"
    path.write_text(json.dumps(document))
    return path


def opencode_database(path: Path, export: Path, other_cwd: str) -> None:
    """Write the session of an export, and an empty one of another folder, as opencode stores them.

    The rows stay in the write-ahead log, as while opencode runs.
    """
    document = json.loads(export.read_text())
    info = document["info"]
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(
        """
        CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, slug TEXT,
          directory TEXT, title TEXT, version TEXT, share_url TEXT, summary_files INTEGER,
          tokens_input INTEGER, tokens_cache_read INTEGER, permission TEXT,
          time_created INTEGER, time_updated INTEGER, time_archived INTEGER);
        CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
          time_updated INTEGER, data TEXT);
        CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT,
          time_created INTEGER, time_updated INTEGER, data TEXT);
        """
    )
    sql = (
        "INSERT INTO session (id, project_id, directory, title, version, summary_files, "
        "tokens_input, tokens_cache_read, permission, time_created, time_updated) "
        "VALUES (?, 'global', ?, ?, '1.18.33', 0, 22, 3, '[]', ?, ?)"
    )
    created = info["time"]["created"]
    updated = int(datetime.now(UTC).timestamp() * 1000) + 60_000  # newer than other programs' files
    rows = [(info["id"], info["directory"], info["title"]), ("ses_other", other_cwd, "other")]
    for number, row in enumerate(rows):
        database.execute(sql, (*row, created, updated + number))
    for message in document["messages"]:
        fields = {k: v for k, v in message["info"].items() if k not in ("id", "sessionID")}
        values = (message["info"]["id"], info["id"], created, created, json.dumps(fields))
        database.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", values)
        for part in message["parts"]:
            names = ("id", "sessionID", "messageID")
            data = json.dumps({k: v for k, v in part.items() if k not in names})
            keys = (part["id"], message["info"]["id"], info["id"], created, created, data)
            database.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", keys)
    database.commit()
    OPEN_DATABASES.append(database)  # closing it would move the rows out of the log


def pi_file(directory: Path, cwd: str) -> Path:
    moment = "2026-05-08T10:00:00.000Z"
    image = {"type": "image", "data": IMAGE, "mimeType": "image/png"}
    thinking = {"type": "thinking", "thinking": "owls?", "thinkingSignature": SEALED}
    calls: list[dict[str, Any]] = [
        {"type": "toolCall", "id": call, "name": "bash", "arguments": {}} for call in CALLS
    ]
    answer = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    usage = {"input": 100, "output": 20, "cacheRead": 0, "cacheWrite": 0}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": PROMPT}, image]},
        {"role": "assistant", "content": [thinking, *calls], **answer, "usage": usage},
        *(
            {
                "role": "toolResult",
                "toolCallId": call,
                "toolName": "bash",
                "content": [{"type": "text", "text": text}],
                "isError": number == 1,
            }
            for number, (call, text) in enumerate(zip(CALLS, RESULTS, strict=True))
        ),
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}], **answer},
    ]
    records: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": SESSION_ID, "timestamp": moment, "cwd": cwd}
    ]
    for number, message in enumerate(messages, 1):
        head = {"type": "message", "id": f"p{number}", "timestamp": moment}
        parent = f"p{number - 1}" if number > 1 else None
        records.append({**head, "parentId": parent, "message": message})
    return write_lines(directory / "pi" / f"{SESSION_ID}.jsonl", records)


SUMMARY = "Summary: the barn has two owls."


def compacted_file(directory: Path, cwd: str) -> Path:
    path = claude_file(directory, cwd)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    base: dict[str, Any] = {**records[-1], "timestamp": "2026-05-08T10:01:00.000Z"}
    boundary: dict[str, Any] = {
        **{key: value for key, value in base.items() if key != "message"},
        "type": "system",
        "subtype": "compact_boundary",
        "content": "Conversation compacted",
        "parentUuid": None,
        "logicalParentUuid": base["uuid"],
        "uuid": _uuid(50),
    }
    summary: dict[str, Any] = {
        **base,
        "type": "user",
        "isCompactSummary": True,
        "message": {"role": "user", "content": SUMMARY},
        "parentUuid": _uuid(50),
        "uuid": _uuid(51),
    }
    answer = {**base, "parentUuid": _uuid(51), "uuid": _uuid(52)}
    answer["message"] = {
        **base["message"],
        "id": "msg_3",
        "content": [{"type": "text", "text": ANSWER}],
    }
    return write_lines(path, [*records, boundary, summary, answer])
