"""`metis doctor`."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli
from metis.cli.text import cell_width
from metis.gateway.backlog import Backlog
from metis.gateway.exchange import Exchange
from metis.settings import UserPaths


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def test_doctor_reports_missing_parts_and_never_a_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = run("doctor")
    assert well.exit_code == 0
    assert "No problems found." in well.stdout
    assert "OPENAI_API_KEY" in well.stdout
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (home / "keys.toml").write_text('[keys]\ngroq = "gsk-secret"\n')
    (home / "keys.toml").chmod(0o600)
    run("say hi")
    keyed = run("doctor")
    assert "openai: from $OPENAI_API_KEY" in keyed.stdout
    assert "groq: from" in keyed.stdout
    assert "secret" not in keyed.output
    assert "not stored yet" not in keyed.stdout
    (home / "spool").mkdir(exist_ok=True)
    url = UserPaths.from_environment().store_url
    backlog = Backlog(home / "spool", url)
    exchange = Exchange(client_protocol="openai_chat", client_adapter="openai", path="/")
    backlog.save([exchange])
    assert "not stored yet" not in run("doctor").stdout, "its gateway still runs"
    backlog.close()
    assert "not stored yet" in run("doctor").stdout
    assert max(map(cell_width, keyed.stdout.splitlines())) <= 80


@pytest.mark.parametrize("fault", ["rules", "settings", "keys", "store"])
def test_doctor_reports_broken_parts(home: Path, fault: str) -> None:
    match fault:
        case "rules":
            Path(".metis").mkdir()
            Path(".metis/routing.toml").write_text(
                'schema_version = 1\nglobal_defualt = "sonnet"\n'
            )
        case "settings":
            (home / "config.toml").write_text("model = 7\n")
        case "keys":
            (home / "keys.toml").write_text('[keys]\nopenai = "sk-secret"\n')
            (home / "keys.toml").chmod(0o644)
        case _:
            (home / "metis.db").write_bytes(b"no database at all, only words" * 100)
    done = run("doctor")
    assert done.exit_code == 1
    assert "✗" in done.stdout
    assert "1 problem found." in done.stdout
    assert "secret" not in done.output
