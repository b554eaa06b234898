"""Shared by simulator tests: tools, images, and a valid request of each protocol."""

import base64
import struct
import zlib
from typing import Any

import msgspec
import pytest

from metis import adapters
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.sim import Service
from metis.sim.endpoints import HttpReply, HttpRequest
from metis.sim.signing import ThinkingSigner

READ_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}
GREP_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"pattern": {"type": "string"}, "path": {"type": "string"}},
    "required": ["pattern"],
}
LIST_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
}


def tool(name: str, schema: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name, f"the tool {name}", schema, SideEffects.READ)


TOOLS = (
    tool("read_file", READ_SCHEMA),
    tool("grep", GREP_SCHEMA),
    tool("list_files", LIST_SCHEMA),
    tool("get_weather", WEATHER_SCHEMA),
)


def png_base64(width: int = 3, height: int = 2) -> str:
    """Return a complete PNG in base64."""
    rows = b"".join(b"\0" + b"\x10\x20\x30" * width for _ in range(height))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


SIGNER = ThinkingSigner()

ANTHROPIC: dict[str, Any] = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 2000,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "read_file", "input_schema": READ_SCHEMA}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": png_base64()},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": SIGNER.sign("Hm.")},
                {"type": "redacted_thinking", "data": SIGNER.sign("Aha.")},
                {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}},
                {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
                {"type": "text", "text": "And now?"},
            ],
        },
    ],
}
CHAT: dict[str, Any] = {
    "model": "gpt-5",
    "tools": [{"type": "function", "function": {"name": "grep", "parameters": GREP_SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{png_base64()}"},
                },
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{name}",
                    "type": "function",
                    "function": {"name": "grep", "arguments": "{}"},
                }
                for name in "ab"
            ],
        },
        {"role": "tool", "tool_call_id": "call_b", "content": "B"},
        {"role": "tool", "tool_call_id": "call_a", "content": "A"},
        {"role": "user", "content": "And now?"},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-5",
    "store": False,
    "tools": [{"type": "function", "name": "grep", "parameters": GREP_SCHEMA}],
    "input": [
        {"role": "user", "content": "Look"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": SIGNER.sign("Hm."),
        },
        {"type": "function_call", "call_id": "call_1", "name": "grep", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "none"},
    ],
}
GEMINI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "Look"}]},
        {
            "role": "model",
            "parts": [
                {
                    "functionCall": {"name": "grep", "args": {}},
                    "thoughtSignature": SIGNER.sign("Hm."),
                }
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "grep", "response": {"output": "none"}}}],
        },
    ],
    "tools": [{"functionDeclarations": [{"name": "grep", "parameters": GREP_SCHEMA}]}],
}
OLLAMA: dict[str, Any] = {
    "model": "llama3.2",
    "messages": [
        {"role": "user", "content": "Look", "images": [png_base64()]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "grep", "arguments": {}}}],
        },
        {"role": "tool", "content": "none", "tool_name": "grep"},
    ],
}
VALID_BODIES: dict[str, dict[str, Any]] = {
    "anthropic": ANTHROPIC,
    "openai_chat": CHAT,
    "openai_responses": RESPONSES,
    "gemini": GEMINI,
    "ollama": OLLAMA,
}
"""A valid request of each protocol with most features."""

PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
    "ollama": "/api/chat",
}
PROTOCOLS = [name for name in PATHS if name in adapters.names()]
"""The protocols that are served."""


def requires_adapter(name: str) -> pytest.MarkDecorator:
    """Skip a test whose protocol has no adapter."""
    return pytest.mark.skipif(name not in PROTOCOLS, reason=f"{name} is not spoken")


def send_request(
    service: Service, name: str, body: Any, headers: dict[str, str] | None = None
) -> HttpReply:
    """Return the reply to a body, sent as a client of the provider does."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    stated = {"anthropic-version": "2023-06-01", **(headers or {})}
    return service.respond(HttpRequest(method="POST", path=PATHS[name], headers=stated, body=data))


def json_of(reply: HttpReply) -> Any:
    """Return the JSON of a reply."""
    return msgspec.json.decode(reply.body)
