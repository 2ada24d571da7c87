"""Sizes and options that the schedule cannot take are one line with what would do."""

from __future__ import annotations

from typing import Any

import pytest

from pptrace.api import simulate
from pptrace.errors import PptraceError

NEAREST = "11 microbatches or more, not 10; with warm_up: lean, 10 are enough; nearest that work: 11 microbatches"
LINES = [
    ({"microbatches": 10}, {}, 1, f"stp's warm-up on 4 ranks takes {NEAREST}"),
    ({"microbatches": 7}, {}, 1, "stp's warm-up on 4 ranks takes 11 microbatches or more, not 7; nearest"),
    ({"microbatches": 7}, {"warm_up": "lean"}, 1, "stp's lean warm-up on 4 ranks takes 8 microbatches or more"),
    ({"microbatches": 12}, {}, 3, "stp has two chunks of the model on a rank, not 3; nearest that work: 2"),
    ({"microbatches": 12}, {"warm_up": "slow"}, 1, "options.warm_up: unknown value 'slow' (known: full, lean)"),
    ({"microbatches": 12}, {"offload_steady": 1.5}, 1, "options.offload_steady: must be at most 1, not 1.5"),
    ({"microbatches": 12}, {"offload": 1}, 1, "schedule.options.offload: unknown key"),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "options", "chunks", "line"), LINES)
def test_a_wrong_size_or_option_is_one_line(
    batch: dict[str, int], options: dict[str, Any], chunks: int, line: str
) -> None:
    step = {"schedule": {"name": "stp", "options": options}, "parallel": {"pp": 4, "vp": chunks}, "batch": batch}

    with pytest.raises(PptraceError) as caught:
        simulate(step)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("microbatches", "options"), [(11, {}), (8, {"warm_up": "lean"})])
def test_the_nearest_size_runs(microbatches: int, options: dict[str, Any]) -> None:
    step = {"schedule": {"name": "stp", "options": options}, "parallel": {"pp": 4}}

    run = simulate({**step, "batch": {"microbatches": microbatches}})

    assert run.prepared.resolved.experiment.parallel.vp == 2
    assert run.metrics.step_ns > 0
