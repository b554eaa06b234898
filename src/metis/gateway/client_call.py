"""One HTTP call of a client: its credentials, its body, and the keys that the gateway reads."""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from json import JSONDecoder
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
)
from metis.canonical.urls import foreign_page_fault
from metis.gateway.config import ClientKey, GatewayConfig, Limits, Policy, key_digest
from metis.gateway.endpoints import Endpoint
from metis.gateway.exchange import Exchange, Tenant
from metis.gateway.usage_meter import UsageMeter

if TYPE_CHECKING:
    from metis.gateway.budgets import Reservation

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

CREDENTIAL_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"x-goog-api-key",
        b"api-key",
        b"cookie",
        b"proxy-authorization",
        b"x-amz-date",
        b"x-amz-security-token",
        b"x-amz-content-sha256",
    }
)
"""Headers with credentials of the client; a provider gets those of the gateway instead."""

_NOT_FORWARDED: Final = CREDENTIAL_HEADERS | {
    b"host",
    b"connection",
    b"content-length",
    b"transfer-encoding",
    b"keep-alive",
    b"te",
    b"trailer",
    b"upgrade",
    b"expect",
    b"accept-encoding",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"origin",
    b"referer",
}
OUR_HEADERS: Final = b"x-metis-"
"""The prefix of the gateway's headers, which are neither sent to nor accepted from providers."""
POLICY_HEADER: Final = b"x-metis-policy"
_KEY_PARAMETERS = frozenset({"key", "api_key"})
_KEY_HEADERS = frozenset({b"x-api-key", b"x-goog-api-key", b"api-key"})
# A token, or the access key id of an AWS signature.
_AUTHORIZATION = re.compile(rb"(?i:bearer) +(\S+)|AWS4-HMAC-SHA256 Credential=([^/,\s]{1,200})/")
_PROTOCOL_KEY = re.compile(rb"openai-insecure-api-key\.([^\s,]+)")
_SEVERAL = 2
_KEY_NAME_LENGTH = 12
_TOO_SLOW = 408
_TOO_LARGE = 413
_MAX_CONTAINERS = 1_000_000
"""Each takes sixty bytes of memory for its two bytes; real requests have far fewer."""


class ClientKeys:
    """The keys that clients may use; without any, everybody on this machine may call."""

    def __init__(self, config: GatewayConfig) -> None:
        self.all = _with_tenants(config.keys)
        """The keys, each with its tenant."""
        self._by_digest = {key.digest: key for key in self.all}
        self._anyone = ClientKey(digest=b"")
        self.is_open = not config.keys

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> ClientKey:
        """Return the key that a request carries, in any of the ways in which clients send one.

        Raises:
            AuthenticationError: it has no configured key, or the gateway needs no key and
                a web page of another origin calls it.
        """
        if self.is_open:
            _check_origin(headers)
            return self._anyone
        has_any = False
        for secret in _secrets(headers, query):
            has_any = True
            digest = key_digest(secret)
            key = self._by_digest.get(digest)
            if key is not None and hmac.compare_digest(key.digest, digest):
                return key
        text = "this key is not configured" if has_any else "the request carries no key"
        raise AuthenticationError(f"{text}: send one that `metis serve --key` names", status=401)


def _with_tenants(keys: Sequence[ClientKey]) -> list[ClientKey]:
    """Return the keys with a tenant for each: several without a name would see each other's."""
    nobody = Tenant()
    if sum(key.tenant == nobody for key in keys) < _SEVERAL:
        return list(keys)
    return [
        replace(key, tenant=Tenant(user_id=f"key-{key.digest.hex()[:_KEY_NAME_LENGTH]}"))
        if key.tenant == nobody
        else key
        for key in keys
    ]


