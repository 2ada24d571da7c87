"""Fixtures for a plugin's tests, enabled by ``pytest_plugins = ["pptrace.testing.fixtures"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["core_registry", "registry", "schedule_request"]


@pytest.fixture
def registry() -> Registry:
    """Return a fresh registry of all that is installed."""
    return Registry.load()


@pytest.fixture
def core_registry() -> Registry:
    """Return a fresh registry of the core alone, whatever is installed."""
    return Registry.load(entry_points=False)


@pytest.fixture
def schedule_request() -> Callable[..., ScheduleRequest]:
    """Return a maker of schedule requests: 4 ranks and 8 microbatches unless told."""

    def make(*, ranks: int = 4, microbatches: int = 8, **fields: object) -> ScheduleRequest:
        return ScheduleRequest(ranks=ranks, microbatches=microbatches, **fields)  # type: ignore[arg-type] # theirs

    return make
