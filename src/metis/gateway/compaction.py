"""Compaction of Responses at any provider: a shorter history, with a summary that the model writes.

OpenAI answers `/responses/compact` with an encrypted item that only it can read. Other providers
are asked for a summary as plain text, which every provider can read in later requests.
"""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from metis.canonical.errors import ServerError
from metis.canonical.ids import new_ulid
from metis.gateway.client_call import ClientCall, read_keys
from metis.gateway.endpoints import RESPONSES
from metis.gateway.errors import JSON_TYPE, metis_headers
from metis.gateway.models import Target
from metis.gateway.pass_through import KeepAlive
from metis.session.context_window import SUMMARY_PROMPT
from metis.wire.json_access import maybe_list, maybe_object

if TYPE_CHECKING:
    from metis.gateway.core import Core

_MAX_KEPT_BYTES = 64 * 1024
"""How much of the newest user messages goes on beside the summary."""
_LEAD = "The conversation so far was summarised:\n\n"
_encode = msgspec.json.Encoder().encode


async def compact(gateway: "Core", call: ClientCall, target: Target) -> None:
    """Answer a compaction request with a provider that has no compaction endpoint."""
    wire = msgspec.json.decode(call.body, type=dict[str, Any])
    items = await gateway.expanded(call, wire)
    prompt = {"type": "message", "role": "user", "content": SUMMARY_PROMPT}
    summary_request = {
        "model": call.exchange.requested_model,
        "input": [*items, prompt],
        "store": False,
        **({"instructions": wire["instructions"]} if wire.get("instructions") else {}),
    }
    call.body, call.endpoint, call.exchange.mode = _encode(summary_request), RESPONSES, "translate"
    captured = _Captured()
    send, call.send = call.send, captured.send
    try:
        translation = gateway.translation(call, target, read_keys(call.body))
        limits = gateway.config.limits
        keep_alive = KeepAlive(call, limits.keep_alive_s, limits.silence_s)
        await translation.run(translation.read(), gateway.policy(call), keep_alive)
    finally:
        call.send, call.is_started = send, False
    call.meter.add(captured.body)
    response = msgspec.json.decode(captured.body, type=dict[str, Any])
    summary = _text(response)
    if not summary:
        text = f"{target.provider.name} wrote no summary"
        raise ServerError(text, provider=target.provider.name, status=502)
    content = [{"type": "input_text", "text": _LEAD + summary}]
    value = {
        "id": f"resp_{new_ulid()}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "model": call.exchange.requested_model,
        "output": [
            *_newest_prompts(items),
            {"type": "message", "role": "user", "content": content},
        ],
        "usage": response.get("usage"),
    }
    await call.reply(200, [JSON_TYPE, *metis_headers(call)], _encode(value))


class _Captured:
    """Collects the body that would have gone to the client."""

    def __init__(self) -> None:
        self.body = b""

    async def send(self, message: dict[str, Any]) -> None:
        self.body += message.get("body", b"")


def _text(response: dict[str, Any]) -> str:
    parts = [
        maybe_object(part).get("text")
        for item in maybe_list(response.get("output"))
        for part in maybe_list(maybe_object(item).get("content"))
    ]
    return "".join(part for part in parts if isinstance(part, str)).strip()


def _newest_prompts(items: list[Any]) -> list[Any]:
    """Return the newest messages of the user, in order, as far as they fit."""
    prompts: list[Any] = []
    size = 0
    for item in reversed(items):
        if maybe_object(item).get("role") != "user":
            continue
        size += len(_encode(item))
        if size > _MAX_KEPT_BYTES:
            break
        prompts.append(item)
    return prompts[::-1]
