"""Models by name: the adapter, capabilities and prices of each, and the providers with a key."""

import logging
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from decimal import Decimal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError, InvalidValueError, UnknownModelError
from metis.canonical.metadata import Usage
from metis.catalog.cost import price
from metis.catalog.models import Catalog, ModelId, ModelInfo, is_model_id
from metis.catalog.tables import catalog as shipped_catalog
from metis.transport import Keys
from metis.wire.call import UNPRICED

log = logging.getLogger("metis.session")

LOCAL_PRICING = "local"
"""The pricing version of a model that runs on one's own machine and costs nothing."""


class ResolvedModel(Struct, frozen=True):
    """A model and the adapter through which it is asked."""

    id: str
    adapter: Adapter

    @property
    def price_id(self) -> str:
        """The id under which price tables know the model."""
        profile = self.adapter.profile
        return f"{profile.catalog_provider or profile.name}:{ModelId.parse(self.id).name}"


class Models:
    """All models that can be asked; those that no table lists are taken as their host assumes."""

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        *,
        base_urls: Mapping[str, str] | None = None,
        accounts: Mapping[str, str] | None = None,
        keys: Keys | None = None,
        catalog: Catalog | None = None,
        free: bool = False,
        redact_ids: bool = False,
    ) -> None:
        known = catalog or shipped_catalog()
        self._urls = dict(base_urls or {})
        self._accounts = dict(accounts or {})
        self._keys = keys or Keys()
        self._is_free = free
        self._hides_ids = redact_ids
        self._adapters: dict[str, Adapter] = {}
        self._told: set[str] = set()
        self._entries = dict(known.entries)
        self.catalog = Catalog(entries=self._entries, aliases=known.aliases)
        """The models of the tables, and those that were asked for beside them."""
        for name in self._urls:
            adapters.profile_of(name)  # or the error that there is no such provider

    def with_separate_adapters(self) -> "Models":
        """The same models behind adapters of their own, which remember one conversation."""
        other = Models(
            base_urls=self._urls,
            accounts=self._accounts,
            keys=self._keys,
            free=self._is_free,
            redact_ids=self._hides_ids,
        )
        other.catalog, other._entries, other._told = self.catalog, self._entries, self._told
        return other

    def resolve(self, name: str) -> str:
        """The id of a model by id, alias or suffix; a host's own model may be in no table."""
        try:
            return self.catalog.resolve(name)
        except UnknownModelError:
            if not is_model_id(name) or ModelId.parse(name).provider not in adapters.names():
                raise
        adapter = self._adapter(ModelId.parse(name).provider)
        self._entries[name] = ModelInfo(
            id=name, capabilities=adapter.capabilities(name), wire_name=adapter.wire_model(name)
        )
        return name

    def get(self, model: str) -> ResolvedModel:
        """A model with the adapter that speaks to it."""
        return ResolvedModel(model, self._adapter(ModelId.parse(model).provider))

    def available_providers(self) -> frozenset[str]:
        """The providers that can be called: there is a key, or none is needed."""
        return frozenset(filter(self.is_available, adapters.names()))

    def is_available(self, provider: str) -> bool:
        """Whether one of them can be called now."""
        profile = adapters.profile_of(provider)
        is_open = provider in self._urls or profile.auth.variable is None
        return is_open or bool(self._keys.lookup(profile)[0])

    def price(self, usage: Usage, served: ResolvedModel, at: datetime) -> Usage:
        """The usage with its cost; without a price it says so, and the log does once."""
        if self._is_free:
            return replace(usage, cost_usd=Decimal(0), pricing_version=LOCAL_PRICING)
        try:
            return price(usage, served.price_id, at)
        except (CatalogError, InvalidValueError):
            if _is_local(served.adapter.profile):
                return replace(usage, cost_usd=Decimal(0), pricing_version=LOCAL_PRICING)
        if served.id not in self._told:
            self._told.add(served.id)
            log.warning("no price is known for %s: its calls count as unpriced", served.id)
        return replace(usage, cost_usd=Decimal(0), pricing_version=UNPRICED)

    def _adapter(self, provider: str) -> Adapter:
        found = self._adapters.get(provider)
        if found is None:
            profile = adapters.profile_of(provider)
            moved = profile.with_address(self._urls.get(provider), self._accounts.get(provider))
            found = self._adapters[provider] = Adapter(replace(moved, redact_ids=self._hides_ids))
        return found


def _is_local(profile: Profile) -> bool:
    """Whether a host needs no key and stands on this machine."""
    host = urlsplit(profile.base_url).hostname
    return profile.auth.variable is None and host in ("localhost", "127.0.0.1", "::1")


class AvailableProviders(AbstractSet[str]):
    """A set of providers; one that is missed is looked for again, for keys are put into files."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known = set(models.available_providers())

    def __contains__(self, provider: object) -> bool:
        if provider in self._known:
            return True
        if provider in adapters.names() and self._models.is_available(str(provider)):
            self._known.add(str(provider))
            return True
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
