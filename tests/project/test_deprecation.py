import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

import pytest
from msgspec import Struct

from metis import adapters
from metis.deprecation import RenamedFields, renamed_parameters
from metis.session import Options, Session, SyncSession, ask
from metis.store import Store
from metis.tools import Answer, Verdict

OLD_NAMES = [
    ("metis.canonical", "Profile", "RuleProfile"),
    ("metis.catalog", "abilities_of", "capability_set"),
    ("metis.interchange", "Dumped", "WrittenDocument"),
    ("metis.interchange", "Loaded", "LoadedDocument"),
    ("metis.session", "Place", "Position"),
    ("metis.session", "Span", "PastTurn"),
]


@pytest.mark.parametrize(("module_name", "old", "new"), OLD_NAMES)
def test_an_old_name_gives_the_new_value_and_a_warning(
    module_name: str, old: str, new: str
) -> None:
    module = import_module(module_name)
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated.* use {module_name}.{new}"):
        value = getattr(module, old)
    assert value is getattr(module, new)
    assert old not in module.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(module, "nothing")  # noqa: B009 - the name is not there, and the checker knows


def test_the_warning_points_to_the_line_with_the_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="deprecated") as warnings:
        getattr(import_module("metis.session"), "Place")  # noqa: B009 - the checker knows no old names
    assert warnings[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="deprecated") as warnings:
        adapters.get("anthropic", hides_ids=True)  # pyright: ignore[reportCallIssue] - the old name
    assert warnings[0].filename == __file__


def test_old_keyword_arguments_are_passed_under_their_new_names() -> None:
    @renamed_parameters(said="prompt")
    def send(prompt: str, *, model: str = "") -> tuple[str, str]:
        return prompt, model

    call: Callable[..., Any] = send
    assert call("hi", model="m") == call(prompt="hi", model="m") == ("hi", "m")
    with pytest.warns(
        DeprecationWarning, match=r"'said' of .*send\(\) is deprecated.* use 'prompt'"
    ):
        assert call(said="hi", model="m") == ("hi", "m")
    with pytest.raises(TypeError, match="got 'prompt' and its old name 'said'"):
        call(prompt="a", said="b")
    assert list(inspect.signature(send).parameters) == ["prompt", "model"]


def test_old_fields_are_passed_under_their_new_names() -> None:
    class Point(Struct, frozen=True, kw_only=True, metaclass=RenamedFields):
        renamed_fields: ClassVar[dict[str, str]] = {"left": "x"}
        x: int = 0

    old: dict[str, Any] = {"left": 3}
    with pytest.warns(DeprecationWarning, match=r"'left' of Point\(\) is deprecated.* use 'x'"):
        assert Point(**old) == Point(x=3)
    assert list(inspect.signature(Point).parameters) == ["x"]


def test_the_names_that_the_first_release_renamed_still_work() -> None:
    old: dict[str, Any] = {"hides_ids": True, "is_free": True}
    with pytest.warns(DeprecationWarning, match="hides_ids|is_free"):
        assert Options(**old) == Options(redact_ids=True, free=True)
    old = {"words": "no"}
    with pytest.warns(DeprecationWarning, match="words"):
        assert Answer(Verdict.DENY, **old) == Answer(Verdict.DENY, "no")
    for function in (Session.send, Session.ask, SyncSession.send, SyncSession.ask, ask):
        assert "prompt" in inspect.signature(function).parameters
    assert "query" in inspect.signature(Store.search).parameters
