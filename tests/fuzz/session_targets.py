"""Fuzz targets of what is served to clients, read from other programs, and shown by the viewer."""

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import build
from corpus import CORPUS
from fuzz.mutation import Run, Target
from fuzz.seeds import PROTOCOLS, aws_frames, chosen, document, messages, responses, stream_seeds
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import MetisError
from metis.interchange.registry import session_format, session_formats
from metis.interchange.session_format import WriteOptions
from metis.interchange.source import Source
from metis.store.entries import entry_of
from metis.store.transfer import read_transcript
from metis.streaming import MessageComplete
from metis.verify.seals import seal_faults
from metis.verify.served import read_stream, write_stream
from metis.web.views import loss_lane, request_diff, timeline
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_fuzz", tools=("f", "look"))
CLIENTS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
DATABASES = frozenset({"llm"})
"""Formats of SQLite files, which SQLite reads."""
_SESSIONS = CORPUS.parent / "sessions"
_FOLDERS = {"chatgpt": "chatgpt-export", "claude-ai": "claude-ai-export"}
_MAX_SEED_BYTES = 20_000
_CHAT = [
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "so", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "done"},
]
# What formats without a writer look like, if no recorded files are at hand.
_HANDWRITTEN: dict[str, Any] = {
    "cline": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}],
    "open-webui": [
        {"chat": {"title": "t", "history": {"messages": {"a": _CHAT[0] | {"id": "a"}}}}}
    ],
    "pydantic-ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "why?"}]},
        {"kind": "response", "parts": [{"part_kind": "text", "content": "so"}], "model_name": "m"},
    ],
    "langchain": [
        {"type": "human", "data": {"content": "why?"}},
        {"type": "ai", "data": {"content": "so", "tool_calls": [{"name": "f", "args": {}}]}},
    ],
    "vercel": [
        {"id": "a", "role": "user", "parts": [{"type": "text", "text": "why?"}]},
        {"id": "b", "role": "assistant", "parts": [{"type": "text", "text": "so"}]},
    ],
    "otel": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "a",
                                "spanId": "b",
                                "name": "chat m",
                                "attributes": [
                                    {
                                        "key": "gen_ai.input.messages",
                                        "value": {"stringValue": json.dumps(_CHAT)},
                                    }
                                ],
                            }
                        ]
                    }
                ]
            }
        ]
    },
}


def serve_response(provider: Adapter, data: bytes) -> None:
    """Serve a response to a client of each protocol, and take its seals back."""
    message = provider.from_wire_response(data, CONTEXT)
    client = adapters.get(CLIENTS[len(data) % len(CLIENTS)])
    list(seal_faults(provider, client, CONTEXT, message, client.response_events(message, CONTEXT)))


def serve_stream(provider: Adapter, data: bytes) -> None:
    """Write the events of a stream for a client of each protocol; the client can read them."""
    events = read_stream(provider, CONTEXT, data)
    client = adapters.get(CLIENTS[len(data) % len(CLIENTS)])
    written, _ = write_stream(client, CONTEXT, events)
    received = read_stream(client, CONTEXT, written)
    # A response that is whole is no error for a client.
    if isinstance(events[-1], MessageComplete) and client is provider:
        assert isinstance(received[-1], MessageComplete)


def read_session(name: str, data: bytes) -> None:
    """Read the sessions of another program, and write them for it again."""
    form = session_format(name)
    form.fits(Source(None, data))
    for session in form.read(Source(None, data)):
        with contextlib.suppress(MetisError):
            form.write(list(session.entries), WriteOptions(cwd="/w"))


def show_pages(data: bytes) -> None:
    """Prepare the pages of the viewer for an export of metis."""
    entries = list(read_transcript(data.splitlines()).entries)
    timeline(entries)
    sent = [message for entry in entries if (message := getattr(entry, "message", None))]
    if len(data) % 8 == 0:
        request_diff(sent, "anthropic", "openai")
        loss_lane(sent, ["gemini"])


def _session_seeds(name: str) -> list[bytes]:
    entries = [entry_of(message) for message in build.numbered(*messages()[1:])]
    try:
        return [session_format(name).write(entries, WriteOptions(cwd="/w")).data]
    except MetisError:
        pass
    folder = _SESSIONS / _FOLDERS.get(name, name)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".db")
    seeds = [path.read_bytes()[:_MAX_SEED_BYTES] for path in files[:40]]
    small = [data for data in seeds if len(data) < _MAX_SEED_BYTES]
    return [*small, json.dumps(_HANDWRITTEN.get(name, _CHAT)).encode()]


def session_targets() -> Iterator[tuple[str, Target]]:
    """Yield the targets of this module by their names."""
    for name, protocol in PROTOCOLS.items():
        run: Run = partial(serve_response, adapters.get(name))
        yield f"serve-{name}", Target(run, lambda p=protocol: chosen(responses(p)))
        pack = aws_frames if name.startswith("bedrock") else None
        run = partial(serve_stream, adapters.get(name))
        yield f"serve-{name}-stream", Target(run, partial(stream_seeds, name), pack)
    for name in session_formats():
        if name not in DATABASES:
            run = partial(read_session, name)
            yield f"session-{name}", Target(run, partial(_session_seeds, name))
    yield "viewer", Target(show_pages, lambda: [document("metis")])
