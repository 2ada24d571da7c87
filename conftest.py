"""How hard property tests try: with ``pytest --hypothesis-profile=thorough`` much harder, and anew each time."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile(
    "pptrace",
    deadline=None,  # a first example that compiles a kernel, or a busy machine, is slow without being wrong
    max_examples=12,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # fixtures hold a test's data, and change with no example
        HealthCheck.too_slow,  # a whole step is drawn
    ],
)
settings.register_profile("few", settings.get_profile("pptrace"), max_examples=5)
settings.register_profile("thorough", settings.get_profile("pptrace"), derandomize=False, max_examples=1000)
settings.load_profile("pptrace")


def pytest_collection_finish() -> None:
    """Leave all objects of the collection out of later garbage collections, which then take half as long."""
    gc.collect()
    gc.freeze()
