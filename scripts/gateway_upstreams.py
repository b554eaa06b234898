"""Run every client protocol through the gateway to servers of others: aimock and llama.cpp.

`make upstreams` fetches both and runs this. Each line is a provider; each column a client protocol
with a text, a stream, a tool call and a refusal (429). The exit status is 1 if anything failed.
"""

import asyncio
import json
import logging
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from metis.gateway.app import Gateway
from metis.gateway.config import GatewayConfig, ProviderConfig, Route
from metis.gateway.server import make_server
from metis.transport.keys import Keys
from record_cassettes import AIMOCK, free_port, running, versions

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FIXTURES: dict[str, Any] = {
    "fixtures": [
        {"match": {"userMessage": "say hello"}, "response": {"content": "Hello from afar."}},
        {
            "match": {"userMessage": "use the tool"},
            "response": {"toolCalls": [{"name": "look", "arguments": {"city": "Oslo"}}]},
        },
        {
            "match": {"userMessage": "be refused"},
            "response": {
                "error": {"message": "slow down", "type": "rate_limit_error"},
                "status": 429,
            },
        },
    ]
}
MODELS = {
    "openai": "gpt-4o",
    "openai-responses": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
    "ollama": "llama3.1",
    "bedrock-converse": "anthropic.claude-3-haiku-20240307-v1:0",
}
"""The providers that aimock stands for, each with the name of a model."""
CLIENTS = ("messages", "chat", "responses", "gemini", "ollama", "converse")


def request(client: str, prompt: str, *, is_stream: bool) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request with one tool, in the protocol of a client."""
    user = [{"role": "user", "content": prompt}]
    function = {"name": "look", "description": "Look at a city", "parameters": SCHEMA}
    match client:
        case "messages":
            tool = {"name": "look", "description": "Look at a city", "input_schema": SCHEMA}
            body = {"max_tokens": 40, "messages": user, "tools": [tool]}
            return "/v1/messages", {**body, "model": "m", "stream": is_stream}
        case "chat":
            tools = [{"type": "function", "function": function}]
            body = {"messages": user, "tools": tools, "max_tokens": 40}
            return "/v1/chat/completions", {**body, "model": "m", "stream": is_stream}
        case "responses":
            tools = [{"type": "function", **function}]
            body = {"input": prompt, "tools": tools, "max_output_tokens": 40}
            return "/v1/responses", {**body, "model": "m", "stream": is_stream}
        case "gemini":
            method = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
            contents = [{"role": "user", "parts": [{"text": prompt}]}]
            body = {"contents": contents, "tools": [{"functionDeclarations": [function]}]}
            limit = {"maxOutputTokens": 40}
            return f"/v1beta/models/m:{method}", {**body, "generationConfig": limit}
        case "ollama":
            tools = [{"type": "function", "function": function}]
            body = {"model": "m", "messages": user, "tools": tools, "stream": is_stream}
            return "/api/chat", {**body, "options": {"num_predict": 40}}
        case _:
            method = "converse-stream" if is_stream else "converse"
            spec = {**function, "inputSchema": {"json": SCHEMA}}
            del spec["parameters"]
            messages = [{"role": "user", "content": [{"text": prompt}]}]
            tools = {"tools": [{"toolSpec": spec}]}
            limit = {"maxTokens": 40}
            body = {"messages": messages, "toolConfig": tools, "inferenceConfig": limit}
            return f"/model/m/{method}", body


async def check(session: aiohttp.ClientSession, url: str, client: str, *, is_scripted: bool) -> str:
    """Return what failed for a client; an empty text if nothing did."""
    cases = [("text", "say hello", False), ("stream", "say hello", True)]
    if is_scripted:
        cases += [("tool", "use the tool", False), ("429", "be refused", False)]
    failed: list[str] = []
    for name, prompt, is_stream in cases:
        path, body = request(client, prompt, is_stream=is_stream)
        async with session.post(url + path, json=body) as response:
            data = await response.read()
        words = {"text": b"afar", "stream": b"afar", "tool": b"Oslo", "429": b"slow down"}
        is_right = response.status == (429 if name == "429" else 200) and (
            not is_scripted or words[name] in data
        )
        if not is_right or not data:
            failed.append(f"{name} ({response.status}: {data[:120]!r})")
    return ", ".join(failed)


async def until_loaded(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until llama.cpp has its model; it listens before."""
    for _ in range(600):
        async with session.get(f"{url}/health") as response:
            if response.status < 400:  # noqa: PLR2004 - the first error
                return
        await asyncio.sleep(0.1)


async def run(provider: str, base_url: str, model: str, *, is_scripted: bool) -> bool:
    """Start a gateway before one server, and print what each client got."""
    row = ProviderConfig(base_url=base_url, keys=("key",))
    config = GatewayConfig(providers={provider: row}, routes=(Route("*", f"{provider}:{model}"),))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_server(Gateway(config, Keys(environment={})), lambda: config, None)
    task = asyncio.ensure_future(server.serve([listener]))
    while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has a flag only
        await asyncio.sleep(0.01)
    results: list[str] = []
    async with aiohttp.ClientSession() as session:
        if not is_scripted:
            await until_loaded(session, base_url)
        for client in CLIENTS:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            failure = await check(session, url, client, is_scripted=is_scripted)
            results.append(f"{client}: {failure or 'ok'}")
    server.should_exit = True
    await task
    print(f"{provider} ({'aimock' if is_scripted else 'llama.cpp'}): {'; '.join(results)}")
    return all(result.endswith(": ok") for result in results)


def main() -> int:
    """Run everything."""
    logging.getLogger("metis").setLevel(logging.ERROR)  # losses are no news here
    from tiny_model import write  # noqa: PLC0415 - needs numpy, which checkers do not have

    node = shutil.which("node")
    if node is None or not AIMOCK.exists():
        print("make upstreams fetches what is needed here; it wants npm and node")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model, fixtures = Path(folder) / "tiny.gguf", Path(folder) / "fixtures.json"
        write(model)
        fixtures.write_text(json.dumps(FIXTURES))
        llama, aimock = free_port(), free_port()
        recorder = str(Path(__file__).with_name("record_cassettes.py"))
        own = [sys.executable, recorder, "serve", str(model), str(llama)]
        other = [node, str(AIMOCK), "--port", str(aimock), "--fixtures", str(fixtures), "--strict"]
        print(json.dumps(versions()))
        with running(other, aimock) as url:
            passed = [
                asyncio.run(run(provider, url, name, is_scripted=True))
                for provider, name in MODELS.items()
            ]
        with running(own, llama) as url:
            passed.append(asyncio.run(run("openai-compatible", url, "tiny", is_scripted=False)))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
