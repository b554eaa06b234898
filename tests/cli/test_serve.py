"""`metis serve` and `metis run`: printed settings, and starting a client."""

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metis.cli.main import cli
from metis.cli.serve import STORE_CACHE_BYTES, make_gateway
from metis.gateway.clients import client_setups
from metis.gateway.config import GatewayConfig


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "opencode", "aider"])
def test_printed_settings_point_to_the_gateway(client: str) -> None:
    result = CliRunner().invoke(
        cli, ["serve", "--port", "4999", "--key", "me=secret-1", "--print-env", client]
    )
    assert result.exit_code == 0, result.output
    assert "127.0.0.1:4999" in result.output
    assert "secret-1" in result.output
    assert result.output.splitlines()[-1].startswith(client)


def test_public_address_without_key_is_refused() -> None:
    result = CliRunner().invoke(cli, ["serve", "--host", "192.0.2.1", "--print-env", "claude"])
    assert result.exit_code != 0
    assert "--key" in result.output


def test_the_settings_of_opencode_are_json() -> None:
    setup = client_setups("http://127.0.0.1:1", "key")["opencode"]
    options = json.loads(setup.environment["OPENCODE_CONFIG_CONTENT"])
    assert options["provider"]["metis"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"


def test_gateway_connections_have_small_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_note)
    gateway = make_gateway(GatewayConfig(store=f"sqlite:///{tmp_path}/store.db"))
    try:
        sizes = [
            connection.execute("PRAGMA cache_size").fetchone()[0]
            for connection in connections
            if is_open(connection)
        ]
    finally:
        asyncio.run(gateway.stop())
    # A negative size is in KiB; a connection would otherwise hold up to 32 MB of the file.
    assert sizes
    assert set(sizes) == {-STORE_CACHE_BYTES // 1024}


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.mark.slow
def test_run_starts_client_with_its_own_gateway(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, urllib.request\n"
        "body = {'model': 'claude-x', 'max_tokens': 50,\n"
        "        'messages': [{'role': 'user', 'content': sys.argv[1]}]}\n"
        "request = urllib.request.Request(\n"
        "    os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages', json.dumps(body).encode(),\n"
        "    {'authorization': 'Bearer ' + os.environ['ANTHROPIC_AUTH_TOKEN']})\n"
        "print(urllib.request.urlopen(request).read().decode())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "METIS_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "metis", "run", "claude", "say hello"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"type":"message"' in done.stdout
    store = f"sqlite:///{tmp_path / 'home' / 'metis.db'}"
    cost = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "metis", "cost", "--store", store, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    totals = json.loads(cost.stdout)["groups"].values()
    assert [(row["call_count"], row["cost_usd"]) for row in totals] == [(1, "0")]
