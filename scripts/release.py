"""Build a release, and the files by which others can check it.

    python scripts/release.py build DIRECTORY   wheel, sdist, bill of materials, provenance, digests
    python scripts/release.py verify DIRECTORY  whether the files are those of the provenance

The wheel and the sdist are built twice, in two copies of the commit, and must be the same bytes.
The provenance is an in-toto statement with the SLSA predicate: which files came from which commit,
by which packages. It is not signed: whoever publishes signs SHA256SUMS.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sbom

ROOT = Path(__file__).resolve().parent.parent
BILL, PROVENANCE, SUMS = "sbom.cdx.json", "provenance.intoto.json", "SHA256SUMS"
_BUILD_TYPE = "urn:metis-llm:build:hatchling:v1"
_BUILDER = "urn:metis-llm:builder:scripts/release.py"
_BUILD_PACKAGES = ("hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return what git prints."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - our own arguments


def build_once(commit: str, directory: Path, root: Path = ROOT) -> dict[str, bytes]:
    """Build wheel and sdist from a clean copy of a commit; gives their bytes by name."""
    source, output = directory / "source", directory / "dist"
    source.mkdir()
    archive = subprocess.run(  # noqa: S603 - our own arguments
        ["git", "-C", str(root), "archive", commit],  # noqa: S607 - the git of the user
        check=True,
        capture_output=True,
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)  # noqa: S603, S607 - the same
    # The time of the commit stands in the archives, in place of that of the build.
    epoch = git("show", "-s", "--format=%ct", commit, root=root)
    variables = os.environ | {"SOURCE_DATE_EPOCH": epoch}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(output)]
    subprocess.run(command, check=True, cwd=source, env=variables, stdout=subprocess.DEVNULL)  # noqa: S603 - our own arguments
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


def build(directory: Path, root: Path = ROOT) -> None:
    """Build everything into a directory."""
    if git("status", "--porcelain", root=root):
        raise SystemExit("there are changes without a commit; a release is built from a commit")
    commit = git("rev-parse", "HEAD", root=root)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        files = build_once(commit, Path(first), root)
        again = build_once(commit, Path(second), root)
    different = [name for name in files if again.get(name) != files[name]]
    if different or len(again) != len(files):
        raise SystemExit(f"two builds differ: {', '.join(different) or 'another set of files'}")
    files[BILL] = sbom.build(root)
    files[PROVENANCE] = encode(statement(files, commit))
    files[SUMS] = "".join(f"{digest(data)}  {name}\n" for name, data in files.items()).encode()
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def statement(files: Mapping[str, bytes], commit: str) -> Mapping[str, Any]:
    """Return the in-toto statement about files that were built from a commit."""
    packages = [
        {"uri": f"pkg:pypi/{name}@{importlib.metadata.version(name)}"} for name in _BUILD_PACKAGES
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest(data)}} for name, data in files.items()
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"commit": commit},
                "internalParameters": {"python": platform.python_version()},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *packages,
                ],
            },
            "runDetails": {"builder": {"id": _BUILDER}},
        },
    }


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of bytes."""
    return hashlib.sha256(data).hexdigest()


def encode(value: Mapping[str, Any]) -> bytes:
    """Return JSON, the same bytes for the same value."""
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def problems(directory: Path) -> list[str]:
    """Return which files are missing, changed or not part of the release."""
    provenance = json.loads((directory / PROVENANCE).read_bytes())
    expected = {item["name"]: item["digest"]["sha256"] for item in provenance["subject"]}
    present = {path.name for path in directory.iterdir()} - {PROVENANCE, SUMS}
    faults = [f"{name}: not in the provenance" for name in sorted(present - set(expected))]
    for name, wanted in sorted(expected.items()):
        if name not in present:
            faults.append(f"{name}: missing")
        elif digest((directory / name).read_bytes()) != wanted:
            faults.append(f"{name}: changed")
    return faults


def main(arguments: Sequence[str]) -> int:
    """Run a command; gives the exit code."""
    match arguments:
        case ["build", directory]:
            build(Path(directory))
            return 0
        case ["verify", directory]:
            faults = problems(Path(directory))
            sys.stdout.write("".join(f"{fault}\n" for fault in faults) or "all files as built\n")
            return 1 if faults else 0
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
