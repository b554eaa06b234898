"""Models by name: the adapter, capabilities and price of each, and the available providers."""

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from datetime import datetime
from decimal import Decimal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict, replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.model import ModelFeatures, wire_model_name
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError, InvalidValueError, UnknownModelError
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.canonical.tools import ToolDefinition
from metis.catalog.cost import price
from metis.catalog.models import AdapterCapabilities, Catalog, ModelId, ModelInfo, is_model_id
from metis.catalog.tables import catalog as shipped_catalog
from metis.transport import Keys
from metis.wire.call import SIMULATED, UNPRICED

log = logging.getLogger("metis.session")

LOCAL_PRICING = "local"
"""The pricing version of calls that cost nothing: the model runs on this machine."""


class ResolvedModel(Struct, frozen=True, kw_only=True):
    """A model with its adapter, capabilities and price id, which a turn looks up once."""

    id: str
    adapter: Adapter
    capabilities: AdapterCapabilities
    price_id: str
    """The id of the model in price tables; a host may resell models of another provider."""

    @property
    def provider(self) -> str:
        """The name of the adapter, which is also the provider's name in stored metadata."""
        return self.adapter.name

    def estimate_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()
    ) -> int:
        """Estimate the tokens of messages and tool definitions as this model counts them."""
        return self.adapter.estimate_input_tokens(messages, tools, model=self.id)


