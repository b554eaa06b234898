"""Requests of clients for another provider: reading them, and refusing what cannot be sent."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.client_features import BETA_HEADER
from metis.adapters.request_reader import RequestReader
from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import InvalidRequestError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.gateway.client_call import ClientCall, RequestKeys, recorded_headers
from metis.gateway.client_sessions import BILLING_PREFIX, tenant_key
from metis.gateway.config import Policy
from metis.gateway.endpoints import Endpoint
from metis.gateway.exchange_plans import READ_SESSION
from metis.projection import Change, Loss
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, SealRecord
from metis.wire.json_access import maybe_list, maybe_object
from metis.wire.original_form import without_original_form

_UNPROCESSABLE = 422
_MAX_LISTED_LOSSES = 5
_BYTES_PER_TOKEN = 4
_MEDIA_BYTES = 6000
"""What an image counts as: some 1500 tokens."""
_OPTION_HEADERS = frozenset({BETA_HEADER})


class SealMemory:
    """The seals of responses whose clients have no field for them, by tenant; bounded.

    A client of Chat Completions sends a response back without the signature of its thinking; the
    provider that signed it gets it again from here.
    """

    def __init__(self, max_seals: int = 20_000) -> None:
        self._max_seals = max_seals
        self._values: OrderedDict[tuple[str, str], str] = OrderedDict()

    @property
    def has_any(self) -> bool:
        """Whether anything is stored; most gateways never store any."""
        return bool(self._values)

    def store(self, tenant: str, record: SealRecord) -> None:
        """Store the seals of a response."""
        for key in record.keys:
            self._values[tenant, key] = record.value
        while len(self._values) > self._max_seals:
            self._values.popitem(last=False)

    def find(self, tenant: str, keys: Sequence[str]) -> Mapping[str, str]:
        """Return the seals that are stored under keys."""
        values = ((key, self._values.get((tenant, key))) for key in keys)
        return {key: value for key, value in values if value is not None}


def read_request(
    call: ClientCall, keys: RequestKeys | None, reader: RequestReader, seals: SealMemory
) -> CanonicalRequest:
    """Return the request of a client in the canonical form, and note it in the exchange."""
    endpoint, exchange = call.endpoint, call.exchange
    exchange.request_adapter = request_adapter(endpoint, keys)
    client, tenant = adapters.get(exchange.request_adapter), tenant_key(exchange.tenant)
    # Clients send the whole history with every request, and equal requests must give equal
    # bytes, or the provider's cache is lost: ids do not depend on the session.
    context = RequestContext(
        session_id=READ_SESSION,
        model=endpoint.model or None,
        provider=client.name,
        path=endpoint.path,
        # Hosts of Claude differ in the beta features that they accept (T220).
        headers=recorded_headers(call.headers, _OPTION_HEADERS),
        find_seals=partial(seals.find, tenant) if seals.has_any else None,
    )
    exchange.request = reader.read(client, tenant, call.body, context)
    return exchange.request


def request_adapter(endpoint: Endpoint, keys: RequestKeys | None) -> str:
    """Return the adapter that reads a request: a Chat path may get a Responses body."""
    is_chat = endpoint.protocol == "openai_chat"
    if not is_chat or keys is None or keys.messages is not msgspec.UNSET:
        return endpoint.adapter
    return endpoint.adapter if keys.input is msgspec.UNSET else "openai-responses"


def includes_usage(keys: RequestKeys | None) -> bool:
    """Whether a request of Chat Completions asks for the usage of a stream."""
    options = None if keys is None else keys.stream_options
    return isinstance(options, msgspec.Raw) and b"include_usage" in bytes(options)


def estimated_tokens(body: bytes, messages: Sequence[Message]) -> int:
    """Return about how many tokens a request has; an estimate by words takes milliseconds."""
    size = len(body)
    if b"base64" in body:
        for message in messages:
            for block in message.content:
                source = getattr(block, "source", None)
                if source is not None and source.kind == "base64":
                    size -= len(source.data) - _MEDIA_BYTES
    return max(1, size // _BYTES_PER_TOKEN)


def without_billing_line(
    messages: tuple[Message, ...], target: Adapter
) -> tuple[tuple[Message, ...], list[Loss]]:
    """Return the messages without the line that Claude Code writes for Anthropic's accounting.

    It changes with versions and requests and is the first text: at any other provider, nothing
    after it could be cached.
    """
    first = messages[0] if messages else None
    is_for_other = target.profile.protocol != "anthropic"
    if first is None or first.role is not Role.SYSTEM or not is_for_other:
        return messages, []
    if not any(map(_is_billing_line, first.content)):
        return messages, []
    loss = Loss(
        session_id="",
        message_id=first.id,
        block_type="text",
        adapter=target.name,
        reason="a line for the accounting of Anthropic, which ends the cached prefix elsewhere",
        path="$.content[0]",
    )
    remaining = _without_billing(first, first.metadata.hints)
    return (*([remaining] if remaining.content else []), *messages[1:]), [loss]


def _is_billing_line(block: ContentBlock) -> bool:
    return type(block) is TextBlock and block.text.startswith(BILLING_PREFIX)


@lru_cache(256)
def _without_billing(message: Message, marks: tuple[CacheHint, ...]) -> Message:
    # The same object for the same prompt, so that the encoded history is found again; equal
    # messages may differ in their marks.
    remains = [n for n, block in enumerate(message.content) if not _is_billing_line(block)]
    places = {old: new for new, old in enumerate(remains)}
    message = without_original_form(message)
    hints = tuple(
        [replace(mark, after=places[mark.after]) for mark in marks if mark.after in places]
    )
    return replace(
        message,
        content=tuple([message.content[n] for n in remains]),
        metadata=replace(message.metadata, hints=hints),
    )


def server_tools(
    request: CanonicalRequest, options: AdapterOptions, client: Adapter, target: Adapter
) -> AdapterOptions:
    """Return the options with the provider's own web search for a client's, where both have one.

    Raises:
        InvalidRequestError: the request has no other tools than ones that only the client's
            provider runs; the answer could only be empty.
    """
    if client.profile.protocol == target.profile.protocol:
        return options
    kinds = native_tool_kinds(options.native.get(client.profile.protocol, {}))
    if not kinds:
        return options
    if any("search" in kind.lower() for kind in kinds) and target.profile.search is not None:
        choice = options.tool_choice
        if choice is not None and choice.name not in (None, *(tool.name for tool in request.tools)):
            # Claude Code forces its search, which is no function of the target.
            options = replace(options, tool_choice=None)
        return replace(options, search=True)
    if request.tools:
        return options  # the adapter reports each as a loss
    text = f"{target.name} cannot run the tool {kinds[0]!r} of {client.name}, and there is no other"
    raise InvalidRequestError(text, status=400)


def unforced_search(adapter: str) -> Loss:
    """Return the loss of a forced search: the target decides whether it searches."""
    return Loss(
        session_id="",
        message_id="",
        block_type="option",
        adapter=adapter,
        reason="the provider decides itself whether it searches",
        change=Change.ALTERED,
        path="$.tool_choice",
    )


_SERVER_TOOL_MARKS = ("search", "code_", "computer", "mcp", "fetch", "image_generation", "maps")


def native_tool_kinds(native: Mapping[str, Any]) -> list[str]:
    """Return the kinds of tools in native options that a provider runs itself."""
    tools = map(maybe_object, maybe_list(native.get("tools")))
    kinds = [str(tool.get("type") or next(iter(tool), "")) for tool in tools]
    return [kind for kind in kinds if any(mark in kind.lower() for mark in _SERVER_TOOL_MARKS)]


def refuse_losses(losses: list[Loss], policy: Policy) -> None:
    """Raise an error if a policy refuses losses.

    `refuse critical` refuses a request of which a part of a message or a tool would be dropped;
    `refuse any` refuses every change.
    """
    if policy == "warn" or not losses:
        return
    refused = losses if policy == "refuse any" else [loss for loss in losses if is_critical(loss)]
    if refused:
        listed = "; ".join(f"{loss.path}: {loss.reason}" for loss in refused[:_MAX_LISTED_LOSSES])
        text = f"{len(refused)} parts would not reach {refused[0].adapter} ({policy}): {listed}"
        raise InvalidRequestError(text, status=_UNPROCESSABLE)


def is_critical(loss: Loss) -> bool:
    """Whether a loss drops a part of a message or a tool, not only an option."""
    return loss.change is Change.DROPPED and loss.block_type != "option"


def unknown_response(name: object) -> InvalidRequestError:
    """Return the error for a response that a client continues and that is not stored."""
    text = f"Previous response with id {name!r} not found: send the whole input instead"
    return InvalidRequestError(text, status=400, code="previous_response_not_found")
