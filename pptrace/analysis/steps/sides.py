"""The sides of a diff: a configuration or table that is simulated, a trace of ours, a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.medians import median_step
from pptrace.analysis.steps.times import performed
from pptrace.errors import ConfigError
from pptrace.model.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed
    from pptrace.experiment.prepare import Prepared
    from pptrace.experiment.run import Run
    from pptrace.timeline.measurement import Measurement, Step
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Timeline

__all__ = ["Side", "measured_side", "no_actions", "simulated_side"]

_NO_ACTIONS = (
    "holds no action of a pipeline that is recognised; if its annotations have names of their own, say which in a "
    "file: --rules FILE; pptrace annotate prints what makes them, pptrace explain what else is in it"
)
"""What a trace without actions is refused with."""
_TOLD = 4
"""Notes of it that are repeated there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side."""

    name: str
    """As the user named it."""
    measured: bool
    """Whether it was recorded, and not simulated."""
    steps: tuple[Step, ...]
    """Its steps, one where it is simulated; of recorded ones, those that lack no action that another has."""
    chosen: int
    """The step that is compared."""
    workload: Workload
    """What it costs, for memory; all zero where that is unknown."""
    measurement: Measurement | None = None
    """Everything that was recorded."""
    run: Run | None = None
    """The simulation."""
    simulation: Prepared | None = None
    """What gives the step again, its waits included, where it was simulated; None where that is not known."""
    incomplete: tuple[str, ...] = ()
    """What is to be said of each recorded step that is left out."""
    pools: bool = False
    """Whether actions and messages take the median of their times in all steps, and not the chosen one's."""

    @property
    def timeline(self) -> Timeline:
        """The step that is compared."""
        return self.steps[self.chosen].timeline

    @property
    def performed(self) -> Performed:
        """Its computations."""
        if not self.pools:
            return performed(self.timeline, lacks_ranks=bool(self.numbers))
        every = self.every
        return median_step(every.pop(self.chosen), every)

    @property
    def every(self) -> list[Performed]:
        """The computations of each of its steps, with its own times."""
        return [performed(step.timeline, lacks_ranks=bool(self.numbers)) for step in self.steps]

    @property
    def spans_ns(self) -> tuple[int, ...]:
        """Lengths of the pipeline in all of its steps."""
        return tuple(step.span_ns for step in self.every)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The ranks' numbers where recordings of others are missing; empty where none are."""
        return () if self.measurement is None else self.measurement.numbers

    @property
    def metrics(self) -> Metrics:
        """What it amounts to."""
        return measure(self.timeline, self.workload)


def no_actions(measurement: Measurement) -> str:
    """Return what a trace without actions is refused with: what to do, and what was noted of it."""
    noted = "; ".join(measurement.notes[-_TOLD:])
    return f"{_NO_ACTIONS} (noted: {noted})" if noted else _NO_ACTIONS


def simulated_side(run: Run, name: str) -> Side:
    """Return a simulated side."""
    from pptrace.timeline.measurement import Step

    step = Step(label="simulated", timeline=run.timeline, gap_ns=np.zeros(len(run.timeline), dtype=np.int64))
    return Side(name=name, measured=False, steps=(step,), chosen=0, workload=run.prepared.workload, run=run)


def measured_side(measurement: Measurement, name: str, step: str = "median", *, measured: bool = True) -> Side:
    """Return a side of recorded steps; those that lack actions are left out unless one is asked for.

    Args:
        measurement: what was recorded.
        name: what to call it.
        step: a step's number, ``median`` for the one of median length, or ``all`` for that one with every action's
            and message's time the median over all steps.
        measured: false for a trace that pptrace wrote of a simulation.

    Raises:
        ConfigError: no such step, or no step at all.
    """
    if not measurement.steps:
        raise ConfigError(no_actions(measurement), file=name)
    every = [performed(one.timeline) for one in measurement.steps]
    most = max(len(one) for one in every)
    whole = [number for number, one in enumerate(every) if len(one) == most]
    if step in {"median", "all"}:
        lengths = [every[number].span_ns for number in whole]
        chosen = whole[int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])]
    else:
        chosen = _numbered(measurement, step)
    kept = whole if chosen in whole else [chosen]
    placement = measurement.steps[chosen].timeline.placement
    return Side(
        name=name,
        measured=measured,
        steps=tuple(measurement.steps[number] for number in kept),
        chosen=kept.index(chosen),
        workload=Workload.uniform(placement.stages, edges=len(placement.edges), f_ns=0, b_ns=0),
        measurement=measurement,
        incomplete=tuple(
            f"{measurement.steps[number].label} has {len(one)} of {most} actions"
            f"{': left out' if number not in kept else ''}"
            for number, one in enumerate(every)
            if len(one) < most
        ),
        pools=step == "all" and len(kept) > 1,
    )


def _numbered(measurement: Measurement, step: str) -> int:
    """Return the number that a step is asked for by."""
    steps = measurement.steps
    if step.isdecimal() and int(step) < len(steps):
        return int(step)
    known = f"0 ({steps[0].label})" + (f" to {len(steps) - 1} ({steps[-1].label})" if len(steps) > 1 else "")
    raise ConfigError(f"no step {step}: there are {known}, and median, and all", file=f"--step {step}")
