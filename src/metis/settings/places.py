"""Places: the folders and files of a user; the environment is looked at here."""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from metis.store.opening import default_url


class Places(Struct, frozen=True, kw_only=True):
    """Where metis keeps what belongs to a user."""

    home: Path
    """The folder of data: the store, the trace, memory, skills and models of one's own."""
    settings: Path
    """The file of settings."""
    store_url: str

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Places":
        """The places of a user: all under `$METIS_HOME` if it is set, else those of XDG."""
        given = environment.get("METIS_HOME")
        if given:
            home = folder = Path(given)
        else:
            home = _xdg(environment, "XDG_DATA_HOME", ".local/share")
            folder = _xdg(environment, "XDG_CONFIG_HOME", ".config")
        return cls(home=home, settings=folder / "config.toml", store_url=default_url(environment))

    @property
    def keys(self) -> Path:
        """The file of keys, which only its owner may read."""
        return self.settings.parent / "keys.toml"

    @property
    def trace(self) -> Path:
        """The file of events: what happened, without a word of what was said."""
        return self.home / "trace.db"

    @property
    def local(self) -> Path:
        """The folder of the model that runs on this machine."""
        return self.home / "local"


def _xdg(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    return Path(environment.get(variable) or Path.home() / usual) / "metis"
