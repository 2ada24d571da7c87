"""Assert that two timelines are the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline


def assert_same_timeline(first: Timeline, second: Timeline) -> None:
    """Assert that two timelines agree in every column; provenance may differ.

    Raises:
        AssertionError: the first column and row that differ, with both values.
    """
    where = first.difference(second)
    if where:
        raise AssertionError(f"the timelines differ: {where}")
