"""`metis models`: available models, their features and prices."""

import asyncio
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
from msgspec import Struct

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError
from metis.canonical.urls import shown_address
from metis.catalog.models import ModelInfo
from metis.catalog.prices import Rates
from metis.catalog.tables import catalog, price_table
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.cli.output import echo, echo_json
from metis.cli.text import short_count, style, table, terminal_width
from metis.settings import UserPaths, load
from metis.transport.keys import Keys

# What a model can do, with the letter that stands for it in the table.
CAPABILITIES = {
    "tools": "T",
    "images": "I",
    "thinking": "R",
    "documents": "D",
    "audio": "A",
    "video": "V",
}
COLUMNS = ("model", "alias", "context", "$/M in", "$/M out", "can")
LEGEND = "T tools  I images  R reasoning  D documents  A audio  V video"


class ListedModel(Struct, frozen=True, kw_only=True):
    """One model of the list, as `--json` prints it."""

    id: str
    aliases: tuple[str, ...]
    is_configured: bool
    """Whether it can be used now: there is a key, or a server on this machine runs it."""
    context_tokens: int
    output_tokens: int
    input_usd_per_mtok: Decimal | None
    output_usd_per_mtok: Decimal | None
    can: tuple[str, ...]
    deprecated_on: date | None

    @property
    def provider(self) -> str:
        """The provider that serves it."""
        return self.id.partition(":")[0]

    @property
    def name(self) -> str:
        """The id without the provider."""
        return self.id.partition(":")[2]

    def cells(self, name: str) -> tuple[str, ...]:
        """Return the cells of the model under COLUMNS."""
        return (
            name,
            ", ".join(alias for alias in self.aliases if alias != self.name),
            short_count(self.context_tokens),
            _price(self.input_usd_per_mtok),
            _price(self.output_usd_per_mtok),
            "".join(letter if can in self.can else "·" for can, letter in CAPABILITIES.items()),
        )

    @property
    def is_on_local_server(self) -> bool:
        """Whether a model server on this machine runs it."""
        return self.is_configured and self.provider in SERVER_NAMES


class ModelFilter(Struct, frozen=True, kw_only=True):
    """Which models to list."""

    words: tuple[str, ...] = ()
    """All of them have to occur in the id, an alias or a capability."""
    can: tuple[str, ...] = ()
    is_configured: bool = False
    everything: bool = False

    def matches(self, model: ListedModel) -> bool:
        """Return whether to list a model; without a filter, those with an alias are listed."""
        names = " ".join((model.id, *model.aliases, *model.can)).lower()
        is_shown = bool(model.aliases) or model.is_on_local_server
        return (
            all(word.lower() in names for word in self.words)
            and set(self.can) <= set(model.can)
            and (model.is_configured or not self.is_configured)
            and (self.is_restricted or self.everything or is_shown)
        )

    @property
    def is_restricted(self) -> bool:
        """Whether any condition is set."""
        return bool(self.words or self.can or self.is_configured)


def print_models(model_filter: ModelFilter, *, as_json: bool) -> int:
    """Print the models that match; the exit code is 1 if there are none."""
    models = asyncio.run(_all_models())
    shown = [model for model in models if model_filter.matches(model)]
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode(shown)))
        return 0 if shown else 1
    keys = Keys(file=UserPaths.from_environment().keys)
    for provider in sorted({model.provider for model in shown}):
        echo(_heading(provider, keys))
        for line in _table([model for model in shown if model.provider == provider]):
            echo(line)
        echo()
    is_everything = model_filter.is_restricted or model_filter.everything
    hint = "" if is_everything else "; `metis models WORD` or --all for more"
    echo(style(LEGEND, dim=True), err=True)
    echo(style(f"{len(shown)} of {len(models)} models{hint}", dim=True), err=True)
    return 0 if shown else 1


async def _all_models() -> list[ListedModel]:
    """Return the models of the catalog, and those that servers on this machine run."""
    servers = await running_servers(load().settings.base_urls)
    served = {model for server in servers for model in server.models}
    configured = set(_configured_providers(Keys(file=UserPaths.from_environment().keys)))
    return all_models(configured, served)


def all_models(configured: AbstractSet[str], served: AbstractSet[str]) -> list[ListedModel]:
    """Return the models of the catalog and of servers, sorted.

    `configured` are the providers with a key, `served` the models that servers on this machine run.
    """
    catalogued = [_catalogued(info, configured, served) for info in catalog().models()]
    others = served - {model.id for model in catalogued}
    return sorted([*catalogued, *map(_uncatalogued, others)], key=lambda model: model.id)


def _configured_providers(keys: Keys) -> Iterator[str]:
    for name in adapters.names():
        profile = adapters.profile_of(name)
        if profile.auth.variable and keys.lookup(profile)[0]:
            yield name


def _catalogued(
    info: ModelInfo, configured: AbstractSet[str], served: AbstractSet[str]
) -> ListedModel:
    rates = _rates(info.id)
    capabilities = info.capabilities
    flags = {
        "tools": capabilities.supports_tools,
        "images": capabilities.supports_images,
        "thinking": capabilities.supports_thinking,
        "documents": info.supports_documents,
        "audio": info.supports_audio,
        "video": info.supports_video,
    }
    return ListedModel(
        id=info.id,
        aliases=info.aliases,
        is_configured=info.provider in configured or info.id in served,
        context_tokens=capabilities.max_context_tokens,
        output_tokens=capabilities.max_output_tokens,
        input_usd_per_mtok=rates and rates.input_per_mtok_usd,
        output_usd_per_mtok=rates and rates.output_per_mtok_usd,
        can=tuple(name for name, is_supported in flags.items() if is_supported),
        deprecated_on=info.deprecated_on,
    )


def _uncatalogued(model: str) -> ListedModel:
    """Return a model that a local server runs and the catalog does not list."""
    assumed = adapters.get(model.partition(":")[0]).capabilities(model)
    return ListedModel(
        id=model,
        aliases=(),
        is_configured=True,
        context_tokens=assumed.max_context_tokens,
        output_tokens=assumed.max_output_tokens,
        input_usd_per_mtok=Decimal(0),
        output_usd_per_mtok=Decimal(0),
        can=("tools",) if assumed.supports_tools else (),
        deprecated_on=None,
    )


def _rates(model: str) -> Rates | None:
    try:
        return price_table().prices(model).period_on(None).standard.rates
    # Models of local servers and new models have no price.
    except CatalogError:
        return None


def _heading(provider: str, keys: Keys) -> str:
    status = _provider_status(provider, keys)
    return style(provider, bold=True) + style(f"  {status}", dim=True)


def _provider_status(provider: str, keys: Keys) -> str:
    if provider not in adapters.names():
        return "no adapter"
    profile: Profile = adapters.profile_of(provider)
    if profile.auth.variable is None:
        return f"your own server at {shown_address(profile.base_url)}"
    values, location = keys.lookup(profile)
    return f"key from {location}" if values else f"no key: set {profile.auth.variable}"


def _table(models: Sequence[ListedModel]) -> list[str]:
    rows = [
        ("●" if model.is_configured else " ", *model.cells(model.name), _deprecation(model))
        for model in models
    ]
    return table(("", *COLUMNS, ""), rows, right=(3, 4, 5), width=terminal_width())


def _deprecation(model: ListedModel) -> str:
    day = model.deprecated_on
    if day is None:
        return ""
    return f"until {day}" if day > datetime.now(UTC).date() else f"ended {day}"


def _price(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.normalize():f}"
