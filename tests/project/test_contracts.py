"""Rules about the source code: provider names, file locations, docstrings."""

import ast
from pathlib import Path
from typing import cast

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "metis"

# The modules that define and exclude `provider_raw`; otherwise only codecs and adapters use it.
OWNERS = {"canonical/metadata.py"}
CODECS = ("wire", "adapters")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def bare_code(path: Path) -> ast.Module:
    """Return the code of a module without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                kept = [item for item in cast("list[ast.AST]", block) if not _is_string(item)]
                setattr(node, name, kept)
    return tree


def _is_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def names_used(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(bare_code(path)):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.Name(id=name):
                found.add(name)
            case _:
                pass
    return found


@pytest.mark.row("M-150", "M-194", "M-196", "M-302")
def test_only_codecs_and_adapters_read_provider_raw() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in modules()
        if path.relative_to(SOURCE).parts[0] not in CODECS
        # The text is searched first, because parsing every module takes seconds.
        if "provider_raw" in path.read_text() and "provider_raw" in names_used(path)
    }
    assert found == OWNERS


@pytest.mark.row("M-198")
def test_schema_has_no_provider_specific_fields() -> None:
    names = {"cache_control", "logit_bias", "stop_details", "system_fingerprint", "container"}
    for path in (SOURCE / "canonical").glob("*.py"):
        tree = ast.parse(path.read_text())
        fields = {
            node.target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        assert not fields & names, path


@pytest.mark.row("M-004")
def test_no_module_hard_codes_file_locations() -> None:
    for path in modules():
        text = path.read_text()
        assert "~/." not in text, path
        assert "yourtool" not in text, path


@pytest.mark.row("M-007", "M-022")
def test_the_core_names_no_provider() -> None:
    providers = ("anthropic", "openai", "gemini", "ollama", "openrouter")
    for path in (SOURCE / "canonical").glob("*.py"):
        code = ast.unparse(bare_code(path)).lower()
        assert not [name for name in providers if name in code], path


def test_every_public_name_has_a_docstring() -> None:
    missing: list[str] = []
    for path in modules():
        tree = ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            missing.append(str(path))
        missing += [
            f"{path}:{node.lineno} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
        ]
    assert not missing
