"""Slash commands: documentation, help texts and aliases."""

import re
from pathlib import Path

from metis.cli.chat.commands import COMMANDS, EQUIVALENTS, QUIT_NAMES
from metis.cli.chat.screen import Screen

GUIDE = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text()


def test_guide_documents_every_command() -> None:
    rows = re.findall(r"^\| (`/.+`) \|", GUIDE, re.MULTILINE)
    documented = [
        name.replace("\\|", "|") for row in rows for name in re.findall(r"`/([^`]+)`", row)
    ]
    commands = [f"{command.name} {command.usage}".strip() for command in COMMANDS.values()]
    assert sorted(documented) == sorted([*commands, QUIT_NAMES[0]])


def test_images_of_the_guide_exist() -> None:
    for name in re.findall(r"\((screens/.+?)\)", GUIDE):
        assert (Path(__file__).parents[3] / "docs" / name).read_text().startswith("<svg")


def test_every_line_of_help_fits_eighty_columns() -> None:
    widest = max(len(f"/{command.name} {command.usage}") for command in COMMANDS.values())
    assert all(widest + 2 + len(command.help) <= 80 for command in COMMANDS.values())


def test_command_names_of_other_programs_are_aliases() -> None:
    assert not EQUIVALENTS.keys() & COMMANDS.keys()
    for documented in EQUIVALENTS.values():
        assert set(re.findall(r"/(\w+)", documented)) <= COMMANDS.keys()


def test_chat_is_refused_without_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        screen = Screen(file, {"TERM": "xterm-256color"})
        assert screen.is_plain
        assert not screen.has_colour
        screen.print("**words**", "bold red")
    assert (tmp_path / "out").read_text() == "**words**\n"
