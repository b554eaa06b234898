"""How hosts word their errors: each body has its class, and clients of every protocol read it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metis import adapters
from metis.adapters import Adapter, RequestContext
from metis.canonical.errors import ProviderError

CLIENTS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
BODIES = Path(__file__).with_name("error_bodies.json")


def error_of(adapter: Adapter, body: bytes, status: int | None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        adapter.from_wire_response(body, RequestContext(status=status))
    return caught.value


def wordings() -> Iterator[tuple[str, ProviderError]]:
    for row in json.loads(BODIES.read_bytes()):
        body = json.dumps(row["body"]).encode()
        yield row["class"], error_of(adapters.get(row["provider"]), body, row["status"])


@pytest.mark.row("T185")
def test_every_wording_has_its_class() -> None:
    wrong = [(name, error.text) for name, error in wordings() if type(error).__name__ != name]
    assert wrong == []


@pytest.mark.row("T218")
def test_every_wording_is_written_for_clients_of_every_protocol() -> None:
    wrong: list[tuple[str, str]] = []
    for name, error in wordings():
        for client in map(adapters.get, CLIENTS):
            status, body = client.encode_error(error)
            read = error_of(client, body, status)
            if type(read).__name__ != name or error.text not in read.text:
                wrong.append((client.name, error.text))
    assert wrong == []
