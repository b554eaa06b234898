"""Response: a whole answer in gpt2099's words, whoever gave it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.interchange.desk import Desk
from metis.interchange.gpt2099.blocks import SYSTEM, encode_turn
from metis.wire.call import RequestContext
from metis.wire.shape import Wire, maybe_object


def response_of(message: Message) -> Wire:
    """An answer as `{message: {role, content, model, stop_reason, usage?}}`."""
    metadata = message.metadata
    response: Wire = {
        "role": "assistant",
        "content": [wire for block in message.content for wire in _record(message, block)],
        "model": (metadata.model or "").partition(":")[2],
        "stop_reason": str(metadata.stop_reason or "unknown"),
    }
    if metadata.usage is not None:
        response["usage"] = _usage(metadata.usage)
    return {"message": response}


def _record(message: Message, block: ContentBlock) -> Iterator[Wire]:
    """A block; what turns have no word for is told as the provider of it tells it."""
    match block:
        case TextBlock() if block.citations:
            cited: Any = msgspec.to_builtins(block.citations)
            yield {"type": "text", "text": block.text, "citations": cited}
        case ThinkingBlock():
            seal = {} if block.signature is None else {"signature": block.signature}
            yield {"type": "thinking", "thinking": block.text, **seal}
        case RedactedThinkingBlock():
            yield {"type": "redacted_thinking", "data": block.data}
        case OpaqueBlock():
            yield maybe_object(block.data)
        case _:
            desk = Desk(SYSTEM, SYSTEM, RequestContext(session_id=message.session_id))
            alone = msgspec.structs.replace(message, content=(block,))
            yield from encode_turn([alone], desk)


def _usage(usage: Usage) -> Wire:
    told: Wire = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_creation_input_tokens:
        told["cache_creation_input_tokens"] = usage.cache_creation_input_tokens
    if usage.cached_input_tokens:
        told["cache_read_input_tokens"] = usage.cached_input_tokens
    return told
