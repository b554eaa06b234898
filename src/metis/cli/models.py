"""`metis models`: which models there are, which can be asked now, what they can and cost."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import click
import msgspec
from msgspec import Struct

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError
from metis.catalog.models import ModelInfo
from metis.catalog.prices import Rates
from metis.catalog.tables import catalog, price_table
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.cli.text import short_count, table, terminal_width
from metis.settings import UserPaths, load
from metis.transport.keys import Keys

CAPABILITIES = {
    "tools": "T",
    "images": "I",
    "thinking": "R",
    "documents": "D",
    "audio": "A",
    "video": "V",
}
"""What a model can do, by the letter that stands for it in the table."""
_LEGEND = "T tools  I images  R reasoning  D documents  A audio  V video"


class ListedModel(Struct, frozen=True, kw_only=True):
    """One model for people and scripts."""

    id: str
    aliases: tuple[str, ...]
    is_configured: bool
    """Whether it can be asked now: there is a key, or a server of this machine runs it."""
    context_tokens: int
    output_tokens: int
    input_usd_per_mtok: Decimal | None
    output_usd_per_mtok: Decimal | None
    can: tuple[str, ...]
    deprecated_on: date | None

    @property
    def provider(self) -> str:
        """Who serves it."""
        return self.id.partition(":")[0]


class ModelFilter(Struct, frozen=True, kw_only=True):
    """Which models are asked for."""

    words: tuple[str, ...] = ()
    """All of them occur in the id or an alias."""
    can: tuple[str, ...] = ()
    is_configured: bool = False
    everything: bool = False

    def takes(self, model: ListedModel) -> bool:
        """Whether a model is asked for; without a filter those are that have a short name."""
        names = " ".join((model.id, *model.aliases)).lower()
        return (
            all(word.lower() in names for word in self.words)
            and set(self.can) <= set(model.can)
            and (model.is_configured or not self.is_configured)
            and (self.is_filter or self.everything or bool(model.aliases) or _is_served(model))
        )

    @property
    def is_filter(self) -> bool:
        """Whether anything is asked for in particular."""
        return bool(self.words or self.can or self.is_configured)


def print_models(wanted: ModelFilter, *, as_json: bool) -> int:
    """Print the models; exits with 1 if there is none."""
    found = asyncio.run(_listed())
    shown = [model for model in found if wanted.takes(model)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown)))
        return 0 if shown else 1
    keys = Keys(file=UserPaths.from_environment().keys)
    for provider in sorted({model.provider for model in shown}):
        click.echo(_heading(provider, keys))
        for line in _table([model for model in shown if model.provider == provider]):
            click.echo(line)
        click.echo()
    hint = (
        "" if wanted.is_filter or wanted.everything else "; `metis models WORD` or --all for more"
    )
    click.echo(click.style(_LEGEND, dim=True), err=True)
    click.echo(click.style(f"{len(shown)} of {len(found)} models{hint}", dim=True), err=True)
    return 0 if shown else 1


async def _listed() -> list[ListedModel]:
    """All models of the tables, and those that servers of this machine run."""
    urls = load().settings.base_urls
    served = {model for server in await running_servers(urls) for model in server.models}
    keys = Keys(file=UserPaths.from_environment().keys)
    configured = set(_configured(keys))
    known = [_known(info, configured, served) for info in catalog().models()]
    others = served - {model.id for model in known}
    return sorted([*known, *map(_served, others)], key=lambda model: model.id)


def _configured(keys: Keys) -> Iterator[str]:
    """The providers for which there is a key."""
    for name in adapters.names():
        profile = adapters.profile_of(name)
        if profile.auth.variable and keys.lookup(profile)[0]:
            yield name


def _known(info: ModelInfo, configured: set[str], served: set[str]) -> ListedModel:
    rates = _rates(info.id)
    can = info.capabilities
    flags = {
        "tools": can.supports_tools,
        "images": can.supports_images,
        "thinking": can.supports_thinking,
        "documents": info.supports_documents,
        "audio": info.supports_audio,
        "video": info.supports_video,
    }
    return ListedModel(
        id=info.id,
        aliases=info.aliases,
        is_configured=info.provider in configured or info.id in served,
        context_tokens=can.max_context_tokens,
        output_tokens=can.max_output_tokens,
        input_usd_per_mtok=rates and rates.input_per_mtok_usd,
        output_usd_per_mtok=rates and rates.output_per_mtok_usd,
        can=tuple(name for name, is_so in flags.items() if is_so),
        deprecated_on=info.deprecated_on,
    )


def _served(model: str) -> ListedModel:
    """A model that a server runs and no table knows."""
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
    except CatalogError:
        return None


def _is_served(model: ListedModel) -> bool:
    return model.is_configured and model.provider in SERVER_NAMES


def _heading(provider: str, keys: Keys) -> str:
    return click.style(provider, bold=True) + click.style(f"  {_state(provider, keys)}", dim=True)


def _state(provider: str, keys: Keys) -> str:
    if provider not in adapters.names():
        return "known by name only"
    profile: Profile = adapters.profile_of(provider)
    if profile.auth.variable is None:
        return f"a server of your own, {profile.base_url}"
    found, place = keys.lookup(profile)
    return f"key from {place}" if found else f"no key: set {profile.auth.variable}"


def _table(models: Sequence[ListedModel]) -> list[str]:
    head = ("", "model", "alias", "context", "$/M in", "$/M out", "can", "")
    return table(head, [_row(model) for model in models], right=(3, 4, 5), width=terminal_width())


def _row(model: ListedModel) -> tuple[str, ...]:
    return (
        "●" if model.is_configured else " ",
        model.id.partition(":")[2],
        ", ".join(alias for alias in model.aliases if alias != model.id.partition(":")[2]),
        short_count(model.context_tokens),
        _price(model.input_usd_per_mtok),
        _price(model.output_usd_per_mtok),
        "".join(letter if name in model.can else "·" for name, letter in CAPABILITIES.items()),
        _ending(model.deprecated_on),
    )


def _ending(day: date | None) -> str:
    if day is None:
        return ""
    return f"until {day}" if day > datetime.now(UTC).date() else f"ended {day}"


def _price(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.normalize():f}"
