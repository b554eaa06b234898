"""Settings of the gateway: the config file, the command line and the environment."""

import hashlib
import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.canonical.errors import SettingsError, UnknownAdapterError
from metis.gateway.exchange import Tenant
from metis.settings.settings import addresses_from_environment, normalised_base_url
from metis.streaming.limits import StreamLimits

Policy = Literal["warn", "refuse critical", "refuse any"]
"""What happens to a request of which the target cannot receive everything."""

POLICIES: tuple[Policy, ...] = ("warn", "refuse critical", "refuse any")
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 4114
NO_STORE = "none"
"""The store URL that turns recording off."""

_NAMED_KEY = re.compile(r"(?:(?P<team>[\w.@+-]{1,64})/)?(?P<user>[\w.@+-]{1,64})=(?P<key>.*[^=].*)")
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MIN_KEY_CHARACTERS = 4


class KeyBudget(Struct, frozen=True, kw_only=True):
    """What the tenant of a key may spend in a day or a month of UTC."""

    usd: Decimal
    period: Literal["day", "month"] = "month"


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices that the settings state for a model that no table lists."""

    input_per_mtok_usd: Decimal = Decimal(0)
    output_per_mtok_usd: Decimal = Decimal(0)
    per_call_usd: Decimal = Decimal(0)


class ClientKey(Struct, frozen=True, kw_only=True):
    """A key that clients may use, and its tenant; only its digest is in memory."""

    digest: bytes
    tenant: Tenant = Tenant()
    policy: Policy | None = None
    budget: KeyBudget | None = None

    @classmethod
    def parse(
        cls, text: str, policy: Policy | None = None, budget: KeyBudget | None = None
    ) -> "ClientKey":
        """Return the key of the form `[[TEAM/]USER=]KEY`."""
        match = _NAMED_KEY.fullmatch(text)
        key = text if match is None else match["key"]
        if len(key) < _MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
            reason = f"a key of the gateway has at least {_MIN_KEY_CHARACTERS} printable characters"
            raise SettingsError(reason, place="--key")
        tenant = Tenant() if match is None else Tenant(match["user"], match["team"])
        return cls(digest=key_digest(key.encode()), tenant=tenant, policy=policy, budget=budget)


def key_digest(key: bytes) -> bytes:
    """Return what a key is looked up by: its comparison takes the same time for every key."""
    return hashlib.sha256(key).digest()


class Route(Struct, frozen=True):
    """A pattern of requested model names, and the model that answers."""

    pattern: str
    target: str
    """`PROVIDER:MODEL`, or `PROVIDER:*` for the requested name at that provider."""

    @classmethod
    def parse(cls, text: str) -> "Route":
        """Return the route of the form `PATTERN=PROVIDER:MODEL`."""
        pattern, equals, target = text.partition("=")
        if not equals or not pattern or not target:
            example = "'claude-*=openai:gpt-4o'"
            reason = f"a route is PATTERN=PROVIDER:MODEL, such as {example}, not {text!r}"
            raise SettingsError(reason, place="--route")
        return cls(pattern, target)


class ProviderConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The addresses and keys of one provider, used in turn."""

    base_url: tuple[str, ...] | str = ()
    keys: tuple[str, ...] = ()
    """Keys, or names of environment variables with a `$` before them."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The addresses, the preferred one first."""
        return (self.base_url,) if isinstance(self.base_url, str) else self.base_url


