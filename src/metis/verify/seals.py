"""The law of seals: clients of other protocols get seals in envelopes, and return them unchanged.

The check follows a seal from the provider's response to a client of another protocol, plain and
streamed, into the history of the client's next request, and back to the provider.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from metis.adapters import Adapter, RequestContext
from metis.adapters.seals import restore_seals, seal_keys, sealed_record
from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.streaming import MessageComplete, StreamEvent
from metis.verify.served import read_stream, write_stream
from metis.wire.call import CanonicalRequest
from metis.wire.json_access import Wire
from metis.wire.seals import value_of

_decode = msgspec.json.Decoder().decode
_MIN_CHARACTERS = 16
"""Shorter seals, which occur only in tests, may be part of other values by chance."""


def seals_of(message: Message) -> list[str]:
    """Return the seals of a response, in order."""
    blocks = (
        block
        for block in message.content
        if isinstance(block, ThinkingBlock | RedactedThinkingBlock)
    )
    return [value for block in blocks if (value := value_of(block))]


def seal_faults(
    provider: Adapter,
    client: Adapter,
    context: RequestContext,
    message: Message,
    events: Sequence[StreamEvent],
) -> Iterator[str]:
    """Yield the seals of a response that a client gets without an envelope or does not return."""
    direct = sent_back(provider, [message])
    try:
        plain = client.encode_response(message, context).body
        stream, _ = write_stream(client, context, events)
    except MetisError as error:
        yield f"to {client.name}: {error}"
        return
    # One issuer may have several names; other providers are foreign even in the same protocol.
    is_own = client.name == provider.name or provider.name in client.profile.issuers
    for seal in seals_of(message):
        if not is_own and len(seal) >= _MIN_CHARACTERS and seal.encode() in plain + stream:
            yield f"to {client.name}: a seal of {provider.name} is sent without an envelope"
    for name, received in received_by(client, context, plain, stream):
        request = echoed(client, context, received)
        # A seal belongs to the content after it; without such content a client cannot return it.
        if request is None or not any(map(_is_visible, received.content)):
            continue
        if client.profile.protocol == "ollama":
            record = sealed_record(message, client.profile)
            records = {} if record is None else dict.fromkeys(record.keys, record.value)
            keys = seal_keys(request)
            request = restore_seals(request, {key: records[key] for key in keys if key in records})
        returned = sent_back(provider, request.messages)
        missing = [seal for seal in direct if seal not in returned]
        if missing:
            yield f"from {client.name}, {name}: {len(missing)} seals are not returned"


def received_by(
    client: Adapter, context: RequestContext, plain: bytes, stream: bytes
) -> Iterator[tuple[str, Message]]:
    """Yield the messages that a client decodes from a plain and a streamed response."""
    yield "plain", client.from_wire_response(plain, context)
    end = read_stream(client, context, stream)[-1]
    if isinstance(end, MessageComplete):
        yield "streamed", end.message


def echoed(client: Adapter, context: RequestContext, message: Message) -> CanonicalRequest | None:
    """Return a request in which a client sends a response back; None if it cannot."""
    body = _decode(client.encode_response(message, context).body)
    try:
        history = _history_with(client.profile.protocol, body)
    except (LookupError, TypeError):
        return None  # a response in its original form may have no message
    try:
        return client.from_wire_request(history, context)
    except MetisError:
        return None


def _history_with(protocol: str, body: Wire) -> Wire:
    """Return a request whose history is a prompt and a response."""
    first: Wire = {"role": "user", "content": "go"}
    match protocol:
        case "anthropic":
            response = {"role": "assistant", "content": body["content"]}
        case "bedrock_converse":
            return {
                "messages": [
                    {"role": "user", "content": [{"text": "go"}]},
                    body["output"]["message"],
                ]
            }
        case "gemini":
            content = body["candidates"][0]["content"]
            return {"contents": [{"role": "user", "parts": [{"text": "go"}]}, content]}
        case "ollama":
            response = body["message"]
        case "openai_chat":
            response = body["choices"][0]["message"]
        case _:
            return {"input": [first, *body["output"]]}
    return {"messages": [first, response]}


def sent_back(provider: Adapter, messages: Sequence[Message]) -> list[str]:
    """Return the seals in the request to a provider, as its own codec decodes it."""
    responses = [message for message in messages if message.role is Role.ASSISTANT]
    try:
        body = provider.preview(conversation_with(responses)).body
        request = provider.from_wire_request(body)
    except MetisError:
        return []
    return [seal for message in request.messages for seal in seals_of(message)]


def _is_visible(block: ContentBlock) -> bool:
    return bool(block.text) if type(block) is TextBlock else type(block) is ToolUseBlock


def conversation_with(responses: Sequence[Message]) -> list[Message]:
    """Return a history of a prompt, these responses with tool results, and another prompt."""
    history = [_user("go")]
    for response in responses:
        history.append(response)
        history += (_result(block.id) for block in response.content if type(block) is ToolUseBlock)
    return [*history, _user("on")]


def _user(text: str) -> Message:
    return _message(Role.USER, TextBlock(text))


def _result(tool_use_id: str) -> Message:
    return _message(Role.TOOL, ToolResultBlock(tool_use_id, (TextBlock("done"),)), tool_use_id)


def _message(role: Role, block: ContentBlock, parent: str | None = None) -> Message:
    return Message(
        id=new_ulid(),
        session_id="verify",
        role=role,
        content=(block,),
        metadata=MessageMetadata(parent_tool_use_id=parent),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
