"""The file of one rank alone is read, and its groups or a layout say where in the pipeline it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from gpu_run import GpuRun

from pptrace.config.choices import PolicyName
from pptrace.measured.computations import extract_computations
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
OWN = (2, 6)
"""The global ranks of the pipeline, in a job of eight."""


@pytest.mark.parametrize(
    ("groups", "layout"),
    [
        ({"mesh_pp": OWN}, ""), ({"PIPELINE_MODEL_PARALLEL_GROUP": OWN}, ""), ({}, "pp=2,dp=2,tp=2"),
        ({"mesh_tp": (6, 7), "mesh_dp": (4, 6)}, ""),
    ],
)  # fmt: skip
def test_one_rank_s_file_alone_is_read_and_has_its_place(
    groups: dict[str, tuple[int, ...]], layout: str, tmp_path: Path
) -> None:
    costs = Workload.uniform(2, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=200_000)
    timeline = simulate(
        Schedule.from_rows(ROWS), costs, Flat(rate_kbps=1_000_000), Policy(name=PolicyName.ORDERED)
    )
    _, path = GpuRun(timeline=timeline, said="arguments", ahead=True).write(tmp_path)
    trace = json.loads(path.read_text())
    config = [{"pg_name": "0", "pg_desc": name, "ranks": str(list(ranks))} for name, ranks in groups.items()]
    trace["distributedInfo"] = {"backend": "nccl", "rank": OWN[1], "world_size": 8, "pg_config": config}
    for event in trace["traceEvents"]:
        for way in {"Dst Rank", "Src Rank"} & event["args"].keys():
            event["args"][way] = OWN[event["args"][way]]
    path.write_text(json.dumps(trace))

    measured = measure_kineto([path], ImportRequest(layout=layout))

    assert (measured.numbers, measured.ranks) == ((1,), len(OWN))
    assert "no file of rank 2: only the recorded ranks are read" in measured.notes
    (step,) = measured.steps
    assert extract_computations(step.timeline).order.rows() == [ROWS[1]]
