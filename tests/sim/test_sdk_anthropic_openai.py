"""The official Anthropic and OpenAI SDKs with the simulator over loopback.

Their clients are typed as `Any`: only their run-time behaviour matters.
"""

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import openai
import pytest

from metis.sim import Script, Settings, Simulator
from simulated import GREP_SCHEMA, READ_SCHEMA, png_base64, requires_adapter

pytestmark = pytest.mark.anyio

MODEL = "claude-sonnet-4-6"
ANTHROPIC_TOOLS: Any = [{"name": "read_file", "description": "x", "input_schema": READ_SCHEMA}]
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "read_file", "parameters": READ_SCHEMA}}
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": "read_file", "parameters": READ_SCHEMA, "strict": False}
]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
TWO_FILES = "Read a.txt and b.txt"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sim() -> AsyncGenerator[Simulator]:
    async with Simulator(settings=Settings(chunk_bytes=11)) as simulator:
        yield simulator


@pytest.fixture
async def claude(sim: Simulator) -> AsyncGenerator[Any]:
    async with anthropic.AsyncAnthropic(
        base_url=sim.base_url, api_key="any", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def gpt(sim: Simulator) -> AsyncGenerator[Any]:
    async with openai.AsyncOpenAI(
        base_url=f"{sim.base_url}/v1", api_key="any", max_retries=0
    ) as client:
        yield client


async def test_anthropic_thinking_call_and_response(claude: Any) -> None:
    prompt_message: Any = {"role": "user", "content": TWO_FILES}
    shared: Any = {
        "model": MODEL,
        "max_tokens": 2000,
        "thinking": THINKING,
        "tools": ANTHROPIC_TOOLS,
    }
    async with claude.messages.stream(messages=[prompt_message], **shared) as stream:
        first = await stream.get_final_message()
    kinds = [block.type for block in first.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert (first.stop_reason, first.model) == ("tool_use", f"sim-{MODEL}")
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"path": "a.txt"}, {"path": "b.txt"}]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"text {call.id[-1]}"}
        for call in calls
    ]
    history: Any = [
        prompt_message,
        {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]},
        {"role": "user", "content": results},
    ]
    second = await claude.messages.create(messages=history, **shared)
    last = second.content[-1]
    assert last.type == "text"
    assert last.text.startswith('read_file gave: "text')
    assert second.usage.input_tokens > first.usage.input_tokens > 0
    counted = await claude.messages.count_tokens(
        model=MODEL, messages=history, tools=ANTHROPIC_TOOLS
    )
    assert counted.input_tokens == second.usage.input_tokens


async def test_anthropic_stream_equals_plain_response(
    claude: Any,
) -> None:
    prompt_message: Any = [{"role": "user", "content": "30 words, please"}]
    async with claude.messages.stream(
        model=MODEL, max_tokens=99, messages=prompt_message
    ) as stream:
        pieces = [text async for text in stream.text_stream]
    plain = await claude.messages.create(model=MODEL, max_tokens=99, messages=prompt_message)
    block = plain.content[0]
    assert block.type == "text"
    assert "".join(pieces) == block.text
    assert len(pieces) > 20


async def test_anthropic_image_input(claude: Any) -> None:
    image: Any = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": png_base64(7, 5)},
    }
    answer = await claude.messages.create(
        model=MODEL, max_tokens=99, messages=[{"role": "user", "content": [image]}]
    )
    block = answer.content[0]
    assert block.type == "text"
    assert "7 by 5 pixels" in block.text


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("sim: 401", anthropic.AuthenticationError),
        ("sim: 404", anthropic.NotFoundError),
        ("sim: 429 2", anthropic.RateLimitError),
        ("sim: 500", anthropic.InternalServerError),
        ("sim: 529", anthropic.APIStatusError),
        ("sim: cut", anthropic.APIConnectionError),
    ],
)
async def test_anthropic_sdk_raises_its_error_classes(
    claude: Any, prompt: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await claude.messages.create(
            model=MODEL, max_tokens=99, messages=[{"role": "user", "content": prompt}]
        )
    failure = caught.value
    if isinstance(failure, anthropic.RateLimitError):
        assert failure.response.headers["retry-after"] == "2"
        assert failure.request_id


async def test_anthropic_sdk_raises_stream_error(
    claude: Any,
) -> None:
    texts: list[str] = []

    async def read() -> None:
        async with claude.messages.stream(
            model=MODEL, max_tokens=99, messages=[{"role": "user", "content": "sim: error"}]
        ) as stream:
            async for text in stream.text_stream:
                texts.append(text)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(anthropic.APIStatusError, match="fail in the middle"):
        await read()
    assert "".join(texts) == 'You said: "sim: error"'


async def test_anthropic_sdk_retries(sim: Simulator) -> None:
    sim.script.add("sim: 529 0.01", "sim: 500 0.01", "at last")
    async with anthropic.AsyncAnthropic(
        base_url=sim.base_url, api_key="any", max_retries=2
    ) as client:
        answer = await client.messages.create(
            model=MODEL, max_tokens=99, messages=[{"role": "user", "content": "hello"}]
        )
    block = answer.content[0]
    assert block.type == "text"
    assert block.text == "at last"
    assert len(sim.service.exchanges) == 3


async def test_anthropic_forged_signature_is_refused(claude: Any) -> None:
    history: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "b"}]},
        {"role": "user", "content": "and?"},
    ]
    with pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"):
        await claude.messages.create(model=MODEL, max_tokens=99, messages=history)


