"""RoundPipe: the order of the authors' simulator, its partition, its bubble, and state in host memory."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.errors import ScheduleError
from pptrace.plugin import ConfigError, ConstraintError, Kind, ScheduleRequest
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import Registry
from pptrace.run.neighbourhood import schedules_of
from pptrace.steps.validation import validate
from pptrace_schedules.roundpipe import Times, _partition

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.steps.schedule import Schedule

PASSES = {"F", "RECOMPUTE", "B"}


def table(ranks: int, microbatches: int, **options: Any) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=2, options=options)
    return build_schedule(Registry.load().schedules["roundpipe"], request)


def dispatched(
    ranks: int, microbatches: int, forward: list[int], backward: list[int]
) -> tuple[list[list[str]], int]:
    """Return the rows of computations, and their time, by the rules of the artifact's README.

    Forwards and recomputed forwards take one unit, and backwards two. Passes of a round go to the ranks in turn,
    and the next round begins with the rank that is free first. Recomputation ends when the gradient arrives.
    """
    rows: list[list[str]] = [[] for _ in range(ranks)]
    free, first, layers = [0] * ranks, 0, sum(backward)
    for start in range(0, microbatches, ranks):
        number, arrived = 0, dict.fromkeys(range(start, min(start + ranks, microbatches)), 0)
        lowest = 0
        for size in forward:
            rank = (first + number) % ranks
            for microbatch in arrived:
                rows[rank] += [f"{stage}F{microbatch}" for stage in range(lowest, lowest + size)]
                free[rank] = arrived[microbatch] = max(free[rank], arrived[microbatch]) + size
            lowest, number = lowest + size, number + 1
        highest = layers
        for size in backward:
            rank, stages = (first + number) % ranks, range(highest - size, highest)
            for microbatch in arrived:
                name = "F" if highest == layers else "RECOMPUTE"
                rows[rank] += [f"{stage}{name}{microbatch}" for stage in stages]
                rows[rank] += [f"{stage}B{microbatch}" for stage in reversed(stages)]
                ready = arrived[microbatch] + (size if highest == layers else 0)
                free[rank] = arrived[microbatch] = max(free[rank] + size, ready) + 2 * size
            highest, number = highest - size, number + 1
        first = min(range(ranks), key=lambda rank: (free[rank], rank))
    return rows, max(free)


@pytest.mark.parametrize(("ranks", "microbatches", "forward", "backward"), [
    (2, 4, [3, 3], [1, 2, 2, 2]), (4, 8, [4, 4, 3], [2, 1, 3, 2, 2, 2, 1]), (3, 7, [5], [1, 1, 1, 3]),
    (3, 2, [1, 2], [1, 3]), (1, 3, [2], [1, 1, 1]), (4, 16, [2] * 5, [1] * 11),
])  # fmt: skip
def test_the_order_is_that_of_the_authors_simulator(
    ranks: int, microbatches: int, forward: list[int], backward: list[int]
) -> None:
    schedule = table(ranks, microbatches, forward=forward, backward=backward)
    validate(schedule)
    run = pptrace.simulate(
        {"schedule": {"name": "roundpipe", "options": {"forward": forward, "backward": backward}}},
        pp=ranks, microbatches=microbatches,
    )  # fmt: skip
    computed = [
        [str(action) for action in run.prepared.schedule[rank] if action.kind.name in PASSES]
        for rank in range(ranks)
    ]

    rows, length = dispatched(ranks, microbatches, forward, backward)
    assert computed == rows
    assert run.metrics.step_ns == length * run.prepared.workload.f_ns[0]


@pytest.mark.parametrize(("ranks", "rounds"), [(4, 1), (4, 3), (8, 2)])
def test_equal_passes_have_the_bubble_of_the_closed_form(ranks: int, rounds: int) -> None:
    """With a backward of two forwards, a forward pass of three stages is as long as any other pass of one."""
    backward = [1] * 10
    run = pptrace.simulate(
        {"schedule": {"name": "roundpipe", "options": {"forward": [3] * 3, "backward": backward}}},
        pp=ranks, microbatches=ranks * rounds,
    )  # fmt: skip

    fill = ranks * (ranks - 1)
    assert run.metrics.bubble == Fraction(fill, ranks * rounds * (3 + len(backward)) + fill)


@pytest.mark.parametrize(("times", "head", "forward", "backward"), [
    ((18.5, 41.2), (37.2, 74.5), [5, 9, 9, 9], [1, *[1] * 32]),
    ((43.0, 58.4), (42.4, 43.3), [2] * 47, [1, *[1] * 94]),
])  # fmt: skip
def test_the_default_partition_is_the_best_under_the_authors_limit(
    times: tuple[float, float], head: tuple[float, float], forward: list[int], backward: list[int]
) -> None:
    layers = sum(forward)
    forwards, backwards = (
        [round(10 * one)] * layers + [round(10 * last)] for one, last in zip(times, head, strict=True)
    )
    request = ScheduleRequest(ranks=8, microbatches=16)
    partition = _partition(request, Times(forwards, forwards, backwards, 0))

    whole = [before + after for before, after in zip(forwards, backwards, strict=True)]
    times_of = [sum(forwards[stage] for stage in stages) for stages in partition.forward]
    times_of += [sum(whole[stage] for stage in stages) for stages in partition.backward]
    given = [sum(forwards[:size]) for size in forward] + [sum(whole[:size]) for size in backward[1:]]
    assert max(times_of) <= 1.1 * max(whole)
    assert len(times_of) * max(times_of) <= (len(given) + 1) * max(*given, whole[-1])


def test_a_rank_holds_the_weights_of_two_passes_and_no_other_state() -> None:
    costs = {
        "name": "table", "forward": "1 ms", "backward": "2 ms", "weights": "8 MB", "gradients": "8 MB",
        "optimizer": "48 MB", "activation": "30 MB", "checkpoint": "3 MB", "gather": "100 us",
        "reduction": "100 us",
    }  # fmt: skip
    options = {"forward": [3, 3, 3], "backward": [1] * 10}
    run = pptrace.simulate(
        {"schedule": {"name": "roundpipe", "options": options}, "costs": costs}, pp=4, microbatches=8
    )
    looped = pptrace.simulate({"schedule": "looped-bfs", "costs": costs}, pp=4, microbatches=8, vp=3)

    weights = [action for action in run.prepared.schedule[0] if action.kind in {Kind.UNSHARD, Kind.RESHARD}]
    held, most = 0, 0
    for action in weights:
        held += 1 if action.kind is Kind.UNSHARD else -1
        most = max(most, held)
    assert held == 0
    assert run.memory.weights_bytes.max() <= most * 8e6 <= 2 * 3 * 8e6
    assert run.memory.optimizer_bytes.tolist() == [0] * 4
    assert run.memory.peak_activation_bytes.max() <= (30 + 3 * 3) * 1e6  # one microbatch, and checkpoints
    assert run.memory.peak_bytes.max() < looped.memory.peak_bytes.min() / 4


@pytest.mark.parametrize(("ranks", "forward", "backward"), [(1, [2], [1, 1, 1]), (2, [1], [1, 1])])
def test_state_is_in_host_memory_if_both_passes_of_a_stage_are_on_one_rank(
    ranks: int, forward: list[int], backward: list[int]
) -> None:
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms", "weights": "8 MB", "optimizer": "48 MB"}
    options = {"forward": forward, "backward": backward}
    run = pptrace.simulate(
        {"schedule": {"name": "roundpipe", "options": options}, "costs": costs}, pp=ranks, microbatches=2
    )

    assert not run.memory.optimizer_bytes.any()


def test_its_table_in_a_file_has_the_copies_of_weights_and_the_same_step(tmp_path: Path) -> None:
    costs = {
        "name": "table", "forward": "1 ms", "backward": "2 ms", "weights": "8 MB", "gather": "3 ms",
        "reduction": "5 ms",
    }  # fmt: skip
    run = pptrace.simulate({"schedule": "roundpipe", "costs": costs}, pp=4, vp=2, microbatches=8)
    run.save(tmp_path / "t.csv")
    read = pptrace.simulate({"schedule": str(tmp_path / "t.csv"), "costs": costs})

    assert read.metrics.step_ns == run.metrics.step_ns
    assert read.memory.peak_bytes.tolist() == run.memory.peak_bytes.tolist()


def test_a_table_without_moved_backwards_is_not_written(tmp_path: Path) -> None:
    run = pptrace.simulate({"schedule": "roundpipe"}, pp=1, vp=2, microbatches=2)

    with pytest.raises(ScheduleError, match="only if a backward is on another rank than its forward"):
        run.save(tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_round_copies_the_weights_of_each_pass_once_and_its_gradients_back() -> None:
    schedule = table(2, 4, forward=[3, 3], backward=[1, 2, 2, 2])
    kinds = [action.kind.name for rank in range(2) for action in schedule[rank]]

    assert kinds.count("UNSHARD") == kinds.count("RESHARD") == 2 * (3 + 3 + 7)  # two rounds
    assert kinds.count("REDUCE_GRAD") == 2 * 7
    assert kinds.count("OFFLOAD") == kinds.count("RELOAD") == kinds.count("RECOMPUTE") == 4 * 6


def test_times_of_copies_are_those_of_the_host_s_link() -> None:
    config = {
        "model": {"preset": "llama3-8b", "layout": "Et|(t|)*31L"},
        "device": {"preset": "a100-pcie", "host_bandwidth": "25 GB/s"},
        "schedule": {"name": "roundpipe", "options": {"stages": 33}}, "batch": {"sequence": 2048, "micro": 1},
    }  # fmt: skip
    run = pptrace.simulate(config, pp=8, microbatches=8)

    workload, layer = run.prepared.workload, 4
    assert workload.unshard_ns[layer] == -(-int(workload.gathered_bytes[layer]) * 10**9 // (25 * 10**9))
    assert workload.reduce_ns[layer] == -(-int(workload.unreduced_bytes[layer]) * 10**9 // (25 * 10**9))
    assert workload.offload_ns[layer] == -(-int(workload.checkpoint_bytes[layer]) * 10**9 // (25 * 10**9))
    assert workload.checkpoint_bytes[layer] == 2048 * 4096 * 2


def test_copies_without_a_time_are_noted() -> None:
    config = {
        "model": "llama3-8b", "device": "h100-sxm", "batch": {"sequence": 4096},
        "schedule": {"name": "roundpipe", "options": {"stages": 4}},
    }  # fmt: skip
    free = pptrace.simulate(config, pp=2, microbatches=2)
    timed = pptrace.simulate(config, pp=2, microbatches=2, sets=["device.host_bandwidth=50 GB/s"])

    keys = "costs.offload, costs.reload, costs.gather and costs.reduction"
    assert free.prepared.notes == (f"the costs have no time for copies: give device.host_bandwidth, or {keys}",)
    assert timed.prepared.notes == ()
    assert timed.metrics.step_ns > free.metrics.step_ns


@pytest.mark.parametrize(("config", "error", "message"), [
    ({"vp": 1, "pp": 1}, ConstraintError, "divides the model into stages that ranks compute in turn"),
    ({"dp": 2}, ConfigError, "roundpipe keeps weights and gradients in host memory"),
    ({"options": {"forward": [2]}}, ConfigError, "write both, or none"),
    ({"options": {"forward": [2], "backward": [1, 1]}}, ConfigError, "forward has 2 stages, and backward has 1"),
    ({"options": {"forward": [1], "backward": [1, 1], "stages": 2}}, ConfigError, "leave the key out"),
])  # fmt: skip
def test_impossible_sizes_are_refused(config: dict[str, Any], error: type[Exception], message: str) -> None:
    schedule = {"name": "roundpipe", "options": config.pop("options", {})}

    with pytest.raises(error, match=message):
        pptrace.simulate({"schedule": schedule}, **{"pp": 2, "vp": 2, "microbatches": 4, **config})


def test_advice_takes_it_only_by_its_name() -> None:
    run = pptrace.simulate(schedule="1f1b", pp=2, microbatches=4)

    assert "roundpipe" not in schedules_of(run)
