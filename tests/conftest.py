"""Settings of hypothesis: the same examples in every run, so that a green suite stays green.

`METIS_TEST_RANDOM=1` draws new examples; `make test-slow` does that.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("random" if os.environ.get("METIS_TEST_RANDOM") else "fixed")