def _check_origin(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse web pages: without a key, any page in a browser could spend the user's money."""
    host, origin = b"localhost", None
    for name, value in headers:
        if name == b"host":
            host = value
        elif name == b"origin":
            origin = value.decode("latin-1")
    fault = foreign_page_fault(host.decode("latin-1"), origin)
    if fault is not None:
        raise AuthenticationError(f"{fault}; give clients a key with --key", status=403)


def _secrets(headers: Iterable[tuple[bytes, bytes]], query: bytes) -> Iterable[bytes]:
    for name, value in headers:
        if name == b"authorization":
            match = _AUTHORIZATION.match(value)
            if match is not None:
                yield match[1] or match[2]
        elif name in _KEY_HEADERS:
            yield value.strip()
        elif name == b"sec-websocket-protocol":
            # A browser can send a key to a socket only as the name of a protocol.
            yield from _PROTOCOL_KEY.findall(value)
    if query:
        for name, value in parse_qsl(query.decode("latin-1")):
            if name in _KEY_PARAMETERS:
                yield value.encode()


def without_key_parameter(query: bytes) -> str:
    """Return a query string without the client's key, with a question mark before it."""
    if not query:
        return ""
    text = query.decode("latin-1")
    if "key=" in text:
        pairs = parse_qsl(text, keep_blank_values=True)
        text = urlencode([pair for pair in pairs if pair[0] not in _KEY_PARAMETERS])
    return f"?{text}" if text else ""


def forwarded_headers(
    headers: Iterable[tuple[bytes, bytes]], *, with_credentials: bool = False
) -> dict[str, str]:
    """Return the headers of a client that go on to a provider of its protocol."""
    refused = _NOT_FORWARDED - CREDENTIAL_HEADERS if with_credentials else _NOT_FORWARDED
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name not in refused and not name.startswith(OUR_HEADERS)
    }


def recorded_headers(
    headers: Iterable[tuple[bytes, bytes]], names: AbstractSet[str]
) -> dict[str, str]:
    """Return the headers of a client that are of these names, which hold no credentials."""
    decoded = ((name.decode("latin-1"), value) for name, value in headers)
    return {name: value.decode("latin-1") for name, value in decoded if name in names}


class ClientLeftError(Exception):
    """The client closed the connection before it had the whole answer.

    ASGI servers report this as an OSError of `send`, which would look like a failure of the
    connection to the provider: the call would be repeated without a client.
    """


