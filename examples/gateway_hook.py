"""A hook of the gateway: a function of a package that gets an event for every model call."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

HOOK = '''
from metis.events import Event

async def report(event: Event) -> None:
    """Print what a call cost; events contain no text of a conversation."""
    if event.type == "llm.call_completed":
        print("hook:", event.payload.model, event.payload.cost_usd, "USD", flush=True)
'''
BODY = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "hi"}],
}

with tempfile.TemporaryDirectory() as directory:
    # What `pip install` of a package leaves behind: its code, and the names of its entry points.
    Path(directory, "team_hooks.py").write_text(HOOK, encoding="utf-8")
    metadata = Path(directory, "team_hooks-1.0.dist-info")
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[metis.hooks]\nreport = team_hooks:report\n")
    path = os.pathsep.join([directory, *filter(None, sys.path)])
    environment = {"PYTHONPATH": path, "METIS_HOME": directory, "PATH": os.environ["PATH"]}
    gateway = subprocess.Popen(
        [sys.executable, "-u", "-m", "metis", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert gateway.stdout is not None
    address = next(filter(None, (re.search(r"http://[\d.]+:\d+", line) for line in gateway.stdout)))
    # A client of Anthropic; without a key of a provider the simulator answers.
    request = Request(f"{address[0]}/v1/messages", json.dumps(BODY).encode())  # noqa: S310 - loopback
    request.add_header("content-type", "application/json")
    with urlopen(request) as response:  # noqa: S310 - loopback
        print(json.load(response)["content"][0]["text"])
    print(next(line for line in gateway.stdout if line.startswith("hook:")))
    gateway.terminate()
    gateway.communicate()
