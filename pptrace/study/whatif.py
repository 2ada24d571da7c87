"""What single changes would bring: each is simulated, on as many GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pptrace.errors import PptraceError
from pptrace.experiment.altered import at_speeds, evened
from pptrace.experiment.candidates import value_of
from pptrace.experiment.run import run_prepared
from pptrace.experiment.unlike import changed
from pptrace.network.flat import ideal
from pptrace.sim.contention import Contention, Sharing
from pptrace.study.lost import step_without
from pptrace.study.reason import short_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.run import Run

__all__ = ["WhatIf", "WhatIfs", "whatif"]

_FREE = 1e9
"""Communication that is so many times as fast takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change."""

    name: str
    """What changes."""
    step_ns: int | None
    """The step with it, for as many sequences; None where it cannot be simulated."""
    saved_ns: int = 0
    """By how much it is shorter; below zero where it is longer."""
    note: str = ""
    """Why there is no step, or what else to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfs:
    """A step and what each change would bring."""

    run: Run
    """The step."""
    rows: tuple[WhatIf, ...]
    """The changes; the first says what the largest lever is."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, times in ns."""
        step = self.run.metrics.step_ns
        rows = [
            {"change": row.name, "step_ns": row.step_ns, "saved_ns": row.saved_ns,
             "saved": row.saved_ns / step if step else 0.0, "note": row.note or None}
            for row in self.rows
        ]  # fmt: skip
        return {"step_ns": step, "lever": str(self.run.lever), "changes": rows, "provenance": self.run.provenance}

    def summary(self) -> str:
        """Return the lines that the command line prints."""
        from pptrace.study.whatif_text import whatif_lines

        return "\n".join(whatif_lines(self))

    def __str__(self) -> str:
        return self.summary()


def whatif(run: Run, *, lost: int = 0) -> WhatIfs:
    """Simulate a step again with one thing changed at a time.

    - Twice the bandwidth: all communication takes half its time, latencies included. Free network: none.
    - Half the bubble: twice as many microbatches of half the work each.
    - Even stages: each computes the mean of all.
    - No stragglers: devices of one speed, where the costs say that they differ (``spread``, ``skew``).
    - One more microbatch: the step for as many sequences as before, of a batch that is one larger.
    - Workers lost: their microbatches go to the replicas of their stages (Gandhi et al., ReCycle, SOSP 2024).

    Args:
        run: the simulated step.
        lost: workers that fail; none unless given.

    Raises:
        ConfigError: more workers lost than leave a replica of each stage.
    """
    step = run.metrics.step_ns
    changes: list[tuple[str, Callable[[Run], int | None]]] = [
        ("bandwidth x2", _faster),
        ("free network", _free),
        ("half the bubble", _half_bubble),
        ("even stages", _even),
        ("no stragglers", _no_stragglers),
        ("one more microbatch", _one_more),
    ]
    rows = [WhatIf(name=f"largest lever: {run.lever}", step_ns=step)]
    rows += [_row(name, change, run) for name, change in changes]
    if lost:
        rows.append(
            _row(f"{lost} worker{'s' * (lost > 1)} lost, re-routed", lambda own: step_without(own, lost), run)
        )
    return WhatIfs(run=run, rows=tuple(rows))


def _row(name: str, change: Callable[[Run], int | None], run: Run) -> WhatIf:
    try:
        step = change(run)
    except PptraceError as error:
        return WhatIf(name=name, step_ns=None, note=short_reason(error))
    if step is None:
        return WhatIf(name=name, step_ns=None, note="nothing to change")
    return WhatIf(name=name, step_ns=step, saved_ns=run.metrics.step_ns - step)


def _faster(run: Run) -> int | None:
    return run_prepared(at_speeds(run.prepared, communication=2), run.registry).metrics.step_ns


def _free(run: Run) -> int | None:
    free = at_speeds(run.prepared, communication=_FREE)
    free = changed(free, network=ideal(), contention=Contention(links=Sharing.NONE))
    return run_prepared(free, run.registry).metrics.step_ns


def _half_bubble(run: Run) -> int | None:
    """Return the step of twice as many microbatches, each of half the work."""
    if run.prepared.schedule.ranks == 1 or run.prepared.table is not None:
        return None
    batch = run.prepared.resolved.experiment.batch
    twice = run.under(_with_microbatches(run.prepared.resolved, 2 * batch.known_microbatches))
    halved = changed(twice.prepared, lambda costs: costs.scaled(Fraction(1, 2)))
    return run_prepared(halved, run.registry).metrics.step_ns


def _even(run: Run) -> int | None:
    differing = run.prepared.differing
    workload = run.prepared.workload if differing is None else differing.costs
    even = evened(workload)
    if (even.f_ns == workload.f_ns).all() and (even.b_ns == workload.b_ns).all():
        return None
    return run_prepared(changed(run.prepared, evened), run.registry).metrics.step_ns


def _no_stragglers(run: Run) -> int | None:
    resolved = run.prepared.resolved
    slow = [key for key in ("costs.spread", "costs.skew") if _positive(value_of(resolved, key))]
    sets = [f"{key}=0{' ns' * (key == 'costs.skew')}" for key in slow]
    reduction = resolved.experiment.data_parallel
    sets += ["data_parallel.speeds="] * bool(reduction.speeds)
    sets += ["data_parallel.spread=0"] * bool(reduction.spread)
    return run.under(resolved.again(sets, {})).metrics.step_ns if sets else None


def _positive(value: object) -> bool:
    return str(value).split(" ")[0] not in {"None", "0", "0.0"}


def _one_more(run: Run) -> int | None:
    if run.prepared.table is not None:
        return None
    count = run.prepared.resolved.experiment.batch.known_microbatches
    more = run.under(_with_microbatches(run.prepared.resolved, count + 1))
    return round(Fraction(more.metrics.step_ns * count, count + 1))


def _with_microbatches(resolved: Resolved, count: int) -> Resolved:
    experiment = resolved.experiment
    total = count * experiment.parallel.dp * experiment.batch.micro
    written: Sequence[str] = [key for key in ("batch.microbatches", "batch.global") if key in resolved.positions]
    values = {"batch.microbatches": count, "batch.global": total}
    return resolved.again([f"{key}={values[key]}" for key in written], {})
