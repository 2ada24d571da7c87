"""PipeDream-2BW and PACI: the public code's order, the step between updates, memory, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pptrace
from pptrace.plugin import ConfigError, ScheduleRequest, Workload
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import Registry
from pptrace.run.neighbourhood import schedules_of
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import SENDS
from pptrace.steps.pytorch_tables import unsupported_parts
from pptrace.steps.text_forms import unsupported_by_megatron
from pptrace.timeline.counters import in_flight
from pptrace.timeline.metrics import measure, phases
from pptrace.timeline.trim import update_intervals
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.steps.schedule import Schedule

NAME = "pipedream-2bw"


def table(ranks: int, microbatches: int, updates: int = 4, name: str = NAME) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, options={"updates": updates})
    return build_schedule(Registry.load().schedules[name], request)


def iterations(rank: int, ranks: int, microbatches: int, updates: int) -> list[str]:
    """Return a row by the loop of the authors' ``forward_backward_pipelining_no_flushes``, one call per update."""
    row, forwards, backwards = [], 0, 0
    warm_up = min(ranks - rank - 1, microbatches)
    for iteration in range(updates):
        is_last = iteration == updates - 1
        turns = microbatches - warm_up if is_last else microbatches
        for is_forward in (
            [True] * (warm_up * (iteration == 0)) + [True, False] * turns + [False] * (warm_up * is_last)
        ):
            row.append(f"{rank}F{forwards}" if is_forward else f"{rank}B{backwards}")
            forwards, backwards = forwards + is_forward, backwards + (not is_forward)
        row.append(f"{rank}OPTIMIZER")
    return row


@pytest.mark.parametrize(("ranks", "microbatches", "updates"), [(4, 4, 3), (3, 5, 4), (1, 2, 3), (2, 7, 6)])
def test_the_order_is_the_public_code_s(ranks: int, microbatches: int, updates: int) -> None:
    rows = table(ranks, microbatches, updates).rows()

    assert rows == [iterations(rank, ranks, microbatches, updates) for rank in range(ranks)]


def ready_first(ranks: int, microbatches: int, updates: int) -> list[list[str]]:
    """Return the rows of PACI's workers, for a forward of one time unit and a backward of two.

    A worker computes a backward whose gradient has arrived, or else a forward if less than p - r lack a backward.
    """
    count = microbatches * updates
    rows: list[list[str]] = [[] for _ in range(ranks)]
    forward_ends, backward_ends = ([[0] * count for _ in range(ranks)] for _ in range(2))
    done, free = [[0, 0] for _ in range(ranks)], [0] * ranks
    for time in range(3 * (count + ranks)):
        for rank in range(ranks):
            forwards, backwards = done[rank]
            of_loss = rank == ranks - 1
            arrived = forwards if of_loss else sum(0 < end <= time for end in backward_ends[rank + 1])
            inputs = count if rank == 0 else sum(0 < end <= time for end in forward_ends[rank - 1])
            if free[rank] > time:
                continue
            if backwards < arrived:
                rows[rank].append(f"{rank}B{backwards}")
                free[rank] = backward_ends[rank][backwards] = time + 2
                done[rank][1] += 1
                if done[rank][1] % microbatches == 0:
                    rows[rank].append(f"{rank}OPTIMIZER")
            elif forwards < inputs and forwards - backwards < ranks - rank:
                rows[rank].append(f"{rank}F{forwards}")
                free[rank] = forward_ends[rank][forwards] = time + 1
                done[rank][0] += 1
    return rows


@pytest.mark.parametrize(("ranks", "microbatches", "updates"), [(4, 4, 3), (3, 5, 4), (1, 2, 3), (2, 7, 6)])
def test_paci_has_the_order_of_the_public_code_s_workers(ranks: int, microbatches: int, updates: int) -> None:
    rows = table(ranks, microbatches, updates, "paci").rows()

    assert rows == ready_first(ranks, microbatches, updates)


def test_a_microbatch_of_paci_crosses_at_most_one_update() -> None:
    """The bound of arXiv:2606.07881 for as many accumulated microbatches as ranks; the last rank crosses none."""
    crossed = []
    for rank, row in enumerate(table(8, 8, name="paci").rows()):
        updates_before = {action: row[:place].count(f"{rank}OPTIMIZER") for place, action in enumerate(row)}
        crossed.append({updates_before[f"{rank}B{n}"] - updates_before[f"{rank}F{n}"] for n in range(32)})

    assert crossed == [{0, 1}] * 7 + [{0}]


