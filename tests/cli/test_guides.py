"""Tutorial and guides: every command runs and prints what the page shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metis

ROOT = Path(__file__).parents[2]
FORKED = Path(__file__).with_name("forked.py")
PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "\N{INFORMATION SEPARATOR TWO}"
ANY = "…"


def examples(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Return the commands of a page in order, each with its printed lines."""
    command, expected = "", list[str]()
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, expected
                command, expected = line[2:], []
            else:
                expected.append(line)
    yield command, expected


@pytest.fixture(scope="module")
def program(fork_server: Path) -> str:
    """Return the command that runs `metis` as a fork of a loaded process."""
    return f'"{sys.executable}" -I -S "{FORKED}" run "{fork_server}"'


def run_all(commands: list[str], program: str) -> list[str]:
    """Return the outputs of commands that run one after the other in one shell."""
    start = f'exec 2>&1\nmetis() {{ {program} "$@"; }}\n'
    script = start + "".join(f"{command}\nprintf '{END}'\n" for command in commands)
    done = subprocess.run(  # noqa: S603 - our own pages
        ["/bin/bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(metis.__file__).parents[1])},
    )
    return done.stdout.decode().split(END)[:-1]


def matches_page(printed: str, expected: list[str]) -> bool:
    """Return whether every line occurs in order; a line of dots allows others between."""
    patterns = [re.escape(line).replace(ANY, ".*") for line in expected if line != ANY]
    lines = printed.splitlines()
    if ANY not in expected:
        return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))
    remaining = iter(lines)
    return all(any(re.fullmatch(pattern, line) for line in remaining) for pattern in patterns)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_shows(page: Path, user: Path, program: str) -> None:
    documented = list(examples(page))
    commands = [command for command, _ in documented]
    for (command, expected), printed in zip(documented, run_all(commands, program), strict=True):
        assert matches_page(printed, expected), f"$ {command}\n{printed}"


REQUEST = '{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.slow
def test_the_commands_of_the_readme_run(user: Path, program: str) -> None:
    Path("notes.txt").write_text("owls are quiet", encoding="utf-8")
    Path("request.json").write_text(REQUEST, encoding="utf-8")
    Path("traffic.jsonl").write_text(f'{{"protocol":"anthropic","request":{REQUEST}}}\n')
    documented = [command.partition("  #")[0] for command, _ in examples(ROOT / "README.md")]
    commands = [command for command in documented if "metis" in command]
    assert len(commands) > 8
    # The test has no key and no terminal, and the demo takes two minutes.
    replacements = {
        "metis demo": "metis demo --fast",
        "metis -m gpt-5": "metis -m sim:gpt-5",
        "metis -c": "metis -c -m sim:gpt-5 'on'",
        "metis keys set anthropic": "echo no-real-key | metis keys set anthropic",
    }
    # Servers run until they are ended.
    program_file = f'"{sys.executable}" -m metis'
    servers = ("metis sim", "metis serve", "metis web")
    tried: list[str] = []
    for command in map(str.strip, commands):
        for plain, tame in replacements.items():
            command = command.replace(plain, tame)  # noqa: PLW2901 - the same, without a key
        if command == "metis run claude":
            continue  # needs another program; tests/cli/test_serve.py starts a stand-in
        if command.startswith(servers):
            tried.append(f"timeout 3 {command.replace('metis', program_file, 1)} --port 0")
        else:
            tried.append(command)
    codes = run_all(
        [f'{command} > out.txt || [ $? = 124 ]; printf " %s" $?' for command in tried], program
    )
    assert [code.rpartition(" ")[2] for code in codes] == ["0"] * len(tried), codes
