"""The docs match the code: generated pages are current, examples run, lists are complete."""

import importlib.util
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import click
import pytest
from msgspec import NODEFAULT, UNSET

from metis.canonical import (
    LIMITS,
    ChainPolicy,
    MessageStatus,
    OutcomeStatus,
    Role,
    RoutingMode,
    SideEffects,
    StopReason,
    ToolDefinition,
    decode,
    encode,
    errors,
    profiles,
    rules,
    tools,
)
from metis.canonical.blocks import (
    BLOCK_TYPES,
    Block,
    Citation,
    InvalidInput,
    MediaSource,
)
from metis.canonical.json_value import MAX_DIGITS
from metis.canonical.metadata import CacheHint, Outcome
from metis.canonical.profiles import SPEC_FIELDS
from metis.canonical.schema import subset, validate
from metis.canonical.value import Value, fields_of
from metis.cli.main import cli

ROOT = Path(__file__).parent.parent.parent
SPEC = (ROOT / "spec" / "canonical-form.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "spec").glob("*.md")])
TYPES = [
    *SPEC_FIELDS,
    *(kind for kind in BLOCK_TYPES.values() if kind not in SPEC_FIELDS),
    *(MediaSource, Citation, InvalidInput, Outcome, CacheHint, ToolDefinition),
]
ENUMS = (
    *(Role, MessageStatus, StopReason, RoutingMode, ChainPolicy, OutcomeStatus),
    SideEffects,
)

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(r'"(M-\d{3})"')


def build_docs() -> ModuleType:
    """Load the script that writes the generated pages."""
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts" / "build_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fences(page: Path, language: str) -> Iterator[str]:
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found[1] == language and "no-run" not in found[2]:
            yield found[3]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(fences(page, language))]


def page_id(page: object) -> str:
    return str(page.relative_to(ROOT)) if isinstance(page, Path) else str(page)


def test_generated_pages_are_current() -> None:
    assert build_docs().stale() == []


def test_check_of_outdated_page_has_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = build_docs()
    pages = script.pages()
    monkeypatch.setattr(script, "pages", lambda: pages)
    assert script.main(["--check"]) == 0
    monkeypatch.setattr(script, "REFERENCE", tmp_path / "docs" / "reference")
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out.count("is stale") == len(pages)
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    assert script.main(["--unknown"]) == 2


def test_every_error_has_a_section() -> None:
    page = build_docs().errors_page()
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.MetisError):
            assert f"\n## {name}\n" in page


@pytest.mark.parametrize("page", pages_with("python"), ids=page_id)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may leave files behind
    namespace: dict[str, Any] = {"__name__": "example"}
    for number, source in enumerate(fences(page, "python"), 1):
        code = compile(source, f"{page.name}, example {number}", "exec")
        exec(code, namespace)  # noqa: S102 - our own examples


@pytest.mark.parametrize("page", pages_with("json"), ids=page_id)
def test_json_examples_are_canonical_messages(page: Path) -> None:
    for source in fences(page, "json"):
        for line in source.splitlines():
            assert encode(decode(line)).decode() == line


@pytest.mark.parametrize("page", pages_with("console"), ids=page_id)
def test_commands_in_examples_exist(page: Path) -> None:
    options = {"-h", "--help"}
    for parameter in (*cli.params, *cli.commands["ask"].params):
        options |= set(parameter.opts) if isinstance(parameter, click.Option) else set()
    for source in fences(page, "console"):
        for command in re.findall(r"^\$ metis(.*)$", source, re.MULTILINE):
            words = command.partition("#")[0].split()
            is_question = command.lstrip().startswith(('"', "'"))
            assert not words or is_question or words[0] in {*cli.commands, *options}, command


@pytest.mark.row("M-037")
def test_every_block_tag_is_documented() -> None:
    for tag, kind in BLOCK_TYPES.items():
        assert f"### {kind.__name__}\n\nTag `{tag}`" in SPEC


