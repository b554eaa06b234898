"""Make the images of docs/screens: the real program, drawn as it looks.

The program runs in a pseudo-terminal against a simulator on loopback with prepared responses; its
screen becomes an SVG.
"""

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from pyte.screens import Char  # noqa: E402 - the path comes first

from metis import adapters  # noqa: E402 - the path comes first
from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock  # noqa: E402 - as above
from metis.canonical.ids import new_tool_use_id  # noqa: E402 - the path comes first
from metis.sim import ModelOutput, Script, Settings, Simulator  # noqa: E402 - the path comes first
from terminal import Terminal  # noqa: E402 - the path comes first

TARGET = ROOT / "docs" / "screens"
COLUMNS, ROWS = 92, 30
WIDTH, HEIGHT, EDGE = 8.4, 19, 16
INK, PAPER = "#d7dae0", "#1b1d23"
COLOURS = {
    "black": "#3a3f4b",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d7dae0",
    "brightblack": "#7a8190",
    "brightred": "#e06c75",
    "brightgreen": "#98c379",
    "brightbrown": "#e5c07b",
    "brightblue": "#61afef",
    "brightmagenta": "#c678dd",
    "brightcyan": "#56b6c2",
    "brightwhite": "#ffffff",
}

ANSWER = """\
A **Bloom filter** answers one question, *is this in the set?*, and is allowed to say yes by \
mistake, but never no.

1. It is an array of bits, all zero at first.
2. To add a word, set the bits that `k` hash functions name.
3. To ask for a word, look whether all of its bits are set.

```python
def add(word):
    for seed in range(k):
        bits[hash((seed, word)) % len(bits)] = True
```

| bits per word | mistakes |
|---|---|
| 8 | 2.2 % |
| 10 | 0.8 % |
| 16 | 0.05 % |

Ten bits for each word are a good start, since more of them buy little after that.
"""
THINKING = "The user wants a note. I write it to the workspace, and ask for nothing else."


