"""Settings of all tests: equal examples in every run, so that results are repeatable.

`METIS_TEST_RANDOM=1` draws new examples; `METIS_TEST_ORDER=7` runs the tests in an order drawn with
that number. Compiled modules are always stored.
"""

import gc
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from project.rows import CLAIMED_ROWS

settings.register_profile(
    "fixed",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("random" if os.environ.get("METIS_TEST_RANDOM") else "fixed")

if sys.dont_write_bytecode:
    # Workers and the programs that tests start would compile every module again: collecting takes
    # twice and starting `metis` three times as long. The cache of its own leaves the sources alone.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(sys.prefix) / "pycache")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the rows of all tests, before pytest leaves out those that are not selected."""
    marks = (mark for item in items for mark in item.iter_markers("row"))
    config.stash[CLAIMED_ROWS] = {str(row) for mark in marks for row in mark.args}
    if order := os.environ.get("METIS_TEST_ORDER"):
        random.Random(order).shuffle(items)  # noqa: S311 - not for security


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly all of those objects stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the collected tests and their data out of every later garbage collection.

    They are half a gigabyte; a test that asks for a collection would wait a second for them.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
