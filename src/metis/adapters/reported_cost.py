"""Look-up of what a host charged for a response, by the id of the response.

OpenRouter states the cost in the usage of a response only if the request asked for it, and not at
all in a stream that was cut; its generation endpoint states it afterwards. The amount is a
cross-check beside our cost, which is computed from the price table (A-032).
"""

from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.errors import InvalidRequestError, OtherProviderError
from metis.canonical.message import Message
from metis.wire.call import WireRequest
from metis.wire.json_access import maybe_object
from metis.wire.openai_values import decode_cost


def cost_request(profile: Profile, message: Message) -> WireRequest:
    """Return the request for the cost of a response.

    Raises:
        InvalidRequestError: the host has no such look-up, or the message is no response of it that
            has an id and a usage.
    """
    response_id = message.metadata.response_id
    if not profile.cost_path:
        text = "it has no look-up of costs; use a provider that has one, such as openrouter"
        raise InvalidRequestError(text, provider=profile.name)
    if not response_id or message.metadata.usage is None:
        text = f"the message {message.id} has no response id or no usage, so it has no cost"
        raise InvalidRequestError(text, provider=profile.name)
    # The id came from a provider: it must not add a parameter or leave the path.
    return WireRequest(method="GET", path=profile.cost_path + quote(response_id, safe=""), body=b"")


def with_reported_cost(message: Message, body: bytes, provider: str) -> Message:
    """Return a message with the amount of a response to `cost_request`.

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
