"""`metis demo` and `metis sim`: a guided demo on the simulator, and the simulator as a server."""

import asyncio
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from metis.canonical.blocks import ThinkingBlock
from metis.canonical.message import Message, Role
from metis.cli.output import echo, end_interrupted_line
from metis.cli.render import render_block
from metis.cli.text import count, fold, format_usd, screen_width, style, truncate, unstyled
from metis.cli.trace import trace_steps
from metis.projection.loss import Loss
from metis.session import Metis, Options, Preview, Session
from metis.session.events import Stored, TurnEvent
from metis.sim import Settings, Simulator
from metis.streaming import TextDelta
from metis.tools import Registry
from metis.tools.builtin import ReadFile
from metis.wire.call import AdapterOptions

Sleep = Callable[[float], Awaitable[None]]

# The reading time for one character of an explanation.
READ_CHARACTER_S = 0.07
# The pause after a response, in which the reader looks at it.
LOOK_S = 3.0
# The pause after each piece of a response.
DELTA_S = 0.05

_INDENT = 2
# The indent and the kind of a step, with the gap behind it.
_STEP_PREFIX = 11
_NOTES = """\
Owls turn their heads by 270 degrees.
A conversation can move from one model to another.
"""
# A native option, so that the demo shows a signed thinking block for any model of the catalog.
_THINKING = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}


class DemoScreen:
    """Prints the demo, at the pace of a reader or without pauses."""

    def __init__(self, sleep: Sleep | None) -> None:
        self._sleep = sleep
        self._is_in_line = False

    async def explain(self, title: str, text: str) -> None:
        """Print a title and an explanation, and give the reader time for it."""
        self.heading(title)
        for row in fold(" ".join(text.split()), screen_width()):
            echo(row.strip())
        await self.wait(len(text) * READ_CHARACTER_S)

    def heading(self, title: str) -> None:
        """Print a title."""
        echo()
        echo(style(title, bold=True))

    async def wait(self, seconds: float) -> None:
        """Pause, if the demo is paced."""
        if self._sleep is not None:
            await self._sleep(seconds)

    def show(self, text: str, *, colour: str | None = None, is_dim: bool = True) -> None:
        """Print a line of what happens."""
        self._end_line()
        line = truncate(text, screen_width() - _INDENT)
        echo(style(f"  {line}", fg=colour, dim=is_dim))

    async def send(self, session: Session, prompt: str) -> list[Message]:
        """Send a prompt and print the response as it streams; return the stored messages."""
        echo(f"  {style('>', fg='green')} {prompt}")
        stored: list[Message] = []
        async for event in session.send(prompt):
            await self._handle(event, stored)
        self._end_line()
        await self.wait(LOOK_S)
        return stored

    async def _handle(self, event: TurnEvent, stored: list[Message]) -> None:
        match event:
            case TextDelta():
                indent = "" if self._is_in_line else "  "
                text = event.text.replace("\n", "\n  ")
                echo(indent + style(text, fg="cyan"), nl=False)
                self._is_in_line = True
                await self.wait(DELTA_S)
            case Stored():
                stored.append(event.message)
                for block in event.message.content:
                    if block.type in ("tool_use", "tool_result"):
                        self.show(unstyled(render_block(block)).splitlines()[0])
            case _:
                pass

    def _end_line(self) -> None:
        if self._is_in_line:
            echo()
            self._is_in_line = False


def run_demo(*, is_fast: bool) -> int:
    """Run the demo; `is_fast` and an output that is not a terminal leave the pauses out."""
    is_paced = not is_fast and sys.stdout.isatty()
    screen = DemoScreen(asyncio.sleep if is_paced else None)
    with tempfile.TemporaryDirectory(prefix="metis-demo-") as directory:
        asyncio.run(show_demo(screen, Path(directory)))
    return 0


async def show_demo(screen: DemoScreen, directory: Path) -> None:
    """Hold a conversation on the simulator, and explain what happens."""
    (directory / "owls.txt").write_text(_NOTES)
    options = Options(
        simulate=True,
        workspace=directory,
        tools=Registry(ReadFile),
        options=AdapterOptions(max_output_tokens=4096, native=_THINKING),
    )
    async with Metis(f"sqlite:///{directory / 'demo.db'}", options) as library:
        session = await library.session(model="sonnet")
        await _ask(screen, session)
        await screen.explain("2. Use a tool", _TOOL)
        await screen.send(session, "read owls.txt")
        await _switch_provider(screen, session)
        await _show_costs(screen, session)
        await _fork(screen, session)
        await _show_trace(screen, library, session)
    echo(_NEXT)


