"""Usage of responses that are not decoded, and the cost that a host reports after a response.

Responses that the gateway passes through state their usage in the form of OpenAI or Gemini. What a
host charged can be looked up by the id of a response: OpenRouter states the cost in the usage only
if the request asked for it, and not at all in an interrupted stream, but its generation endpoint
states it afterwards. The amount is a cross-check beside our cost, which is computed from the price
table (A-032).
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.errors import InvalidRequestError, OtherProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.wire.call import RequestContext, WireRequest
from metis.wire.json_access import maybe_object
from metis.wire.openai_values import decode_cost

_PLAIN = RequestContext(session_id="usage")


def cost_request(profile: Profile, message: Message) -> WireRequest:
    """Return the request for the cost of a response.

    Raises:
        InvalidRequestError: the host has no such look-up, or the message has no response id or
            no usage.
    """
    response_id = message.metadata.response_id
    if not profile.cost_path:
        text = "the provider has no look-up of costs; use one that has, such as openrouter"
        raise InvalidRequestError(text, provider=profile.name)
    if not response_id or message.metadata.usage is None:
        text = f"the message {message.id} has no response id or no usage, so it has no cost"
        raise InvalidRequestError(text, provider=profile.name)
    # The id comes from a provider: unquoted it could add a parameter or change the path.
    return WireRequest(method="GET", path=profile.cost_path + quote(response_id, safe=""), body=b"")


def with_reported_cost(message: Message, body: bytes, provider: str) -> Message:
    """Return a message with the cost that the response to `cost_request` states.

    Raises:
        OtherProviderError: the response states no amount for this message.
    """
    try:
        data = maybe_object(maybe_object(msgspec.json.decode(body)).get("data"))
    except (msgspec.DecodeError, RecursionError):
        data = {}
    amount, usage = decode_cost(data.get("total_cost")), message.metadata.usage
    # An amount of another response is worse than none.
    if amount is None or usage is None or data.get("id") != message.metadata.response_id:
        text = f"the answer states no cost of the response {message.metadata.response_id}"
        raise OtherProviderError(text, provider=provider)
    usage = replace(usage, reported_cost_usd=amount)
    return replace(message, metadata=replace(message.metadata, usage=usage))


def usage_of_counts(counts: Mapping[str, Any]) -> Usage | None:
    """Return the usage in a body of OpenAI, with the names of either of its APIs."""
    # Protocols are imported when they are first used: most programs need one or two.
    from metis.wire.openai_chat import response as openai_chat  # noqa: PLC0415
    from metis.wire.openai_responses import response as openai_responses  # noqa: PLC0415

    usage = openai_responses.decode_usage(counts, _PLAIN)
    return usage or openai_chat.decode_usage(counts, _PLAIN)


def usage_of_metadata(metadata: Any) -> Usage | None:
    """Return the usage in the `usageMetadata` of a Gemini body."""
    from metis.wire.gemini import response as gemini  # noqa: PLC0415 - as above

    return gemini.decode_usage({"usageMetadata": metadata}, _PLAIN)
