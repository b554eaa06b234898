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
from metis.cli.local_servers import SERVER_NAMES, Server, running_servers
from metis.session.models import LOCAL_PRICING
from metis.settings import LoadedSettings
from metis.transport.keys import AWS_KEY_PAIR, Keys

SIM = "sim-"
"""How the names of the simulator's own models begin."""


class LastModel(Struct, frozen=True):
    """The model of a conversation, and whether the simulator stood in for it."""

    model: str
    is_simulated: bool = False


def last_model_of(pinned: str | None, messages: Sequence[Message]) -> LastModel | None:
    """Who goes on with a conversation: the model that it was set to, else who answered last.

    None if nobody is known yet.
    """
    answers = (each for each in reversed(messages) if each.role is Role.ASSISTANT)
    answer = next((each for each in answers if each.metadata.model), None)
    model = pinned or (None if answer is None else answer.metadata.model)
    if model is None:
        return None
    return LastModel(model, is_simulated(model) or (answer is not None and _is_stood_in(answer)))


def is_simulated(model: str) -> bool:
    """Whether a model is one of the simulator's own."""
    return model.partition(":")[2].startswith(SIM)


def _is_stood_in(answer: Message) -> bool:
    """Whether the answer of a model that costs money cost nothing: the simulator gave it."""
    usage, model = answer.metadata.usage, answer.metadata.model or ""
    if usage is None or usage.pricing_version != LOCAL_PRICING or not is_model_id(model):
        return False
    provider = ModelId.parse(model).provider
    return provider in adapters.names() and adapters.profile_of(provider).auth.variable is not None


SIMULATOR = "sim"
"""The name that asks for the simulator; `sim:gpt-5` asks it in the place of a model."""
LOCAL = "local"
"""The name that asks for the small model of this machine."""
SIMULATED_MODEL = "anthropic:sim-small"
"""Who answers in the simulator if nobody else is named."""
PREFERRED = ("anthropic", "openai", "gemini", "openrouter")
"""Whose key counts first if there are several."""
NO_KEY = (
    "No key and no local server was found: the built-in simulator answers, by fixed rules. "
    "For a real model: `metis keys set anthropic` or another, start Ollama, or `metis local setup`."
)

