"""Assert that one schedule can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import ScheduleError
from pptrace.schedule.validate import validate

if TYPE_CHECKING:
    from pptrace.schedule.table import Schedule

__all__ = ["assert_valid_schedule"]


def assert_valid_schedule(schedule: Schedule) -> None:
    """Assert that every action is there once, on its rank, in an order that no deadlock stops.

    >>> from pptrace.schedule.table import Schedule
    >>> assert_valid_schedule(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]))

    Raises:
        AssertionError: the first action at fault, or the cycle.
    """
    try:
        validate(schedule)
    except ScheduleError as error:
        raise AssertionError(str(error)) from error
