"""What a fit gives of the steps that it was made from, and how far to trust what it says of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.nearest_policy import nearest_policy
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed
from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.analysis.calibration.fit import Calibration
    from pptrace.analysis.steps.times import Performed
    from pptrace.hooks.registry import Registry
    from pptrace.schedule.policy import Policy

__all__ = ["Checked", "checked"]

_DOUBTFUL = 0.05
"""From which error of its own step on a fit is warned of."""
_MOST_PARTS = 6
"""Computations of a rank for each microbatch: forward, input and weight gradient of two chunks."""
_SEEN_SELDOM = 0.25
"""From which share of actions down it is warned that what the host does between them was hardly seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A fit, simulated."""

    policy: str
    """The message policy under which the steps' actions, with their own times, start nearest to when they did."""
    step_ns: int
    """How long the steps' pipelines took, mean."""
    own_ns: int
    """How long one takes that is simulated with the fit, in its own order."""
    interval: float | None
    """By which share predictions of other orders may be off: the fit's own error, what the steps vary by, and what
    the host does between actions, as much again as was seen or as it varies by, in as many actions as two chunks
    and split backwards have. None where ranks are missing."""
    warnings: tuple[str, ...]
    """Why it cannot be trusted; empty where nothing says so."""

    @property
    def error(self) -> float:
        """By which share that is longer."""
        return self.own_ns / self.step_ns - 1 if self.step_ns else 0.0


def checked(fit: Calibration, steps: Sequence[Performed], registry: Registry, *, measured: bool = True) -> Checked:
    """Simulate a fit and say what it is worth.

    Args:
        fit: the fit.
        steps: what it was made from, at least one.
        registry: the plugins, whose message policies are tried.
        measured: false for steps of a simulation's trace.
    """
    policy = nearest_policy(steps[0], registry, measured=measured).policy
    simulated = [_length(_with_fit(fit, step), policy) for step in steps]
    spans = [step.span_ns for step in steps]
    step_ns, own_ns = round(float(np.mean(spans))), round(float(np.mean(simulated)))
    error = abs(own_ns / step_ns - 1) if step_ns else 0.0
    return Checked(
        policy=policy.label, step_ns=step_ns, own_ns=own_ns, interval=_interval(fit, steps, error, step_ns),
        warnings=tuple(_warnings(fit, steps, error)),
    )  # fmt: skip


def _interval(fit: Calibration, steps: Sequence[Performed], error: float, step_ns: int) -> float | None:
    if any(step.partial for step in steps) or not step_ns:
        return None
    actions = max(_MOST_PARTS * fit.microbatches, *(int(np.bincount(step.rank).max()) for step in steps))
    host = max(fit.overhead_ns, fit.overhead_deviation_ns) * actions / step_ns
    spans = [step.span_ns for step in steps]
    return error + host + (float(np.std(spans, ddof=1)) / step_ns if len(spans) > 1 else 0.0)


def _with_fit(fit: Calibration, step: Performed) -> Performed:
    """Return a step with the times that a fit says; waits for what nobody recorded stay."""
    duration = step.duration_ns.copy()
    for one in fit.fitted:
        duration[(step.kind == Kind[one.kind]) & (step.stage == one.stage)] = round(one.mean_ns.value)
    transfers = replace(step.transfers, took_ns=fit.wire_ns(step.transfers.size_bytes))
    gap = np.where(step.outside, step.gap_ns, fit.overhead_ns)
    return replace(step, duration_ns=duration, gap_ns=gap, transfers=transfers)


def _length(step: Performed, policy: Policy) -> int:
    return performed(run_order(step.order, step.times(held=False), policy, partial=step.partial)).span_ns


def _warnings(fit: Calibration, steps: Sequence[Performed], error: float) -> Iterator[str]:
    actions = sum(len(step) for step in steps)
    if any(step.partial for step in steps):
        yield "ranks or actions are missing: stages that nobody recorded take the mean of the others"
    if error > _DOUBTFUL:
        yield f"the fit gives its own step back only to {error:.1%}: what it says of other schedules is worth less"
    if fit.gaps < _SEEN_SELDOM * actions:
        yield (
            f"of {actions} actions {fit.gaps} waited for no message: what the host does between actions was "
            "hardly seen, and schedules that wait less come out short"
        )
    if fit.link is None and fit.node_link is None and any(len(step.transfers) for step in steps):
        yield "no message's arrival was seen: messages take no time here"