GOES_ON = (
    "This conversation was held with the simulator, which goes on with it; "
    "-m MODEL lets another answer."
)


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A model, and how it came to be chosen."""

    model: str
    reason: str
    is_pinned: bool = False
    """Whether the user asked for it by name, so that no rule may choose another."""
    is_simulated: bool = False
    is_local: bool = False
    """Whether the small model of this machine has to be started."""
    notice: str = ""
    """A line for people, if there is something that they should know."""


class ModelChooser:
    """Finds the model: by name if there is one, else the best that can be asked now."""

    def __init__(self, loaded: LoadedSettings, keys: Keys, local: Path) -> None:
        self._local = local
        self._settings = loaded.settings
        self._origin = loaded.origins["model"]
        self._keys = keys

    async def choose(
        self, *, last_model: LastModel | None = None, recent_models: Sequence[str] = ()
    ) -> ModelChoice:
        """The choice for a session: `held` is with whom it was, `last` who answered elsewhere.

        Raises:
            AuthenticationError: the model that was asked for needs a key, and there is none.
            NetworkError: a server of this machine was asked for, and does not answer.
            UnknownModelError: there is no such model.
        """
        if self._origin.source == "option":
            return await self._named(self._settings.model or "", why="you asked for it")
        if last_model is not None:
            return self._kept(last_model)
        if self._settings.model is not None:
            return await self._named(self._settings.model, why=f"set in {self._origin.location}")
        return await self._found(recent_models)

    async def _named(self, name: str, *, why: str) -> ModelChoice:
        is_pinned = self._origin.source == "option"
        if name.partition(":")[0] == SIMULATOR:
            stands_for = name.partition(":")[2]
            model = self._resolved(stands_for) if stands_for else SIMULATED_MODEL
            return ModelChoice(model=model, reason=why, is_pinned=is_pinned, is_simulated=True)
        if name in (LOCAL, LOCAL_MODEL):
            return ModelChoice(model=LOCAL_MODEL, reason=why, is_pinned=is_pinned, is_local=True)
        model = await self._of_server(name) if name in SERVER_NAMES else self._resolved(name)
        self._require_key(model)
        return ModelChoice(model=model, reason=why, is_pinned=is_pinned)

    def _kept(self, held: LastModel) -> ModelChoice:
        """The model with which the conversation was held goes on with it."""
        model, why = held.model, "the session"
        if held.is_simulated:
            is_usual = (self._settings.model or "").partition(":")[0] == SIMULATOR
            notice = "" if is_usual else GOES_ON
            return ModelChoice(model=model, reason=why, is_simulated=True, notice=notice)
        if model == LOCAL_MODEL:
            return ModelChoice(model=model, reason=why, is_local=True)
        profile = self._profile(model)
        if profile is None:
            raise UnknownModelError(model, "the conversation was held with it; -m names another")
        if not self._has_key(profile):
            raise AuthenticationError(
                f"this conversation was held with {model}, and there is no key for it now: set "
                f"{profile.auth.variable}, run `metis keys set {profile.name}`, "
                "or let another go on with -m MODEL",
                provider=profile.name,
            )
        return ModelChoice(model=model, reason=why)

    def _profile(self, model: str) -> Profile | None:
        """The provider of a model, if there is one."""
        provider = ModelId.parse(model).provider if is_model_id(model) else ""
        return adapters.profile_of(provider) if provider in adapters.names() else None

    async def _found(self, last: Sequence[str]) -> ModelChoice:
        for model in last:
            if await self._can_ask(model):
                return ModelChoice(model=model, reason="it answered last")
        for profile in self._with_keys():
            _, place = self._keys.lookup(profile)
            return ModelChoice(model=_default(profile), reason=f"there is a key in {place}")
        for server in await self._servers():
            if server.model is not None:
                told = f"{SERVER_NAMES[server.adapter]} answers on this machine: {server.model}."
                return ModelChoice(model=server.model, reason="a local server answers", notice=told)
        if is_installed(self._local):
            why = "it is on this machine"
            return ModelChoice(model=LOCAL_MODEL, reason=why, is_local=True, notice=SIZE_NOTE)
        return ModelChoice(
            model=SIMULATED_MODEL, reason="nothing else", is_simulated=True, notice=NO_KEY
        )

    def _resolved(self, name: str) -> str:
        """The id of a model by id, alias, suffix, or the name of its provider alone."""
        if name in adapters.names():
            return _default(adapters.profile_of(name))
        try:
            return catalog().resolve(name)
        except UnknownModelError:
            if is_model_id(name) and ModelId.parse(name).provider in adapters.names():
                return name
            raise

    async def _of_server(self, name: str) -> str:
        found = await running_servers(self._settings.base_urls, [name], timeout_s=2.0)
        if found and found[0].model:
            return found[0].model
        what = "runs no model" if found else "does not answer"
        raise NetworkError(f"{SERVER_NAMES[name]} {what} on this machine", provider=name)

    async def _can_ask(self, model: str) -> bool:
        profile = None if is_simulated(model) else self._profile(model)
        if profile is None:
            return False
        if profile.name in SERVER_NAMES:
            servers = await running_servers(self._settings.base_urls, [profile.name])
            return any(model in server.models for server in servers)
        return self._has_key(profile)

    async def _servers(self) -> list[Server]:
        return await running_servers(self._settings.base_urls)

    def _with_keys(self) -> list[Profile]:
        order = [*PREFERRED, *(name for name in adapters.names() if name not in PREFERRED)]
        profiles = [adapters.profile_of(name) for name in order]
        return [each for each in profiles if each.auth.variable and self._has_key_for_it(each)]

    def _has_key_for_it(self, profile: Profile) -> bool:
        """Whether there is a key that is meant for a provider, and not for all of AWS."""
        keys, place = self._keys.lookup(profile)
        return bool(keys) and place != AWS_KEY_PAIR

    def _has_key(self, profile: Profile) -> bool:
        is_moved = profile.name in self._settings.base_urls
        return is_moved or profile.auth.variable is None or bool(self._keys.lookup(profile)[0])

    def _require_key(self, model: str) -> None:
        provider = ModelId.parse(model).provider
        profile = adapters.profile_of(provider)
        if not self._has_key(profile):
            raise AuthenticationError(
                f"there is no key for {model}: set {profile.auth.variable}, run "
                f"`metis keys set {provider}`, or try it on the simulator with "
                f"-m sim:{ModelId.parse(model).name}",
                provider=provider,
            )


def _default(profile: Profile) -> str:
    return f"{profile.name}:{profile.default_model}"
