"""Ranks that share a channel to the host: their copies take turns in the model, in tables and in the simulator."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from toy_pipelines import effort, optimum, toy

from pptrace.api import simulate as run
from pptrace.plugin import Kind, Placement, measure, simulate
from pptrace.steps.text_forms import parse_table, table_text
from pptrace.steps.workload import Workload
from pptrace_optpipe.command import command
from pptrace_optpipe.search import search
from pptrace_optpipe.setting import rows_of_table, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.plugin import Timeline
    from pptrace_optpipe.problem import Problem

PAIRS = ((0, 1), (2, 3))


@pytest.fixture(autouse=True)
def _argued_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave counts out of searches, as no bound has to be tight."""
    monkeypatch.setattr("pptrace_optpipe.bounds._MOST_COUNTS", 0)


def paired(problem: Problem, took: int) -> Problem:
    """Return a problem of pairs on one channel, with copies that take so long."""
    return replace(problem, shared=PAIRS, offload=(took,) * 4, reload=(took,) * 4)


def overlaps(timeline: Timeline) -> int:
    """Return how many copies of a pair and a direction start before the one in front has ended."""
    found = 0
    for pair in PAIRS:
        for kind in (Kind.OFFLOAD, Kind.RELOAD):
            own = (timeline.kind == kind) & (timeline.stage // 2 == pair[0] // 2)
            times = sorted(zip(timeline.start_ns[own].tolist(), timeline.end_ns[own].tolist(), strict=True))
            found += sum(item[1] > other[0] for item, other in pairwise(times))
    return found


@pytest.mark.parametrize("took", [1, 3, 5])
def test_a_table_holds_the_turns_that_were_searched_for(took: int) -> None:
    problem = paired(toy(4, 8, 2, copies=True), took)
    search_result = search(problem, effort(0.1))
    assert search_result is not None

    written = parse_table(table_text(table_of(search_result.schedule.rows, Placement.looped(4, 8, 1)))).schedule
    costs = Workload.uniform(
        4, activation_bytes=problem.activation, weight_activation_bytes=problem.weight_activation,
        **{f"{name}_ns": getattr(problem, name) for name in ("f", "i", "w", "offload", "reload")},
    )  # fmt: skip
    timeline = simulate(written, costs)

    assert rows_of_table(written) == search_result.schedule.rows
    assert timeline.end_ns.max() == search_result.schedule.played.step
    assert max(measure(timeline, costs).memory.peak_activation_bytes) <= 4
    assert overlaps(timeline) == 0


def test_sharing_is_never_faster_and_no_slower_than_waiting_for_both() -> None:
    alone = replace(toy(2, 3, 1.5, copies=True), offload=(2, 2), reload=(2, 2))
    steps = [
        optimum(item, effort(30)).length
        for item in (alone, replace(alone, shared=((0, 1),)), replace(alone, offload=(4, 4), reload=(4, 4)))
    ]

    assert None not in steps
    assert steps == sorted(steps, key=lambda one: one or 0)


COSTS = {
    "name": "table", "forward": "10 ms", "input_gradient": "10 ms", "weight_gradient": "10 ms",
    "offload": "8 ms", "reload": "8 ms", "activation": "2 GiB", "weight_activation": "1 GiB", "weights": "3 GiB",
}  # fmt: skip


CLUSTER = {
    "gpus": 4, "nics": 1, "node": {"name": "pcie", "gpus_per_switch": 2},
    "fabric": {"name": "infiniband-fat-tree", "generation": "hdr"},
}  # fmt: skip
"""Ranks 0 and 1 are behind one switch, and so are 2 and 3."""


@pytest.mark.parametrize(
    ("copies", "cluster"),
    [("pair", None), ("direction", None), ("cluster", CLUSTER), ("cluster", None)],
)
def test_the_command_searches_for_the_channels_that_there_are(
    copies: str, cluster: dict[str, object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "schedules,stp")
    step = {"parallel": {"pp": 4}, "batch": {"microbatches": 5}, "costs": COSTS}
    if cluster:
        pytest.importorskip("pptrace_networks")
        step["cluster"] = cluster
    (tmp_path / "step.yaml").write_text(json.dumps(step), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given = ["step.yaml", "--memory", "8GiB", "--work", "0.1", "--copies", copies, "--no-cache", "-o", "best.csv"]

    values = json.loads(CliRunner().invoke(command, [*given, "--json"], catch_exceptions=False).stdout)
    played = run("step.yaml", schedule="best.csv")

    assert played.metrics.step_ns == values["step_ns"]
    assert max(values["peak_bytes"]) <= 8 * 2**30
    assert any(map(any, values["offloaded"]))
    assert (overlaps(played.timeline) == 0) == (copies == "pair" or cluster is not None)


@pytest.mark.parametrize(("copies", "cluster"), [("cluster", CLUSTER), ("pair", None), ("direction", CLUSTER)])
def test_a_search_in_place_knows_the_channels_that_there_are(
    copies: str, cluster: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "schedules,stp")
    if cluster:
        pytest.importorskip("pptrace_networks")
    options = {"work": 0.02, "cache": False, "copies": copies, "activations": "5 GiB"}
    played = run(
        schedule={"name": "optpipe", "options": options}, parallel={"pp": 4}, batch={"microbatches": 5},
        costs=COSTS, **({"cluster": cluster} if cluster else {}),
    )  # fmt: skip

    assert (played.timeline.kind == Kind.OFFLOAD).any()
    assert max(played.metrics.memory.peak_activation_bytes) <= 5 * 2**30
    assert (overlaps(played.timeline) == 0) == (copies != "direction")