def main() -> None:
    """Write every image."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, draw in SCREENS.items():
        (TARGET / f"{name}.svg").write_text(draw())
        print(f"wrote docs/screens/{name}.svg")


def streaming() -> str:
    """Return the screen while a response streams."""
    with chat_with(ModelOutput.from_text(ANSWER), pause_s=0.03) as chat:
        chat.send("how does a Bloom filter work?")
        chat.wait_for("10             0.8 %")
        return svg(chat)


def confirmation() -> str:
    """Return the screen while a tool waits for confirmation."""
    call = ToolUseBlock(
        new_tool_use_id(), "run_command", {"command": "git log --oneline | head -5"}
    )
    text = TextBlock("I look at the last changes.")
    with chat_with(ModelOutput(content=(text, call))) as chat:
        chat.send("what changed in this directory?")
        chat.wait_for("[y] yes")
        return svg(chat)


def swap() -> str:
    """Return the preview of a model switch."""
    thinking = ThinkingBlock(THINKING, "c2VhbGVk", issuer="anthropic")
    answer = ModelOutput(
        content=(thinking, TextBlock("The page says that the filter was invented in 1970."))
    )
    with chat_with(answer, files={"page.pdf": b"%PDF-1.4\n%%EOF\n"}) as chat:
        chat.send("what does @page.pdf say?")
        chat.wait_for("1970.")
        chat.wait_for(" turn")
        chat.send("/model deepseek")
        chat.wait_for("y/n")
        return svg(chat)


def cost() -> str:
    """Return the cost of a conversation."""
    answers = [
        ModelOutput.from_text("Hello! What shall we look at?"),
        ModelOutput.from_text("Two words: **ship it**."),
    ]
    with chat_with(*answers) as chat:
        chat.send("hello")
        chat.wait_for("look at?")
        chat.wait_for(" turn")
        chat.send("@haiku sum up our plan in two words")
        chat.wait_for("ship it.")
        chat.wait_for(lambda text: "ship it." in text and text.splitlines()[-1].endswith(" turn"))
        chat.send("/cost")
        chat.wait_for("total")
        chat.send("/context")
        chat.wait_for("tokens,")
        chat.rest()
        return svg(chat)


def sessions() -> str:
    """Return the list of stored conversations."""
    models = {
        "why is the sky blue, and what would it take to be green?": "sonnet",
        "explain the difference between a process and a thread": "gpt-5",
        "plan a week of dinners for two, no fish": "haiku",
    }
    with chat_with(
        *(ModelOutput.from_text(f"Good question: {prompt}") for prompt in models)
    ) as chat:
        for prompt, model in models.items():
            chat.send(f"/new {model}")
            chat.wait_for("New conversation.")
            chat.send(prompt)
            chat.wait_for(f"Good question: {prompt}")
            chat.wait_for(lambda text: text.splitlines()[-1].endswith(" turn"))
            chat.type("\x0c")  # a clear screen
        chat.send("/sessions")
        chat.wait_for("/resume ID")
        chat.rest()
        return svg(chat)


@contextmanager
def chat_with(
    *answers: ModelOutput, pause_s: float = 0.0, files: dict[str, bytes] | None = None
) -> Generator[Terminal]:
    """Run the program in a directory of its own, up to its first prompt."""
    with tempfile.TemporaryDirectory() as directory, provider(Script(*answers), pause_s) as url:
        home, workspace = Path(directory) / "home", Path(directory) / "work"
        home.mkdir()
        workspace.mkdir()
        for name, data in (files or {}).items():
            (workspace / name).write_bytes(data)
        urls = "".join(f'{name} = "{url}"\n' for name in adapters.names())
        (home / "config.toml").write_text(f"[base_urls]\n{urls}")
        command = [sys.executable, "-m", "metis", "-m", "sonnet"]
        variables = {
            "HOME": directory,
            "METIS_HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        with Terminal(
            command, environment=variables, folder=workspace, columns=COLUMNS, rows=ROWS
        ) as chat:
            chat.wait_for("session")
            yield chat


@contextmanager
def provider(script: Script, pause_s: float) -> Generator[str]:
    """Serve a simulator with prepared responses, and give its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    simulator = Simulator(script=script, settings=Settings(strict=False, pause_s=pause_s))
    try:
        asyncio.run_coroutine_threadsafe(simulator.start(), loop).result()
        yield simulator.base_url
        asyncio.run_coroutine_threadsafe(simulator.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def svg(terminal: Terminal) -> str:
    """Return the screen as an SVG."""
    used = len(terminal.text.splitlines())
    width, height = COLUMNS * WIDTH + 2 * EDGE, used * HEIGHT + 2 * EDGE
    rows = "".join(row for number in range(used) for row in _row(terminal, number))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>\n{rows}</svg>\n'
    )


def _row(terminal: Terminal, number: int) -> Iterator[str]:
    """Yield the characters of a row, grouped by their style."""
    line = terminal.screen.buffer[number]
    cells = [(column, line[column]) for column in range(COLUMNS)]
    for style, group in groupby(cells, key=lambda cell: _style(cell[1])):
        characters = list(group)
        text = "".join(cell.data for _, cell in characters).rstrip()
        if text:
            x, y = EDGE + characters[0][0] * WIDTH, EDGE + (number + 0.75) * HEIGHT
            length = len(text) * WIDTH
            yield (
                f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" xml:space="preserve"'
                f"{style}>{escape(text)}</text>\n"
            )


def _style(cell: Char) -> str:
    style = f' fill="{COLOURS.get(cell.fg, INK)}"'
    if cell.bold:
        style += ' font-weight="bold"'
    if cell.italics:
        style += ' font-style="italic"'
    if cell.underscore:
        style += ' text-decoration="underline"'
    return style


SCREENS = {
    "answer": streaming,
    "confirmation": confirmation,
    "swap": swap,
    "cost": cost,
    "sessions": sessions,
}

if __name__ == "__main__":
    main()
