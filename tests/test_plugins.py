"""Plugins: the example package adds one of each kind, and a broken one is skipped."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import metis
from metis import adapters, plugins, price
from metis.adapters import hosts
from metis.canonical import Usage
from metis.canonical.errors import UnknownAdapterError, UnknownFormatError, UnknownPricingError
from metis.catalog import price_table, tables
from metis.cli import main, templates
from metis.events import Bus, subscribe_hooks
from metis.events.turn_events import SessionEnded
from metis.interchange import Source, registry
from metis.tools import plugin_tools

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
CACHES: tuple[Any, ...] = (
    plugins.installed_plugins,
    hosts._added_providers,  # pyright: ignore[reportPrivateUsage] - a test of a new environment
    registry._registered,  # pyright: ignore[reportPrivateUsage]
    registry.session_format,
    tables.added_price_tables,
    templates._added_templates,  # pyright: ignore[reportPrivateUsage]
)


def install(directory: Path, name: str, groups: dict[str, dict[str, str]], version: str) -> None:
    """Write the metadata of a package, as an installer does."""
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), "")
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a directory on the module path, into which packages can be installed."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("METIS_HOME", str(tmp_path / "home"))
    forget()
    yield site
    forget()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"metis_acme", "bad"}]:
        del sys.modules[name]


def forget() -> None:
    """Read the installed packages again."""
    for cached in CACHES:
        cached.cache_clear()
    vars(main.cli).pop("_plugin_commands", None)  # a cached property


@pytest.fixture
def acme(directory: Path) -> Path:
    """Return the installed example package."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "src" / "metis_acme", directory / "metis_acme")
    install(directory, "metis_acme", project["entry-points"], project["version"])
    return directory


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main.cli, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_example_package_adds_one_of_each_kind(acme: Path) -> None:
    code, output, _ = run("plugins", "--json")
    rows = json.loads(output)
    assert code == 0
    assert {row["kind"] for row in rows} == set(plugins.GROUPS.values())
    assert [row for row in rows if row["error"]] == []
    assert {(row["package"], row["version"]) for row in rows} == {("metis-acme", "1.0.0")}


def test_program_loads_an_installed_package(acme: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "metis", "plugins"]
    path = os.pathsep.join((str(acme), str(ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "METIS_HOME": str(tmp_path)}
    done = subprocess.run(  # noqa: S603 - our own program
        command, check=True, capture_output=True, text=True, env=environment
    )
    assert "✓ provider        acme" in done.stdout
    assert "metis-acme 1.0.0" in done.stdout


def test_a_provider_of_a_plugin_answers_like_any_other(acme: Path, tmp_path: Path) -> None:
    assert adapters.profile_of("acme").auth.variable == "ACME_API_KEY"
    assert adapters.names()[-1] == "acme"
    options = metis.Options(simulate=True)
    with metis.open_sync(f"sqlite:///{tmp_path}/chats.db", options) as m:
        session = m.session(model="acme:acme-large")
        reply = session.ask("say done")
        assert reply.text == "done"
        assert reply.metadata.provider == "acme"
        # The plugin's table prices its models, and the record names both tables.
        assert reply.usage is not None
        assert reply.usage.pricing_version.endswith("+acme-2026-11")
        assert reply.cost > 0


def test_prices_of_a_plugin_apply_to_its_models_only(acme: Path) -> None:
    usage = Usage(
        input_tokens=1_000_000,
        output_tokens=0,
        latency_ms=1,
        cost_usd=Decimal(0),
        pricing_version="unpriced",
    )
    assert price(usage, "acme:acme-large").cost_usd == Decimal("1.5")
    assert "acme" not in price(usage, "sonnet").pricing_version
    version = price(usage, "acme:acme-large").pricing_version
    assert price_table(version).pricing_version == version
    assert price_table("acme-2026-11").pricing_version == version
    with pytest.raises(UnknownPricingError, match="acme-2026-11"):
        price_table("acme-1")
    with pytest.raises(UnknownPricingError):
        price_table("1999-01-01+acme-2026-11")


def test_a_command_of_a_plugin_runs_and_is_in_the_help(acme: Path) -> None:
    assert run("acme") == (0, "https://api.acme.example\n", "")
    assert "Print the address of Acme." in run("--help")[1]
    assert "Print the address of Acme." in run("help", "acme")[1]


def test_a_template_of_a_plugin_is_listed_and_shown(acme: Path, tmp_path: Path) -> None:
    assert run("templates")[1].startswith("haiku")
    assert 'prompt = "Write a haiku about $input."' in run("templates", "show", "haiku")[1]
    # A file of the user with the same name comes first.
    (tmp_path / "home" / "templates").mkdir(parents=True)
    (tmp_path / "home" / "templates" / "haiku.toml").write_text('prompt = "mine"\n')
    assert run("templates", "show", "haiku")[1] == 'prompt = "mine"\n'


def test_a_tool_of_a_plugin_is_called_by_a_model(acme: Path, tmp_path: Path) -> None:
    (tool,) = plugin_tools()
    with metis.open_sync(
        f"sqlite:///{tmp_path}/chats.db", metis.Options(simulate=True, tools=[tool])
    ) as m:
        session = m.session()
        session.ask("use the tool days_between")
        names = [
            block.name
            for message in session.messages
            for block in message.content
            if isinstance(block, metis.ToolUseBlock)
        ]
    assert names == ["days_between"]


def test_a_format_of_a_plugin_is_recognised(acme: Path) -> None:
    source = Source(None, b"acme chat 1\nuser: hello\nassistant: hi\n")
    (session,) = registry.detect_format(source).read(source)
    assert [message.role for message in session.messages()] == ["user", "assistant"]


def test_a_file_is_imported_through_the_format_of_a_plugin(acme: Path, tmp_path: Path) -> None:
    path = tmp_path / "owls.chat"
    path.write_bytes(b"acme chat 1\nuser: hello owl\nassistant: hoot\n")
    for arguments in (["--json"], ["--json", "--format", "acme-chat"]):
        code, output, errors = run("import", str(path), *arguments)
        assert (code, errors) == (0, "")
        report = json.loads(output)
        assert (report["format"], report["messages"]) == ("acme-chat", 2)
    # The second time nothing is new, however the format was found.
    assert report["added"] == 0
    assert "hoot" in run("show", report["session"])[1]
    code, _, errors = run("export", report["session"], "--format", "acme-chat")
    assert code != 0
    assert "acme-chat" in errors


def test_a_hook_gets_the_events_of_a_bus(acme: Path) -> None:
    async def emit() -> None:
        bus = Bus()
        subscribe_hooks(bus)
        ended = SessionEnded(
            disposition="completed", turn_count=1, total_cost_usd=Decimal(0), duration_seconds=1
        )
        bus.emit(ended)
        await bus.close()

    asyncio.run(emit())
    assert sys.modules["metis_acme"].turns == {"session.ended": 1}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("syntax error", "SyntaxError"),
        ("", "AttributeError"),
        ("thing = 3", "expected"),
    ],
)
def test_a_broken_plugin_is_reported_and_skipped(
    directory: Path, source: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "bad.py").write_text(source)
    groups = {group: {"bad-thing": "bad:thing"} for group in plugins.GROUPS}
    install(directory, "bad", groups, "1")
    assert "bad-thing" not in adapters.names()
    assert "'bad-thing' of bad 1 is skipped" in caplog.text
    assert plugin_tools() == []
    assert "bad-thing" not in registry.session_formats()
    with pytest.raises(UnknownAdapterError):
        adapters.profile_of("bad-thing")
    with pytest.raises(UnknownFormatError):
        registry.session_format("bad-thing")
    code, output, _ = run("plugins", "--json")
    rows = json.loads(output)
    assert code == 1
    assert len(rows) == len(plugins.GROUPS)
    assert [row for row in rows if error not in (row["error"] or "")] == []
    code, output, _ = run("plugins")
    assert (code, output.count("✗"), output.count("→")) == (1, len(rows), len(rows))