class ResponseLimits(StreamLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a translated response may hold, by the names and defaults of `StreamLimits`."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients and providers may send, and on how long they may take."""

    body_bytes: int = 64 * 1024 * 1024
    body_s: float = 60.0
    """How long a client may take to send a body."""
    header_bytes: int = 64 * 1024
    header_s: float = 20.0
    """How long a client may take to send its headers."""
    connections: int = 4096
    connect_s: float = 10.0
    silence_s: float = 300.0
    """How long a provider may be silent in a response."""
    keep_alive_s: float = 15.0
    """After so long a silence a client gets a keep-alive."""
    drain_s: float = 60.0
    """How long responses may go on after a request to stop."""
    response_bytes: int = 100_000_000
    response: ResponseLimits = ResponseLimits()
    """How much a response may hold that is translated: a table `[limits.response]` of the file."""


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of a gateway."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    workers: int = 1
    store: str | None = None
    """The URL of the store; None is the one that `metis` uses, `none` is no store."""
    policy: Policy = "warn"
    keys: tuple[ClientKey, ...] = ()
    routes: tuple[Route, ...] = ()
    aliases: Mapping[str, str] = {}
    default_model: str | None = None
    """The model for names that nothing else resolves."""
    providers: Mapping[str, ProviderConfig] = {}
    record_bytes: bool = True
    """Whether requests and responses are stored byte by byte, beside their messages."""
    web_socket: bool = True
    """Whether Responses are served on a WebSocket, too."""
    prices: Mapping[str, Prices] = {}
    """Prices of models that no table lists, by name or `PROVIDER:NAME`."""
    unpriced: Literal["allow", "refuse"] = "allow"
    """Whether a key with a budget may call models without a known price."""
    limits: Limits = Limits()


class _KeyRow(Struct, forbid_unknown_fields=True):
    key: str
    policy: Policy | None = None
    budget_usd: Decimal | None = None
    budget_period: Literal["day", "month"] = "month"

    @property
    def budget(self) -> KeyBudget | None:
        if self.budget_usd is None:
            return None
        return KeyBudget(usd=self.budget_usd, period=self.budget_period)


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    """The config file as TOML states it."""

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    store: str | None = None
    policy: Policy = "warn"
    keys: dict[str, str | _KeyRow] = {}
    routes: dict[str, str] = {}
    aliases: dict[str, str] = {}
    default_model: str | None = None
    providers: dict[str, ProviderConfig] = {}
    record_bytes: bool = True
    web_socket: bool = True
    prices: dict[str, Prices] = {}
    unpriced: Literal["allow", "refuse"] = "allow"
    limits: Limits = Limits()


def read_config(
    file: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    routes: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> GatewayConfig:
    """Return the settings of a file with the options of the command line laid over it.

    Routes and keys of the command line precede those of the file.

    Raises:
        SettingsError: the file cannot be used, or a value is wrong.
    """
    content = _File() if file is None else _read_file(file)
    place = "the command line" if file is None else str(file)
    overrides = {name: value for name, value in (options or {}).items() if value is not None}
    file_values = {
        name: value
        for name in ("host", "port", "workers", "store")
        if (value := getattr(content, name)) is not None
    }
    config = GatewayConfig(
        **{**file_values, **overrides},
        policy=content.policy,
        keys=(*map(ClientKey.parse, keys), *_file_keys(content.keys, environment)),
        routes=(
            *map(Route.parse, routes),
            *(Route(pattern, target) for pattern, target in content.routes.items()),
        ),
        aliases=content.aliases,
        default_model=content.default_model,
        providers=_providers(content.providers, environment, place),
        record_bytes=content.record_bytes,
        web_socket=content.web_socket,
        prices=content.prices,
        unpriced=content.unpriced,
        limits=content.limits,
    )
    _check(config, place)
    return config


def _read_file(path: Path) -> _File:
    try:
        text = path.read_text()
        mode = path.stat().st_mode
        content = msgspec.convert(tomllib.loads(text), _File, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot be read ({type(error).__name__})", place=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        # The message of tomllib has the position, never the text, which may be a key.
        raise SettingsError(f"is not valid TOML: {error}", place=str(path)) from None
    except msgspec.ValidationError as error:
        raise SettingsError(str(error), place=str(path)) from None
    if os.name == "posix" and mode & _OPEN_TO_OTHERS and _has_secrets(content):
        reason = f"holds keys and can be read by others; run: chmod 600 {path}"
        raise SettingsError(reason, place=str(path))
    return content


def _has_secrets(content: _File) -> bool:
    rows = [row if isinstance(row, str) else row.key for row in content.keys.values()]
    rows += [key for provider in content.providers.values() for key in provider.keys]
    return any(not row.startswith("$") for row in rows)


def _file_keys(
    rows: Mapping[str, str | _KeyRow], environment: Mapping[str, str]
) -> list[ClientKey]:
    keys: list[ClientKey] = []
    for name, row in rows.items():
        entry = _KeyRow(row) if isinstance(row, str) else row
        key = _expand(entry.key, environment, f"keys.{name}")
        keys.append(ClientKey.parse(f"{name}={key}", entry.policy, entry.budget))
    return keys


def _expand(text: str, environment: Mapping[str, str], place: str) -> str:
    """Return a value, or that of the environment variable whose name it is."""
    if not text.startswith("$"):
        return text
    value = environment.get(text[1:])
    if not value:
        raise SettingsError(f"the environment variable {text[1:]} is not set", place=place)
    return value


def _providers(
    stated: Mapping[str, ProviderConfig], environment: Mapping[str, str], place: str
) -> dict[str, ProviderConfig]:
    providers: dict[str, ProviderConfig] = {}
    for name, url, _ in addresses_from_environment(environment):
        providers[name] = ProviderConfig(base_url=url)
    for name, row in stated.items():
        urls = tuple(
            normalised_base_url(name, url, f"{place}: providers.{name}") for url in row.base_urls
        )
        keys = tuple(_expand(key, environment, f"{place}: providers.{name}") for key in row.keys)
        base_url = urls or providers.get(name, ProviderConfig()).base_url
        providers[name] = ProviderConfig(base_url=base_url, keys=keys)
    return providers


def _check(config: GatewayConfig, place: str) -> None:
    if not 0 <= config.port <= 65535 or not 1 <= config.workers <= 256:  # noqa: PLR2004 - the range of ports, and a sane number of processes
        raise SettingsError("port is 0 to 65535, workers 1 to 256", place=place)
    if not config.keys and not is_loopback(config.host):
        reason = (
            f"{config.host} can be reached by other machines, so that clients need a key: "
            "add --key NAME=KEY"
        )
        raise SettingsError(reason, place="--host")
    for target in (*(route.target for route in config.routes), *config.aliases.values()):
        provider, colon, _ = target.partition(":")
        if colon and provider not in adapters.names() and provider not in config.aliases:
            raise SettingsError(str(UnknownAdapterError(provider, adapters.names())), place=place)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def without_address(config: GatewayConfig, host: str, port: int) -> GatewayConfig:
    """Return the settings without providers at an address: that of the gateway itself.

    `ANTHROPIC_BASE_URL` may be set for clients in the same shell; a gateway that calls itself
    would loop without end.
    """
    at = {f"http://{name}:{port}" for name in (host, "127.0.0.1", "localhost", "[::1]")}
    providers: dict[str, ProviderConfig] = {}
    for name, row in config.providers.items():
        urls = tuple(url for url in row.base_urls if url not in at)
        if urls or row.keys:
            providers[name] = replace(row, base_url=urls)
    return replace(config, providers=providers)
