"""Models: the names that the simulator lists, in the words of each provider."""

from collections.abc import Callable, Mapping, Sequence
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


def listing(path: str, *, is_anthropic: bool, names: Sequence[str] = NAMES) -> Wire | None:
    """The answer to a question for models; None if a path asks for something else."""
    whole, _, wanted = path.partition("/models/")
    if wanted and wanted in names:
        write = _WRITERS.get(f"{whole}/models")
        return None if write is None else write(wanted, is_anthropic)
    if path == "/api/version":
        return {"version": "0.0.0-sim"}
    write = _WRITERS.get(path)
    if write is None:
        return None
    listed: list[Any] = [write(name, is_anthropic) for name in names]
    if path.startswith(("/v1beta", "/api")):
        return {"models": listed}
    if is_anthropic:
        return {"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": listed}


def _shared(name: str, is_anthropic: bool) -> Wire:  # noqa: FBT001 - one signature for the table
    """Two providers list their models at the same path."""
    if is_anthropic:
        title = f"metis simulator ({name})"
        return {"type": "model", "id": name, "display_name": title, "created_at": _MOMENT}
    return {"id": name, "object": "model", "created": _SECONDS, "owned_by": "metis-simulator"}


def _gemini(name: str, _: bool) -> Wire:  # noqa: FBT001 - one signature for the table
    return {
        "name": f"models/{name}",
        "displayName": f"metis simulator ({name})",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def _ollama(name: str, _: bool) -> Wire:  # noqa: FBT001 - one signature for the table
    return {"name": name, "model": name, "modified_at": _MOMENT, "size": 0, "digest": "0" * 64}


_WRITERS: Mapping[str, Callable[[str, bool], Wire]] = {
    "/v1/models": _shared,
    "/models": _shared,
    "/v1beta/models": _gemini,
    "/api/tags": _ollama,
}
