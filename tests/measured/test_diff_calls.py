"""A diff of two small steps makes few calls: each step is lowered once, and what is known of it computed once."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from pptrace.run.run import Run
    from pptrace.timeline.measurement import Measurement

pytestmark = pytest.mark.needs_plugins

MOST_CALLS, MOST_MODULES = 15_000, 120
MOST_CALLS_WITH_READING = 22_500
"""The same where the steps are read from two files, which takes calls per field of a record."""


def calls_of_diff(
    registry: Registry, first: Path | Run | Measurement, second: Path | Run | Measurement
) -> Counter[str]:
    """Return the number of calls of Python functions in a diff, by file."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        calls[frame.f_code.co_filename] += event == "call"

    pptrace.diff(first, second, registry=registry)  # imports everything
    sys.setprofile(count)
    try:
        pptrace.diff(first, second, registry=registry)
    finally:
        sys.setprofile(None)
    return +calls


def test_a_diff_of_64_actions_makes_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_INTERPRET", "1")
    registry = Registry.load()
    runs = [pptrace.simulate(schedule=name, pp=4, microbatches=8, registry=registry) for name in ("1f1b", "gpipe")]
    paths = [run.save(tmp_path / f"{number}.pftrace")[0] for number, run in enumerate(runs)]
    measurements = [read_measurement([path], registry)[0] for path in paths]

    for pair, most in ((runs, MOST_CALLS), (measurements, MOST_CALLS), (paths, MOST_CALLS_WITH_READING)):
        calls = calls_of_diff(registry, *pair)
        assert calls.total() <= most
        assert sum("pptrace" in file for file in calls) <= MOST_MODULES