class Models:
    """The models that can be called, by id, alias or suffix.

    A model that the catalogue does not list has the default capabilities of its host's profile.
    """

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        *,
        base_urls: Mapping[str, str] | None = None,
        accounts: Mapping[str, str] | None = None,
        keys: Keys | None = None,
        catalog: Catalog | None = None,
        free: bool = False,
        simulated: bool = False,
        redact_ids: bool = False,
    ) -> None:
        shipped = catalog or shipped_catalog()
        self._base_urls = dict(base_urls or {})
        self._accounts = dict(accounts or {})
        self._keys = keys or Keys()
        self._free = free
        self._free_pricing = SIMULATED if simulated else LOCAL_PRICING
        self._redact_ids = redact_ids
        self._adapters: dict[str, Adapter] = {}
        self._resolved: dict[str, ResolvedModel] = {}
        self._logged_unpriced: set[str] = set()
        # Both are shared with the copies of `for_session`, which compare the revision and then
        # drop their caches.
        self._features: dict[str, ModelFeatures] = {}
        self._revision = [0]
        self._seen_revision = 0
        self._entries = dict(shipped.entries)
        self.catalog = Catalog(entries=self._entries, aliases=shipped.aliases)
        """The catalogued models, and those that `resolve` added."""
        for provider in self._base_urls:
            adapters.profile_of(provider)  # raises for an unknown provider

    def for_session(self) -> "Models":
        """Return a copy of the models with new adapters.

        An adapter caches the histories that it encoded. With separate adapters, this memory is
        freed when the session ends, and other sessions cannot evict the history from the cache.
        """
        other: Models = copy(self)
        other._adapters, other._resolved = {}, {}
        return other

    def resolve(self, name: str) -> str:
        """Return the id of a model that is named by id, alias or suffix.

        `provider:name` is accepted without a catalogue entry, because hosts and local servers have
        models that the catalogue does not list.

        Raises:
            UnknownModelError: there is no such model or provider.
        """
        try:
            return self.catalog.resolve(name)
        except UnknownModelError:
            if not is_model_id(name):
                raise
            provider = ModelId.parse(name).provider
            if provider not in adapters.names():
                near = difflib.get_close_matches(provider, adapters.names(), n=1)
                others = f"did you mean {near[0]}?" if near else ", ".join(adapters.names())
                hint = f"there is no provider {provider!r}; {others}"
                raise UnknownModelError(name, hint) from None
        adapter = self._adapter(ModelId.parse(name).provider)
        self._entries[name] = ModelInfo(
            id=name, capabilities=adapter.capabilities(name), wire_name=adapter.wire_model(name)
        )
        return name

    def set_features(self, name: str, features: ModelFeatures) -> None:
        """Override what a model can do, for all sessions, as its server or the user states it."""
        model_id = self.resolve(name)
        before = self._features.get(model_id, ModelFeatures())
        stated = {key: value for key, value in asdict(features).items() if value is not None}
        self._features[model_id] = merged = replace(before, **stated)
        entry = self._entries[model_id]
        self._entries[model_id] = replace(entry, capabilities=merged.applied(entry.capabilities))
        self._revision[0] += 1

    def get(self, name: str) -> ResolvedModel:
        """Return a model by any name that `resolve` accepts, with its adapter and capabilities."""
        if self._seen_revision != self._revision[0]:
            self._adapters, self._resolved = {}, {}
            self._seen_revision = self._revision[0]
        # Cached, because every turn asks for it: resolving the name and its capabilities would
        # take longer than everything else before the request is encoded.
        resolved = self._resolved.get(name)
        if resolved is None:
            model_id = self.resolve(name)
            parsed = ModelId.parse(model_id)
            adapter = self._adapter(parsed.provider)
            profile = adapter.profile
            resolved = self._resolved[name] = ResolvedModel(
                id=model_id,
                adapter=adapter,
                capabilities=adapter.capabilities(model_id),
                price_id=f"{profile.catalog_provider or profile.name}:{parsed.name}",
            )
        return resolved

    def available_providers(self) -> frozenset[str]:
        """Return the providers that can be called now."""
        return frozenset(filter(self.is_available, adapters.names()))

    def is_available(self, provider: str) -> bool:
        """Return whether a provider can be called: it has a key, or needs none."""
        profile = adapters.profile_of(provider)
        needs_no_key = provider in self._base_urls or profile.auth.variable is None
        return needs_no_key or bool(self._keys.lookup(profile)[0])

    def price(self, usage: Usage, model: ResolvedModel, at: datetime) -> Usage:
        """Return the usage with its cost; a model without a price is logged once."""
        if self._free:
            return replace(usage, cost_usd=Decimal(0), pricing_version=self._free_pricing)
        try:
            return price(usage, model.price_id, at)
        except (CatalogError, InvalidValueError):
            if _is_local(model.adapter.profile):
                return replace(usage, cost_usd=Decimal(0), pricing_version=LOCAL_PRICING)
        if model.id not in self._logged_unpriced:
            self._logged_unpriced.add(model.id)
            log.warning("no price for %s: its calls count as unpriced", model.id)
        return replace(usage, cost_usd=Decimal(0), pricing_version=UNPRICED)

    def _adapter(self, provider: str) -> Adapter:
        adapter = self._adapters.get(provider)
        if adapter is None:
            profile = adapters.profile_of(provider).with_address(
                self._base_urls.get(provider), self._accounts.get(provider)
            )
            features = {
                wire_model_name(model, profile): stated
                for model, stated in self._features.items()
                if ModelId.parse(model).provider == provider
            }
            adapter = Adapter(replace(profile, redact_ids=self._redact_ids), features)
            self._adapters[provider] = adapter
        return adapter


def _is_local(profile: Profile) -> bool:
    """Return whether a host runs on this machine and needs no key, so that its calls are free."""
    host = urlsplit(profile.base_url).hostname
    return profile.auth.variable is None and host in ("localhost", "127.0.0.1", "::1")


class AvailableProviders(AbstractSet[str]):
    """The set of providers that can be called now.

    A provider without a key is checked again each time, because a key may be added meanwhile.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._available = set(models.available_providers())

    def __contains__(self, provider: object) -> bool:
        if provider in self._available:
            return True
        if provider in adapters.names() and self._models.is_available(str(provider)):
            self._available.add(str(provider))
            return True
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._available)

    def __len__(self) -> int:
        return len(self._available)


def missing_key(provider: str) -> str:
    """Return a text with the ways to set the key of a provider."""
    variable = adapters.profile_of(provider).auth.variable if provider in adapters.names() else None
    if variable is None:
        return f"unknown provider {provider!r}"
    return (
        f"no API key for {provider}: set {variable}, run `metis keys set {provider}`, "
        f"or pass Options(keys={{{provider!r}: …}})"
    )
