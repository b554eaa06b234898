"""Choice: which model answers when `metis` is started, and why that one."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import AuthenticationError, NetworkError, UnknownModelError
from metis.catalog.load import catalog
from metis.catalog.model_id import ModelId, is_model_id
from metis.cli.held import Held, is_simulated
from metis.cli.local.folder import IS_SMALL, is_there
from metis.cli.local.folder import MODEL as LOCAL_MODEL
from metis.cli.servers import NAMES, Server, answering
from metis.settings import Loaded
from metis.transport.keys import PAIR, Keys

SIMULATOR = "sim"
"""The name that asks for the simulator; `sim:gpt-5` asks it in the place of a model."""
LOCAL = "local"
"""The name that asks for the small model of this machine."""
SIMULATED = "anthropic:sim-small"
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


class Choice(Struct, frozen=True, kw_only=True):
    """A model, and how it came to be chosen."""

    model: str
    why: str
    is_pinned: bool = False
    """Whether the user asked for it by name, so that no rule may choose another."""
    is_simulated: bool = False
    is_local: bool = False
    """Whether the small model of this machine has to be started."""
    notice: str = ""
    """A line for people, if there is something that they should know."""


class Chooser:
    """Finds the model: by name if there is one, else the best that can be asked now."""

    def __init__(self, loaded: Loaded, keys: Keys, local: Path) -> None:
        self._local = local
        self._settings = loaded.settings
        self._origin = loaded.origins["model"]
        self._keys = keys

    async def choose(self, *, held: Held | None = None, last: Sequence[str] = ()) -> Choice:
        """The choice for a session: `held` is with whom it was, `last` who answered elsewhere.

        Raises:
            AuthenticationError: the model that was asked for needs a key, and there is none.
            NetworkError: a server of this machine was asked for, and does not answer.
            UnknownModelError: there is no such model.
        """
        if self._origin.source == "option":
            return await self._named(self._settings.model or "", why="you asked for it")
        if held is not None:
            return self._kept(held)
        if self._settings.model is not None:
            return await self._named(self._settings.model, why=f"set in {self._origin.place}")
        return await self._found(last)

    async def _named(self, name: str, *, why: str) -> Choice:
        is_pinned = self._origin.source == "option"
        if name.partition(":")[0] == SIMULATOR:
            stands_for = name.partition(":")[2]
            model = self._resolved(stands_for) if stands_for else SIMULATED
            return Choice(model=model, why=why, is_pinned=is_pinned, is_simulated=True)
        if name in (LOCAL, LOCAL_MODEL):
            return Choice(model=LOCAL_MODEL, why=why, is_pinned=is_pinned, is_local=True)
        model = await self._of_server(name) if name in NAMES else self._resolved(name)
        self._require_key(model)
        return Choice(model=model, why=why, is_pinned=is_pinned)

    def _kept(self, held: Held) -> Choice:
        """The model with which the conversation was held goes on with it."""
        model, why = held.model, "the session"
        if held.is_simulated:
            is_usual = (self._settings.model or "").partition(":")[0] == SIMULATOR
            notice = "" if is_usual else GOES_ON
            return Choice(model=model, why=why, is_simulated=True, notice=notice)
        if model == LOCAL_MODEL:
            return Choice(model=model, why=why, is_local=True)
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
        return Choice(model=model, why=why)

    def _profile(self, model: str) -> Profile | None:
        """The provider of a model, if there is one."""
        provider = ModelId.parse(model).provider if is_model_id(model) else ""
        return adapters.profile_of(provider) if provider in adapters.names() else None

    async def _found(self, last: Sequence[str]) -> Choice:
        for model in last:
            if await self._can_ask(model):
                return Choice(model=model, why="it answered last")
        for profile in self._with_keys():
            _, place = self._keys.of(profile)
            return Choice(model=_default(profile), why=f"there is a key in {place}")
        for server in await self._servers():
            if server.model is not None:
                told = f"{NAMES[server.adapter]} answers on this machine: {server.model}."
                return Choice(model=server.model, why="a local server answers", notice=told)
        if is_there(self._local):
            why = "it is on this machine"
            return Choice(model=LOCAL_MODEL, why=why, is_local=True, notice=IS_SMALL)
        return Choice(model=SIMULATED, why="nothing else", is_simulated=True, notice=NO_KEY)

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
        found = await answering(self._settings.base_urls, [name], patience_s=2.0)
        if found and found[0].model:
            return found[0].model
        what = "runs no model" if found else "does not answer"
        raise NetworkError(f"{NAMES[name]} {what} on this machine", provider=name)

    async def _can_ask(self, model: str) -> bool:
        profile = None if is_simulated(model) else self._profile(model)
        if profile is None:
            return False
        if profile.name in NAMES:
            servers = await answering(self._settings.base_urls, [profile.name])
            return any(model in server.models for server in servers)
        return self._has_key(profile)

    async def _servers(self) -> list[Server]:
        return await answering(self._settings.base_urls)

    def _with_keys(self) -> list[Profile]:
        order = [*PREFERRED, *(name for name in adapters.names() if name not in PREFERRED)]
        profiles = [adapters.profile_of(name) for name in order]
        return [each for each in profiles if each.auth.variable and self._has_key_for_it(each)]

    def _has_key_for_it(self, profile: Profile) -> bool:
        """Whether there is a key that is meant for a provider, and not for all of AWS."""
        keys, place = self._keys.of(profile)
        return bool(keys) and place != PAIR

    def _has_key(self, profile: Profile) -> bool:
        is_moved = profile.name in self._settings.base_urls
        return is_moved or profile.auth.variable is None or bool(self._keys.of(profile)[0])

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
