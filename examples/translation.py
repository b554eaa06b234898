"""Translate a conversation between providers, and list what the target does not receive."""

import json
from typing import Any

from metis import adapters

BODY: dict[str, Any] = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 100,
    "messages": [
        {"role": "user", "content": "What is 6 times 7?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "6 * 7 = 42", "signature": "c2VhbGVk"},
                {"type": "text", "text": "42"},
            ],
        },
        {"role": "user", "content": "And times 2?"},
    ],
}

anthropic, openai = adapters.get("anthropic"), adapters.get("openai")
request = anthropic.from_wire_request(BODY)
wire = openai.to_wire(request.messages, request.tools, request.options)
for loss in wire.losses:
    print(f"{loss.block_type}: {loss.reason}")
again = anthropic.to_wire(request.messages, request.tools, request.options)
assert b"c2VhbGVk" in again.body  # the signature goes back to its issuer unchanged
print(openai.estimate_input_tokens(request.messages), "tokens")

# A server that gets the whole history with every request decodes only what is new in each.
reader = adapters.RequestReader()
context = adapters.RequestContext(session_id="sess_example")
first = reader.read(anthropic, "tenant", json.dumps(BODY).encode(), context)
BODY["messages"] += [{"role": "assistant", "content": "84"}, {"role": "user", "content": "Thanks."}]
second = reader.read(anthropic, "tenant", json.dumps(BODY).encode(), context)
assert all(a is b for a, b in zip(first.messages, second.messages, strict=False))
