"""What a fit gives of the steps that it was made from, and how far to trust what it says of others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.calibration.drawn import drawn_spans_ns
from pptrace.analysis.calibration.sharing import Sharing, sharing
from pptrace.analysis.steps.nearest_policy import nearest_policy
from pptrace.analysis.steps.path import chain_of
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

_SURE = 0.9
"""The share of steps that an interval is for."""
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
    """By which share predictions of other orders are off at most, nine times in ten; None where ranks are missing.

    What a fit is unsure of it is unsure of once per action, and other orders have up to six in a row for each
    microbatch: forward, input and weight gradient of two chunks. The sum of

    - its own error, made in the actions of its own critical path, in as many as those;
    - the host between actions: as much again as was seen, or as it varies by, or, for the share of actions that
      waited so that nobody saw it, as messages were late beyond the median that is fitted;
    - where ranks held one stage, what an action costs the host once more: what cutting stages adds was not seen;
    - what steps vary by: what several of them did, or what nine in ten are within of which every action, gap and
      message is drawn from those that were recorded, whichever is more; the fit varies, too, as a mean of them;
    - where actions slow each other down (:mod:`pptrace.analysis.calibration.sharing`), what they would all take
      longer if every rank computed all the time.
    """
    sharing: Sharing | None
    """How actions slow each other down; None where they do not, as far as one sees."""
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
    again = [_simulated(fit, step, policy) for step in steps]
    spans = [step.span_ns for step in steps]
    step_ns, own_ns = round(float(np.mean(spans))), round(float(np.mean([step.span_ns for step in again])))
    error = abs(own_ns / step_ns - 1) if step_ns else 0.0
    shared = sharing(steps) if measured else None
    interval = _interval(fit, steps, len(chain_of(again[0]).positions), abs(own_ns - step_ns), step_ns, policy)
    if interval is not None and shared is not None:
        interval += shared.at_most
    return Checked(
        policy=policy.label, step_ns=step_ns, own_ns=own_ns, interval=interval, sharing=shared,
        warnings=tuple(_warnings(fit, steps, error, shared, measured=measured)),
    )  # fmt: skip


def _interval(
    fit: Calibration, steps: Sequence[Performed], path: int, missed_ns: int, step_ns: int, policy: Policy
) -> float | None:
    """Return :attr:`Checked.interval`.

    Args:
        fit: the fit.
        steps: what it was made from.
        path: actions on the critical path of its own step.
        missed_ns: what it missed of that.
        step_ns: how long the steps took, mean.
        policy: how their messages were issued.
    """
    if any(step.partial for step in steps) or not step_ns:
        return None
    host_ns = max(fit.overhead_ns, fit.overhead_deviation_ns, _late_ns(fit, steps))
    cut_ns = fit.overhead_ns if fit.stages == fit.ranks else 0
    actions = max(_MOST_PARTS * fit.microbatches, path, *(int(np.bincount(step.rank).max()) for step in steps))
    return (actions * (missed_ns / max(path, 1) + host_ns + cut_ns) + _varies_ns(steps, policy)) / step_ns


def _varies_ns(steps: Sequence[Performed], policy: Policy) -> float:
    """Return by how much a fit of some steps and another step differ, as both vary."""
    drawn = drawn_spans_ns(steps, policy)
    one = float(np.quantile(np.abs(drawn - drawn.mean()), _SURE))
    if len(steps) > 1:
        one = max(one, float(np.std([step.span_ns for step in steps], ddof=1)))
    return one * math.sqrt(1 + 1 / len(steps))


def _late_ns(fit: Calibration, steps: Sequence[Performed]) -> float:
    """Return by how much messages were later than the fit has it, in the mean, for actions whose host nobody saw.

    A host that is late shows as a gap where its action waits for nothing. Where it waits, the host at the other
    end shows as a message that took longer than they do.
    """
    moves = [(step.transfers, step.transfers.observed & (step.transfers.took_ns >= 0)) for step in steps]
    late = np.concatenate([
        (transfers.took_ns - fit.wire_ns(transfers.size_bytes))[seen] for transfers, seen in moves
    ])  # fmt: skip
    unseen = 1 - fit.gaps / max(sum(map(len, steps)), 1)
    return unseen * max(float(late.mean()), 0.0) if late.size else 0.0


def _with_fit(fit: Calibration, step: Performed) -> Performed:
    """Return a step with the times that a fit says; waits for what nobody recorded stay."""
    duration = step.duration_ns.copy()
    for one in fit.fitted:
        duration[(step.kind == Kind[one.kind]) & (step.stage == one.stage)] = round(one.mean_ns.value)
    transfers = replace(step.transfers, took_ns=fit.wire_ns(step.transfers.size_bytes))
    gap = np.where(step.outside, step.gap_ns, fit.overhead_ns)
    return replace(step, duration_ns=duration, gap_ns=gap, transfers=transfers)


def _simulated(fit: Calibration, step: Performed, policy: Policy) -> Performed:
    times = _with_fit(fit, step).times(held=False)
    return performed(run_order(step.order, times, policy, partial=step.partial))


def _warnings(
    fit: Calibration, steps: Sequence[Performed], error: float, shared: Sharing | None, *, measured: bool
) -> Iterator[str]:
    actions = sum(len(step) for step in steps)
    if any(step.partial for step in steps):
        yield (
            f"ranks or actions are missing: the pipeline is taken to have {fit.stages} stages on {fit.ranks} "
            "ranks (--layout pp=N says otherwise), and stages that nobody recorded take the mean of the others"
        )
    if error > _DOUBTFUL:
        yield f"the fit gives its own step back only to {error:.1%}: what it says of other schedules is worth less"
    if shared is not None:
        yield (
            f"actions take {shared.ratio:.1f} times as long while {shared.many:.1f} ranks compute as while "
            f"{shared.few:.1f} do: they share processors, memory or power, and schedules that keep more or fewer "
            "of them computing at once take longer or shorter than predicted"
        )
    if measured and fit.gaps < _SEEN_SELDOM * actions:
        yield (
            f"of {actions} actions {fit.gaps} waited for no message: what the host does between actions was "
            "hardly seen, and schedules that wait less come out short"
        )
    if fit.link is None and fit.node_link is None and any(len(step.transfers) for step in steps):
        yield "no message's arrival was seen: messages take no time here"
