"""The specification's test vectors for wire formats and streams."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from metis import adapters, decode, encode
from metis.adapters import MessageComplete, RequestContext, TextDelta
from metis.canonical.errors import CriticalLossError
from metis.canonical.message import Message
from metis.canonical.tools import SideEffects, ToolDefinition

VECTORS = Path(__file__).parent.parent.parent / "spec" / "vectors"
TOOL_ID = re.compile(r"tu_\w+")


def vectors(name: str) -> list[Any]:
    """Return the vectors of a file as named parameters."""
    listed = json.loads((VECTORS / name).read_text(encoding="utf-8"))["vectors"]
    return [pytest.param(vector, id=f"{vector['name']}-{vector.get('kind')}") for vector in listed]


def contents(*messages: Message) -> list[Any]:
    """Return role and content of messages, with tool ids as ordinals of first use."""
    ordinals: dict[str, str] = {}

    def ordinal(match: re.Match[str]) -> str:
        return ordinals.setdefault(match[0], f"#{len(ordinals)}")

    fields = (json.loads(TOOL_ID.sub(ordinal, encode(message).decode())) for message in messages)
    return [{"role": each["role"], "content": each["content"]} for each in fields]


@pytest.mark.parametrize("vector", vectors("wire.json"))
def test_wire_formats(vector: dict[str, Any]) -> None:
    adapter = adapters.get(vector["protocol"])
    context = RequestContext(session_id="s", model=f"{adapter.name}:m", provider=adapter.name)
    if vector["kind"] == "request":
        request = adapter.from_wire_request(vector["wire"], context)
        assert contents(*request.messages) == vector["messages"]
    else:
        response = adapter.from_wire_response(vector["wire"], context)
        assert contents(response) == vector["messages"]
        assert response.metadata.stop_reason == vector["stop_reason"]


@pytest.mark.parametrize("vector", vectors("streams.json"))
def test_streams(vector: dict[str, Any]) -> None:
    adapter = adapters.get(vector["protocol"])
    context = RequestContext(session_id="s", model=f"{adapter.name}:m", provider=adapter.name)
    decoder = adapter.stream_decoder(context)
    text = ""
    message: Message | None = None
    for chunk, expected in zip(vector["chunks"], vector["cut"], strict=True):
        data = bytes.fromhex(chunk) if vector.get("encoding") == "hex" else chunk.encode()
        for event in decoder.feed(data):
            text += event.text if isinstance(event, TextDelta) else ""
            message = event.message if isinstance(event, MessageComplete) else message
        assert text == expected
    for event in decoder.finish():
        message = event.message if isinstance(event, MessageComplete) else message
    assert message is not None
    assert message.metadata.stop_reason == vector["stop_reason"]
    assert without_reasons(contents(message)[0]["content"]) == vector["content"]


def without_reasons(content: list[Any]) -> list[Any]:
    """Blocks without what is for people: why arguments are no object."""
    for block in content:
        if "invalid" in block:
            del block["invalid"]["error"]
    return content


def test_every_protocol_has_a_stream_and_every_cut_is_a_prefix() -> None:
    listed = json.loads((VECTORS / "streams.json").read_text(encoding="utf-8"))["vectors"]
    assert {each["protocol"] for each in listed} == {
        *("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
    }
    for each in listed:
        texts = [block["text"] for block in each["content"] if block["type"] == "text"]
        assert all("".join(texts).startswith(cut) for cut in each["cut"]), each["name"]


TOOLS = [ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)]


@pytest.mark.parametrize("vector", vectors("losses.json"))
def test_losses(vector: dict[str, Any]) -> None:
    messages = [decode(json.dumps(each).encode()) for each in vector["messages"]]
    numbers = {message.id: number for number, message in enumerate(messages)}
    expected = sorted(
        (each["message"], each["block_type"], each["path"], each["change"])
        for each in vector["losses"]
    )
    for protocol in vector["protocols"]:
        adapter = adapters.get(protocol)
        if vector.get("is_refused"):
            with pytest.raises(CriticalLossError) as caught:
                adapter.to_wire(messages, TOOLS)
            error = caught.value
            facts = (numbers[error.message_id], error.block_type, error.path)
            assert [facts] == [each[:3] for each in expected], protocol
            continue
        losses = adapter.to_wire(messages, TOOLS).losses
        assert (
            sorted(
                (numbers[loss.message_id], loss.block_type, loss.path, str(loss.change))
                for loss in losses
            )
            == expected
        ), protocol


def test_every_rule_of_the_loss_list_has_a_vector_for_every_protocol() -> None:
    listed = json.loads((VECTORS / "losses.json").read_text(encoding="utf-8"))["vectors"]
    text = (VECTORS.parent / "losses.md").read_text(encoding="utf-8")
    rules = set(
        re.findall(
            r"^\| `(\w+)` \| .* \| .* \|$",
            text.split("## What every")[1].split("## Error")[0],
            re.MULTILINE,
        )
    )
    protocols = {"anthropic", "openai", "openai-responses", "gemini", "bedrock-converse", "ollama"}
    for rule in rules:
        covered = {name for each in listed if each["rule"] == rule for name in each["protocols"]}
        assert covered == protocols, rule
