"""Settings: precedence, origin of values, and location of errors."""

from decimal import Decimal
from pathlib import Path

import pytest

from metis.canonical.errors import SettingsError
from metis.settings import SETTINGS, Origin, SettingsFile, UserPaths, load

TEXT = """\
# my settings
model = "sonnet"   # the good one
tools = false

[budget]
day_usd = 2.50

[base_urls]
ollama = "http://127.0.0.1:1"

[fallbacks]
"anthropic:claude-sonnet-4-6" = ["gpt-5"]
"*" = ["haiku"]
"""


@pytest.fixture
def paths(tmp_path: Path) -> UserPaths:
    paths = UserPaths.from_environment({"METIS_HOME": str(tmp_path)})
    paths.settings.write_text(TEXT)
    return paths


def test_defaults_without_configuration(tmp_path: Path) -> None:
    loaded = load(environment={"METIS_HOME": str(tmp_path)})
    assert loaded.settings.model is None
    assert loaded.settings.tools
    assert loaded.origins["model"] == Origin("default")


def test_option_overrides_environment_which_overrides_file(
    paths: UserPaths,
) -> None:
    from_file = load(environment={}, paths=paths)
    assert (from_file.settings.model, from_file.settings.tools) == ("sonnet", False)
    assert from_file.origins["model"] == Origin("file", f"{paths.settings}:2")
    assert from_file.settings.budget.day_usd == Decimal("2.50")
    assert from_file.origins["budget.day_usd"].location.endswith(":6")
    assert from_file.settings.base_urls == {"ollama": "http://127.0.0.1:1"}
    assert from_file.settings.fallbacks["*"] == ("haiku",)
    environment = {"METIS_MODEL": "opus", "METIS_TOOLS": "yes", "METIS_BUDGET_DAY_USD": "1"}
    from_environment = load(environment=environment, paths=paths)
    assert (from_environment.settings.model, from_environment.settings.tools) == ("opus", True)
    assert from_environment.settings.budget.day_usd == Decimal(1)
    assert from_environment.origins["tools"] == Origin("environment", "$METIS_TOOLS")
    from_option = load({"model": "haiku", "store": None}, environment=environment, paths=paths)
    assert from_option.settings.model == "haiku"
    assert from_option.origins["model"] == Origin("option", "--model")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('model = "a"\nmodle = "b"\n', 2, "there is no setting 'modle'; did you mean model?"),
        ("tools = 3\n", 1, "tools: expected true or false, got 3"),
        ("\n[budget]\nday_usd = -1\n", 3, "budget.day_usd: -1 is not a valid limit"),
        ('[budget]\nday_usd = "much"\n', 2, "expected an amount, got 'much'; e.g. 5.00"),
        ('[base_urls]\nolama = "http://x"\n', 2, "unknown provider 'olama'"),
        ('[base_urls]\nollama = "ftp://x"\n', 2, "is not an address"),
        ('a = "b\n', 1, "invalid TOML"),
        ('fallbacks = ["gpt-5"]\n', 1, "there is no setting 'fallbacks'"),
    ],
)
def test_invalid_value_error_names_the_line(
    paths: UserPaths, text: str, line: int, reason: str
) -> None:
    paths.settings.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(environment={}, paths=paths)
    assert caught.value.place == f"{paths.settings}:{line}"
    assert reason in caught.value.reason


def test_invalid_variable_error_names_the_variable() -> None:
    with pytest.raises(SettingsError, match=r"\$METIS_TOOLS: tools: expected 1 or 0, got 'maybe'"):
        load(environment={"METIS_TOOLS": "maybe", "METIS_HOME": "/nowhere"})


def test_unreadable_file_error_names_the_file(paths: UserPaths) -> None:
    paths.settings.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load(environment={}, paths=paths)
    paths.settings.unlink()
    paths.settings.mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        load(environment={}, paths=paths)


def test_changing_a_value_keeps_comments(paths: UserPaths) -> None:
    file = SettingsFile.read(paths.settings)
    changed = file.with_value("model", '"haiku"').with_value("budget.month_usd", "9")
    changed = changed.with_value("base_urls.ollama", None).with_value("system", '"Be brief."')
    changed = changed.with_value("fallbacks.openai:gpt-5", '["haiku"]')
    assert changed.text.startswith("# my settings\n")
    assert changed.values["model"] == "haiku"
    assert changed.values["budget.month_usd"] == 9
    assert "base_urls.ollama" not in changed.values
    assert changed.values["system"] == "Be brief."
    assert changed.values["fallbacks.openai:gpt-5"] == ["haiku"]
    changed.write()
    assert load(environment={}, paths=paths).settings.system == "Be brief."
    assert [each.name for each in paths.settings.parent.iterdir()] == ["config.toml"]


def test_a_new_file_begins_with_the_value(tmp_path: Path) -> None:
    empty = SettingsFile.read(tmp_path / "config.toml")
    assert empty.with_value("budget.day_usd", "1").text == "[budget]\nday_usd = 1\n"
    assert empty.with_value("model", '"sonnet"').text == 'model = "sonnet"\n'


def test_values_are_changed_in_any_toml_form(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for before, name, value, after in (
        ("budget = { day_usd = 1 }\n", "budget.day_usd", "2", "budget = { day_usd = 2 }\n"),
        ("budget.day_usd = 1\n", "budget.day_usd", "2", "budget.day_usd = 2\n"),
        ('system = """\nmodel = 1\n"""\n', "system", '"x"', 'system = "x"\n'),
        ("tools = true # why\n", "tools", "false", "tools = false # why\n"),
        ("# why\ntools = true\n", "tools", None, "# why\n"),
        ("tools = true\n", "budget.day_usd", None, "tools = true\n"),
    ):
        path.write_text(before)
        assert SettingsFile.read(path).with_value(name, value).text == after


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("budget = 3\n", "budget.day_usd", "2"), ("", "model", "sonnet"), ("", "model", '"a" "b"')],
)
def test_unsupported_change_is_refused(tmp_path: Path, text: str, name: str, value: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"use an editor|invalid TOML"):
        SettingsFile.read(path).with_value(name, value)


def test_paths_follow_the_environment(tmp_path: Path) -> None:
    both = {"XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c"}
    assert UserPaths.from_environment(both).settings == Path("/c/metis/config.toml")
    assert UserPaths.from_environment(both).home == Path("/d/metis")
    assert UserPaths.from_environment(both).keys == Path("/c/metis/keys.toml")
    assert UserPaths.from_environment({**both, "METIS_HOME": "/m"}).settings == Path(
        "/m/config.toml"
    )
    assert (
        UserPaths.from_environment({**both, "METIS_HOME": "/m"}).store_url
        == "sqlite:////m/metis.db"
    )


def test_every_example_is_a_value_of_its_setting(paths: UserPaths) -> None:
    for name, row in SETTINGS.items():
        full = {"base_urls.*": "base_urls.ollama", "fallbacks.*": "fallbacks.gpt-5"}.get(name, name)
        paths.settings.write_text("")
        SettingsFile.read(paths.settings).with_value(full, row.example).write()
        assert load(environment={}, paths=paths).origins[full].source == "file"
