"""The official Gemini SDK with the simulator over loopback."""

import warnings
from base64 import b64decode
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from metis.sim import Settings, Simulator
from simulated import READ_SCHEMA, png_base64, requires_adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own source has strings that Python warns about
    from google import genai
    from google.genai import errors, types

pytestmark = [
    pytest.mark.anyio,
    requires_adapter("gemini"),
    # The SDK subclasses aiohttp's session, which aiohttp warns about.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

MODEL = "gemini-3-flash"
DECLARED: Any = {"name": "read_file", "description": "x", "parameters_json_schema": READ_SCHEMA}
TOOLS: Any = [types.Tool(function_declarations=[DECLARED])]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def models() -> AsyncGenerator[Any]:
    async with Simulator(settings=Settings(chunk_bytes=11)) as sim:
        options = types.HttpOptions(base_url=sim.base_url)
        client = genai.Client(api_key="any", http_options=options)
        try:
            yield client.aio.models
        finally:
            await client.aio.aclose()
            client.close()


def user_content(text: str) -> Any:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def test_thinking_call_and_response(models: Any) -> None:
    config = types.GenerateContentConfig(
        tools=TOOLS,
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    history: Any = [user_content("Read a.txt and b.txt")]
    first = await models.generate_content(model=MODEL, contents=history, config=config)
    content = first.candidates[0].content
    calls = [part.function_call for part in content.parts if part.function_call]
    assert [call.args for call in calls] == [{"path": "a.txt"}, {"path": "b.txt"}]
    assert any(part.thought for part in content.parts)
    assert any(part.function_call and part.thought_signature for part in content.parts)
    assert first.model_version == f"sim-{MODEL}"
    results = [
        types.Part.from_function_response(name=call.name, response={"output": "text"})
        for call in calls
    ]
    history += [content, types.Content(role="user", parts=results)]
    second = await models.generate_content(model=MODEL, contents=history, config=config)
    assert "read_file gave" in second.text
    counted = await models.count_tokens(model=MODEL, contents=history)
    assert counted.total_tokens > 0


async def test_stream_equals_plain_response(models: Any) -> None:
    stream = await models.generate_content_stream(model=MODEL, contents="30 words")
    pieces = [chunk.text or "" async for chunk in stream]
    plain = await models.generate_content(model=MODEL, contents="30 words")
    assert "".join(pieces) == plain.text
    assert len(pieces) > 20


async def test_image_input(models: Any) -> None:
    shown: Any = types.Part(
        inline_data=types.Blob(mime_type="image/png", data=b64decode(png_base64(7, 5)))
    )
    answer = await models.generate_content(model=MODEL, contents=[shown])
    assert "7 by 5 pixels" in answer.text


async def test_structured_output(models: Any) -> None:
    config = types.GenerateContentConfig(
        response_mime_type="application/json", response_json_schema=READ_SCHEMA
    )
    answer = await models.generate_content(model=MODEL, contents="the file src/a.py", config=config)
    assert answer.text == '{"path":"src/a.py"}'


@pytest.mark.parametrize(
    ("prompt", "error", "status"),
    [
        ("sim: 401", errors.ClientError, "UNAUTHENTICATED"),
        ("sim: 429 2", errors.ClientError, "RESOURCE_EXHAUSTED"),
        ("sim: 500", errors.ServerError, "INTERNAL"),
        ("sim: 503", errors.ServerError, "UNAVAILABLE"),
    ],
)
async def test_sdk_raises_its_error_classes(
    models: Any, prompt: str, error: type[errors.APIError], status: str
) -> None:
    with pytest.raises(error) as caught:
        await models.generate_content(model=MODEL, contents=prompt)
    assert caught.value.status == status


async def test_a_call_without_a_signature_is_refused(models: Any) -> None:
    call = types.Part.from_function_call(name="read_file", args={"path": "a"})
    result = types.Part.from_function_response(name="read_file", response={"output": "text"})
    history: Any = [
        user_content("Read a.txt"),
        types.Content(role="model", parts=[call]),
        types.Content(role="user", parts=[result]),
    ]
    with pytest.raises(errors.ClientError, match="missing a thought_signature"):
        await models.generate_content(model=MODEL, contents=history)


async def test_models_are_listed(models: Any) -> None:
    listed = [model.name async for model in await models.list()]
    assert "models/sim-small" in listed
