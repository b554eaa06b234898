"""The bill of materials of a release: CycloneDX 1.6 in JSON, from requirements.lock and pyproject.

Every package that an installation can bring is a component, with its version and the digests of all
its files as the lock has them; packages that only development needs are left out. Which package
needs which is read from the installed packages. The same lock gives the same bytes.

    python scripts/sbom.py [FILE]
"""

import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
_NAMESPACE = uuid.UUID("6b1b9e5e-58c4-5a0e-9d5b-0d6f1f6f6c11")
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")

Locked = Mapping[str, tuple[str, tuple[str, ...]]]
"""The version and the SHA-256 digests of every locked package, by its name."""


def read_lock(text: str) -> Locked:
    """Parse a lock file of pip or uv."""
    locked: dict[str, tuple[str, tuple[str, ...]]] = {}
    name = ""
    for line in text.splitlines():
        if pinned := _PINNED.match(line):
            name = canonicalize_name(pinned[1])
            locked[name] = (pinned[2], ())
        for digest in _DIGEST.findall(line):
            version, digests = locked[name]
            locked[name] = (version, (*digests, digest))
    return locked


def needed_by(name: str, extras: Iterable[str] = ()) -> set[tuple[str, frozenset[str]]]:
    """Return the packages that an installed package needs, each with its extras.

    Markers of platforms do not count: a bill has what any machine may install.
    """
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {item for text in texts if (item := _item(Requirement(text), set(extras))) is not None}


def _item(requirement: Requirement, extras: set[str]) -> tuple[str, frozenset[str]] | None:
    marker = str(requirement.marker or "")
    wanted = re.findall(r"extra == ['\"]([^'\"]+)['\"]", marker)
    if wanted and not extras & set(wanted):
        return None
    return canonicalize_name(requirement.name), frozenset(requirement.extras)


def closure(roots: Iterable[Requirement], locked: Locked) -> dict[str, set[str]]:
    """Return everything that requirements bring, each with what it needs itself."""
    waiting: list[tuple[str, frozenset[str]]] = []
    waiting += ((canonicalize_name(root.name), frozenset(root.extras)) for root in roots)
    edges: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        # An optional package that the lock does not have stays without what it needs.
        needed = {item for item in needed_by(name, extras) if item[0] in locked}
        edges.setdefault(name, set()).update(other for other, _ in needed)
        waiting += needed
    return edges


def build(root: Path = ROOT) -> bytes:
    """Return the bill of materials."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = read_lock((root / "requirements.lock").read_text(encoding="utf-8"))
    version = _version(root)
    required = [Requirement(text) for text in project["dependencies"]]
    optional = [
        Requirement(text) for texts in project["optional-dependencies"].values() for text in texts
    ]
    always = closure(required, locked)
    edges = closure([*required, *optional], locked)
    whole = f"pkg:pypi/{project['name']}@{version}"
    direct = {canonicalize_name(item.name) for item in (*required, *optional)}
    components = [_component(name, locked, is_required=name in always) for name in sorted(edges)]
    graph = {whole: {_purl(name, locked) for name in direct}} | {
        _purl(name, locked): {_purl(other, locked) for other in others}
        for name, others in edges.items()
    }
    bill: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": project["name"],
                "version": version,
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": whole,
            }
        },
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(others)} for ref, others in sorted(graph.items())
        ],
    }
    # Derived from the contents: another serial number is another bill.
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, json.dumps(bill, sort_keys=True))}"
    return json.dumps(bill, indent=2, sort_keys=True).encode() + b"\n"


def _version(root: Path) -> str:
    text = (root / "src" / "metis" / "version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__[^=\n]*=\s*\"([^\"]+)\"", text)
    if found is None:
        raise SystemExit("src/metis/version.py states no version")
    return found[1]


def _purl(name: str, locked: Locked) -> str:
    return f"pkg:pypi/{name}@{locked[name][0]}" if name in locked else f"pkg:pypi/{name}"


def _component(name: str, locked: Locked, *, is_required: bool) -> Mapping[str, Any]:
    component = {
        "type": "library",
        "bom-ref": _purl(name, locked),
        "name": name,
        "scope": "required" if is_required else "optional",
        "purl": _purl(name, locked),
    }
    if name not in locked:
        return component
    version, digests = locked[name]
    hashes = [{"alg": "SHA-256", "content": digest} for digest in sorted(digests)]
    return component | {"version": version, "hashes": hashes}


if __name__ == "__main__":
    data = build()
    if sys.argv[1:]:
        Path(sys.argv[1]).write_bytes(data)
    else:
        sys.stdout.write(data.decode())
