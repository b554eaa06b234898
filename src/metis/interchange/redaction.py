"""Redaction: removes keys, mail addresses and home directories from a file that is to be shared.

It works on the finished bytes, so that it applies to every format. It recognises secrets by
pattern and can miss one of an unknown pattern; the report lists what was replaced, and where.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

_KEY_FORMS = (
    rb"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter
    rb"AIza[0-9A-Za-z_-]{30,}",  # Google
    rb"gh[pousr]_[A-Za-z0-9]{30,}",
    rb"github_pat_[A-Za-z0-9_]{30,}",
    rb"glpat-[A-Za-z0-9_-]{18,}",
    rb"xox[abeprs]-[A-Za-z0-9-]{10,}",
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}",
    rb"(?:gsk|xai|hf|r8|pplx|npm|pypi)[_-][A-Za-z0-9_-]{20,}",
    rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+",
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.{1,10000}?-----END [A-Z ]*PRIVATE KEY-----",
)
# A name whose value is a secret, in text, in JSON and in JSON within JSON.
_NAMED_SECRET = (
    rb"(?i:(?<![a-z])(?:[a-z0-9]{0,30}[_-])?(?:api[_-]?key|secret|passwd|password|access[_-]?token|"
    rb"auth[_-]?token)(?:[_-][a-z0-9]{1,30})?)"
    rb"(?:\\*[\"'])?\s{0,3}[:=]\s{0,3}(?:\\*[\"'])?(?P<value>[A-Za-z0-9+/_.~-]{8,200})"
)
_BEARER = rb"(?i:bearer|basic)\s+(?P<value>[A-Za-z0-9+/_.=~-]{16,})"
_MAIL = rb"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
_HOME = rb"(?:/home/|/Users/|[A-Za-z]:\\{1,4}Users\\{1,4})(?P<value>[^/\\\s\"'<>:|]{1,64})"

_RULES: Sequence[tuple[str, re.Pattern[bytes], bytes]] = (
    ("key", re.compile(b"|".join(_KEY_FORMS), re.DOTALL), b"[key removed]"),
    ("key", re.compile(_NAMED_SECRET), b"[key removed]"),
    ("key", re.compile(_BEARER), b"[key removed]"),
    ("mail address", re.compile(_MAIL), b"[mail address removed]"),
    ("home directory", re.compile(_HOME), b"user"),
)


class Redacted(Struct, frozen=True):
    """What was replaced: the kind, how often, and the first line of the file with one."""

    kind: str
    count: int
    first_line: int


def redact(data: bytes, homes: Sequence[str] = ()) -> tuple[bytes, list[Redacted]]:
    """Return a file without secrets and personal data, and what was replaced.

    `homes` are home directories of other forms, such as the user's own.
    """
    counts: dict[str, tuple[int, int]] = {}

    def note(kind: str, position: int) -> None:
        number, line = counts.get(kind, (0, data.count(b"\n", 0, position) + 1))
        counts[kind] = number + 1, line

    for home in sorted(filter(None, homes), key=len, reverse=True):
        path = home.rstrip("/").encode()
        if len(path) > 1 and path in data:
            counts["home directory"] = data.count(path), data.count(b"\n", 0, data.find(path)) + 1
            data = data.replace(path, b"/home/user")
    for kind, pattern, replacement in _RULES:

        def replaced(match: re.Match[bytes], kind: str = kind, new: bytes = replacement) -> bytes:
            text = match.group()
            if "value" not in match.re.groupindex:
                note(kind, match.start())
                return new
            if match["value"] == new or match["value"].startswith(b"["):
                return text
            note(kind, match.start())
            start = match.start("value") - match.start()
            return text[:start] + new + text[start + len(match["value"]) :]

        data = pattern.sub(replaced, data)
    return data, [Redacted(kind, number, line) for kind, (number, line) in counts.items()]
