"""What copies take in terms of computation, as PipeOffload's paper has it for A100s behind PCIe 3."""

from __future__ import annotations

import pytest
from toy_pipelines import toy

from pptrace_optpipe.bounds import copy_ratio
from pptrace_optpipe.problem import Problem

COMPUTE, HOST = 220e12, 15e9
"""FLOP/s, and bytes per second and direction, both directions at once."""
PRINTED = {
    4096: (1.70, 1.46, 1.15, 0.80), 8192: (0.92, 0.84, 0.72, 0.56), 10240: (0.74, 0.69, 0.61, 0.49),
}  # fmt: skip
BY_FORMULA = {
    4096: (1.71, 1.49, 1.19, 0.85), 8192: (0.92, 0.85, 0.75, 0.60), 10240: (0.75, 0.70, 0.63, 0.52),
}  # fmt: skip
SEQUENCES = (4096, 8192, 16384, 32768)


def layer(hidden: int, sequence: int) -> Problem:
    """Return a layer of a transformer: 20 sh bytes left by its forward, 24 sh^2 + 4 s^2 h FLOPs of it."""
    linear, attention = 24 * sequence * hidden**2, 4 * sequence**2 * hidden
    flops = {"f": linear + attention, "i": linear + 2 * attention, "w": linear}
    ns = {name: (round(count / COMPUTE * 1e9),) for name, count in flops.items()}
    copy = (round(20 * sequence * hidden / HOST * 1e9),)
    return Problem(
        microbatches=1, stage_rank=(0,), activation=(2,), weight_activation=(1,), limit=(2,), offload=copy,
        reload=copy, **ns,
    )  # fmt: skip


@pytest.mark.parametrize("hidden", PRINTED)
def test_the_ratio_of_a_layer_is_the_paper_s(hidden: int) -> None:
    found = [copy_ratio(layer(hidden, sequence), 0) for sequence in SEQUENCES]
    formula = [10 / (3 * (6 * hidden + sequence)) * COMPUTE / HOST for sequence in SEQUENCES]

    assert found == pytest.approx(formula, rel=1e-3)
    assert found == pytest.approx(BY_FORMULA[hidden], abs=0.006)
    assert found == pytest.approx(PRINTED[hidden], rel=0.08)


def test_without_copies_nothing_is_hidden() -> None:
    assert copy_ratio(toy(2, 2, 1, copies=False), 0) == float("inf")
    assert copy_ratio(toy(2, 2, 1, copies=True), 0) == pytest.approx(1 / 3)