async def test_models_are_listed(claude: Any, gpt: Any) -> None:
    assert [model.id async for model in claude.models.list()] == [
        model.id async for model in gpt.models.list()
    ]


async def test_chat_call_and_response(gpt: Any) -> None:
    prompt_message: Any = {"role": "user", "content": TWO_FILES}
    first = await gpt.chat.completions.create(
        model="gpt-5", messages=[prompt_message], tools=CHAT_TOOLS, reasoning_effort="low"
    )
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.usage is not None
    assert first.usage.completion_tokens_details is not None
    assert first.usage.completion_tokens_details.reasoning_tokens
    calls: Any = message.tool_calls
    assert [call.type for call in calls] == ["function", "function"]
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "text"} for call in calls]
    history: Any = [prompt_message, message.model_dump(exclude_none=True), *results]
    second = await gpt.chat.completions.create(model="gpt-5", messages=history, tools=CHAT_TOOLS)
    assert second.choices[0].message.content == 'read_file gave: "text". read_file gave: "text".'


async def test_chat_stream_has_usage_only_on_request(gpt: Any) -> None:
    shared: Any = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "say all is well"}],
        "stream": True,
    }
    bare = [chunk async for chunk in await gpt.chat.completions.create(**shared)]
    usages = [
        chunk
        async for chunk in await gpt.chat.completions.create(
            **shared, stream_options={"include_usage": True}
        )
    ]
    texts = [chunk.choices[0].delta.content or "" for chunk in bare]
    assert "".join(texts) == "all is well"
    assert all(chunk.usage is None for chunk in bare)
    assert usages[-1].usage is not None
    assert usages[-1].usage.completion_tokens == 3


async def test_chat_structured_output(gpt: Any) -> None:
    schema: Any = {**GREP_SCHEMA, "required": ["pattern", "path"], "additionalProperties": False}
    answer = await gpt.chat.completions.create(
        model="gpt-5",
        messages=[{"role": "user", "content": "Look for 'x' in src/a.py"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "search", "schema": schema, "strict": True},
        },
    )
    assert answer.choices[0].message.content == '{"path":"src/a.py","pattern":"x"}'


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("sim: 401", openai.AuthenticationError),
        ("sim: 429 2", openai.RateLimitError),
        ("sim: 500", openai.InternalServerError),
        ("sim: cut 20", openai.APIConnectionError),
    ],
)
async def test_openai_sdk_raises_its_error_classes(
    gpt: Any, prompt: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await gpt.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": prompt}]
        )


async def test_chat_gets_malformed_arguments(gpt: Any) -> None:
    shared: Any = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "sim: malformed"}],
        "tools": CHAT_TOOLS,
    }
    plain = await gpt.chat.completions.create(**shared)
    call = plain.choices[0].message.tool_calls[0]
    pieces: list[str] = []
    async for chunk in await gpt.chat.completions.create(**shared, stream=True):
        parts: Any = chunk.choices[0].delta.tool_calls or ()
        pieces += [part.function.arguments for part in parts]
    assert "".join(pieces) == call.function.arguments == '{"broken": tru'


async def test_chat_unanswered_call_is_refused(gpt: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    history: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "and?"},
    ]
    with pytest.raises(openai.BadRequestError, match="did not have response messages: call_1"):
        await gpt.chat.completions.create(model="gpt-5", messages=history)


@requires_adapter("openai-responses")
async def test_responses_reasoning_call_and_response(gpt: Any) -> None:
    shared: Any = {
        "model": "gpt-5",
        "tools": RESPONSES_TOOLS,
        "store": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }
    prompt_message: Any = {"role": "user", "content": TWO_FILES}
    plain = await gpt.responses.create(input=[prompt_message], **shared)
    async with gpt.responses.stream(input=[prompt_message], **shared) as stream:
        streamed = await stream.get_final_response()
    kinds = ["reasoning", "message", "function_call", "function_call"]
    for first in (plain, streamed):
        assert [item.type for item in first.output] == kinds
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "text"}
            for item in first.output
            if item.type == "function_call"
        ]
        reasoning_items = [
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
            for item in first.output
        ]
        second = await gpt.responses.create(
            input=[prompt_message, *reasoning_items, *results], **shared
        )
        assert second.output_text == 'read_file gave: "text". read_file gave: "text".'


@requires_adapter("openai-responses")
async def test_responses_stream_error(gpt: Any) -> None:
    stream = await gpt.responses.create(model="gpt-5", input="sim: error", stream=True)
    assert [event.type async for event in stream][-1] == "response.failed"


@requires_adapter("openai-responses")
async def test_responses_foreign_seal_is_refused(gpt: Any) -> None:
    thought: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": "c3RvbGVu",
    }
    with pytest.raises(openai.BadRequestError, match="could not be verified") as caught:
        await gpt.responses.create(model="gpt-5", input=[thought, {"role": "user", "content": "x"}])
    assert caught.value.code == "invalid_encrypted_content"


async def test_several_simulators_run_in_parallel() -> None:
    async with Simulator(script=Script("one")) as one, Simulator(script=Script("two")) as two:
        assert one.base_url != two.base_url
        for sim, expected in ((one, "one"), (two, "two")):
            async with openai.AsyncOpenAI(base_url=f"{sim.base_url}/v1", api_key="any") as client:
                answer = await client.chat.completions.create(
                    model="gpt-5", messages=[{"role": "user", "content": "hello"}]
                )
                assert answer.choices[0].message.content == expected
