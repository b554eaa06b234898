"""The declared dependencies are the imported ones."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OPTIONAL = {"keyring"}
"""Packages that are used if installed, and that no extra installs."""
SEPARATE = {"xllamacpp"}
"""Packages that `metis local setup` installs into a directory of their own."""


def imported_packages() -> set[str]:
    """Return the imported top-level packages, except the standard library and metis."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module.partition(".")[0])
                case _:
                    pass
    return names - sys.stdlib_module_names - {"metis"}


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_declared_dependencies_are_the_imported_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = declared(project["dependencies"])
    extras = declared(
        [text for extra in project["optional-dependencies"].values() for text in extra]
    )
    distributions = packages_distributions()
    imported = {
        canonicalize_name(distribution)
        for name in imported_packages() - OPTIONAL - SEPARATE
        for distribution in distributions.get(name, [name])
    }
    assert imported - required - extras == set()
    assert required - imported == set()


@pytest.mark.row("GW-39")
def test_every_locked_package_has_an_exact_version_and_a_hash() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        assert lines
        assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []
