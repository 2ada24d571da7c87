"""Checks for the tests of plugins; the plugins of this project pass them.

Importing this needs no pytest; ``pptrace.testing.fixtures`` is a pytest plugin::

    pytest_plugins = ["pptrace.testing.fixtures"]
"""

from pptrace.testing.networks import assert_valid_network
from pptrace.testing.schedules import assert_schedule_family, assert_valid_schedule, grid
from pptrace.testing.timeline import assert_same_timeline

__all__ = [
    "assert_same_timeline",
    "assert_schedule_family",
    "assert_valid_network",
    "assert_valid_schedule",
    "grid",
]
