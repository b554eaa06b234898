import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

from click.testing import CliRunner

from metis.cli.main import cli


def test_it_tells_where_it_listens_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "metis", "sim", "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:  # noqa: S603 - our own interpreter
        assert process.stdout is not None
        greeting = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", greeting)
        assert address is not None
        with urllib.request.urlopen(f"{address[0]}/v1/models") as answer:  # noqa: S310 - loopback
            assert b"sim-small" in answer.read()
        process.send_signal(signal.SIGTERM)
        greeting = greeting + process.stdout.read()
        assert process.wait() == 0
    assert f"OPENAI_BASE_URL={address[0]}/v1" in greeting
    assert "it is not an AI" in greeting


def test_a_port_that_is_taken_is_an_error_in_words() -> None:
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        done = CliRunner().invoke(cli, ["sim", "--port", str(blocker.getsockname()[1])])
    assert done.exit_code == 1
    assert "cannot listen on port" in done.output