@pytest.mark.parametrize("values", ENUMS, ids=lambda values: values.__name__)
def test_every_value_of_every_list_is_listed(values: type[StrEnum]) -> None:
    section = SPEC.partition("\n## 4. ")[2].partition("\n## 5. ")[0]
    assert values.__name__ in section
    assert [value.value for value in values if f"`{value}`" not in section] == []


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_of_every_type_is_described(kind: type[Value]) -> None:
    section = SPEC.partition(f"\n### {kind.__name__}\n")[2].partition("\n#")[0]
    documented = {
        cells[0].strip("`"): (cells[2], cells[3])
        for line in section.splitlines()
        if line.startswith("| `")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    shared = {field.name for field in fields_of(Block)} if issubclass(kind, Block) else set[str]()
    known = SPEC_FIELDS.get(kind, frozenset()) if kind is not ToolDefinition else None
    assert documented == {
        field.name: (
            default_of(field.default, field.default_factory),
            "" if known is None or field.name in known else "yes",
        )
        for field in fields_of(kind)
        if field.name not in shared
    }


def default_of(default: Any, factory: Any) -> str:
    """Return the default as written in the column of a table."""
    if factory is not NODEFAULT:
        made = factory()
        return f"`{made}`" if isinstance(made, int) else "all defaults"
    if default is NODEFAULT:
        return "\N{EN DASH}"
    if default is UNSET:
        return "absent"
    words = {None: "null", False: "false", True: "true", (): "[]"}
    return f"`{words.get(default, default) if not _is_zero(default) else 0}`"


def _is_zero(value: Any) -> bool:
    """Return whether a value is the number zero, which equals false."""
    return type(value) is int and value == 0


@pytest.mark.parametrize(
    "module",
    [rules, profiles, tools, subset, validate],
    ids=lambda module: module.__name__,
)
def test_every_row_that_the_validator_reports_has_its_rule(module: ModuleType) -> None:
    rows = set(ROW.findall(inspect.getsource(module)))
    assert rows
    assert {row for row in rows if f"\n| {row} | " not in SPEC} == set()


def test_every_rule_of_a_page_is_reported_by_the_validator() -> None:
    modules = (rules, profiles, tools, subset, validate)
    rows = {row for module in modules for row in ROW.findall(inspect.getsource(module))}
    assert set(re.findall(r"^\| (M-\d{3}) \|", SPEC, re.MULTILINE)) == rows


def test_the_places_of_blocks_are_those_of_the_table() -> None:
    section = SPEC.partition("### Allowed blocks")[2].partition("\n#")[0]
    documented = {
        cells[0].rpartition("`")[0].rpartition("`")[2]: [_tags(cells[1]), _tags(cells[2])]
        for line in section.splitlines()
        if line.count("|") == 4 and "`" in line
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    full, in_result = profiles.ALLOWED_BLOCKS["full"], profiles.ALLOWED_IN_TOOL_RESULT
    strict = {role: profiles.ALLOWED_BLOCKS["strict"].get(role, frozenset[str]()) for role in full}
    assert documented == {
        **{str(role): [strict[role], full[role] - strict[role]] for role in full},
        "tool_result": [in_result["strict"], in_result["full"] - in_result["strict"]],
    }


def _tags(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_the_limits_are_those_of_the_code() -> None:
    section = SPEC.partition("\n## 13. ")[2].partition("\n## 14. ")[0]
    assert f"| bytes of a document | {LIMITS.max_bytes}," in section
    assert f"| levels of a document that is not canonical already | {LIMITS.max_depth}," in section
    assert f"| levels of a tool schema | {subset.MAX_DEPTH} |" in section
    assert f"| parts of a tool schema | {subset.MAX_PARTS} |" in section
    assert f"| problems reported for one tool input | {validate.MAX_PROBLEMS};" in section
    assert f"| digits of an integer, with its sign | {MAX_DIGITS} |" in section
    assert f"| characters of a tool name | {tools.MAX_NAME_LENGTH} |" in section


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_have_targets(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = [link for link in LINK.findall(text) if not _is_alive(link, page)]
    assert dead == []


def _is_alive(link: str, page: Path) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Return the anchors of headings, as common renderers derive them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
