"""Tools that the history uses and the request does not define."""

import json
import logging
from typing import Any

import pytest

from build import assistant, call, tool, tool_id, user
from judges import complaints
from metis import adapters
from metis.canonical import ToolDefinition
from metis.canonical.tools import SideEffects
from metis.sim.signing import ThinkingSigner
from metis.sim.strict import anthropic as strict
from metis.sim.strict.checks import CheckContext
from metis.wire.call import AdapterOptions, RequestContext

USED = (
    user("read them"),
    assistant(call("read_file", tool_id(1), path="a"), call("list files", tool_id(2))),
    tool("1", answers=tool_id(1)),
    tool("2", answers=tool_id(2)),
    assistant("done", call("read_file", tool_id(3), path="b")),
    tool("3", answers=tool_id(3)),
    user("sum it up"),
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


@pytest.mark.row("T36")
def test_tools_of_history_are_defined_but_not_callable() -> None:
    wire = adapters.get("anthropic").to_wire(USED)
    body = json.loads(wire.body)
    names = [each["name"] for each in body["tools"]]
    called = [
        part["name"]
        for turn in body["messages"]
        for part in turn["content"]
        if part["type"] == "tool_use"
    ]
    assert names == list(dict.fromkeys(called))
    assert names[0] == "read_file"
    assert body["tool_choice"] == {"type": "none"}
    tool_losses = [loss for loss in wire.losses if loss.path == "$.tools"]
    assert [str(loss.change) for loss in tool_losses] == ["synthesised", "synthesised"]
    assert complaints("anthropic", body) == []
    strict.check(
        body, CheckContext(signer=ThinkingSigner(), headers={"anthropic-version": "2023-06-01"})
    )


@pytest.mark.row("T36")
def test_request_with_definitions_or_without_calls_is_unchanged() -> None:
    adapter = adapters.get("anthropic")
    definition = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
    assert [t["name"] for t in json.loads(adapter.to_wire(USED, (definition,)).body)["tools"]] == [
        "f"
    ]
    assert "tools" not in json.loads(adapter.to_wire(USED[:1]).body)
    searched: dict[str, Any] = {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    options = AdapterOptions(native={"anthropic": searched})
    assert json.loads(adapter.to_wire(USED, (), options).body)["tools"] == searched["tools"]


@pytest.mark.row("T36")
def test_request_of_client_of_the_provider_is_unchanged() -> None:
    adapter = adapters.get("anthropic")
    body = json.loads(adapter.to_wire(USED).body)
    del body["tools"], body["tool_choice"]
    request = adapter.from_wire_request(body, RequestContext(session_id="sess_used"))
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert (json.loads(wire.body), wire.losses) == (body, [])


@pytest.mark.row("T36")
def test_growing_conversation_gets_equal_definitions() -> None:
    growing = adapters.Adapter(adapters.get("anthropic").profile)
    for count in (1, 4, 7):
        sent = growing.to_wire(USED[:count])
        fresh = adapters.Adapter(growing.profile).to_wire(USED[:count])
        assert (sent.body, sent.losses) == (fresh.body, fresh.losses)
