"""Call the simulator with the HTTP transport: scripted replies, faults, retries."""

import asyncio
from datetime import UTC, datetime

from metis import Message, Role, TextBlock, adapters, new_ulid
from metis.adapters import AdapterOptions, RequestContext, TextDelta
from metis.canonical.errors import ProviderError
from metis.sim import Fault, ModelOutput, Responder, Script, Service, Settings, Simulator
from metis.sim.endpoints import HttpRequest
from metis.transport import Keys, Limits, Retry, Transport

PROMPT = Message(
    id=new_ulid(),
    session_id="sess_example",
    role=Role.USER,
    content=(TextBlock("say hello"),),
    created_at=datetime.now(UTC),
)
CONTEXT = RequestContext(session_id="sess_example", model="anthropic:claude-sonnet-4-6")
OPTIONS = AdapterOptions(model="claude-sonnet-4-6", stream=True)
OVERLOADED = Fault(kind="fail", status=529)


async def report(error: ProviderError, attempt: int, delay_s: float | None) -> None:
    """Print why an attempt failed, before the next."""
    print(f"attempt {attempt}: {type(error).__name__}, next in {delay_s} s")


async def main() -> None:
    """Let the first attempt fail; the retry succeeds."""
    script = Script(OVERLOADED, ModelOutput.from_text("a scripted reply"))
    settings = Settings(strict=True, key="sim-key")
    async with Simulator(script=script, settings=settings) as simulator:
        adapter = adapters.get("anthropic", base_url=simulator.base_url)
        request = adapter.to_wire([PROMPT], (), OPTIONS)
        keys = Keys({"anthropic": "sim-key"})
        limits = Limits(connect_s=5, total_s=60)
        retry = Retry(attempts=3, first_s=0.01, jitter=0)
        async with Transport(keys=keys, limits=limits, retry=retry) as transport:
            for _ in range(2):  # the second reply follows the built-in rules: "say hello"
                async for event in transport.stream(adapter, request, CONTEXT, report):
                    if isinstance(event, TextDelta):
                        print(event.text, end="")
                print()


asyncio.run(main())

# Without a server: one request in, one reply out.
service = Service(script=Script("hi"), responder=Responder())
body = adapters.get("ollama").to_wire([PROMPT], (), AdapterOptions(model="llama3.2")).body
reply = service.respond(HttpRequest(method="POST", path="/api/chat", body=body))
assert b'"hi"' in reply.body
