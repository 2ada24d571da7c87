"""The policy ``torch`` refuses what PyTorch 2.13's schedule classes refuse, and takes what they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace
from oracle_pytorch_tables import lowered, without_weights

import pptrace
from pptrace.errors import ConstraintError
from pptrace.plugin import Schedule
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable


def in_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % max(1, microbatches // ranks) == 0


PYTORCH: dict[str, tuple[int, Callable[[int, int], bool]]] = {
    "gpipe": (1, lambda _ranks, _microbatches: True),
    "1f1b": (1, lambda ranks, microbatches: microbatches >= ranks or microbatches == 1),
    "interleaved-1f1b": (2, in_rounds),
    "looped-bfs": (2, lambda _ranks, _microbatches: True),
    "zb-h1": (1, in_rounds),
    "interleaved-zb": (2, in_rounds),
    "zb-v": (2, lambda _ranks, _microbatches: True),
    "dualpipe-v": (2, lambda ranks, microbatches: microbatches >= 2 * ranks),
}
"""Chunks per rank, and which sizes the class of PyTorch 2.13 that makes this order takes; one microbatch in the
order of 1F1B is ``ScheduleGPipe``'s."""


@pytest.mark.parametrize("schedule", PYTORCH)
def test_torch_takes_the_sizes_that_pytorch_s_classes_take(schedule: str) -> None:
    chunks, takes = PYTORCH[schedule]
    registry = Registry.load()
    fixed = {"order": "fixed"} if "zb" in schedule else {}

    for ranks in (1, 2, 3):
        for microbatches in range(1, 8):
            step = {
                "schedule": {"name": schedule, "options": fixed}, "parallel": {"pp": ranks, "vp": chunks},
                "batch": {"microbatches": microbatches}, "p2p": "torch",
            }  # fmt: skip
            if takes(ranks, microbatches):
                assert pptrace.simulate(step, registry=registry).metrics.step_ns > 0
            else:
                with pytest.raises(ConstraintError):
                    pptrace.simulate(step, registry=registry)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_table_runtime_sends_and_receives_as_pytorch_lowers_the_table(schedule: str) -> None:
    table = pptrace.simulate(schedule=schedule, pp=4, microbatches=8).prepared.schedule
    torch = Registry.load().message_policies["torch"]

    options = ({}, {"table_runtime": True})
    of_class, of_table = (
        build_policy(torch, table, checked_options(torch, values, "p2p.options")) for values in options
    )

    assert of_class.program is not None
    assert of_table.lowering is not None
    assert without_weights(of_table.lowering(table).rows()) == without_weights(lowered(table.rows(), 8))


def test_torch_refuses_stages_that_skip_others() -> None:
    table = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]])
    skip = replace(table.placement, edges=np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32))
    torch = Registry.load().message_policies["torch"]
    options = checked_options(torch, {}, "p2p.options")

    assert build_policy(torch, table, options).label == "torch"
    with pytest.raises(ConstraintError, match="it has stages that do not form a chain"):
        build_policy(torch, replace(table, placement=skip), options)
