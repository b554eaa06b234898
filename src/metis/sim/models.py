"""Models: the names that the simulator lists, in the words of each provider."""

from collections.abc import Callable, Mapping
from typing import Any

from metis.wire.shape import Wire

NAMES = ("sim-small", "sim-large", "sim-reasoner")
"""The models of the simulator; every other name is taken for one of them, too."""

_MOMENT = "2026-01-01T00:00:00Z"
_SECONDS = 1_767_225_600


def labelled(model: str) -> str:
    """The name under which a model answers: nobody shall take it for the real one.

    >>> labelled("gpt-5"), labelled("sim-small")
    ('sim-gpt-5', 'sim-small')
    """
    return model if model.startswith("sim-") else f"sim-{model}"


def listing(path: str, headers: Mapping[str, str]) -> Wire | None:
    """The answer to a question for models; None if a path asks for something else.

    Three providers list their models at the same path; the headers tell whose client asks.
    """
    if path == "/api/version":
        return {"version": "0.0.0-sim"}
    place, _, wanted = path.partition("/models/")
    if (f"{place}/models" if wanted else path) not in _PLACES:
        return None
    whose = _whose(path, headers)
    if wanted:
        return _WRITERS[whose](wanted) if wanted in NAMES else None
    listed: list[Any] = [_WRITERS[whose](name) for name in NAMES]
    match whose:
        case "anthropic":
            return {"data": listed, "has_more": False, "first_id": NAMES[0], "last_id": NAMES[-1]}
        case "openai":
            return {"object": "list", "data": listed}
        case _:
            return {"models": listed}


def _whose(path: str, headers: Mapping[str, str]) -> str:
    if path.startswith("/api"):
        return "ollama"
    if path.startswith("/v1beta") or "x-goog-api-key" in headers:
        return "gemini"
    return "anthropic" if "anthropic-version" in headers else "openai"


def _anthropic(name: str) -> Wire:
    title = f"metis simulator ({name})"
    return {"type": "model", "id": name, "display_name": title, "created_at": _MOMENT}


def _openai(name: str) -> Wire:
    return {"id": name, "object": "model", "created": _SECONDS, "owned_by": "metis-simulator"}


def _gemini(name: str) -> Wire:
    return {
        "name": f"models/{name}",
        "displayName": f"metis simulator ({name})",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def _ollama(name: str) -> Wire:
    return {"name": name, "model": name, "modified_at": _MOMENT, "size": 0, "digest": "0" * 64}


_PLACES = ("/v1/models", "/models", "/v1beta/models", "/api/tags")
_WRITERS: Mapping[str, Callable[[str], Wire]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "gemini": _gemini,
    "ollama": _ollama,
}
