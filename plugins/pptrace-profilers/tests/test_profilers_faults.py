"""A fault that is injected into a recorded run is the first cause of the diff, and no other cause is invented."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from faulty_runs import MS, healthy_step, slow_actions, slow_link, write_run
from msgspec.structs import replace

import pptrace
from pptrace.measured.computations import extract_computations
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.kinds import Kind
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.measured.computations import Computations
    from pptrace.measured.diff import StepDiff

SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved-1f1b": 2}
FAULTS: dict[str, tuple[Callable[[Computations], Computations], str, str]] = {
    "forwards": (lambda step: slow_actions(step, 1.15, kind=Kind.F), "slow kind", "forward on all ranks"),
    "backwards": (lambda step: slow_actions(step, 0.8, kind=Kind.B), "fast kind", "backward on all ranks"),
    "everything": (lambda step: slow_actions(step, 1.1), "drift", "all ranks"),
    "rank": (lambda step: slow_actions(step, 1.2, rank=2), "slow rank", "rank 2"),
    "fast-rank": (lambda step: slow_actions(step, 0.7, rank=1), "fast rank", "rank 1"),
    "kind-of-rank": (
        lambda step: slow_actions(step, 1.3, kind=Kind.B, stage=3), "slow stage", "backward of stage 3 on rank 3"
    ),
    "link-forward": (lambda step: slow_link(step, 6 * MS, (1, 2)), "slow link", "rank 1 to rank 2"),
    "link-backward": (lambda step: slow_link(step, 6 * MS, (2, 1)), "slow link", "rank 2 to rank 1"),
    "network": (lambda step: slow_link(step, 4 * MS), "slow network", "all "),
}  # fmt: skip


def step_of(schedule: str) -> Computations:
    registry = Registry.load()
    request = ScheduleRequest(ranks=4, microbatches=8, chunks=SCHEDULES[schedule], options={})
    return healthy_step(build_schedule(registry.schedules[schedule], request))


def compared(first: Path, second: Path) -> StepDiff:
    return pptrace.diff(first, second).findings


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        *(("1f1b", fault) for fault in FAULTS),
        *product(("gpipe", "interleaved-1f1b"), ("backwards", "rank", "kind-of-rank", "link-backward")),
    ],
)
def test_a_fault_is_the_first_cause_and_the_only_one(schedule: str, fault: str, tmp_path: Path) -> None:
    inject, kind, what = FAULTS[fault]
    step = step_of(schedule)
    found = compared(write_run(tmp_path / "a", step), write_run(tmp_path / "b", inject(step)))

    first, *others = found.causes
    assert (first.kind, first.what.startswith(what)) == (kind, True), found.causes
    assert all(abs(other.effect_ns.value) <= 0.1 * abs(first.effect_ns.value) for other in others), others
    assert first.effect_ns.value * found.step_ns.change.value > 0
    # Without the fault, the replay has the length of the healthy step.
    assert first.effect_ns.value == pytest.approx(found.step_ns.change.value, rel=0.15)
    (rest,) = (rung.change_ns.value for rung in found.ladder if rung.name == "not explained by replays")
    assert abs(rest) <= 0.02 * abs(found.step_ns.change.value)


RECORDED = {
    "1f1b": "link-forward", "dualpipev": "link-forward", "gpipe": "link-backward", "looped_bfs": "link-backward",
    "interleaved_zb": "link-forward", "zb_h1_csv": "link-backward", "zbv": "link-backward",
}  # fmt: skip
"""Recorded runs, each with the direction of its slow link."""


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, link in RECORDED.items() for fault in ("rank", link)]
)
def test_a_fault_in_a_recorded_run_is_the_only_cause_in_spite_of_its_noise(
    name: str, fault: str, tmp_path: Path
) -> None:
    paths = sorted((Path(__file__).parent / "fixtures" / f"sleep-{name}").glob("rank*.json.gz"))
    step = extract_computations(measure_kineto(paths, ImportRequest()).steps[0].timeline)
    inject, kind, what = FAULTS[fault]
    found = compared(write_run(tmp_path / "a", step), write_run(tmp_path / "b", inject(step)))

    assert [(cause.kind, cause.what.startswith(what)) for cause in found.causes] == [(kind, True)]


HOSTS = ("a", "b", "c", "d")
AHEAD_NS = (0, 40 * MS, -3 * MS, 7 * MS)


@pytest.mark.parametrize("link", [(1, 2), (2, 1)])
def test_clocks_of_hosts_are_kept_so_that_the_direction_of_a_slow_link_is_known(
    link: tuple[int, int], tmp_path: Path
) -> None:
    step = step_of("1f1b")
    first = write_run(tmp_path / "a", step, HOSTS, AHEAD_NS)
    found = compared(first, write_run(tmp_path / "b", slow_link(step, 6 * MS, link), HOSTS, AHEAD_NS))

    assert [(cause.kind, cause.what) for cause in found.causes] == [
        ("slow link", f"rank {link[0]} to rank {link[1]}")
    ]
    assert found.causes[0].total_ns == pytest.approx(8 * 6 * MS, rel=0.01)
    assert found.ladder[-1].change_ns.value == 0


@pytest.mark.parametrize("link", [(1, 2), (2, 1)])
def test_where_clocks_may_have_moved_the_pair_of_ranks_is_named_without_a_direction(
    link: tuple[int, int], tmp_path: Path
) -> None:
    step = step_of("1f1b")
    moved = [ahead + 500 * MS * rank for rank, ahead in enumerate(AHEAD_NS)]
    first = write_run(tmp_path / "a", step, HOSTS, AHEAD_NS)
    found = compared(first, write_run(tmp_path / "b", slow_link(step, 6 * MS, link), HOSTS, moved))

    (cause,) = found.causes
    assert cause.kind == "slow link"
    assert cause.what.startswith("ranks 1 and 2, direction unknown: clocks are known to ±3.")
    assert cause.total_ns == pytest.approx(8 * 6 * MS, rel=0.05)


def test_ranks_of_one_host_share_its_clock_unless_their_messages_contradict(tmp_path: Path) -> None:
    step = step_of("1f1b")
    hosts = ("a", "a", "b", "b")
    shared = write_run(tmp_path / "shared", step, hosts, (0, 0, 9 * MS, 9 * MS))
    apart = write_run(tmp_path / "apart", step, hosts, (0, 0, 9 * MS, 30 * MS))
    clocks = [measure_kineto(sorted(run.iterdir()), ImportRequest()).clocks for run in (shared, apart)]

    assert (clocks[0][1].offset_ns, clocks[0][1].bound_ns, clocks[0][1].pairs) == (0, 0, 0)
    assert clocks[0][2].offset_ns == clocks[0][3].offset_ns == pytest.approx(-9 * MS, abs=clocks[0][2].bound_ns)
    assert clocks[1][3].offset_ns == pytest.approx(-30 * MS, abs=clocks[1][3].bound_ns)


def test_a_rank_that_is_the_slowest_of_most_steps_is_named_under_heavy_load(tmp_path: Path) -> None:
    step = step_of("1f1b")
    chance = np.random.default_rng(7)
    sides = []
    for name, factor in (("a", 1.0), ("b", 1.15)):
        folder = tmp_path / name
        for number in range(7):
            load = 1 + 0.12 * chance.random(4)[step.rank] + 0.1 * chance.random(len(step))
            loaded = replace(step, duration_ns=(step.duration_ns * load).astype(np.int64))
            write_run(folder, slow_actions(loaded, factor, rank=2), number=number)
        sides.append(folder)
    found = pptrace.diff(*sides, step="all").findings

    assert found.causes[0].kind == "slow rank"
    assert found.causes[0].what.startswith("rank 2 (its one stage, 2), the slowest in ")
    assert all(abs(other.effect_ns.value) <= 0.1 * found.causes[0].effect_ns.value for other in found.causes[1:])


def test_a_wait_inside_an_overlapped_pair_is_idle_time_and_no_longer_action(tmp_path: Path) -> None:
    paths = sorted((Path(__file__).parent / "fixtures" / "sleep-dualpipev").glob("rank*.json.gz"))
    step = extract_computations(measure_kineto(paths, ImportRequest()).steps[0].timeline)
    late = slow_link(step, 30 * MS)
    kineto = sorted(write_run(tmp_path / "late", late).iterdir())
    read = extract_computations(measure_kineto(kineto, ImportRequest()).steps[0].timeline)

    assert read.order == step.order
    assert read.span_ns > step.span_ns + 100 * MS
    medians = [np.median(side.duration_ns[(side.pair >= 0) & (side.kind == Kind.B)]) for side in (step, read)]
    assert medians[1] == pytest.approx(medians[0], rel=0.02)
