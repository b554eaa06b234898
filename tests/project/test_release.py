"""The software bill of materials and the provenance of a release."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402 - the path comes first
import sbom  # noqa: E402 - the same

FILES = {"metis.whl": b"a wheel", "metis.tar.gz": b"a source archive", release.BILL: b"{}"}


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return json.loads(sbom.build())


def test_the_same_lock_gives_the_same_bill() -> None:
    assert sbom.build() == sbom.build()


def test_every_declared_package_is_a_component(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    components = {item["name"]: item for item in bill["components"]}
    for text in project["dependencies"]:
        component = components[canonicalize_name(Requirement(text).name)]
        assert component["scope"] == "required"
        assert component["version"]
        assert component["hashes"]
    for texts in project["optional-dependencies"].values():
        assert {canonicalize_name(Requirement(text).name) for text in texts} <= set(components)


def test_runtime_dependencies_are_components_and_development_ones_are_not(
    bill: dict[str, Any],
) -> None:
    names = {item["name"] for item in bill["components"]}
    assert {"multidict", "wcwidth", "mdurl"} <= names
    assert not names & {"pytest", "ruff", "hypothesis", "basedpyright"}


def test_the_graph_names_components_only(bill: dict[str, Any]) -> None:
    refs = [item["bom-ref"] for item in bill["components"]]
    assert len(refs) == len(set(refs))
    known = {*refs, bill["metadata"]["component"]["bom-ref"]}
    assert {item["ref"] for item in bill["dependencies"]} == known
    assert {ref for item in bill["dependencies"] for ref in item["dependsOn"]} <= known


def test_a_lock_is_read_with_markers_and_extras() -> None:
    digest = "a" * 64
    text = f"Foo_Bar[x]==1.2 ; sys_platform == 'win32' \\\n    --hash=sha256:{digest}\nplain==3\n"
    assert sbom.read_lock(text) == {"foo-bar": ("1.2", (digest,)), "plain": ("3", ())}


def released(directory: Path) -> Path:
    statement = release.statement(FILES, "c" * 40)
    for name, data in (FILES | {release.PROVENANCE: release.encode(statement)}).items():
        (directory / name).write_bytes(data)
    return directory


def test_files_as_built_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["verify", str(released(tmp_path))]) == 0
    assert "as built" in capsys.readouterr().out


def test_changed_missing_and_added_files_are_reported(tmp_path: Path) -> None:
    directory = released(tmp_path)
    (directory / "metis.whl").write_bytes(b"another wheel")
    (directory / "metis.tar.gz").unlink()
    (directory / "extra.whl").write_bytes(b"")
    assert release.problems(directory) == [
        "extra.whl: not in the provenance",
        "metis.tar.gz: missing",
        "metis.whl: changed",
    ]
    assert release.main(["verify", str(directory)]) == 1


def test_the_statement_names_the_commit_and_the_builder() -> None:
    statement = release.statement(FILES, "c" * 40)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    definition = statement["predicate"]["buildDefinition"]
    assert {"name": "source", "digest": {"gitCommit": "c" * 40}} in definition[
        "resolvedDependencies"
    ]
    assert {item["name"] for item in statement["subject"]} == set(FILES)


@pytest.mark.slow
def test_two_builds_of_a_commit_are_the_same_bytes(tmp_path: Path) -> None:
    try:
        commit = release.git("rev-parse", "HEAD")
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("not a repository")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = release.build_once(commit, tmp_path / "first")
    assert first == release.build_once(commit, tmp_path / "second")
    assert {name.rpartition(".")[2] for name in first} == {"whl", "gz"}
