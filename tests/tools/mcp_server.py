"""A small MCP server for tests, written without the official package: JSON lines.

Server and client implementations are independent, so that each checks the other.
"""

import json
import os
import sys
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "name": "Add-Numbers",
        "description": "Adds.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"$ref": "#/$defs/b"}},
            "required": ["a", "b"],
            "$defs": {"b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "everything", "inputSchema": {"type": "object"}},
    {"name": "pid", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": False}},
    {"name": "environment", "inputSchema": {"type": "object"}},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "refuse", "inputSchema": {"type": "object"}},
    {"name": "die", "inputSchema": {"type": "object"}},
    {"name": "sleep", "inputSchema": {"type": "object"}},
]


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    match name:
        case "Add-Numbers":
            total = arguments["a"] + (arguments["b"] or 0)
            return text(str(total), structuredContent={"total": total})
        case "everything":
            return {
                "content": [
                    {"type": "text", "text": "words"},
                    {"type": "image", "data": "aWY=", "mimeType": "image/png"},
                    {"type": "audio", "data": "aWY=", "mimeType": "audio/wav"},
                    {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                    {
                        "type": "resource",
                        "resource": {
                            "uri": "file:///b",
                            "blob": "aWY=",
                            "mimeType": "application/pdf",
                        },
                    },
                    {
                        "type": "resource",
                        "resource": {"uri": "file:///c", "blob": "aWY=", "mimeType": "text/csv"},
                    },
                    {"type": "resource_link", "uri": "file:///d", "name": "d"},
                ]
            }
        case "pid":
            return text(str(os.getpid()))
        case "environment":
            return text(json.dumps(dict(os.environ)))
        case "fail":
            return text("it failed", isError=True)
        case "die":
            os._exit(3)
        case _:
            return None


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "tests", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            first = not request.get("params", {}).get("cursor")
            return {"tools": TOOLS[:3], "nextCursor": "more"} if first else {"tools": TOOLS[3:]}
        case "tools/call":
            return call(request["params"]["name"], request["params"].get("arguments") or {})
        case _:
            return {}


def reply(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the response to a request, an error for a refused one, or None to leave it open."""
    if "id" not in request:
        return None
    if request.get("params", {}).get("name") == "sleep":
        return None
    result = answer(request)
    if result is None:
        error = {"code": -32602, "message": "refused"}
        return {"jsonrpc": "2.0", "id": request["id"], "error": error}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


if __name__ == "__main__":
    for line in sys.stdin:
        response = reply(json.loads(line))
        if response is not None:
            sys.stdout.write(json.dumps(response) + "\n")
            sys.stdout.flush()
