"""The specification's test vectors: bytes, digests, refusals, equality, numbers, versions."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from metis import decode, encode
from metis.canonical.errors import DecodeError
from metis.canonical.value import comparable_bytes

VECTORS = Path(__file__).parent.parent.parent / "spec" / "vectors"


def vectors(name: str) -> list[Any]:
    """Return the vectors of a file as named parameters."""
    found = json.loads((VECTORS / name).read_text(encoding="utf-8"))["vectors"]
    return [pytest.param(vector, id=vector.get("name", vector.get("input"))) for vector in found]


@pytest.mark.parametrize("vector", vectors("canonical.json"))
def test_canonical_bytes_and_digests(vector: dict[str, str]) -> None:
    message = decode(vector["input"])
    assert encode(message).decode() == vector["canonical"]
    comparable = vector.get("comparable", vector["canonical"])
    assert comparable_bytes(message).decode() == comparable
    # The digest in the vector is computed from its text, independently of the code.
    assert hashlib.sha256(comparable.encode()).hexdigest() == vector["digest"]
    assert message.digest() == vector["digest"]
    if "content" in vector:
        assert hashlib.sha256(vector["content"].encode()).hexdigest() == vector["content_digest"]
        assert message.content_digest() == vector["content_digest"]


@pytest.mark.parametrize("vector", vectors("refused.json"))
def test_refused_input_and_path(vector: dict[str, Any]) -> None:
    data: bytes = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["input"].encode()
    with pytest.raises(DecodeError) as caught:
        decode(data)
    if vector["path"] is not None:  # otherwise implementations may stop at different places
        assert caught.value.path == vector["path"]


@pytest.mark.parametrize("vector", vectors("numbers.json"))
def test_numbers(vector: dict[str, str]) -> None:
    call = '[{"id":"tu_0","input":{"n":%s},"name":"f","type":"tool_use"}]'
    text = (
        '{"content":%s,"created_at":"2026-05-08T09:30:00Z","id":"01KR3ER9E00000000000000004",'
        '"metadata":{},"role":"assistant","schema_version":1,"session_id":"s"}'
    )
    message = decode(text % call % vector["input"])
    assert encode(message).decode() == text % call % vector["canonical"]


@pytest.mark.parametrize("vector", vectors("equality.json"))
def test_equality(vector: dict[str, Any]) -> None:
    first, second = decode(vector["first"]), decode(vector["second"])
    assert (first == second) is vector["equal"]
    assert (first.digest() == second.digest()) is vector["equal"]


@pytest.mark.parametrize("vector", vectors("versions.json"))
def test_versions(vector: dict[str, str]) -> None:
    if "error" in vector:
        with pytest.raises(DecodeError) as caught:
            decode(vector["input"])
        assert caught.value.path == vector["error"]
    else:
        assert encode(decode(vector["input"])).decode() == vector["canonical"]
