"""Which model answers when `metis` starts, and why that one."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import AuthenticationError, NetworkError, UnknownModelError
from metis.canonical.message import Message, Role
from metis.catalog.models import ModelId, is_model_id
from metis.catalog.tables import catalog
from metis.cli.local_model import MODEL_ID as LOCAL_MODEL
from metis.cli.local_model import SIZE_NOTE, is_installed
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.session.models import LOCAL_PRICING
from metis.session.options import SIMULATED_MODEL
from metis.settings import LoadedSettings
from metis.transport.keys import AWS_KEY_PAIR, Keys
from metis.wire.call import SIMULATED

# The name of the simulator; with `sim:gpt-5` it answers in the place of that model.
SIMULATOR = "sim"
# The name of the small model on this machine.
LOCAL = "local"
# The providers whose keys are used first if there are several.
PREFERRED = ("anthropic", "openai", "gemini", "openrouter")
NO_MODEL_NOTICE = (
    "No API key or local server found, so a built-in simulator (canned replies, not an AI) is "
    "answering. To use a real model: `metis keys set anthropic` or another provider, start Ollama, "
    "or run `metis local setup`."
)
SIMULATED_NOTICE = (
    "This conversation was held with the simulator, which continues it; "
    "-m MODEL switches to a real model."
)

_SIMULATED_PREFIX = "sim-"


class LastModel(Struct, frozen=True):
    """The model of a conversation, and whether the simulator answered in its place."""

    model: str
    is_simulated: bool = False


def last_model_of(pinned: str | None, messages: Sequence[Message]) -> LastModel | None:
    """Return the model of a conversation: the one it is set to, else the one that answered last."""
    responses = (message for message in reversed(messages) if message.role is Role.ASSISTANT)
    response = next((message for message in responses if message.metadata.model), None)
    model = pinned or (None if response is None else response.metadata.model)
    if model is None:
        return None
    is_simulated = response is not None and _is_from_simulator(response)
    return LastModel(model, is_simulated or is_simulator_model(model))


def is_simulator_model(model: str) -> bool:
    """Return whether a model exists in the simulator only."""
    return model.partition(":")[2].startswith(_SIMULATED_PREFIX)


def _is_from_simulator(response: Message) -> bool:
    """Return whether a model that has a price cost nothing: the simulator answered for it."""
    usage, model = response.metadata.usage, response.metadata.model or ""
    if usage is not None and usage.pricing_version == SIMULATED:
        return True
    # Older stores have no `simulated` pricing version: there, usage of the simulator looks like
    # that of a local model.
    if usage is None or usage.pricing_version != LOCAL_PRICING or not is_model_id(model):
        return False
    provider = ModelId.parse(model).provider
    return provider in adapters.names() and adapters.profile_of(provider).auth.variable is not None


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A model, and how to start it."""

    model: str
    is_pinned: bool = False
    """Whether the user named it, so that no routing rule may choose another."""
    is_simulated: bool = False
    is_local: bool = False
    """Whether the small model on this machine has to be started."""
    notice: str = ""
    """A line that users should see, if any."""


