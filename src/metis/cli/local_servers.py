"""Model servers on this machine: Ollama, LM Studio and llama.cpp."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from metis import adapters
from metis.adapters.model import ModelFeatures
from metis.catalog.models import is_model_id
from metis.wire.json_access import maybe_list, maybe_object

# How long the servers on this machine may take to list their models: every start waits for it.
TIMEOUT_S = 0.25
# The servers to probe, by the name of the adapter.
SERVER_NAMES: Mapping[str, str] = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llamacpp": "llama.cpp",
}

_LIST_PATHS: Mapping[str, str] = {
    "ollama": "/api/tags",
    "lmstudio": "/v1/models",
    "llamacpp": "/v1/models",
}
_FEATURE_PATHS: Mapping[str, str] = {"ollama": "/api/show", "lmstudio": "/api/v1/models"}
# How long a server may take to describe a model that is about to be used.
FEATURES_TIMEOUT_S = 2.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MAX_BYTES = 4_000_000  # the description of a model contains its licence and its template


class Server(Struct, frozen=True, kw_only=True):
    """A running server and the models that it can run."""

    adapter: str
    models: tuple[str, ...]

    @property
    def model(self) -> str | None:
        """The model to use unless the user names one: the first."""
        return self.models[0] if self.models else None


async def running_servers(
    urls: Mapping[str, str],
    names: Iterable[str] = tuple(SERVER_NAMES),
    timeout_s: float = TIMEOUT_S,
) -> list[Server]:
    """Return the servers that respond; nothing outside of this machine is contacted.

    Args:
        urls: addresses that differ from the default, by the name of the adapter.
        names: which servers to look for.
        timeout_s: how long all of them together may take.
    """
    addresses = [(name, urls.get(name) or adapters.profile_of(name).base_url) for name in names]
    servers = await asyncio.gather(*(_probe(name, url, timeout_s) for name, url in addresses))
    return [server for server in servers if server is not None]


async def _probe(name: str, url: str, timeout_s: float) -> Server | None:
    parts = urlsplit(url)
    # A start of metis must not contact other machines, even if a setting names one.
    if parts.hostname not in _LOOPBACK:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            body = await _fetch(parts.hostname, parts.port or 80, _LIST_PATHS[name])
        names = _model_names(body)
    except (OSError, TimeoutError, ValueError, RecursionError):
        return None
    return None if names is None else Server(adapter=name, models=_ids(name, names))


async def stated_features(model: str, urls: Mapping[str, str]) -> ModelFeatures | None:
    """Return what the server of a model states about it; None if it states nothing.

    Ollama lists models without tools, and rejects every request with tools for them.
    """
    adapter, _, name = model.partition(":")
    if adapter not in _FEATURE_PATHS:
        return None
    parts = urlsplit(urls.get(adapter) or adapters.profile_of(adapter).base_url)
    if parts.scheme != "http" or parts.hostname is None:
        return None
    body = msgspec.json.encode({"model": name}) if adapter == "ollama" else b""
    try:
        async with asyncio.timeout(FEATURES_TIMEOUT_S):
            path = _FEATURE_PATHS[adapter]
            response = await _fetch(parts.hostname, parts.port or 80, path, body)
        description = maybe_object(msgspec.json.decode(response))
    except (OSError, TimeoutError, ValueError, RecursionError):
        return None
    if adapter == "ollama":
        return _ollama_features(description)
    return _lmstudio_features(description, name)


def _ollama_features(description: Mapping[str, Any]) -> ModelFeatures | None:
    capabilities = description.get("capabilities")
    # Ollama before 0.6.4 does not state capabilities.
    if not isinstance(capabilities, list):
        return None
    # The stated context length is not used: Ollama runs models with a smaller one.
    return ModelFeatures(tools="tools" in capabilities, images="vision" in capabilities)


def _lmstudio_features(description: Mapping[str, Any], name: str) -> ModelFeatures | None:
    rows = map(maybe_object, maybe_list(description.get("models")))
    row = next((row for row in rows if row.get("key") == name), None)
    vision = None if row is None else maybe_object(row.get("capabilities")).get("vision")
    # LM Studio offers tools for every model, which does not mean that the model can use them.
    return ModelFeatures(images=vision) if isinstance(vision, bool) else None


async def _fetch(host: str, port: int, path: str, body: bytes = b"") -> bytes:
    """Return the body of the response to a GET request, or to a POST request with a JSON body."""
    # Importing an HTTP client would take longer than this whole search.
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_BYTES)
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.0\r\nHost: {host}:{port}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        writer.write(f"{head}\r\n".encode() + body)
        # Any user of the machine can listen on the port, and could send without end.
        response = bytearray()
        while piece := await reader.read(_MAX_BYTES):
            response += piece
            if len(response) > _MAX_BYTES:
                raise OSError(f"the response is larger than {_MAX_BYTES:,} bytes")
    finally:
        writer.close()
    head, _, body = bytes(response).partition(b"\r\n\r\n")
    # Another program may listen on the port and answer with an error page.
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise OSError("the status is not 200")
    return body


def _model_names(body: bytes) -> list[str] | None:
    """Return the names in a list of models; None if the response is something else."""
    listed = maybe_object(msgspec.json.decode(body))
    rows = listed.get("models", listed.get("data"))
    if not isinstance(rows, list):
        return None
    # Ollama states a name, the others an id.
    models = map(maybe_object, maybe_list(rows))
    return [name for model in models if isinstance(name := model.get("name", model.get("id")), str)]


def _ids(adapter: str, names: list[str]) -> tuple[str, ...]:
    """Return canonical ids; embedding models are left out, since they cannot respond."""
    ids = (f"{adapter}:{name}" for name in names if "embed" not in name.lower())
    return tuple(model for model in ids if is_model_id(model))
