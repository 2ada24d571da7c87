"""Fixtures for a plugin's tests, enabled by ``pytest_plugins = ["pptrace.testing.fixtures"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def registry() -> Registry:
    """Return a new registry of all installed plugins."""
    return Registry.load()


@pytest.fixture
def core_registry() -> Registry:
    """Return a new registry of the core, without installed plugins."""
    return Registry.load(entry_points=False)


@pytest.fixture
def schedule_request() -> Callable[..., ScheduleRequest]:
    """Return a factory of schedule requests, by default of 4 ranks and 8 microbatches."""

    def make(*, ranks: int = 4, microbatches: int = 8, **fields: object) -> ScheduleRequest:
        return ScheduleRequest(ranks=ranks, microbatches=microbatches, **fields)  # type: ignore[arg-type] # theirs

    return make
