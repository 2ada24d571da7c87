"""One run as one row of a tidy table: every figure a column, units in the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pptrace.timeline.idle import IdleCause

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment
    from pptrace.experiment.run import Run
    from pptrace.study.levels import Levels

__all__ = ["FIGURES", "Cell", "Row", "figures_of", "gpus_of", "metrics_row"]

Cell: TypeAlias = "int | float | str | None"
Row: TypeAlias = "dict[str, Cell]"


FIGURES = (
    "step_ns", "formula_bubble", "table_bubble", "idle",
    *(f"idle_{cause.word.replace('-', '_')}" for cause in IdleCause),
    "exposed_communication_ns", "tokens_per_s", "gpus", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes",
    "device_memory_bytes", "fits", "peak_activation_bytes", "peak_activations",
)  # fmt: skip
"""The columns of :func:`metrics_row`."""


def metrics_row(levels: Levels) -> Row:
    """Return a run's figures: times in ns, sizes in bytes, shares as fractions of 1; None where unknown."""
    figures = figures_of(levels.run)
    formula = None if levels.formula is None else float(levels.formula)
    before = {"step_ns": figures.pop("step_ns"), "formula_bubble": formula, "table_bubble": float(levels.table)}
    return {**before, **figures}


def figures_of(run: Run) -> Row:
    """Return the figures of a simulated step alone, as :func:`metrics_row` has them."""
    metrics = run.metrics
    whole = metrics.ranks * metrics.step_ns
    gpus = gpus_of(run.prepared.resolved.experiment)
    return {
        "step_ns": metrics.step_ns,
        "idle": float(metrics.bubble),
        **{
            f"idle_{cause.replace('-', '_')}": time / whole if whole else 0.0
            for cause, time in metrics.idle_by_cause_ns.items()
        },
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "tokens_per_s": metrics.tokens_per_s,
        "gpus": gpus,
        "tokens_per_s_per_gpu": None if metrics.tokens_per_s is None else metrics.tokens_per_s / gpus,
        "mfu": metrics.mfu,
        "peak_memory_bytes": metrics.memory.fullest_bytes,
        "device_memory_bytes": metrics.memory.fullest_room_bytes or None,
        "fits": metrics.over_capacity is None,
        "peak_activation_bytes": int(metrics.memory.peak_activation_bytes.max(initial=0)),
        "peak_activations": int(metrics.memory.peak_activations.max(initial=0)),
    }


def gpus_of(experiment: Experiment) -> int:
    """Return the GPUs of a job: pp x tp x dp x cp."""
    parallel = experiment.parallel
    return (parallel.pp or 1) * parallel.tp * parallel.dp * parallel.cp
