"""A request without a session has equal bytes in every process, and extends earlier ones."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import corpus
import exchange
from metis import adapters
from metis.adapters import RequestContext
from metis.verify.stable import request_bytes, stable_faults

PROVIDERS = {
    "anthropic_messages": "anthropic",
    "bedrock_converse": "bedrock-converse",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
}
SAMPLE = 6
"""The number of recorded requests per protocol in every run."""
SCRIPT = "import test_stable_bytes as test; print(test.digest_of_all())"


def longest_requests(protocol: str) -> Iterator[dict[str, Any]]:
    bodies = [body for _, body in exchange.requests(protocol)]
    yield from sorted(bodies, key=lambda body: len(msgspec.json.encode(body)))[-SAMPLE:]


def digest_of_all() -> str:
    """Return a digest of the requests to every provider from clients of every other one."""
    digest = hashlib.sha256()
    targets = [adapters.get(name) for name in PROVIDERS.values()]
    for protocol, name in PROVIDERS.items():
        for body in longest_requests(protocol):
            for target in targets:
                wire = request_bytes(adapters.get(name), target, body)
                digest.update(b"refused" if wire is None else wire.body)
    return digest.hexdigest()


def unstable(protocol: str, bodies: Iterable[dict[str, Any]]) -> list[list[str]]:
    targets = [adapters.get(name) for name in PROVIDERS.values()]
    client = adapters.get(PROVIDERS[protocol])
    faults = (list(stable_faults(client, body, targets)) for body in bodies)
    return [found for found in faults if found]


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_long_requests_extend_the_requests_before_them(protocol: str) -> None:
    assert unstable(protocol, longest_requests(protocol)) == []


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
def test_requests_extend_the_requests_before_them(protocol: str) -> None:
    assert unstable(protocol, (body for _, body in exchange.requests(protocol))) == []


@pytest.mark.slow
@corpus.needs_corpus
def test_other_processes_encode_equal_bytes() -> None:
    tests = Path(__file__).parent
    path = os.pathsep.join(map(str, (tests, tests.parent)))
    digests = {
        subprocess.run(  # noqa: S603 - this test, in another process
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {digest_of_all().encode() + b"\n"}


def test_ids_derive_from_a_session_that_the_caller_names() -> None:
    client = adapters.get("openai")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    }
    contexts = (
        RequestContext(),
        RequestContext(),
        RequestContext(session_id="a"),
        RequestContext(session_id="b"),
        RequestContext(session_id="b", is_stateless=True),
    )
    requests = [client.from_wire_request(body, context) for context in contexts]
    first, second, third, fourth, fifth = (
        getattr(request.messages[1].content[0], "id", None) for request in requests
    )
    assert first == second == fifth
    assert len({first, third, fourth}) == 3
    assert requests[0].messages[0].session_id != requests[1].messages[0].session_id
