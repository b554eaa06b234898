"""Models: the names that people use, who serves them, and under which name they are priced."""

import logging
from collections.abc import Mapping
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
from metis.catalog.load import catalog as shipped_catalog
from metis.catalog.model_id import ModelId, is_model_id
from metis.catalog.models import Catalog, ModelInfo
from metis.transport import Keys
from metis.wire.call import UNPRICED

log = logging.getLogger("metis.session")

LOCAL = "local"
"""The pricing version of a model that runs on one's own machine and costs nothing."""


class Served(Struct, frozen=True):
    """A model and the adapter through which it is asked."""

    id: str
    adapter: Adapter

    @property
    def priced_as(self) -> str:
        """The id under which price tables know the model."""
        profile = self.adapter.profile
        return f"{profile.catalogued or profile.name}:{ModelId.parse(self.id).name}"


class Models:
    """All models that can be asked; those that no table lists are taken as their host assumes."""

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        *,
        base_urls: Mapping[str, str] | None = None,
        accounts: Mapping[str, str] | None = None,
        keys: Keys | None = None,
        catalog: Catalog | None = None,
        is_free: bool = False,
        hides_ids: bool = False,
    ) -> None:
        known = catalog or shipped_catalog()
        self._urls = dict(base_urls or {})
        self._accounts = dict(accounts or {})
        self._keys = keys or Keys()
        self._is_free = is_free
        self._hides_ids = hides_ids
        self._adapters: dict[str, Adapter] = {}
        self._told: set[str] = set()
        self._entries = dict(known.entries)
        self.catalog = Catalog(entries=self._entries, aliases=known.aliases)
        """The models of the tables, and those that were asked for beside them."""
        for name in self._urls:
            adapters.profile_of(name)  # or the error that there is no such provider

    def apart(self) -> "Models":
        """The same models behind adapters of their own, which remember one conversation."""
        other = Models(
            base_urls=self._urls,
            accounts=self._accounts,
            keys=self._keys,
            is_free=self._is_free,
            hides_ids=self._hides_ids,
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

    def served(self, model: str) -> Served:
        """A model with the adapter that speaks to it."""
        return Served(model, self._adapter(ModelId.parse(model).provider))

    def configured(self) -> frozenset[str]:
        """The providers that can be called: there is a key, or none is needed."""
        return frozenset(filter(self.is_configured, adapters.names()))

    def is_configured(self, provider: str) -> bool:
        """Whether one of them can be called now."""
        profile = adapters.profile_of(provider)
        is_open = provider in self._urls or profile.auth.variable is None
        return is_open or bool(self._keys.of(profile)[0])

    def price(self, usage: Usage, served: Served, at: datetime) -> Usage:
        """The usage with its cost; without a price it says so, and the log does once."""
        if self._is_free:
            return replace(usage, cost_usd=Decimal(0), pricing_version=LOCAL)
        try:
            return price(usage, served.priced_as, at)
        except (CatalogError, InvalidValueError):
            if _is_local(served.adapter.profile):
                return replace(usage, cost_usd=Decimal(0), pricing_version=LOCAL)
        if served.id not in self._told:
            self._told.add(served.id)
            log.warning("no price is known for %s: its calls count as unpriced", served.id)
        return replace(usage, cost_usd=Decimal(0), pricing_version=UNPRICED)

    def _adapter(self, provider: str) -> Adapter:
        found = self._adapters.get(provider)
        if found is None:
            profile = adapters.profile_of(provider)
            moved = profile.moved(self._urls.get(provider), self._accounts.get(provider))
            found = self._adapters[provider] = Adapter(replace(moved, hides_ids=self._hides_ids))
        return found


def _is_local(profile: Profile) -> bool:
    """Whether a host needs no key and stands on this machine."""
    host = urlsplit(profile.base_url).hostname
    return profile.auth.variable is None and host in ("localhost", "127.0.0.1", "::1")