def test_paci_is_as_fast_as_the_paper_says_in_the_memory_of_1f1b() -> None:
    """arXiv:2606.07881: 8 busy ranks, the peak memory of 1F1B-flush; measured up to 1.69 times faster."""
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "3 MB", "weights": "5 MB"}
    sizes = {"parallel": {"pp": 8}, "batch": {"microbatches": 8}}
    flushed, steady = (
        pptrace.simulate(step_of(schedule=name, costs=costs, network="ideal", **sizes))
        for name in ("1f1b", "paci")
    )

    assert Fraction(flushed.metrics.step_ns, steady.metrics.step_ns) == Fraction(8 + 7, 8) > Fraction("1.69")
    assert steady.memory.peak_bytes.tolist() == flushed.memory.peak_bytes.tolist()


def test_the_first_forward_of_new_weights_is_that_of_the_paper_s_figure() -> None:
    """Figure 2: the weights after microbatch 4 of 4 are first used for microbatch 9 of the last worker, from 1."""
    last_worker = table(4, 4)[3]
    updates = [place for place, action in enumerate(last_worker) if action.microbatch < 0]
    between = [action for action in last_worker[updates[0] : updates[1]] if action.kind.name == "F"]

    assert [action.microbatch + 1 for action in between] == [5, 6, 7, 8]  # begun with the weights before


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_each_rank_does_the_work_of_one_update_in_a_steady_step(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 5))
    microbatches = data.draw(st.integers(ranks, ranks + 5))
    # A faster rank gains `microbatches` ns per update or more, until it is up to `ranks` * 16 ns ahead.
    times = st.lists(st.integers(1, 8), min_size=ranks, max_size=ranks)
    f_ns, b_ns = data.draw(times), data.draw(times)
    costs = Workload.uniform(
        ranks, f_ns=f_ns, b_ns=b_ns, reduce_ns=data.draw(st.integers(0, 9)), activation_bytes=10,
        optimizer_ns=data.draw(st.integers(0, 9)), boundary_bytes=data.draw(st.integers(0, 9)),
    )  # fmt: skip
    timeline = simulate(table(ranks, microbatches, updates=24), costs)
    metrics = measure(timeline, costs)

    work_ns = [microbatches * (f + b) for f, b in zip(f_ns, b_ns, strict=True)]
    busy_ns = [work + int(costs.optimizer_ns[0]) for work in work_ns]
    intervals = update_intervals(timeline)
    assert metrics.step_ns == intervals[-1] >= max(busy_ns)
    assert intervals[-1] == intervals[-2] == max(busy_ns) + int(costs.reduce_ns[0])
    assert metrics.busy_ns.tolist() == busy_ns
    assert metrics.memory.peak_activations.tolist() == [ranks - rank for rank in range(ranks)]
    assert metrics.memory.peak_activation_bytes.tolist() == [10 * (ranks - rank) for rank in range(ranks)]


def test_more_microbatches_are_never_slower_than_with_a_flush() -> None:
    """A flush costs (p - 1)(f + b) per update: the paper's reason for its throughput over PipeDream-Flush."""
    flushed, steady = (pptrace.simulate(schedule=name, pp=4, microbatches=8).metrics for name in ("1f1b", NAME))

    assert Fraction(flushed.step_ns, steady.step_ns) == Fraction(8 + 3, 8)
    assert (steady.bubble, steady.idle_ns.sum()) == (0, 0)


def step_of(**sections: object) -> dict[str, object]:
    """Return a configuration with messages over links that ranks share."""
    return {
        "schedule": {"name": NAME, "options": {"updates": 6}}, "parallel": {"pp": 4}, "batch": {"microbatches": 6},
        "network": {"name": "infiniband-fat-tree", "generation": "edr", "hosts_per_leaf": 2},
        "costs": {"name": "table", "forward": "1 ms", "backward": "2 ms", "boundary": "2 MB", "activation": "3 MB",
                  "weights": "5 MB"}, **sections,
    }  # fmt: skip


@pytest.mark.parametrize(
    "policy", ["async", "blocking", "sender-blocking", "ordered", "batched", "torch", "megatron"]
)
def test_updates_are_equally_far_apart_under_every_policy(policy: str) -> None:
    run = pptrace.simulate(step_of(p2p={"policy": policy}, contention={"links": "none"}))

    intervals = update_intervals(run.timeline)
    alternates = policy == "async"
    assert intervals[-1] == run.metrics.step_ns == int(run.timeline.end_ns.max())
    assert (intervals[-1] == intervals[-2]) != alternates
    assert intervals[-1] == intervals[-3]
    assert run.timeline.start_ns.min() == 0
    assert ({int(busy_ns) for busy_ns in run.metrics.busy_ns} == {6 * 3_000_000}) != alternates


