"""One configuration of a plan, simulated wherever an executor has it run: plain values in, a row out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pptrace.config.resolve import load
from pptrace.errors import PptraceError
from pptrace.experiment.altered import at_speeds, jittered
from pptrace.experiment.prepare import prepare
from pptrace.experiment.run import run_prepared
from pptrace.hooks.call import one_line
from pptrace.hooks.registry import Registry
from pptrace.kernel import always_compiled
from pptrace.study.point import plugins_text
from pptrace.study.reason import short_reason
from pptrace.study.row import figures_of
from pptrace.timeline.metrics import IdleCause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.config.overrides import Assignment
    from pptrace.config.yaml_file import Document
    from pptrace.experiment.prepare import Prepared
    from pptrace.experiment.run import Run
    from pptrace.study.row import Row

__all__ = ["TRIALS", "Trial", "installed", "run_candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What another machine may be like."""

    name: str
    compute: float = 1.0
    """The speed of computation, of what the costs say."""
    communication: float = 1.0
    """The speed of communication."""
    jitter: float = 0.0
    """Standard deviation of computations by stage and microbatch."""
    seed: int = 0

    def altered(self, prepared: Prepared) -> Prepared:
        """Return a step on such a machine."""
        if self.jitter:
            return jittered(prepared, self.seed, self.jitter)
        return at_speeds(prepared, self.compute, self.communication)


TRIALS = (
    Trial(name="bandwidth -20%", communication=0.8),
    Trial(name="bandwidth +20%", communication=1.2),
    Trial(name="efficiency -10%", compute=0.9),
    Trial(name="efficiency +10%", compute=1.1),
    *(Trial(name=f"jitter 5%, seed {seed}", jitter=0.05, seed=seed) for seed in range(1, 5)),
)
"""Machines on which the first places of a plan are simulated again."""


def run_candidate(
    document: Document, varied: Sequence[Assignment], trial: Trial | None, registry: Registry | None = None
) -> Row:
    """Simulate one configuration and return its figures, or why there are none as its ``error``.

    Args:
        document: what all configurations have in common.
        varied: what this one sets.
        trial: another machine to simulate it on; the configuration's own unless given.
        registry: the plugins; those that are installed where this runs by default.
    """
    try:
        with always_compiled():
            prepared = prepare(load(document, (), {}, varied), registry or installed())
            run = run_prepared(trial.altered(prepared) if trial else prepared, registry or installed())
    except PptraceError as error:
        return {"error": short_reason(error)}
    except MemoryError:
        return {"error": "out of memory: take fewer --workers"}
    except Exception as error:  # noqa: BLE001 - one configuration that fails costs no other
        return {"error": f"{one_line(error)} (a bug: pptrace simulate shows where)"}
    return {**figures_of(run), **_where(run), "error": None, "plugins": plugins_text(prepared.plugins)}


def _where(run: Run) -> Row:
    """Return where the step's time goes on the mean rank; the parts sum to the step."""
    metrics = run.metrics
    ranks = metrics.ranks or 1
    idle = metrics.idle_ns.sum(axis=0) / ranks
    collectives = float(metrics.collective_ns.sum()) / ranks
    waits = [IdleCause.FILL, IdleCause.DRAIN, IdleCause.PEER_COMPUTE, IdleCause.SLOWER_REPLICA]
    waiting = float(idle[waits].sum())
    messages = float(idle[IdleCause.TRANSFER] + idle[IdleCause.CONTENTION] + idle[IdleCause.HEAD_OF_LINE])
    reduction = float(idle[IdleCause.REDUCTION])
    rest = metrics.step_ns - collectives - waiting - messages - reduction
    return {
        "mean_compute_ns": round(rest), "mean_collectives_ns": round(collectives),
        "mean_waiting_ns": round(waiting), "mean_messages_ns": round(messages),
        "mean_reduction_ns": round(reduction),
    }  # fmt: skip


@cache
def installed() -> Registry:
    """Return the installed plugins, loaded once per process."""
    return Registry.load(warn=lambda _: None)
