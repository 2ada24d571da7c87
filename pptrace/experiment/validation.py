"""What the validation of gradients adds to a step: a meeting of all ranks, nothing, or an update done again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.config.choices import Validation

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment
    from pptrace.model.workload import Workload

__all__ = ["with_validation"]

_UPDATES_WHERE_IT_FAILS = 3
"""The update, its undoing, which takes as long, and the update with the true norm."""


def with_validation(experiment: Experiment, workload: Workload) -> Workload:
    """Return a step's costs with its validation before the update, after it, or failed.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 4. Behind the update,
    the norm goes around while the next step warms up, which costs no rank time. A failed step is one whose ranks
    update their weights for nothing, meet, undo that and update them again; all of it comes behind the last rank's
    last action.
    """
    validation = experiment.data_parallel.validation
    if validation is Validation.AFTER:
        return replace(workload, sync_ns=0)
    if validation is Validation.FAILED:
        return replace(workload, optimizer_ns=_UPDATES_WHERE_IT_FAILS * workload.optimizer_ns)
    return workload
