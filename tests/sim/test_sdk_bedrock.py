"""The official AWS SDK with the simulator over loopback."""

import base64
from collections.abc import AsyncGenerator
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from anyio import to_thread

from metis.sim import Settings, Simulator
from simulated import READ_SCHEMA, png_base64

pytestmark = pytest.mark.anyio

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
TOOLS: Any = {
    "tools": [
        {
            "toolSpec": {
                "name": "read_file",
                "description": "Reads.",
                "inputSchema": {"json": READ_SCHEMA},
            }
        }
    ]
}
THINKING: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def bedrock() -> AsyncGenerator[Any]:
    session: Any = import_module("botocore.session").Session()
    config: Any = import_module("botocore.config").Config(
        retries={"max_attempts": 0}, proxies={}, user_agent_appid="metis-tests"
    )
    async with Simulator(settings=Settings(chunk_bytes=11)) as sim:
        client = session.create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=sim.base_url,
            aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
            aws_secret_access_key="not a secret",  # noqa: S106 - it is none
            config=config,
        )
        try:
            yield client
        finally:
            client.close()


async def call(method: Any, **parameters: Any) -> Any:
    """Call a blocking method of the client in a thread."""
    return await to_thread.run_sync(partial(method, modelId=MODEL, **parameters))


async def streamed(client: Any, **parameters: Any) -> list[dict[str, Any]]:
    stream = (await call(client.converse_stream, **parameters))["stream"]
    try:
        return await to_thread.run_sync(list, stream)
    finally:
        stream.close()


def request_with(text: str, *more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}, *more]}


async def test_thinking_call_and_response(bedrock: Any) -> None:
    history: Any = [request_with("Read a.txt and b.txt")]
    shared: Any = {"toolConfig": TOOLS, "additionalModelRequestFields": THINKING}
    first = await call(bedrock.converse, messages=history, **shared)
    assert first["stopReason"] == "tool_use"
    message = first["output"]["message"]
    assert message["content"][0]["reasoningContent"]["reasoningText"]["signature"]
    calls = [part["toolUse"] for part in message["content"] if "toolUse" in part]
    assert [one["input"] for one in calls] == [{"path": "a.txt"}, {"path": "b.txt"}]
    history += [
        message,
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": one["toolUseId"], "content": [{"text": "text"}]}}
                for one in calls
            ],
        },
    ]
    second = await call(bedrock.converse, messages=history, **shared)
    assert "read_file gave" in second["output"]["message"]["content"][-1]["text"]
    assert second["usage"]["inputTokens"] > 0


async def test_stream_equals_plain_response(bedrock: Any) -> None:
    events = await streamed(bedrock, messages=[request_with("30 words")])
    pieces = [
        event["contentBlockDelta"]["delta"]["text"]
        for event in events
        if "contentBlockDelta" in event
    ]
    plain = await call(bedrock.converse, messages=[request_with("30 words")])
    assert "".join(pieces) == plain["output"]["message"]["content"][0]["text"]
    assert len(pieces) > 20
    assert events[0] == {"messageStart": {"role": "assistant"}}
    assert events[-2] == {"messageStop": {"stopReason": "end_turn"}}
    assert events[-1]["metadata"]["usage"] == plain["usage"]


async def test_image_input(bedrock: Any) -> None:
    shown = {"image": {"format": "png", "source": {"bytes": base64.b64decode(png_base64())}}}
    answer = await call(bedrock.converse, messages=[request_with("What is on it?", shown)])
    assert "3" in answer["output"]["message"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (429, "ThrottlingException"),
        (500, "InternalServerException"),
        (503, "ServiceUnavailableException"),
    ],
)
async def test_sdk_raises_its_error_classes(bedrock: Any, status: int, name: str) -> None:
    with pytest.raises(getattr(bedrock.exceptions, name)) as caught:
        await call(bedrock.converse, messages=[request_with(f"sim: {status}")])
    error: Any = caught.value
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status


async def test_sdk_raises_stream_error(bedrock: Any) -> None:
    broken: Any = import_module("botocore.exceptions").EventStreamError
    with pytest.raises(broken, match="Exception"):
        await streamed(bedrock, messages=[request_with("sim: error")])


REFUSED: list[tuple[list[Any], str]] = [
    ([request_with("a"), request_with("b")], "alternate"),
    ([{"role": "assistant", "content": [{"text": "a"}]}], "start with a user"),
    ([request_with(" ")], "blank"),
    (
        [
            request_with("a"),
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "x", "name": "f", "input": {}}}],
            },
            request_with("b"),
        ],
        "Expected toolResult blocks",
    ),
    (
        [
            request_with(
                "a", {"document": {"name": "a.b", "format": "pdf", "source": {"bytes": b"x"}}}
            )
        ],
        "document file name",
    ),
    (
        [
            request_with("a"),
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "a", "signature": "b"}}},
                    {"text": "b"},
                ],
            },
            request_with("b"),
        ],
        "Invalid `signature`",
    ),
]


@pytest.mark.parametrize(("messages", "text"), REFUSED)
async def test_invalid_requests_are_refused(bedrock: Any, messages: list[Any], text: str) -> None:
    with pytest.raises(bedrock.exceptions.ValidationException, match=text):
        await call(bedrock.converse, messages=messages)