class ClientCall:
    """One call: what the client sent, and how to answer it."""

    __slots__ = (
        "body",
        "endpoint",
        "exchange",
        "headers",
        "is_started",
        "key",
        "meter",
        "policy",
        "query",
        "receive",
        "reservation",
        "scope",
        "send",
        "watch",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, endpoint: Endpoint, key: ClientKey
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.endpoint = endpoint
        self.key = key
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.query: bytes = scope["query_string"]
        self.body = b""
        self.policy: Policy | None = key.policy
        self.is_started = False
        self.meter = UsageMeter()
        self.reservation: Reservation | None = None
        """What the call may cost, in the budget of its key."""
        self.watch: asyncio.Task[None] | None = None
        self.exchange = Exchange(
            tenant=key.tenant,
            client_protocol=endpoint.protocol,
            client_adapter=endpoint.adapter,
            path=scope["path"],
        )

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the status and the headers.

        Raises:
            ClientLeftError: the client has closed the connection.
        """
        self.is_started = True
        self.exchange.status = status
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
        except OSError as error:
            raise ClientLeftError from error

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; it waits while the client does not read.

        Raises:
            ClientLeftError: the client has closed the connection.
        """
        try:
            await self.send({"type": "http.response.body", "body": data, "more_body": more})
        except OSError as error:
            raise ClientLeftError from error

    async def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response."""
        headers.append((b"content-length", str(len(body)).encode()))
        await self.start(status, headers)
        await self.write(body, more=False)


async def read_body(call: ClientCall, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        ContextOverflowError: it is longer than allowed.
        NetworkError: it came too slowly.
        ClientLeftError: the client has closed the connection.
    """
    _check_length(call, limits)
    message = await call.receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        _check_size(len(body), limits)
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(limits.body_s):
            while message.get("more_body", False):
                message = await call.receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                part = message.get("body", b"")
                size += len(part)
                _check_size(size, limits)
                parts.append(part)
    except TimeoutError:
        text = f"the body of the request did not arrive within {limits.body_s:g} s"
        raise NetworkError(text, status=_TOO_SLOW) from None
    return b"".join(parts)


def _check_length(call: ClientCall, limits: Limits) -> None:
    length = call.header(b"content-length")
    if length is not None and length.isdigit():
        _check_size(int(length), limits)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.body_bytes:
        text = f"the request is larger than the gateway accepts ({limits.body_bytes} bytes)"
        raise ContextOverflowError(text, status=_TOO_LARGE)


class RequestKeys(Struct, frozen=True):
    """The keys of a request body that decide where it goes."""

    model: str | None = None
    stream: bool | None = None
    messages: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    stream_options: Raw | UnsetType = UNSET
    previous_response_id: Raw | UnsetType = UNSET
    store: Raw | UnsetType = UNSET
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None

    @property
    def output_tokens(self) -> int:
        """How many tokens a response may have, as far as the request states it."""
        return self.max_output_tokens or self.max_completion_tokens or self.max_tokens or 0

    @property
    def continued_response(self) -> str:
        """The id of the response that a request continues; empty if it names none."""
        if not isinstance(self.previous_response_id, Raw):
            return ""
        name = msgspec.json.decode(self.previous_response_id)
        return name if isinstance(name, str) else ""


_decode_keys = msgspec.json.Decoder(RequestKeys).decode
_READ_ONCE: Final = (
    b'"model"',
    b'"stream"',
    b'"max_tokens"',
    b'"max_completion_tokens"',
    b'"max_output_tokens"',
    b'"messages"',
)
# An escaped letter may spell one of the keys; no encoder escapes lower-case letters.
_ESCAPED_LETTERS = (b"\\u006", b"\\u007")
_READ_KEYS: Final = frozenset(
    {
        *(key.strip(b'"').decode() for key in _READ_ONCE),
        "contents",
        "input",
        "instructions",
        "modelId",
        "prompt",
        "system",
        "tools",
    }
)
_SPACE = re.compile(r"[ \t\r\n]*")
_scan_value = JSONDecoder(parse_float=str, parse_int=str).raw_decode


def read_keys(body: bytes) -> RequestKeys:
    """Return the keys that decide where a request goes.

    Raises:
        InvalidRequestError: the body is no JSON object, or states one of them twice: the gateway
            and the provider could then read two different models or limits.
    """
    if len(body) > _MAX_CONTAINERS and body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        text = f"the request has more than {_MAX_CONTAINERS:,} JSON objects and arrays"
        raise ContextOverflowError(text, status=_TOO_LARGE)
    try:
        keys = _decode_keys(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        text = f"the body of the request is not a JSON object of this API: {error}"
        raise InvalidRequestError(text, status=400) from None
    count = body.count
    is_plain = all(count(key) <= 1 for key in _READ_ONCE) and not any(
        letters in body for letters in _ESCAPED_LETTERS
    )
    if not is_plain:
        _value_spans(body)
    return keys


def _value_spans(body: bytes) -> Mapping[str, tuple[int, int]]:
    """Return where the value of each key of an object stands in its text, as characters.

    Raises:
        InvalidRequestError: a key that the gateway reads occurs twice.
    """
    spans: dict[str, tuple[int, int]] = {}
    try:
        text = body.decode()
        skip = _SPACE.match
        position = _end(skip(text, _end(skip(text, 0)) + 1))
        while text[position] == '"':
            key, position = _scan_value(text, position)
            start = _end(skip(text, _end(skip(text, position)) + 1))
            _, end = _scan_value(text, start)
            if key in spans and key in _READ_KEYS:
                raise InvalidRequestError(f"the key {key!r} occurs twice in the body", status=400)
            spans[key] = (start, end)
            position = _end(skip(text, end))
            if text[position] == ",":
                position = _end(skip(text, position + 1))
    except (ValueError, IndexError, RecursionError) as error:
        reason = f"the body of the request cannot be read as JSON ({type(error).__name__})"
        raise InvalidRequestError(reason, status=400) from None
    return spans


def _end(match: "re.Match[str] | None") -> int:
    return 0 if match is None else match.end()


def with_model(body: bytes, model: str, name: str) -> bytes:
    """Return a body in which the model has another name, and every other byte is as it was."""
    spelled = msgspec.json.encode(model)
    for separator in (b'"model":', b'"model": '):
        head, matched, tail = body.partition(separator + spelled)
        if matched and body.count(b'"model"') == 1:
            return b"".join((head, separator, msgspec.json.encode(name), tail))
    start, end = _value_spans(body)["model"]
    text = body.decode()
    return f"{text[:start]}{msgspec.json.encode(name).decode()}{text[end:]}".encode()
