"""The public names of the package."""

import subprocess
import sys
from types import ModuleType

import pytest

import metis
from metis import canonical, catalog, events, routing, session, store


@pytest.mark.parametrize(
    "module",
    [metis, canonical, catalog, events, routing, session, store],
    ids=lambda module: module.__name__,
)
def test_public_names_are_sorted_and_defined(module: ModuleType) -> None:
    names: list[str] = module.__all__
    assert names == sorted(names, key=_isort_key)
    assert all(getattr(module, name) is not None for name in names)


def _isort_key(name: str) -> tuple[int, str]:
    """Return the sort key of the import sorter: constants, classes, then the rest."""
    bare = name.strip("_")
    if bare.isupper() and len(bare) > 1:
        return 0, name
    return (1, name) if bare[:1].isupper() else (2, name)


@pytest.mark.row("M-001")
def test_the_revision_of_the_form_is_readable() -> None:
    assert metis.SPEC_VERSION == "1.1"
    assert canonical.SCHEMA_VERSION == 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(metis, "nothing")  # noqa: B009 - the name is not there, and the checker knows


def test_dir_lists_the_public_names() -> None:
    assert dir(metis) == sorted(metis.__all__)


def test_importing_the_package_loads_no_subpackage() -> None:
    script = (
        "import sys, metis; print([m for m in sys.modules if m.startswith(('metis.', 'msgspec'))])"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['metis.version']"
