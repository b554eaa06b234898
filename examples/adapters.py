"""Use adapters as a client of a provider and in its place, with and without streaming."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from metis import Role, SideEffects, TextBlock, ToolDefinition, adapters
from metis.adapters import (
    Adapter,
    AdapterCapabilities,
    AdapterOptions,
    Auth,
    CanonicalRequest,
    Change,
    Loss,
    MessageComplete,
    OutputFormat,
    Profile,
    Reasoning,
    RequestContext,
    SealRecord,
    ServedResponse,
    StreamDecoder,
    StreamEncoder,
    StreamEvent,
    TextDelta,
    ToolChoice,
    WireRequest,
    chat_host,
)

# What a provider is: its address, where its key comes from, and what its models accept.
assert "anthropic" in adapters.names()
profile: Profile = adapters.profile_of("anthropic")
auth: Auth = profile.auth
print(profile.base_url, auth.variable, auth.headers("my-key"))

# A host of Chat Completions is one row; a package adds it under the group `metis.providers`.
acme = chat_host("acme", "https://api.acme.example", "large", auth=Auth(variable="ACME_KEY"))
assert acme.protocol == "openai_chat"

anthropic: Adapter = adapters.get("anthropic")
openai = adapters.get("openai")
capabilities: AdapterCapabilities = anthropic.capabilities("claude-sonnet-4-6")
assert capabilities.supports_thinking

# A client of Anthropic sends a request; it becomes canonical, and goes to OpenAI.
body = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 100,
    "top_k": 5,
    "messages": [{"role": "user", "content": "Say hello."}],
}
request: CanonicalRequest = anthropic.from_wire_request(body)
weather = ToolDefinition(
    name="weather",
    description="Return the weather of a town.",
    input_schema={"type": "object", "properties": {"town": {"type": "string"}}},
    side_effects=SideEffects.NETWORK,
)
options = AdapterOptions(
    model="gpt-5",
    max_output_tokens=1000,
    top_k=5,
    reasoning=Reasoning("low"),
    tool_choice=ToolChoice("auto"),
)
wire: WireRequest = openai.to_wire(request.messages, [weather], options)
losses: list[Loss] = wire.losses
assert [loss.change for loss in losses] == [Change.DROPPED]
print(wire.path, losses[0].reason)

# Structured output in the form of another protocol.
place = OutputFormat(
    {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}, "place"
)
as_json = openai.to_wire(request.messages, (), AdapterOptions(model="gpt-5", output=place))
assert b"json_schema" in as_json.body

# The response of OpenAI becomes a message, and that a response for the client of Anthropic.
context = RequestContext(session_id="sess_example", model="openai:gpt-5", provider="openai")
reply = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1778198400,
    "model": "gpt-5",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10},
}
message = openai.from_wire_response(reply, context)
assert message.role is Role.ASSISTANT
served: ServedResponse = anthropic.encode_response(message)
print(msgspec.json.decode(served.body)["content"], served.losses)

# Clients that keep no seals of thinking get them back from where we store them.
seals: dict[str, str] = {}


def store_seals(record: SealRecord) -> None:
    """Store the seals of one response under each of its keys."""
    seals.update(dict.fromkeys(record.keys, record.value))


def find_seals(keys: Sequence[str]) -> Mapping[str, str]:
    """Return what is stored under these keys."""
    return {key: seals[key] for key in keys if key in seals}


thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2VhbA=="}
reply_with_thinking = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [thought, {"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 8, "output_tokens": 4},
}
thinking_message = anthropic.from_wire_response(reply_with_thinking)
openai.encode_response(thinking_message, RequestContext(on_seals=store_seals))
history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
restored = openai.from_wire_request({"messages": history}, RequestContext(find_seals=find_seals))
assert restored.messages[1].content[0] == thinking_message.content[0]

CHUNKS = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1778198400,"model":"gpt-5",',
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}\n\n',
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1778198400,"model":"gpt-5",',
    b'"choices":[{"index":0,"delta":{"content":"lo."},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


def translate_stream() -> bytes:
    """Return the stream of OpenAI as one of Anthropic, event by event."""
    decoder: StreamDecoder = openai.stream_decoder(context)
    encoder: StreamEncoder = anthropic.stream_encoder(context)
    written = b""
    for chunk in CHUNKS:
        events: list[StreamEvent] = decoder.feed(chunk)
        written += b"".join(encoder.encode(event) for event in events)
    written += b"".join(encoder.encode(event) for event in decoder.finish())
    return written + encoder.finish()


assert b"event: content_block_delta" in translate_stream()


async def received() -> AsyncIterator[bytes]:
    """Yield the bytes of a response, as a connection does."""
    for chunk in CHUNKS:
        yield chunk


async def show_stream() -> None:
    """Print the text of a stream as it arrives, and the complete message at its end."""
    async for event in openai.stream_response(received(), context):
        if isinstance(event, TextDelta):
            print(event.text, end="")
        if isinstance(event, MessageComplete):
            assert event.message.content == (TextBlock("Hello."),)
            print(f" ({event.stop_reason})")


asyncio.run(show_stream())
