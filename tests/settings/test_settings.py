"""Settings: which value holds, where it comes from, and where a fault stands."""

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
def places(tmp_path: Path) -> UserPaths:
    found = UserPaths.from_environment({"METIS_HOME": str(tmp_path)})
    found.settings.write_text(TEXT)
    return found


def test_without_anything_there_are_defaults(tmp_path: Path) -> None:
    loaded = load(environment={"METIS_HOME": str(tmp_path)})
    assert loaded.settings.model is None
    assert loaded.settings.tools
    assert loaded.origins["model"] == Origin("default")


def test_an_option_counts_before_the_environment_and_that_before_the_file(
    places: UserPaths,
) -> None:
    filed = load(environment={}, places=places)
    assert (filed.settings.model, filed.settings.tools) == ("sonnet", False)
    assert filed.origins["model"] == Origin("file", f"{places.settings}:2")
    assert filed.settings.budget.day_usd == Decimal("2.50")
    assert filed.origins["budget.day_usd"].location.endswith(":6")
    assert filed.settings.base_urls == {"ollama": "http://127.0.0.1:1"}
    assert filed.settings.fallbacks["*"] == ("haiku",)
    environment = {"METIS_MODEL": "opus", "METIS_TOOLS": "yes", "METIS_BUDGET_DAY_USD": "1"}
    varied = load(environment=environment, places=places)
    assert (varied.settings.model, varied.settings.tools) == ("opus", True)
    assert varied.settings.budget.day_usd == Decimal(1)
    assert varied.origins["tools"] == Origin("environment", "$METIS_TOOLS")
    asked = load({"model": "haiku", "store": None}, environment=environment, places=places)
    assert asked.settings.model == "haiku"
    assert asked.origins["model"] == Origin("option", "--model")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('model = "a"\nmodle = "b"\n', 2, "there is no setting 'modle'; did you mean model?"),
        ("tools = 3\n", 1, "tools has to be true or false"),
        ("\n[budget]\nday_usd = -1\n", 3, "budget.day_usd: -1 is not a valid limit"),
        ('[budget]\nday_usd = "much"\n', 2, "has to be an amount, such as 5.00"),
        ('[base_urls]\nolama = "http://x"\n', 2, "no provider is named 'olama'"),
        ('[base_urls]\nollama = "ftp://x"\n', 2, "is no address"),
        ('a = "b\n', 1, "this is no TOML"),
        ('fallbacks = ["gpt-5"]\n', 1, "there is no setting 'fallbacks'"),
    ],
)
def test_a_fault_is_named_with_its_line(
    places: UserPaths, text: str, line: int, words: str
) -> None:
    places.settings.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(environment={}, places=places)
    assert caught.value.place == f"{places.settings}:{line}"
    assert words in caught.value.reason


def test_a_variable_with_nonsense_is_named() -> None:
    with pytest.raises(SettingsError, match=r"\$METIS_TOOLS: tools is switched by 1 or 0"):
        load(environment={"METIS_TOOLS": "maybe", "METIS_HOME": "/nowhere"})


def test_a_file_that_is_no_text_or_cannot_be_read_is_named(places: UserPaths) -> None:
    places.settings.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="no UTF-8"):
        load(environment={}, places=places)
    places.settings.unlink()
    places.settings.mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        load(environment={}, places=places)


def test_the_file_is_changed_and_comments_stay(places: UserPaths) -> None:
    file = SettingsFile.read(places.settings)
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
    assert load(environment={}, places=places).settings.system == "Be brief."
    assert [each.name for each in places.settings.parent.iterdir()] == ["config.toml"]


def test_a_new_file_begins_with_the_value(tmp_path: Path) -> None:
    empty = SettingsFile.read(tmp_path / "config.toml")
    assert empty.with_value("budget.day_usd", "1").text == "[budget]\nday_usd = 1\n"
    assert empty.with_value("model", '"sonnet"').text == 'model = "sonnet"\n'


def test_what_only_an_editor_can_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("budget = { day_usd = 1 }\n")
    with pytest.raises(SettingsError, match=r"use an editor|no TOML"):
        SettingsFile.read(path).with_value("budget.day_usd", "2")
    path.write_text('system = """\nmodel = 1\n"""\n')
    with pytest.raises(SettingsError, match=r"use an editor|no TOML"):
        SettingsFile.read(path).with_value("system", '"x"')


def test_places_follow_the_environment(tmp_path: Path) -> None:
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


def test_every_example_is_a_value_of_its_setting(places: UserPaths) -> None:
    for name, row in SETTINGS.items():
        full = {"base_urls.*": "base_urls.ollama", "fallbacks.*": "fallbacks.gpt-5"}.get(name, name)
        places.settings.write_text("")
        SettingsFile.read(places.settings).with_value(full, row.example).write()
        assert load(environment={}, places=places).origins[full].source == "file"
