"""Where no group names a rank's pipeline, other groups or the rank's stages say how many ranks it has."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from pptrace.plugin import Action, Kind
from pptrace_profilers.measurement import infer_pipeline_group, ranks_by_stages
from pptrace_profilers.recording import Executions, Recording

NAMES = {"dp": "data_parallel_group", "cp": "mesh_cp", "tp": "TENSOR_MODEL_PARALLEL_GROUP"}


@pytest.mark.parametrize("order", list(permutations(["pp", "dp", "cp", "tp"])))
@pytest.mark.parametrize("sizes", [(4, 2, 3, 2), (2, 3, 1, 4), (3, 1, 1, 2), (5, 2, 1, 1)])
def test_what_other_axes_leave_is_the_pipeline(order: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    size = dict(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))
    world = int(np.prod(sizes))
    grid = np.arange(world).reshape([size[axis] for axis in order])

    for rank in range(world):
        place = [int(at[0]) for at in np.nonzero(grid == rank)]
        along = {
            axis: tuple(grid[(*place[:number], slice(None), *place[number + 1 :])].tolist())
            for number, axis in enumerate(order)
        }
        groups = {name: along[axis] for axis, name in NAMES.items() if size[axis] > 1}
        assert infer_pipeline_group(groups, rank, world) == along["pp"]


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"mesh_dp": (0, 1, 2, 3, 4, 5, 6, 7)},  # nothing is left
        {"mesh_dp": (0, 3)},  # no number of ranks is divided so
        {"mesh_dp": (0, 2, 3)},  # not equally far apart
        {"mesh_dp": (0, 2)},  # two axes are left, before and behind
    ],
)
def test_groups_that_leave_no_axis_or_two_say_nothing(groups: dict[str, tuple[int, ...]]) -> None:
    assert infer_pipeline_group(groups, 0, 8) == ()


def holding(*stages: int) -> Recording:
    """Return the recording of a rank with actions on some stages."""
    actions = [Action(kind=Kind.F, stage=stage, microbatch=0) for stage in stages]
    executions = Executions(action=actions, start_ns=[0] * len(actions), end_ns=1)
    return Recording(path=Path("x"), rank=0, world=0, executions=executions)


@pytest.mark.parametrize(
    ("stages", "world", "ranks"),
    [
        ([(0, 4)], 8, 4), ([(1, 6)], 8, 4), ([(0, 3)], 4, 2), ([(0, 4, 8)], 16, 4), ([(2, 5, 10, 13)], 16, 4),
        ([(0, 3), (1, 2)], 12, 2), ([(0, 3), (1, 4)], 12, 3),
        ([(0, 3)], 12, 0),  # two ranks there and back, or three around
        ([(0,)], 8, 0), ([()], 8, 0), ([(0, 9)], 8, 0), ([(5, 6)], 8, 0),
    ],
)  # fmt: skip
def test_stages_of_a_rank_say_how_many_ranks_there_are(
    stages: list[tuple[int, ...]], world: int, ranks: int
) -> None:
    assert ranks_by_stages([holding(*its) for its in stages], world) == ranks
