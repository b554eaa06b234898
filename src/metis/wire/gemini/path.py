"""Paths of Gemini: the model and the way to answer stand in the URL, not in the body."""

import re

from metis.canonical.errors import DecodeError

_PATH = re.compile(
    r"(?:/[^/?:]+)*?/v1(?:alpha|beta|beta1)?"
    r"(?:/projects/[^/?:]+/locations/[^/?:]+)?(?:/publishers/[^/?:]+)?"
    r"/(?:models/)?(?P<model>[^?:]+):(?P<verb>generateContent|streamGenerateContent)(?:\?.*)?"
)


def read_path(path: str) -> tuple[str, bool]:
    """The model that a path names, and whether it asks for a stream.

    >>> read_path("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    ('gemini-2.5-flash', True)
    """
    found = _PATH.fullmatch(path)
    if found is None:
        raise DecodeError(f"no path of generateContent: {path[:200]!r}")
    return found["model"], found["verb"] == "streamGenerateContent"
