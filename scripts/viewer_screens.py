"""Make the images of the viewer in docs/screens: real pages of a small store, in a real browser.

    python scripts/viewer_screens.py [DIRECTORY]

With a directory it writes every page there in light and dark, 400 and 1,400 pixels wide, to be
looked at. Needs Debian's `chromium`. The store is made here, so that the pictures show nobody's
conversations.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from metis import store as stores  # noqa: E402 - after the path
from metis.canonical import (  # noqa: E402 - after the path
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    new_tool_use_id,
)
from viewer_data import MODEL as SONNET  # noqa: E402 - after the path
from viewer_data import Part, add_messages, answered, message, wire_body  # noqa: E402 - after the path

SCREENS = ROOT / "docs" / "screens"
GPT = "openai:gpt-5"
ANSWER = "The cache expires on Sunday:\n\n- keep it for 8 days\n- or warm it"
TOOLS = [{"name": "read_file", "input_schema": {"type": "object"}}]
REASON = "set for the session by the user"
TITLES = (
    "Why does the nightly build fail on Mondays?",
    "Write a migration for the orders table",
    "Explain this regular expression",
    "Review the change of the retry loop",
    "Plan the move to Python 3.13",
)


def usage(tokens: int) -> dict[str, int]:
    """Return what a response used, most of it from a cache."""
    return {
        "input_tokens": tokens // 4,
        "cached_input_tokens": tokens - tokens // 4,
        "output_tokens": 320,
        "latency_ms": 2400 + tokens % 1700,
    }


async def fill(url: str) -> tuple[str, str]:
    """Store some conversations; return the first and its last response."""
    first = last = ""
    async with stores.open(url) as store:
        for number, title in enumerate(TITLES):
            session = await store.create_session(workspace_path="/srv/shop")
            at = datetime.now(UTC) - timedelta(days=3 * number, minutes=number)
            call = new_tool_use_id()
            model = SONNET if number % 2 == 0 else GPT
            parts: list[Part] = [
                (Role.USER, (TextBlock(title),), {}),
                (
                    Role.ASSISTANT,
                    (
                        ThinkingBlock("The log will say more.", "c2VhbA==", issuer="anthropic"),
                        TextBlock("I look at the **log** of the last run first."),
                        ToolUseBlock(call, "read_file", {"path": "build.log"}),
                    ),
                    answered(SONNET, cost="0.0093", reason=REASON, **usage(4200)),
                ),
                (
                    Role.TOOL,
                    (ToolResultBlock(call, (TextBlock("error: cache of Sunday is missing"),)),),
                    {"parent_tool_use_id": call},
                ),
                (
                    Role.ASSISTANT,
                    (TextBlock(ANSWER),),
                    answered(
                        model,
                        cost=f"0.0{number + 2}1",
                        reason=REASON,
                        **usage(4600 + number * 900),
                    ),
                ),
            ]
            messages = await add_messages(store, session.id, at, parts)
            history: list[dict[str, object]] = []
            for one in messages:
                if one.role is Role.ASSISTANT:
                    request = {"model": SONNET, "max_tokens": 8192, "tools": TOOLS}
                    body = json.dumps({**request, "messages": history}, separators=(",", ":"))
                    store.add_wire_bodies([wire_body(one, body.encode())])
                texts = [b.text for b in one.content if isinstance(b, TextBlock)] or ["build.log"]
                history.append({"role": str(one.role), "content": " ".join(texts)})
            if not number:
                first, last = session.id, messages[-1].id
                await add_branches(store, messages, at)
    return first, last


async def add_branches(store: stores.Store, messages: Sequence[Message], at: datetime) -> None:
    """Ask the first prompt otherwise, fork the conversation, and go on."""
    session_id, start = messages[0].session_id, messages[0].id
    other = message(
        session_id,
        Role.USER,
        TextBlock("Only the last three runs matter."),
        at=at + timedelta(minutes=1),
        parents=(start,),
    )
    reply = message(
        session_id,
        Role.ASSISTANT,
        TextBlock("All three miss the cache of Sunday."),
        at=at + timedelta(minutes=1, seconds=5),
        **answered(GPT, cost="0.004", reason=REASON, **usage(3000)),
    )
    back = message(
        session_id,
        Role.USER,
        TextBlock("Keep it for 8 days, then."),
        at=at + timedelta(minutes=2),
        parents=(messages[-1].id,),
    )
    for one in (other, reply, back):
        await store.append(one)
    await store.fork(session_id, at=messages[1].id)


def main() -> int:
    """Write the images."""
    with tempfile.TemporaryDirectory() as home:
        url = f"sqlite:///{home}/chats.db"
        session, response_id = asyncio.run(fill(url))
        command = [sys.executable, "-m", "metis", "web", "--store", url, "--port", "0"]
        environment = {**os.environ, "METIS_HOME": home}
        with subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, env=environment, text=True
        ) as server:
            try:
                assert server.stdout is not None  # noqa: S101 - a pipe
                found = re.search(r"http://\S+", server.stdout.readline())
                assert found is not None  # noqa: S101 - the first line is the address
                shoot(found.group(), session, response_id, sys.argv[1:])
            finally:
                server.terminate()
    return 0


def shoot(address: str, session: str, response_id: str, directories: Sequence[str]) -> None:
    """Open each page and write its image; with a directory, all of them in every form."""
    root = address.partition("?")[0]
    pages = {
        "list": "",
        "conversation": f"s/{session}",
        "turn": f"s/{session}/turn?at={response_id}",
        "bytes": f"s/{session}/bytes?at={response_id}&form=pretty",
        "tree": f"s/{session}/tree",
        "requests": f"s/{session}/requests?at={response_id}",
        "losses": f"s/{session}/losses",
        "what-if": f"s/{session}/what-if",
        "cost": "cost",
        "speed": "speed",
    }
    others = {
        "raw": f"s/{session}/bytes?at={response_id}",
        "replay": f"s/{session}/replay?at={response_id}",
        "resume": f"s/{session}/resume",
        "export": f"s/{session}/export",
        "search": "?q=cache",
        "sql": "sql?sql=select+model,+count(*)+from+calls+group+by+1",
    }
    # Both schemes and both widths are in the docs, one of them for each page.
    wanted = [
        (
            SCREENS / f"viewer-{name}.png",
            path,
            "dark" if name in ("conversation", "losses", "tree") else "light",
            400 if name == "turn" else 1400,
        )
        for name, path in pages.items()
    ]
    if directories:
        wanted = [
            (Path(directories[0]) / f"{name}-{scheme}-{width}.png", path, scheme, width)
            for name, path in {**pages, **others}.items()
            for scheme in ("light", "dark")
            for width in (400, 1400)
        ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for file, path, scheme, width in wanted:
            context = browser.new_context(
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": width, "height": 800},
            )
            page = context.new_page()
            page.goto(address)
            page.goto(f"{root}{path}")
            page.wait_for_timeout(300)
            page.screenshot(path=str(file))
            context.close()
            sys.stdout.write(f"wrote {file.name}\n")
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
