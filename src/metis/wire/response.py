"""What the responses of all protocols share: reading the body and making the message."""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed, read_error
from metis.wire.json_access import Wire, read_object

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_ASSISTANT, _COMPLETE, _ERROR = Role.ASSISTANT, MessageStatus.COMPLETE, StopReason.ERROR
# `replace` on a prepared usage is three times as fast as the constructor.
_NO_USAGE = Usage(
    input_tokens=0, output_tokens=0, cost_usd=Decimal(0), pricing_version=UNPRICED, latency_ms=0
)

new_usage: Callable[..., Usage] = partial(replace, _NO_USAGE)
"""Creates an unpriced usage from keyword arguments: `latency_ms` and the token counts."""


def read_response(body: bytes | Wire, context: RequestContext, text_key: str = "message") -> Wire:
    """Read a response body; with an error status it may be any text, stored under `text_key`."""
    # A copy, because decoders remove the content from the object.
    if isinstance(body, dict):
        return {**body}
    return read_error(body, text_key) if has_failed(context) else read_object(body, "response")


def response_message(  # noqa: PLR0913 - a keyword for each field that protocols fill
    content: Iterable[ContentBlock],
    context: RequestContext,
    original_form: tuple[str, Mapping[str, Any]],
    *,
    message_id: str,
    provider: str,
    model: str | None,
    status: MessageStatus,
    usage: Usage | None,
    stop_reason: StopReason | None,
    response_id: str | None = None,
) -> Message:
    """Return the message of a response; `original_form` is a protocol name and its form.

    A response without content counts as failed (M-123, T166), and so does one that ended with an
    error, because a call in it must never run (T161).
    """
    blocks = tuple(content)
    if status is _COMPLETE and (stop_reason is _ERROR or not blocks):
        status = MessageStatus.ERROR
    protocol, form = original_form
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=blocks,
        created_at=context.created_at,
        metadata=_make_metadata(
            model=model,
            provider=provider,
            origin=provider,
            status=status,
            usage=usage,
            stop_reason=stop_reason,
            response_id=response_id,
            provider_raw={protocol: form},
        ),
    )


def model_name(model: str | None) -> str:
    """Return the name of a model without its provider."""
    name = model or ""
    return name.partition(":")[2] or name


def with_status(message: Message, status: MessageStatus, reason: StopReason) -> Message:
    """Return a message with another status and stop reason."""
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)
