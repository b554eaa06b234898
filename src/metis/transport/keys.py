"""Keys: where the keys of providers come from, and which of several is used next.

A key is looked for in this order: what the program was given, the environment variable of the
provider, the file of keys, the keyring of the system. No key is ever shown: errors, logs and the
representation of objects name the place where it was found, never the key.
"""

import importlib
import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import KeyFileError

AWS_KEY_PAIR = "$AWS_ACCESS_KEY_ID"
"""Where the id and the secret of AWS are found, which many have for other things than models."""

_RESTS_S = 60.0
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Keys:
    """The keys of all providers."""

    def __init__(
        self,
        given: Mapping[str, str | Iterable[str]] | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        file: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = {name: _several(keys) for name, keys in (given or {}).items()}
        self._environment = environment
        self._file = file
        self._now = now
        self._rests_until: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Keys(given for {sorted(self._given)})"

    def lookup(self, profile: Profile) -> tuple[list[str], str]:
        """The keys for a provider, and where they were found; none is an empty list."""
        name, variable = profile.name, profile.auth.variable
        if name in self._given:
            return self._given[name], "the program"
        if variable and self._environment.get(variable):
            return _several(self._environment[variable]), f"${variable}"
        if profile.auth.aws_service and (pair := self._pair()):
            return [pair], AWS_KEY_PAIR
        filed = self._shared(profile)
        if filed is not None:
            return _several(filed), str(self._file)
        kept = _from_keyring(name)
        return (_several(kept), "the keyring") if kept else ([], "nowhere")

    def next(self, profile: Profile) -> str | None:
        """The key to use now: the first that does not rest, else the one that rested longest."""
        keys, _ = self.lookup(profile)
        now = self._now()
        awake = (key for key in keys if self._rests_until.get(key, 0) <= now)
        return next(awake, None) or min(keys, key=self._rests, default=None)

    def mark_rate_limited(self, key: str, seconds: float | None = None) -> None:
        """Use other keys first for a while: the provider said that this one asks too often."""
        self._rests_until[key] = self._now() + (_RESTS_S if seconds is None else seconds)

    def has_available(self, profile: Profile) -> bool:
        """Whether a key of the provider is awake."""
        now = self._now()
        return any(self._rests_until.get(key, 0) <= now for key in self.lookup(profile)[0])

    def _rests(self, key: str) -> float:
        return self._rests_until.get(key, 0)

    def _pair(self) -> str | None:
        """The id and the secret with which requests to AWS are signed, as one key."""
        found = self._environment.get
        parts = [found(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        if not all(parts):
            return None
        return ":".join(part for part in (*parts, found("AWS_SESSION_TOKEN")) if part)

    def _shared(self, profile: Profile) -> Any:
        """What the file has for a provider, or for another that reads the same variable."""
        filed = self._filed()
        if profile.name in filed or profile.auth.variable is None:
            return filed.get(profile.name)
        for name in filed.keys() & set(adapters.names()):
            if adapters.profile_of(name).auth.variable == profile.auth.variable:
                return filed[name]
        return None

    def _filed(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        if os.name == "posix" and self._file.stat().st_mode & _OPEN_TO_OTHERS:
            raise KeyFileError(f"{self._file} can be read by others; run: chmod 600 {self._file}")
        try:
            read = tomllib.loads(self._file.read_text())
        except (OSError, ValueError) as error:
            # The text of a TOML error may hold a piece of the file, and so of a key.
            wanted = 'a line [keys], and under it lines such as openai = "…"'
            reason = f"{self._file} cannot be read ({type(error).__name__}); it has to be {wanted}"
            raise KeyFileError(reason) from None
        keys = read.get("keys", {})
        if not isinstance(keys, dict):
            raise KeyFileError(f"{self._file}: [keys] has to be a table of provider = key")
        return cast("dict[str, Any]", keys)


def _several(keys: str | Iterable[str]) -> list[str]:
    """One key, or several that are separated by commas or stand in a list."""
    parts = keys.split(",") if isinstance(keys, str) else [str(key) for key in keys]
    return [part.strip() for part in parts if part.strip()]


def _from_keyring(name: str) -> str | None:
    """The key that the keyring of the system holds, if the package for it is installed."""
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        return keyring.get_password("metis", name)
    except Exception:  # noqa: BLE001 - a keyring that is locked or absent is no key, whatever it says
        return None
