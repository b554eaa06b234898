"""Calls of providers: addresses and keys in turn, one connection pool, no redirects, no waits."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.canonical.errors import (
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RedirectError,
)
from metis.canonical.urls import shown_address, split_login
from metis.gateway.config import GatewayConfig, Limits
from metis.gateway.exchange import Attempt, Exchange
from metis.gateway.http_client import HttpClient
from metis.transport.client import environment_proxy
from metis.transport.keys import Keys
from metis.transport.retry import call_failures, provider_error, retry_after
from metis.transport.signing import auth_headers

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

log = logging.getLogger("metis.gateway")

_MAX_ATTEMPTS = 4
_RATE_LIMITED = 429
_FIRST_SERVER_ERROR = 500
_FIRST_REDIRECT, _FIRST_ERROR = 300, 400
_MAX_URLS = 4096


class Provider:
    """One provider: an adapter for each of its addresses, and its keys."""

    def __init__(self, name: str, base_urls: Sequence[str], keys: Sequence[str]) -> None:
        profile = adapters.profile_of(name)
        self.name = name
        self.profile = profile
        self.keys = Keys({name: keys}, environment={})
        self.has_keys = bool(keys)
        self.adapters = [Adapter(profile.with_address(url)) for url in base_urls or [""] if url]
        if not self.adapters:
            self.adapters = [Adapter(profile)]
        self._down_until = [0.0] * len(self.adapters)

    @property
    def adapter(self) -> Adapter:
        """The adapter for the address that answers: the first one that did not fail lately."""
        if len(self.adapters) == 1:
            return self.adapters[0]
        now = time.monotonic()
        for index, until in enumerate(self._down_until):
            if until <= now:
                return self.adapters[index]
        return self.adapters[self._down_until.index(min(self._down_until))]

    def mark_down(self, adapter: Adapter, seconds: float = 30.0) -> None:
        """Prefer other addresses for a while."""
        self._down_until[self.adapters.index(adapter)] = time.monotonic() + seconds

    @property
    def alternatives(self) -> int:
        """How many combinations of key and address there are."""
        return len(self.adapters) * max(1, len(self.keys.lookup(self.profile)[0]))


class Providers:
    """The providers that the gateway can call."""

    def __init__(self, config: GatewayConfig, keys: Keys, simulator_url: str | None = None) -> None:
        self._providers: dict[str, Provider] = {}
        self.is_simulated = False
        for name in adapters.names():
            row = config.providers.get(name)
            profile = adapters.profile_of(name)
            base_urls = row.base_urls if row is not None else ()
            provider_keys = row.keys if row is not None and row.keys else keys.lookup(profile)[0]
            if base_urls or provider_keys:
                self._providers[name] = Provider(name, base_urls, provider_keys)
        if not self._providers and simulator_url is not None:
            self.is_simulated = True
            self._providers = {
                name: Provider(name, [simulator_url], ["key-of-the-simulator"])
                for name in adapters.names()
            }

    def get(self, name: str) -> Provider | None:
        """Return a provider, if it can be called."""
        return self._providers.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._providers

    def names(self) -> list[str]:
        """Return the names of the providers that can be called."""
        return list(self._providers)


class Upstream:
    """The connection pool to all providers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._client: HttpClient | None = None
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[str, str], tuple[URL, str | None, dict[str, Any]]] = {}

    async def start(self) -> None:
        """Open the pool; called in the event loop that will use it."""
        limits = self._limits
        self._client = HttpClient(connect_s=limits.connect_s, silence_s=limits.silence_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(  # noqa: PLR0913 - all that a request has
        self,
        provider: Provider,
        exchange: Exchange,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        method: str = "POST",
        adapter: Adapter | None = None,
        has_credentials: bool = False,
    ) -> "aiohttp.ClientResponse":
        """Return the response of a provider, its body unread; another key or address may be tried.

        Whoever calls releases it. An error status is returned like any other. With an `adapter`
        the request was encoded for its address, and goes to no other.

        Raises:
            ProviderError: no address of the provider answered.
        """
        remaining = min(_MAX_ATTEMPTS, provider.alternatives)
        while True:
            remaining -= 1
            used = adapter or provider.adapter
            key = None if has_credentials else provider.keys.next(used.profile)
            start = time.monotonic()
            exchange.timings.sent = exchange.timings.sent or start
            exchange.adapter = used
            try:
                response = await self._request(method, used, path, headers, body, key)
            except call_failures() as failure:
                error = provider_error(failure, provider.name)
                error.text = f"{error.text} ({shown_address(used.profile.base_url)})"
                _note(exchange, provider, start, error=error.text)
                provider.mark_down(used)
                if isinstance(failure, ProviderError) or remaining <= 0 or adapter is not None:
                    raise error from None
                continue
            status = response.status
            _note(exchange, provider, start, status=status)
            is_limited = status == _RATE_LIMITED
            if is_limited and key is not None:
                provider.keys.mark_rate_limited(key, retry_after(response.headers))
            is_failed = status >= _FIRST_SERVER_ERROR and adapter is None
            can_change = remaining > 0 and (is_limited or is_failed)
            if can_change:
                if not is_limited:
                    provider.mark_down(used)
                response.close()
                continue
            if _FIRST_REDIRECT <= status < _FIRST_ERROR:
                location = response.headers.get("location", "")
                response.close()
                raise RedirectError(
                    shown_address(location) if location else "nowhere",
                    provider=provider.name,
                    status=status,
                )
            exchange.timings.first_byte = time.monotonic()
            return response

    async def _request(  # noqa: PLR0913, PLR0917 - all that a request has
        self,
        method: str,
        adapter: Adapter,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        key: str | None,
    ) -> "aiohttp.ClientResponse":
        client = self._client
        if client is None:
            raise NetworkError("the gateway is not running", provider=adapter.name)
        profile = adapter.profile
        url, login, proxy = self._address(profile.base_url, path)
        sent = dict(headers)
        if key is not None:
            sent |= auth_headers(profile, key, method, str(url), sent, body)
        if login is not None:
            if "authorization" in sent:
                text = "the base URL has a login, but the key needs the same header: remove one"
                raise InvalidRequestError(text, provider=profile.name)
            sent["authorization"] = login
        if not proxy:
            parts = url.raw_path_qs
            response = await client.request(method, profile.base_url, parts, sent, body)
            return cast("aiohttp.ClientResponse", response)
        session = self._proxy_session()
        # Another address would receive the key and the conversation: no redirect is followed.
        return await session.request(
            method, url, data=body or None, headers=sent, allow_redirects=False, **proxy
        )

    def _proxy_session(self) -> "aiohttp.ClientSession":
        """Return the client for proxies and sockets, which few gateways need."""
        if self._session is None:
            import aiohttp  # noqa: PLC0415 - loaded by those who need it

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=self._limits.connect_s,
                    sock_read=self._limits.silence_s,
                ),
                trust_env=False,
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def socket(
        self, provider: Provider, path: str, headers: Mapping[str, str]
    ) -> "aiohttp.ClientWebSocketResponse":
        """Return a WebSocket of a provider.

        Raises:
            ProviderError: there is none.
        """
        adapter = provider.adapter
        key = provider.keys.next(adapter.profile)
        url, _, more = self._address(adapter.profile.base_url, path)
        sent = {**headers, **({} if key is None else adapter.profile.auth.headers(key))}
        try:
            session: Any = self._proxy_session()  # its options are a typed dict, which ours is not
            return await session.ws_connect(url, headers=sent, **more)
        except call_failures() as failure:
            raise provider_error(failure, provider.name) from None

    def _address(self, base_url: str, path: str) -> "tuple[URL, str | None, dict[str, Any]]":
        """Return the URL of a request, the login in its address, and its proxy."""
        address = self._urls.get((base_url, path))
        if address is not None:
            return address
        from aiohttp import BasicAuth  # noqa: PLC0415 - loaded by the commands that need it
        from yarl import URL  # noqa: PLC0415 - comes with aiohttp

        bare, login = split_login(base_url)
        url = URL(bare.rstrip("/") + path, encoded=True)
        proxy, proxy_login = environment_proxy(str(url))
        more: dict[str, Any] = {}
        if proxy is not None:
            more["proxy"] = proxy
            if proxy_login is not None:
                more["proxy_auth"] = BasicAuth.decode(proxy_login, "utf-8")
        if len(self._urls) >= _MAX_URLS:
            self._urls.clear()
        self._urls[base_url, path] = url, login, more
        return url, login, more


def _note(
    exchange: Exchange,
    provider: Provider,
    start: float,
    status: int | None = None,
    error: str | None = None,
) -> None:
    exchange.attempts.append(
        Attempt(
            provider=provider.name,
            model=exchange.model,
            status=status,
            error=error,
            milliseconds=round((time.monotonic() - start) * 1000),
        )
    )
