"""`metis demo` and `metis sim`: a guided demo on the simulator, and the simulator as a server."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from metis.canonical.blocks import ThinkingBlock
from metis.canonical.message import Message, Role
from metis.cli.render import count, render_block
from metis.cli.text import fold, format_usd, screen_width, truncate
from metis.cli.trace import trace_steps
from metis.projection.loss import Loss
from metis.session import Metis, Options, Session
from metis.session.events import Stored, TurnEvent
from metis.session.route import Preview
from metis.sim import Settings, Simulator
from metis.streaming import TextDelta
from metis.tools import Registry
from metis.tools.builtin import ReadFile
from metis.wire.call import AdapterOptions

Sleep = Callable[[float], Awaitable[None]]

READING_S = 0.07
"""How long a letter of an explanation takes to be read."""
LOOKING_S = 3.0
"""How long the reader looks at what has happened."""
WORD_S = 0.05
"""How long the pause after a piece of an answer is."""

_NOTES = """\
Owls turn their heads by 270 degrees.
A conversation can move from one model to another.
"""
_THINKING = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}


class DemoScreen:
    """Where the tour is shown: paced for a reader, or all at once."""

    def __init__(self, sleep: Sleep | None) -> None:
        self._sleep = sleep
        self._is_in_line = False

    async def explain(self, title: str, text: str) -> None:
        """A title and an explanation, with the time to read it."""
        click.echo()
        click.secho(title, bold=True)
        for row in fold(" ".join(text.split()), screen_width()):
            click.echo(row.strip())
        await self.wait(len(text) * READING_S)

    async def wait(self, seconds: float) -> None:
        """Give the reader some time."""
        if self._sleep is not None:
            await self._sleep(seconds)

    def show(self, text: str, *, colour: str | None = None, is_dim: bool = True) -> None:
        """A line of what happens."""
        self._end_line()
        click.echo(click.style(f"  {truncate(text, screen_width() - 2)}", fg=colour, dim=is_dim))

    async def send(self, session: Session, words: str) -> list[Message]:
        """Ask, and show the answer as it comes; gives what was stored."""
        click.echo(f"  {click.style('>', fg='green')} {words}")
        stored: list[Message] = []
        async for event in session.send(words):
            await self._take(event, stored)
        self._end_line()
        await self.wait(LOOKING_S)
        return stored

    async def _take(self, event: TurnEvent, stored: list[Message]) -> None:
        match event:
            case TextDelta():
                indent = "" if self._is_in_line else "  "
                text = event.text.replace("\n", "\n  ")
                click.echo(indent + click.style(text, fg="cyan"), nl=False)
                self._is_in_line = True
                await self.wait(WORD_S)
            case Stored():
                stored.append(event.message)
                for block in event.message.content:
                    if block.type in ("tool_use", "tool_result"):
                        self.show(click.unstyle(render_block(block)).splitlines()[0])
            case _:
                pass

    def _end_line(self) -> None:
        if self._is_in_line:
            click.echo()
            self._is_in_line = False


def run_demo(*, is_fast: bool) -> int:
    """Show the tour; at once if it is asked for or nobody watches."""
    is_paced = not is_fast and sys.stdout.isatty()
    stage = DemoScreen(asyncio.sleep if is_paced else None)
    with tempfile.TemporaryDirectory(prefix="metis-demo-") as folder:
        asyncio.run(show_demo(stage, Path(folder)))
    return 0


async def show_demo(stage: DemoScreen, folder: Path) -> None:
    """Hold a conversation in a folder, and tell what happens."""
    (folder / "owls.txt").write_text(_NOTES)
    options = Options(
        simulate=True,
        workspace=folder,
        tools=Registry(ReadFile),
        options=AdapterOptions(max_output_tokens=4096, native=_THINKING),
    )
    async with Metis(f"sqlite:///{folder / 'demo.db'}", options) as library:
        session = await library.session(model="sonnet")
        await _ask(stage, session)
        await _use_a_tool(stage, session)
        await _move(stage, session)
        await _count_costs(stage, session)
        await _fork(stage, session)
        await _look_back(stage, library, session)
    click.echo(_NEXT)


async def _ask(stage: DemoScreen, session: Session) -> None:
    await stage.explain("1. Ask", _ASK)
    stored = await stage.send(session, "say that all is well")
    thoughts = [block for block in stored[-1].content if isinstance(block, ThinkingBlock)]
    stage.show(f"thought, sealed by its provider: {thoughts[0].text}" if thoughts else "")


async def _use_a_tool(stage: DemoScreen, session: Session) -> None:
    await stage.explain("2. Use a tool", _TOOL)
    await stage.send(session, "read owls.txt")


async def _move(stage: DemoScreen, session: Session) -> None:
    await stage.explain("3. Move to another provider, in the middle", _MOVE)
    preview = session.preview_swap("gpt-5")
    for line in _losses(preview):
        stage.show(line, colour="yellow", is_dim=False)
    await stage.wait(2 * LOOKING_S)
    await session.swap("gpt-5")
    await stage.send(session, "say 270 degrees")


def _losses(preview: Preview) -> list[str]:
    """The loss report of a swap, grouped by what happens and why."""
    named = (("kept here", preview.sealed), ("changed", preview.altered), ("lost", preview.dropped))
    lines = [line for title, losses in named for line in _grouped(title, losses)]
    return lines or ["everything comes through as it is"]


def _grouped(title: str, losses: tuple[Loss, ...]) -> list[str]:
    groups: dict[tuple[str, str], int] = {}
    for loss in losses:
        key = (loss.block_type, loss.reason)
        groups[key] = groups.get(key, 0) + 1
    return [
        f"{title}: {block} ({number}), because {reason}"
        for (block, reason), number in groups.items()
    ]


async def _count_costs(stage: DemoScreen, session: Session) -> None:
    click.echo()
    click.secho("4. What it would have cost", bold=True)
    cost = session.cost()
    for model, amount in cost.by_model.items():
        stage.show(f"{model:<30} {format_usd(amount):>10}", is_dim=False)
    stage.show(f"{'together':<30} {format_usd(cost.total_usd):>10}", is_dim=False)
    await stage.wait(2 * LOOKING_S)


async def _fork(stage: DemoScreen, session: Session) -> None:
    await stage.explain("5. Try another way without losing this one", _FORK)
    first = next(each for each in session.messages if each.role is Role.ASSISTANT)
    other = await session.fork(at=first.id)
    await stage.send(other, "count to 5")
    stage.show(f"the first conversation: {count(len(session.messages), 'message')}")
    stage.show(f"the fork:               {count(len(other.messages), 'message')}")


async def _look_back(stage: DemoScreen, library: Metis, session: Session) -> None:
    await stage.explain("6. See what happened, and why", _TRACE)
    for step in trace_steps(await library.store.history(session.id)):
        detail, facts = step.text(screen_width() - 11)
        stage.show(f"{step.what:<8} {detail}{facts}")


_ASK = """
A model is asked, and its answer is stored with its cost and the reason why this model was picked.
Here nobody is asked for real: the simulator speaks the provider's wire format, byte for byte.
"""
_TOOL = """
The model may call tools. They work inside one folder; what reads runs at once, what changes
something asks you first. Call and result become part of the conversation.
"""
_MOVE = """
The conversation is kept in one canonical form, so another provider can go on with it. Before
anything is sent you see what the new one will not get as it is. Nothing is ever lost in silence:
what is sealed stays in the message for the way back.
"""
_FORK = """
A fork is a new conversation that begins as a copy, up to any message. The old one stays as it is.
"""
_TRACE = """
Every step is in the store: who answered, why that model, how long it took, what it cost.
`metis trace SESSION` prints the same for yours.
"""
_NEXT = """
That was all of it. Now yours:
  metis           a conversation
  metis models    who can be asked, and for how much
  metis doctor    what is there on this machine, and what is missing"""


def serve(*, port: int, is_strict: bool) -> None:
    """Serve until the process is told to end."""
    try:
        asyncio.run(_serve(port=port, is_strict=is_strict))
    except OSError as error:
        raise click.ClickException(f"cannot listen on port {port}: {error.strerror}") from None


async def _serve(*, port: int, is_strict: bool) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(ending, done.set)
    async with Simulator(port=port, settings=Settings(strict=is_strict)) as simulator:
        click.echo(_greeting(simulator.base_url))
        await done.wait()


def _greeting(url: str) -> str:
    return f"""\
The metis simulator listens at {url}. It answers by fixed rules; no model is behind it.

  anthropic      ANTHROPIC_BASE_URL={url}
  openai         OPENAI_BASE_URL={url}/v1
  google-genai   GOOGLE_GEMINI_BASE_URL={url}
  ollama         OLLAMA_HOST={url}
  boto3          AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url}

Any key will do. Write "sim: 429 2" into a prompt to see it misbehave. Stop it with Ctrl-C."""
