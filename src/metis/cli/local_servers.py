"""Model servers on this machine: Ollama, LM Studio and llama.cpp."""

import asyncio
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from metis import adapters
from metis.catalog.models import is_model_id

PATIENCE_S = 0.25
"""How long a server on this machine may take to list its models."""

_PATHS: Mapping[str, str] = {
    "ollama": "/api/tags",
    "lmstudio": "/v1/models",
    "llamacpp": "/v1/models",
}
SERVER_NAMES: Mapping[str, str] = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llamacpp": "llama.cpp",
}
"""The servers that are looked for, as people call them, by the name of the adapter."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MOST_BYTES = 1_000_000


class Server(Struct, frozen=True, kw_only=True):
    """A server that answers, and what it runs; the first model is the one to take."""

    adapter: str
    url: str
    models: tuple[str, ...]

    @property
    def model(self) -> str | None:
        """The model to ask if nobody names one."""
        return self.models[0] if self.models else None


async def running_servers(
    urls: Mapping[str, str],
    names: Iterable[str] = tuple(SERVER_NAMES),
    timeout_s: float = PATIENCE_S,
) -> list[Server]:
    """The servers that answer now; nobody outside of this machine is asked.

    Args:
        urls: other addresses, by the name of the adapter.
        names: which of them are asked.
        timeout_s: how long all of them together may take.
    """
    places = [(name, urls.get(name) or adapters.profile_of(name).base_url) for name in names]
    found = await asyncio.gather(*(_look(name, url, timeout_s) for name, url in places))
    return [server for server in found if server is not None]


async def _look(name: str, url: str, patience_s: float) -> Server | None:
    parts = urlsplit(url)
    if parts.hostname not in _LOOPBACK:
        return None
    try:
        async with asyncio.timeout(patience_s):
            body = await _get(parts.hostname, parts.port or 80, _PATHS[name])
        names = _read(body).names
    except (OSError, TimeoutError, ValueError):
        return None
    return None if names is None else Server(adapter=name, url=url, models=_ids(name, names))


async def _get(host: str, port: int, path: str) -> bytes:
    """The body of a page; a plain request is enough for a list, and costs no import."""
    reader, writer = await asyncio.open_connection(host, port, limit=_MOST_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise OSError("no list of models")
    return body


class _Row(Struct, frozen=True):
    """A model in a list: Ollama gives its name, the others an id."""

    name: str | None = None
    id: str | None = None


class _Listed(Struct, frozen=True):
    models: tuple[_Row, ...] | None = None
    data: tuple[_Row, ...] | None = None

    @property
    def names(self) -> list[str] | None:
        """The names in the list; None if it is no list of models."""
        rows = self.data if self.models is None else self.models
        if rows is None:
            return None
        return [name for row in rows if (name := row.name or row.id)]


_read = msgspec.json.Decoder(_Listed).decode


def _ids(adapter: str, names: list[str]) -> tuple[str, ...]:
    """Canonical ids; models that only measure texts cannot answer."""
    ids = (f"{adapter}:{name}" for name in names if "embed" not in name.lower())
    return tuple(model for model in ids if is_model_id(model))
