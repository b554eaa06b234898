"""The viewer under `/ui` of the gateway: each key sees its own conversations and nothing else."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from metis import store as stores

ANN, BOB = "ann-key-0123456789", "bob-key-0123456789"


class Client:
    """Sends requests to a gateway, with the cookie of a key."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cookie = ""

    def send(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body, {"cookie": self._cookie, **headers})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text
        finally:
            connection.close()

    def log_in(self, key: str) -> int:
        status, headers, _ = self.send("POST", "/ui/login", urlencode({"key": key}))
        self._cookie = headers.get("set-cookie", "").partition(";")[0]
        return status

    def ask(self, key: str, text: str) -> str:
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        status, answered, _ = self.send("POST", "/v1/chat/completions", json.dumps(body), **headers)
        assert status == 200
        return answered["x-metis-session"]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[Client, str, Path]]:
    environment: dict[str, Any] = {
        name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")
    }
    environment |= {"METIS_HOME": str(tmp_path), "METIS_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "metis", "serve", "--port", "0"]
    command += ["--key", f"ann={ANN}", "--key", f"bob={BOB}"]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+)$", server.stdout.readline().strip())
        assert found is not None
        try:
            yield Client(int(found.group(1))), found.group(1), tmp_path
        finally:
            server.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.wait(15)
            server.kill()


def test_a_key_opens_the_conversations_of_its_name(gateway: tuple[Client, str, Path]) -> None:
    client, port, home = gateway
    assert client.send("GET", "/ui/")[0] == 401
    assert 'type="password"' in client.send("GET", "/ui")[2]
    assert client.log_in("no-such-key-0123456789") == 401
    anns, bobs = client.ask(ANN, "the owl of ann"), client.ask(BOB, "the badger of bob")
    asyncio.run(wait_until_stored(home, {anns, bobs}))
    assert client.log_in(ANN) == 303
    body = client.send("GET", "/ui/")[2]
    assert "the owl of ann" in body
    assert "badger" not in body
    assert client.send("GET", f"/ui/s/{anns}")[0] == 200
    for path in ("", "/requests", "/losses", "/export.html", "/turn?at=x", "/older?before=9"):
        assert client.send("GET", f"/ui/s/{bobs}{path}")[0] == 404, path
    assert client.send("GET", f"/ui/s/{bobs}/live")[0] == 404
    assert "badger" not in client.send("GET", "/ui/?q=badger")[2].partition("<main")[2].replace(
        "Messages with “badger”", ""
    )
    for path in ("cost", "speed", "what-if", "cost.csv?by=conversation"):
        assert bobs not in client.send("GET", f"/ui/{path}")[2]
    assert client.send("GET", "/ui/sql?sql=select+1")[0] == 400
    # A form needs more than the cookie, and an origin of ours.
    for origin in ("http://evil.example", f"http://127.0.0.1:{port}"):
        form = urlencode({"at": "x", "model": "sim"})
        assert client.send("POST", f"/ui/s/{anns}/replay", form, origin=origin)[0] == 403


async def wait_until_stored(home: Path, ids: set[str]) -> None:
    for _ in range(200):
        async with stores.open(f"sqlite:///{home}/metis.db", recover=False) as store:
            if ids <= {record.id for record in await store.sessions()}:
                return
        await asyncio.sleep(0.1)
    pytest.fail("the exchanges were not stored")