def test_a_trace_has_the_figures_of_the_step(tmp_path: Path) -> None:
    run = pptrace.simulate(step_of())
    (path,) = run.save(tmp_path / "step.pftrace")

    step = perfetto.read([path])

    again = measure(step, run.prepared.workload)
    assert (again.step_ns, again.bubble, again.notes) == (
        run.metrics.step_ns,
        run.metrics.bubble,
        run.metrics.notes,
    )
    assert again.memory.peak_bytes.tolist() == run.memory.peak_bytes.tolist()
    assert [(phase.name, phase.end_ns) for phase in phases(step)] == [("steady", run.metrics.step_ns)] * 4
    counters = {(counter.rank, counter.name): counter for counter in step.counters}
    assert [int(counters[rank, "in flight"].value[0]) for rank in range(4)] == [
        int(counter.value[0]) for counter in in_flight(step)
    ]
    peaks = [int(counters[rank, "memory"].value.max()) for rank in range(4)]
    assert peaks == run.metrics.memory.peak_bytes.tolist()


def test_a_trace_of_some_ranks_has_their_phases(tmp_path: Path) -> None:
    (path,) = pptrace.simulate(step_of()).save(tmp_path / "step.pftrace", only=["ranks=1,2"])

    assert {phase.rank for phase in phases(perfetto.read([path]))} == {1, 2}


def test_copies_to_the_host_are_planned_for_all_updates() -> None:
    costs = {
        "name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "3 MB", "offload": "100 us",
        "reload": "100 us",
    }  # fmt: skip
    schedule = {"name": NAME, "offload": {}}
    run = pptrace.simulate(step_of(schedule=schedule, costs=costs, network="ideal"))

    copies = [action for action in run.prepared.schedule[0] if action.kind.name == "OFFLOAD"]
    assert len(copies) == 6 * run.prepared.schedule.updates
    assert run.metrics.step_ns == 6 * 3_000_000
    assert run.memory.peak_activation_bytes[0] < 4 * 3_000_000


def test_memory_has_two_versions_of_the_weights() -> None:
    flushed, steady = (pptrace.simulate(step_of(schedule=name)).memory for name in ("1f1b", NAME))

    assert (steady.weights_bytes == 2 * flushed.weights_bytes).all()
    assert (steady.peak_activation_bytes == flushed.peak_activation_bytes).all()
    assert (steady.peak_bytes - steady.weights_bytes == flushed.peak_bytes - flushed.weights_bytes).all()


def test_a_written_table_gives_the_same_step(tmp_path: Path) -> None:
    run = pptrace.simulate(step_of())
    run.save(tmp_path / "order.csv")

    again = pptrace.simulate(step_of(schedule=str(tmp_path / "order.csv")))

    assert again.metrics.step_ns == run.metrics.step_ns
    assert again.prepared.request.microbatches == 6


@pytest.mark.parametrize(("sections", "place"), [
    ({"rl": {"forward_passes": 1}}, "rl"),
    ({"data_parallel": {"speeds": {"1": 0.9}}, "parallel": {"pp": 4, "dp": 2}}, "data_parallel.speeds"),
])  # fmt: skip
def test_settings_that_need_a_flush_are_refused(sections: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError, match=f"{place}: {NAME} does not flush the pipeline before an update"):
        pptrace.simulate(step_of(**sections))


def test_links_carry_the_bytes_of_one_update() -> None:
    run = pptrace.simulate(step_of(p2p={"policy": "ordered"}))

    sent = int(run.timeline.size_bytes[SENDS.mask(run.timeline.kind)].sum())
    assert sent == 2 * (4 - 1) * 6 * 2_000_000  # activations and gradients over three boundaries
    assert run.to_dict()["links"][0]["bytes"] == 2 * 6 * 2_000_000
    of_links = [counter for counter in run.traced().counters if counter.rank < 0]
    assert of_links
    assert max(int(counter.at_ns[-1]) for counter in of_links) <= run.metrics.step_ns


def test_different_times_between_updates_are_noted() -> None:
    """On shared links, messages of two updates in turn delay each other."""
    alternating, equal = (pptrace.simulate(step_of(p2p={"policy": policy})) for policy in ("async", "ordered"))

    text = "times between updates differ (19.7 ms, then 19.4 ms): the step is the last of them"
    assert text in alternating.metrics.notes
    assert text not in equal.metrics.notes


def test_advice_takes_a_schedule_of_older_weights_only_by_its_name() -> None:
    assert not {NAME, "paci"} & set(schedules_of(pptrace.simulate(step_of(schedule="1f1b"))))
    assert NAME in schedules_of(pptrace.simulate(step_of()))


def test_frameworks_with_a_flush_do_not_run_the_table() -> None:
    assert next(unsupported_parts(table(2, 2))).part == "4 updates without a flush between them"
    assert next(unsupported_by_megatron(table(2, 2))).startswith("actions such as 0OPTIMIZER")
