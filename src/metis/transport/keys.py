"""API keys: the sources of a provider's keys, and which of several keys is used next.

The sources in their order: the options of the program, the environment variable of the provider,
the key file, the system keyring. No key is ever shown: errors, logs and the representation of
objects name the source of a key, never the key.
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
from metis.canonical.errors import AuthenticationError, KeyFileError

AWS_KEY_PAIR = "$AWS_ACCESS_KEY_ID"
"""The source of AWS credentials, which many users have for other purposes than models."""

_RATE_LIMIT_S = 60.0
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_key_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file into which `metis keys set` writes: `keys.toml` beside the settings."""
    metis_home = environment.get("METIS_HOME")
    if metis_home:
        return Path(metis_home) / "keys.toml"
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "metis/keys.toml"


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
        self._given = {name: _split(keys) for name, keys in (given or {}).items()}
        self._environment = environment
        self._file = file
        self._now = now
        self._limited_until: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Keys(given for {sorted(self._given)})"

    def lookup(self, profile: Profile) -> tuple[list[str], str]:
        """Return the keys for a provider, and their source; no keys are an empty list."""
        name, variable = profile.name, profile.auth.variable
        if name in self._given:
            return self._given[name], "the program"
        if variable and self._environment.get(variable):
            return _split(self._environment[variable]), f"${variable}"
        if profile.auth.aws_service and (pair := self._aws_key_pair()):
            return [pair], AWS_KEY_PAIR
        from_file = self._from_file(profile)
        if from_file is not None:
            return _split(from_file), str(self._file)
        from_keyring = _from_keyring(name)
        return (_split(from_keyring), "the keyring") if from_keyring else ([], "nowhere")

    def next(self, profile: Profile) -> str | None:
        """Return the first key that is not rate-limited, or the one whose limit ends first."""
        keys, _ = self.lookup(profile)
        available = (key for key in keys if self._is_available(key))
        return next(available, None) or min(keys, key=self._free_at, default=None)

    def mark_rate_limited(self, key: str, seconds: float | None = None) -> None:
        """Prefer other keys for some seconds, because the provider limits this one."""
        self._limited_until[key] = self._now() + (_RATE_LIMIT_S if seconds is None else seconds)

    def has_available(self, profile: Profile) -> bool:
        """Return whether the provider has a key that is not rate-limited."""
        return any(self._is_available(key) for key in self.lookup(profile)[0])

    def _free_at(self, key: str) -> float:
        return self._limited_until.get(key, 0)

    def _is_available(self, key: str) -> bool:
        return self._free_at(key) <= self._now()

    def _aws_key_pair(self) -> str | None:
        """Return the AWS credentials of the environment as one key, as `signing` reads it."""
        get = self._environment.get
        parts = [get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        if not all(parts):
            return None
        return ":".join(part for part in (*parts, get("AWS_SESSION_TOKEN")) if part)

    def _from_file(self, profile: Profile) -> Any:
        """Return the entry for a provider, or for another one with the same variable."""
        entries = self._file_entries()
        if not entries or profile.name in entries or profile.auth.variable is None:
            return entries.get(profile.name)
        # Providers with the same variable share an account, such as `openai` and
        # `openai-responses`.
        for name in entries.keys() & set(adapters.names()):
            if adapters.profile_of(name).auth.variable == profile.auth.variable:
                return entries[name]
        return None

    def _file_entries(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        # ssh also refuses a key file that others can read.
        if os.name == "posix" and self._file.stat().st_mode & _OPEN_TO_OTHERS:
            raise KeyFileError(f"{self._file} can be read by others; run: chmod 600 {self._file}")
        try:
            document = tomllib.loads(self._file.read_text())
        except (OSError, ValueError) as error:
            # The text of a TOML error may quote a part of the file, and so of a key.
            form = 'a line [keys], and under it lines such as openai = "…"'
            reason = f"{self._file} cannot be read ({type(error).__name__}); it has to be {form}"
            raise KeyFileError(reason) from None
        entries = document.get("keys", {})
        if not isinstance(entries, dict):
            raise KeyFileError(f"{self._file}: [keys] has to be a table of provider = key")
        return cast("dict[str, Any]", entries)


def _split(keys: str | Iterable[str]) -> list[str]:
    """Return the keys of a list, or of a text with commas between them."""
    parts = keys.split(",") if isinstance(keys, str) else [str(key) for key in keys]
    return [part.strip() for part in parts if part.strip()]


def _from_keyring(name: str) -> str | None:
    """Return the key in the system keyring, if the package for it is installed."""
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        return keyring.get_password("metis", name)
    except Exception:  # noqa: BLE001 - a keyring that is locked or absent means no key, whatever it raises
        return None


def key_headers(profile: Profile, key: str) -> dict[str, str]:
    """Return the headers that carry a key.

    Raises:
        AuthenticationError: the key cannot be sent.
    """
    headers = profile.auth.headers(key)
    # A line break would end the header; aiohttp refuses it with an error that repeats the key.
    if not key.isascii() or not key.isprintable():
        text = "the key has a character that no key can have, such as a line break; set it again"
        raise AuthenticationError(text, provider=profile.name)
    return headers


def with_key_hint(error: AuthenticationError, profile: Profile) -> AuthenticationError:
    """Return an error with the hint how to set a key, since none was sent."""
    variable = profile.auth.variable
    hint = f"; set {variable}" if variable else ""
    return AuthenticationError(
        f"{error.text} (no key for {profile.name} was found{hint})",
        provider=error.provider,
        status=error.status,
        code=error.code,
        kind=error.kind,
        request_id=error.request_id,
    )
