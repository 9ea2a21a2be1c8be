"""How properties are searched: the same examples each time, or, for ``make test-slow``, new ones and many more.

A slow or shared machine is no reason for a property to fail, so Hypothesis keeps no time here.
"""

import os

from hypothesis import HealthCheck, settings

from tests.stores import any_store, kind, postgres

__all__ = ["any_store", "kind", "postgres"]  # fixtures for all: one PostgreSQL a run, stores of either kind

TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **TIMELESS)
settings.register_profile("search", max_examples=1000, print_blob=True, **TIMELESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
