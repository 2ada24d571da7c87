"""What one rank's host or GPU ran, forward and backward, and how sure an inference from that is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.recording.intervals import window_around

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pptrace_profilers.inference.autograd import Run
    from pptrace_profilers.recording.recording import Recording

__all__ = ["AUTOGRAD", "LEAST", "Places", "RankRuns", "Verdict", "mean"]

LEAST = 0.9
"""The confidence from which actions are inferred."""
AUTOGRAD = "autograd's operations"
"""The source that ties backwards to their forwards."""
Places = dict[int, tuple[int, int]]
"""By number of a rank's forward, its stage and microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRuns:
    """One rank's runs, and which step each is in."""

    recording: Recording
    runs: list[Run]
    steps: list[int]

    @classmethod
    def of(cls, recording: Recording, runs: list[Run]) -> RankRuns:
        """Take a rank's runs; all are of one step where the profiler marked none."""
        windows = [(start, end) for _, start, end in recording.windows]
        steps = window_around(windows, [run.start_ns for run in runs]).tolist() if windows else [0] * len(runs)
        return cls(recording=recording, runs=runs, steps=steps)

    @property
    def forwards(self) -> list[Run]:
        """Return the forwards that are in a step."""
        return [run for run, step in zip(self.runs, self.steps, strict=True) if run.forward and step >= 0]

    @property
    def backwards(self) -> Counter[int]:
        """Return how many backwards each forward has."""
        return Counter(run.forward_number for run in self.runs if not run.forward)

    @property
    def usual(self) -> int:
        """Return how many backwards most forwards have."""
        counts = self.backwards
        return Counter(counts[run.forward_number] for run in self.forwards).most_common(1)[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How sure an inference is."""

    text: str
    """The confidence, and where it is not 1 what it is for."""
    objection: str
    """What speaks against the inference; empty where nothing does."""

    @classmethod
    def of(cls, shares: Mapping[str, float], source: str) -> Verdict:
        """Return the product of shares, and the least of them where that is not 1."""
        confidence = float(np.prod(list(shares.values())))
        weakest = min(shares, key=lambda name: shares[name])
        # Rounded down: what is less than 1, or than the limit, is not to read as that.
        rounded = f"confidence {math.floor(100 * confidence) / 100:.2f}"
        why = f"as only {math.floor(100 * shares[weakest])}% {weakest}"
        if confidence < LEAST:
            return cls(text="", objection=f" from {source}: {rounded} is below {LEAST}, {why}")
        return cls(text=rounded if confidence == 1 else f"{rounded}, {why}", objection="")


def mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
