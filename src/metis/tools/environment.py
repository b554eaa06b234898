"""Environment: what a command may know of ours; secrets stay here."""

import os
import re
from collections.abc import Collection, Mapping

_SECRET_WORDS = frozenset(
    {
        *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PAT"),
        *("PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "PW", "CREDENTIAL", "CREDENTIALS"),
    }
)
_HARMLESS = frozenset({"PWD", "OLDPWD"})
_RUN_TOGETHER = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_LOGIN_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]*:[^/\s@]+@", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or by a login inside of its value."""
    upper = name.upper()
    if upper in _HARMLESS:
        return False
    words = re.split(r"[^A-Z0-9]+", upper)
    if not _SECRET_WORDS.isdisjoint(words) or _RUN_TOGETHER.search(upper):
        return True
    return _LOGIN_IN_URL.search(value) is not None


def without_secrets(
    environment: Mapping[str, str] = os.environ, allowed: Collection[str] = ()
) -> dict[str, str]:
    """The variables that a command gets: those that are allowed, and those that are no secret."""
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not is_secret(name, value)
    }
