"""Model names: which provider answers a requested name, and the lists that clients read."""

import re
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from metis import adapters
from metis.canonical.blocks import ImageBlock, TextBlock, ToolUseBlock
from metis.canonical.errors import CatalogError, InvalidRequestError
from metis.canonical.message import Role
from metis.catalog.models import Catalog, ModelInfo
from metis.catalog.tables import catalog as shipped_catalog
from metis.catalog.tables import price_table
from metis.gateway.config import GatewayConfig
from metis.gateway.endpoints import Endpoint
from metis.gateway.exchange import Mode
from metis.gateway.upstream import Provider, Providers
from metis.routing import RULES_PATH, Policy, Router, RulesFile, Scope, TurnFacts
from metis.wire.call import CanonicalRequest

AUTO = "auto"
"""The name that leaves the choice to the rules of routing."""

_BYTES_PER_TOKEN = 4
_MAX_RESOLVED = 10_000
_NOT_FOUND = 404
_LIST_PREFIX = re.compile(r"^(?:claude|gpt)--")


class Target(Struct, frozen=True):
    """The provider and model that answer a request, and whether its bytes can go on as they are."""

    provider: Provider
    model: str
    mode: Mode


class ModelNames:
    """Resolves requested names: a pin, an alias, a route, the model's own provider, the default."""

    def __init__(self, config: GatewayConfig, providers: Providers) -> None:
        self._config = config
        self._providers = providers
        self._catalog: Catalog = shipped_catalog()
        self._resolved: dict[tuple[str, str], Target] = {}

    def resolve(self, name: str, endpoint: Endpoint) -> Target:
        """Return who answers a request for a model.

        Raises:
            InvalidRequestError: no provider can; the text says what to set.
        """
        target = self._resolved.get((name, endpoint.adapter))
        if target is None:
            target = self._resolve(name, endpoint)
            if len(self._resolved) >= _MAX_RESOLVED:
                self._resolved.clear()
            self._resolved[name, endpoint.adapter] = target
        return target

    def _resolve(self, name: str, endpoint: Endpoint) -> Target:
        if not name:
            name = self._config.default_model or ""
        # Names that were listed with a prefix, because some clients show only names they know.
        name = _LIST_PREFIX.sub("", name)
        if pinned := self._pinned(name):
            return self._target(*pinned, endpoint)
        alias = self._config.aliases.get(name, name)
        if alias != name and (pinned := self._pinned(alias)):
            return self._target(*pinned, endpoint)
        for route in self._config.routes:
            if fnmatchcase(name, route.pattern) or fnmatchcase(alias, route.pattern):
                provider, colon, model = route.target.partition(":")
                if not colon:
                    return self._resolve(route.target, endpoint)
                return self._target(provider, name if model in ("", "*") else model, endpoint)
        candidate = self._listed(alias, endpoint)
        if candidate is not None:
            return self._target(*candidate, endpoint)
        default = self._config.default_model
        if default and default != name:
            return self._resolve(default, endpoint)
        raise self._unknown(name, endpoint)

    def routed(self, request: CanonicalRequest, size: int) -> str:
        """Return the model for a request that leaves the choice to the rules of routing.

        Raises:
            RoutingError: no model can take it.
        """
        blocks = [block for message in request.messages for block in message.content]
        last = next((m for m in reversed(request.messages) if m.role is Role.USER), None)
        texts = () if last is None else (b.text for b in last.content if isinstance(b, TextBlock))
        facts = TurnFacts(
            now=datetime.now().astimezone(),
            message="\n".join(texts),
            workspace_path=str(Path.cwd()),
            estimated_input_tokens=size // _BYTES_PER_TOKEN,
            has_images=any(isinstance(block, ImageBlock) for block in blocks),
            has_tool_calls_in_history=any(isinstance(block, ToolUseBlock) for block in blocks),
            needs_tools=bool(request.tools),
            needs_structured_output=request.options.output is not None,
        )
        return self._router().decide(facts).require()

    def _router(self) -> Router:
        default = self._config.default_model
        names = self._providers.names()
        if default is None and names:
            default = f"{names[0]}:{adapters.profile_of(names[0]).default_model}"
        policy = Policy(common=Scope(default=default and self._catalog.resolve(default)))
        rules = RulesFile(Path.cwd() / RULES_PATH, self._catalog, fallback=policy)
        return Router(self._catalog, configured=frozenset(names), rules=rules)

    def _pinned(self, name: str) -> tuple[str, str] | None:
        provider, colon, model = name.partition(":")
        return (provider, model) if colon and model and provider in adapters.names() else None

    def _listed(self, name: str, endpoint: Endpoint) -> tuple[str, str] | None:
        """Return the provider of a model by the catalogue, or that of the client's protocol."""
        client = adapters.profile_of(endpoint.adapter)
        # The client's own provider may have models that the catalogue does not list.
        if client.any_model_name and client.name in self._providers:
            return client.name, name
        model_id = client.catalog_id(name)
        entry = self._catalog.entries.get(model_id) or self._entry(name)
        if entry is not None:
            for provider in self._hosts(entry.provider, client.protocol):
                if provider in self._providers:
                    return provider, entry.wire_name
        if entry is None and client.name in self._providers:
            return client.name, name
        return None

    def _entry(self, name: str) -> ModelInfo | None:
        try:
            return self._catalog.model(name)
        except CatalogError:
            return None

    @staticmethod
    def _hosts(provider: str, protocol: str) -> list[str]:
        """Return the adapters of a provider, that of the client's protocol first."""
        profiles = [
            profile
            for profile in map(adapters.profile_of, adapters.names())
            if profile.name == provider
            or (profile.catalog_provider == provider and not profile.any_model_name)
        ]
        profiles.sort(key=lambda profile: (profile.protocol != protocol, profile.name != provider))
        return [profile.name for profile in profiles]

    def _target(self, name: str, model: str, endpoint: Endpoint) -> Target:
        provider = self._providers.get(name)
        if provider is None:
            variable = adapters.profile_of(name).auth.variable
            step = f"set {variable}" if variable else f"set base_url under [providers.{name}]"
            text = f"model {model!r}: the gateway has no key for {name}; {step}, or add a route"
            raise InvalidRequestError(text, status=_NOT_FOUND, code="model_not_found")
        is_same = provider.profile.protocol == endpoint.protocol
        # Hosts of one protocol differ in what they accept, so only the same host gets the bytes
        # unchanged. `openai-compatible` servers do as well: their limits are unknown.
        is_kind = name in (endpoint.adapter, "openai-compatible")
        return Target(provider, model, "pass" if is_same and is_kind else "translate")

    def _unknown(self, name: str, endpoint: Endpoint) -> InvalidRequestError:
        names = ", ".join(self._providers.names()) or "none"
        text = (
            f"model {name!r} is not available here: no route matches it, and no provider with a "
            f"key serves it (providers: {names})"
        )
        error = InvalidRequestError(text, status=_NOT_FOUND, code="model_not_found")
        error.provider = endpoint.adapter
        return error

    def listed(self) -> "list[ListedModel]":
        """Return the models that clients may ask for: aliases, routes, and those of providers."""
        rows: dict[str, ListedModel] = {}
        for name, target in self._config.aliases.items():
            rows[name] = ListedModel(name, self.info(target))
        for route in self._config.routes:
            if not any(sign in route.pattern for sign in "*?["):
                rows.setdefault(route.pattern, ListedModel(route.pattern, self.info(route.target)))
        for entry in self._catalog.models():
            is_chat = not entry.supports_embeddings
            if is_chat and entry.provider in self._providers:
                rows.setdefault(entry.wire_name, ListedModel(entry.wire_name, entry))
        return list(rows.values())

    def info(self, target: str) -> ModelInfo | None:
        """Return what the catalogue knows of a model."""
        return self._catalog.entries.get(target) or self._entry(target.partition(":")[2] or target)


class ListedModel(Struct, frozen=True):
    """One model of a list: the name to ask for, and what is known of it."""

    name: str
    info: ModelInfo | None

    @property
    def context_tokens(self) -> int | None:
        """The size of its context window."""
        return None if self.info is None else self.info.capabilities.max_context_tokens

    @property
    def output_tokens(self) -> int | None:
        """The most tokens of a response."""
        return None if self.info is None else self.info.capabilities.max_output_tokens

    @property
    def owner(self) -> str:
        """The provider."""
        return "metis" if self.info is None else self.info.provider

    def prices(self) -> dict[str, str]:
        """Return the prices per token, as decimal texts; empty if they are unknown."""
        if self.info is None:
            return {}
        prices = price_table().models.get(self.info.id)
        if prices is None:
            return {}
        rates = prices.periods[-1].standard.rates
        million = 1_000_000
        return {
            "prompt": format(rates.input_per_mtok_usd / million, "f"),
            "completion": format(rates.output_per_mtok_usd / million, "f"),
        }