class ModelChooser:
    """Chooses the model: the one that is named, else the best that can be used now."""

    def __init__(self, loaded: LoadedSettings, keys: Keys, local: Path) -> None:
        self._local = local
        self._settings = loaded.settings
        self._origin = loaded.origins["model"]
        self._keys = keys

    async def choose(
        self, *, last_model: LastModel | None = None, recent_models: Sequence[str] = ()
    ) -> ModelChoice:
        """Return the model for a session.

        Args:
            last_model: the model of the conversation that is continued.
            recent_models: the models that answered last in other conversations, newest first.

        Raises:
            AuthenticationError: the named model needs an API key, and there is none.
            NetworkError: a server on this machine was named, and does not respond.
            UnknownModelError: there is no such model.
        """
        if self._origin.source == "option":
            return await self.named(self._settings.model or "", is_pinned=True)
        if last_model is not None:
            return self.continued(last_model)
        if self._settings.model is not None:
            return await self.named(self._settings.model)
        return await self._available(recent_models)

    async def named(self, name: str, *, is_pinned: bool = False) -> ModelChoice:
        """Return the model of a name: an id, an alias, a provider, `sim`, `sim:NAME` or `local`.

        Raises the errors of `choose`.
        """
        if name.partition(":")[0] == SIMULATOR:
            simulated = name.partition(":")[2]
            model = self._resolve(simulated) if simulated else SIMULATED_MODEL
            return ModelChoice(model=model, is_pinned=is_pinned, is_simulated=True)
        # Its server is not running yet, so no server lists the model.
        if name in (LOCAL, LOCAL_MODEL):
            return ModelChoice(model=LOCAL_MODEL, is_pinned=is_pinned, is_local=True)
        model = await self._model_of_server(name) if name in SERVER_NAMES else self._resolve(name)
        self.require_key(model)
        return ModelChoice(model=model, is_pinned=is_pinned)

    def continued(self, last_model: LastModel) -> ModelChoice:
        """Return the model of the conversation that is continued."""
        model = last_model.model
        if last_model.is_simulated:
            is_default = (self._settings.model or "").partition(":")[0] == SIMULATOR
            notice = "" if is_default else SIMULATED_NOTICE
            return ModelChoice(model=model, is_simulated=True, notice=notice)
        if model == LOCAL_MODEL:
            return ModelChoice(model=model, is_local=True)
        profile = self._profile(model)
        if profile is None:
            hint = "this conversation was held with it; choose another with -m"
            raise UnknownModelError(model, hint)
        if not self._has_key(profile):
            raise AuthenticationError(
                f"this conversation was held with {model}, but there is no API key for "
                f"{profile.name} now: set {profile.auth.variable}, run `metis keys set "
                f"{profile.name}`, or continue with another model: -m MODEL",
                provider=profile.name,
            )
        return ModelChoice(model=model)

    def _profile(self, model: str) -> Profile | None:
        """Return the provider of a model, if there is one."""
        provider = ModelId.parse(model).provider if is_model_id(model) else ""
        return adapters.profile_of(provider) if provider in adapters.names() else None

    async def _available(self, recent_models: Sequence[str]) -> ModelChoice:
        for model in recent_models:
            if await self._is_usable(model):
                return ModelChoice(model=model)
        for profile in self._profiles_with_key():
            return ModelChoice(model=_default_model(profile))
        for server in await running_servers(self._settings.base_urls):
            if server.model is not None:
                name = SERVER_NAMES[server.adapter]
                notice = f"Using {server.model} from {name} on this machine."
                return ModelChoice(model=server.model, notice=notice)
        if is_installed(self._local):
            return ModelChoice(model=LOCAL_MODEL, is_local=True, notice=SIZE_NOTE)
        return ModelChoice(
            model=SIMULATED_MODEL,
            is_simulated=True,
            notice=NO_MODEL_NOTICE,
        )

    def _resolve(self, name: str) -> str:
        """Return the id of a model by its id, alias or suffix, or by its provider alone."""
        if name in adapters.names():
            return _default_model(adapters.profile_of(name))
        try:
            return catalog().resolve(name)
        except UnknownModelError:
            # A model that is newer than the catalog can be used by its full id.
            if is_model_id(name) and ModelId.parse(name).provider in adapters.names():
                return name
            raise

    async def _model_of_server(self, name: str) -> str:
        # The user has named this server, so it may take longer than in the automatic search.
        servers = await running_servers(self._settings.base_urls, [name], timeout_s=2.0)
        if servers and servers[0].model:
            return servers[0].model
        problem = "has no model" if servers else "is not running"
        raise NetworkError(f"{SERVER_NAMES[name]} {problem} on this machine", provider=name)

    async def _is_usable(self, model: str) -> bool:
        profile = None if is_simulator_model(model) else self._profile(model)
        if profile is None:
            return False
        # A local server needs no key, but it has to run and still have that model.
        if profile.name in SERVER_NAMES:
            servers = await running_servers(self._settings.base_urls, [profile.name])
            return any(model in server.models for server in servers)
        return self._has_key(profile)

    def _profiles_with_key(self) -> list[Profile]:
        names = [*PREFERRED, *(name for name in adapters.names() if name not in PREFERRED)]
        profiles = [adapters.profile_of(name) for name in names]
        return [
            profile
            for profile in profiles
            if profile.auth.variable and self._has_dedicated_key(profile)
        ]

    def _has_dedicated_key(self, profile: Profile) -> bool:
        """Return whether there is a key for this provider alone."""
        # Many people have AWS credentials for other purposes: they do not make Bedrock the default.
        values, location = self._keys.lookup(profile)
        return bool(values) and location != AWS_KEY_PAIR

    def _has_key(self, profile: Profile) -> bool:
        # A server at an address that the user has configured may need no key.
        has_custom_url = profile.name in self._settings.base_urls
        needs_no_key = has_custom_url or profile.auth.variable is None
        return needs_no_key or bool(self._keys.lookup(profile)[0])

    def require_key(self, model: str) -> None:
        """Raise an AuthenticationError with the next step if the key of a model is missing."""
        provider, name = ModelId.parse(model).provider, ModelId.parse(model).name
        profile = adapters.profile_of(provider)
        if not self._has_key(profile):
            raise AuthenticationError(
                f"no API key for {provider}: set {profile.auth.variable}, run `metis keys set "
                f"{provider}`, or try {name} on the simulator with -m sim:{name}",
                provider=provider,
            )


def _default_model(profile: Profile) -> str:
    return f"{profile.name}:{profile.default_model}"
