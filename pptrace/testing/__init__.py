"""Checks for the tests of plugins; the plugins of this project pass them.

Importing this needs no pytest; ``pptrace.testing.fixtures`` is a pytest plugin::

    pytest_plugins = ["pptrace.testing.fixtures"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.testing.networks import assert_valid_network
from pptrace.testing.schedules import assert_schedule_family, assert_valid_schedule, grid

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "assert_same_timeline",
    "assert_schedule_family",
    "assert_valid_network",
    "assert_valid_schedule",
    "grid",
]


def assert_same_timeline(first: Timeline, second: Timeline) -> None:
    """Assert that two timelines agree in every column; provenance may differ.

    Raises:
        AssertionError: the first column and row that differ, with both values.
    """
    where = first.difference(second)
    if where:
        raise AssertionError(f"the timelines differ: {where}")