def test_plugin_cannot_replace_built_in_names(acme: Path, directory: Path) -> None:
    (directory / "bad.py").write_text("from metis_acme import *\nfrom metis_acme import command\n")
    groups = {
        plugins.PROVIDERS: {"anthropic": "bad:PROVIDER", "acme": "bad:PROVIDER"},
        plugins.COMMANDS: {"ask": "bad:command"},
        plugins.TOOLS: {"read_file": "bad:days_between"},
    }
    install(directory, "bad", groups, "1")
    assert adapters.profile_of("anthropic").base_url == "https://api.anthropic.com"
    errors = {row["name"]: row["error"] for row in json.loads(run("plugins", "--json")[1])}
    assert errors["anthropic"] == "metis has a provider of that name"
    assert errors["ask"] == "metis has a command of that name"
    assert errors["read_file"] == "metis has a tool of that name"


def test_nothing_is_imported_before_it_is_needed(acme: Path) -> None:
    assert len(plugins.installed_plugins()) == len(plugins.GROUPS)
    assert adapters.profile_of("anthropic").name == "anthropic"
    assert price_table().pricing_version == tables.pricing_versions()[-1]
    assert "metis_acme" not in sys.modules


def test_one_shot_prompt_loads_no_plugin(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = main.cli
    monkeypatch.setattr(type(group), "_plugin_commands", property(pytest.fail))
    context = main.click.Context(group)
    assert group.get_command(context, "why is the sky blue") is None
    assert group.get_command(context, "models") is not None


def test_the_environment_turns_plugins_off(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METIS_PLUGINS", "off")
    forget()
    assert "acme" not in adapters.names()
    assert run("plugins")[1:] == ("", "METIS_PLUGINS turns plugins off.\n")


def test_first_of_two_package_copies_on_the_path_is_used(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    install(other, "metis_acme", {plugins.COMMANDS: {"older": "metis_acme:command"}}, "0.1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    forget()
    assert {plugin.version for plugin in plugins.installed_plugins()} == {"1.0.0"}


def test_package_scan_equals_importlib_metadata(acme: Path) -> None:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and only for this test

    for group in plugins.GROUPS:
        expected = {(point.name, point.value) for point in entry_points(group=group)}
        assert {(one.name, one.location) for one in plugins.plugins(group)} == expected
