"""Microbatches of unlike lengths: what each costs, and replicas that are done at unlike times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import pptrace
from pptrace.errors import ConfigError
from pptrace.run.overheads import find_savings
from pptrace.search.what_if import whatif
from pptrace.sim.simulation import simulate
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
REPLICAS = st.integers(1, 3).flatmap(
    lambda dp: st.tuples(st.just(dp), st.lists(st.integers(1, 9), min_size=4 * dp, max_size=4 * dp))
)


def of_model(lengths: Any, *, dp: int = 1, **sections: Any) -> pptrace.Run:
    return pptrace.simulate({
        "model": MODEL, "device": "h100-sxm", "parallel": {"pp": 2, "dp": dp},
        "batch": {"microbatches": 4, "sequence": 8192, "lengths": lengths}, "schedule": "1f1b",
        "network": {"name": "hockney", "bandwidth": "50 GB/s"}, **sections,
    })  # fmt: skip


def of_table(
    lengths: list[int], dp: int, *, overlap: bool, schedule: str = "1f1b", replica: int | None = None, **costs: Any
) -> pptrace.Run:
    return pptrace.simulate({
        "parallel": {"pp": 2, "dp": dp},
        "batch": {"microbatches": 4, "sequence": 10, "lengths": lengths, "replica": replica},
        "schedule": schedule, "network": {"name": "hockney", "bandwidth": "1 GB/s", "latency": "100 ns"},
        "data_parallel": {"overlap": overlap}, "costs": {
            "name": "table", "forward": "1 us", "backward": ["2 us", "3 us"], "boundary": "1 kB",
            "reduction": "700 ns", "update": "300 ns", "sync": "40 ns", **costs,
        },
    })  # fmt: skip


def test_a_microbatch_costs_what_one_of_its_length_does() -> None:
    mixed = of_model([8192, 2048, 4096, 2048]).prepared.workload

    for microbatch, length in enumerate([8192, 2048, 4096, 2048]):
        costs, alike = mixed.of_microbatch(microbatch), of_model([length] * 4)
        want = alike.prepared.workload.classes[0]
        assert (costs.f_ns == want.f_ns).all()
        assert (costs.b_ns == want.b_ns).all()
        assert costs.activation_bytes.tolist() == want.activation_bytes.tolist()
        assert costs.boundary_bytes.tolist() == [2 * 1024 * length]
    # Linear layers cost in proportion, attention by the square: more than half of twice the length's.
    long, short = mixed.classes[2], mixed.classes[1]
    assert 2 * short.model_flops < long.model_flops < 4 * short.model_flops
    assert mixed.tokens == 8192 + 4096 + 2 * 2048
    assert mixed.model_flops == sum(mixed.classes[at].model_flops for at in (2, 1, 0, 0))


def test_equal_lengths_are_the_step_without_them() -> None:
    plain, alike = of_model(None), of_model([8192] * 4)

    assert alike.metrics.step_ns == plain.metrics.step_ns
    costs = alike.prepared.workload, plain.prepared.workload
    assert costs[0].tokens == costs[1].tokens
    assert costs[0].model_flops == costs[1].model_flops
    assert alike.metrics.memory.peak_bytes.tolist() == plain.metrics.memory.peak_bytes.tolist()


def test_lengths_are_padded_where_tensor_parallel_devices_split_them() -> None:
    split = {"pp": 2, "tp": 4, "sequence_parallel": True}
    odd, padded = (of_model(lengths, parallel=split) for lengths in ([7, 1, 2047, 8192], [8, 4, 2048, 8192]))

    assert odd.metrics.step_ns == padded.metrics.step_ns
    assert odd.prepared.workload.tokens == 7 + 1 + 2047 + 8192


def test_lengths_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("8192, 2048, 4096, 2048\n1024 1024 1024 1024\n", encoding="utf-8")

    read, given_ = of_model(str(file), dp=2), of_model([8192, 2048, 4096, 2048, *[1024] * 4], dp=2)

    assert read.metrics.step_ns == given_.metrics.step_ns
    assert read.prepared.workload.tokens == 16384 + 4096


@settings(max_examples=settings().max_examples // 3)
@given(drawn=REPLICAS, overlap=st.booleans(), schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
def test_the_step_ends_as_that_of_all_replicas_in_one_table(
    drawn: tuple[int, list[int]], schedule: str, *, overlap: bool
) -> None:
    dp, lengths = drawn
    run = of_table(lengths, dp, overlap=overlap, schedule=schedule)
    table, workload = run.prepared.schedule, run.prepared.workload

    # Replicas are routes of one table; a reduction of a stage waits for all ranks that hold it.
    rows = [
        [replace(action, microbatch=action.microbatch + 4 * replica) for action in table[rank]]
        for replica in range(dp) for rank in range(2)
    ]  # fmt: skip
    placement = Placement(
        ranks=2 * dp, stage_rank=np.arange(2 * dp).reshape(dp, 2), microbatch_route=np.repeat(np.arange(dp), 4),
        edges=table.placement.edges,
    )  # fmt: skip
    classes = np.searchsorted(np.unique(lengths), lengths) + 1
    together = replace(workload, microbatch_class=classes.astype(np.int32), released_ns=0 * workload.released_ns)
    whole = simulate(
        Schedule.from_rows(rows, placement), together, run.prepared.network, run.prepared.policy,
        overlap_reduction=overlap, stage_replicas=True,
    )  # fmt: skip

    assert run.timeline.end_ns.max() == whole.end_ns.max()
    last = of_table(lengths, dp, overlap=overlap, schedule=schedule, replica=dp - 1)
    assert last.timeline.end_ns.max() == whole.end_ns.max()


def test_the_slowest_replica_is_shown_and_named() -> None:
    run = of_table([5, 5, 5, 5, 9, 9, 9, 9, 1, 1, 1, 1], 3, overlap=True)

    assert "Of 3 replicas this is number 1, which computes longest" in run.prepared.workload.notes[-1]
    assert run.prepared.workload.tokens == 4 * (5 + 9 + 1)


def test_the_replica_that_needs_the_most_memory_is_named_where_it_is_another() -> None:
    slow, full, small = [7, 7, 7, 7], [10, 10, 1, 1], [5, 5, 1, 1]
    other, short = (of_table([*slow, *item], 2, overlap=True, activation="1 GB") for item in (full, small))

    # Rank 0 holds two microbatches at once: 2 GB of length 10, the costs' own.
    assert other.prepared.workload.notes[-1].endswith("Number 1 needs the most memory: 1.86 GiB on rank 0.")
    assert "memory" not in short.prepared.workload.notes[-1]


@pytest.mark.parametrize(("lengths", "keys", "said"), [
    ([1, 2, 3], {}, "3 lengths for 4 microbatches on 2 replicas: write 4 or, replica after replica, 8"),
    ([1, 2, 3, 9999], {}, "batch.lengths: 9999 in place 3 passes batch.sequence (8192)"),
    ("no-such-file.csv", {}, "batch.lengths: no-such-file.csv cannot be read: No such file or directory"),
    ([1] * 4 + [2] * 4, {"schedule": "seq-1f1b"}, "cuts microbatches into parts"),
    ([1] * 4 + [2] * 4, {"data_parallel": {"overlap": True, "reduce_each": True}}, "that differ reduce once"),
])  # fmt: skip
def test_lengths_that_do_not_match_are_one_line(lengths: Any, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of_model(lengths, dp=2, **keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_of_something_else_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("1, 2\n3, many\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"lengths.csv, line 2: 'many' is not a number of tokens"):
        of_model(str(file))


@pytest.mark.parametrize("differ", [{"speeds": {"1": 0.95, "2": 0.97}}, {"lengths": [9] * 8 + [10] * 8 + [8] * 8}])
def test_a_change_is_reported_as_the_step_of_a_configuration_that_has_it(differ: dict[str, Any]) -> None:
    def step(network: Any, microbatches: int = 8, part: int = 1, reduction: int = 704) -> pptrace.Run:
        lengths = differ.get("lengths")
        return pptrace.simulate({
            "parallel": {"pp": 4, "dp": 3}, "schedule": "1f1b", "network": network,
            "data_parallel": {"speeds": differ.get("speeds")},
            "batch": {"microbatches": microbatches, "sequence": 10, "lengths": lengths},
            "costs": {
                "name": "table", "forward": f"{20000 // part} ns", "backward": f"{40000 // part} ns",
                "boundary": f"{2000 // part} B", "reduction": f"{reduction} ns", "update": "300 ns",
            },
        })  # fmt: skip

    def on(rate: int, latency: int) -> dict[str, str]:
        return {"name": "hockney", "bandwidth": f"{rate} MB/s", "latency": f"{latency} ns"}

    run = step(on(200, 80))
    rows = {row.name: row.step_ns for row in whatif(run).rows}
    free = step("ideal", reduction=0)
    assert rows["bandwidth x2"] == step(on(400, 40), reduction=352).metrics.step_ns
    assert rows["free network"] == free.metrics.step_ns
    if "speeds" in differ:  # lengths are those of 8 microbatches
        halved = step(on(200, 80), 16, 2).metrics.step_ns  # whose speeds round other times
        assert rows["half the bubble"] == pytest.approx(halved, rel=0.0001)
    prices, ideal = find_savings(run), step("ideal").metrics
    assert prices is not None
    assert prices.rest.step_ns == ideal.step_ns
    assert prices.policy_ns + prices.contention_ns + prices.transfer_ns + ideal.step_ns == run.metrics.step_ns