async def _ask(screen: DemoScreen, session: Session) -> None:
    await screen.explain("1. Ask", _ASK)
    stored = await screen.send(session, "say that all is well")
    thinking = [block for block in stored[-1].content if isinstance(block, ThinkingBlock)]
    screen.show(f"thinking, signed by its provider: {thinking[0].text}" if thinking else "")


async def _switch_provider(screen: DemoScreen, session: Session) -> None:
    await screen.explain("3. Switch providers in the middle", _SWITCH)
    for line in _preview_lines(session.preview_swap("gpt-5")):
        screen.show(line, colour="yellow", is_dim=False)
    await screen.wait(2 * LOOK_S)
    await session.swap("gpt-5")
    await screen.send(session, "say 270 degrees")


def _preview_lines(preview: Preview) -> list[str]:
    """Return the losses of a swap, grouped by what happens and why."""
    groups = (
        ("not sent, but kept", preview.sealed),
        ("changed", preview.altered),
        ("lost", preview.dropped),
    )
    lines = [line for title, losses in groups for line in _grouped(title, losses)]
    return lines or ["nothing is lost"]


def _grouped(title: str, losses: tuple[Loss, ...]) -> list[str]:
    kinds = Counter((loss.block_type, loss.reason) for loss in losses)
    return [f"{title}: {number} {kind} ({reason})" for (kind, reason), number in kinds.items()]


async def _show_costs(screen: DemoScreen, session: Session) -> None:
    screen.heading("4. What it would have cost")
    cost = session.cost()
    for model, amount in (*cost.by_model.items(), ("total", cost.total_usd)):
        screen.show(f"{model:<30} {format_usd(amount):>10}", is_dim=False)
    await screen.wait(2 * LOOK_S)


async def _fork(screen: DemoScreen, session: Session) -> None:
    await screen.explain("5. Try another way without losing this one", _FORK)
    first = next(message for message in session.messages if message.role is Role.ASSISTANT)
    fork = await session.fork(at=first.id)
    await screen.send(fork, "count to 5")
    screen.show(f"the first conversation: {count(len(session.messages), 'message')}")
    screen.show(f"the fork:               {count(len(fork.messages), 'message')}")


async def _show_trace(screen: DemoScreen, library: Metis, session: Session) -> None:
    await screen.explain("6. See what happened, and why", _TRACE)
    for step in trace_steps(await library.store.history(session.id)):
        detail, facts = step.text(screen_width() - _STEP_PREFIX)
        screen.show(f"{step.what:<8} {detail}{facts}")


_ASK = """
The response is stored with its cost and the reason why this model was chosen. No real model is used
here: the simulator speaks the provider's wire format, byte for byte.
"""
_TOOL = """
The model may call tools. They work inside one directory; reading runs at once, changes need your
confirmation. Call and result become part of the conversation.
"""
_SWITCH = """
Conversations are not tied to a provider, so another one can continue. Before anything is sent, you
see what it will not receive. Nothing is lost silently: signed parts stay in the message, and their
provider receives them again if you switch back.
"""
_FORK = """
A fork is a new conversation that begins as a copy, up to any message. The original is not changed.
"""
_TRACE = """
The store has every step: which model answered, why, how long it took and what it cost.
`metis trace SESSION` prints this for your conversations.
"""
_NEXT = """
That is all. Now try it:
  metis           start a chat
  metis models    available models, their features and prices
  metis doctor    check the set-up"""


def serve(*, port: int, is_strict: bool) -> None:
    """Serve the simulator until the process is stopped."""
    try:
        asyncio.run(_serve(port=port, is_strict=is_strict))
    except OSError as error:
        raise click.ClickException(f"cannot listen on port {port}: {error.strerror}") from None


async def _serve(*, port: int, is_strict: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with Simulator(port=port, settings=Settings(strict=is_strict)) as simulator:
        echo(_GREETING.format(url=simulator.base_url))
        await stopped.wait()
        end_interrupted_line()


_GREETING = """\
The metis simulator listens at {url}. It gives canned replies; it is not an AI.

  anthropic      ANTHROPIC_BASE_URL={url}
  openai         OPENAI_BASE_URL={url}/v1
  google-genai   GOOGLE_GEMINI_BASE_URL={url}
  ollama         OLLAMA_HOST={url}
  boto3          AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url}

Any API key works. Write "sim: 429 2" into a prompt to see an error. Stop it with Ctrl-C."""
