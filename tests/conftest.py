"""Settings of hypothesis: the same examples in every run, so that a green suite stays green.

`METIS_TEST_RANDOM=1` draws new examples.
"""

import os

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the rows of all tests, before pytest leaves out those that are not selected."""
    marks = (mark for item in items for mark in item.iter_markers("row"))
    config.stash[CLAIMED_ROWS] = {str(row) for mark in marks for row in mark.args}
