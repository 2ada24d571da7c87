"""Packed documents: their assignment, what microbatches cost, and groups of context-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import pptrace
from pptrace.errors import ConfigError
from pptrace.run.sequences import MOST_PACKS, Packing, sequences_of
from pptrace.sim.simulation import simulate

if TYPE_CHECKING:
    from pptrace.run.sequences import Replicas

pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
TABLE: dict[str, Any] = {
    "model": None, "device": None, "costs": {"name": "table", "forward": "1 us", "backward": "2 us"},
}  # fmt: skip
LENGTHS = st.lists(st.integers(1, 120), min_size=1, max_size=60)


def step(
    documents: dict[str, Any] | None, *, dp: int = 1, cp: int = 1, microbatches: int | None = 4, **sections: Any
) -> pptrace.Run:
    return pptrace.simulate({
        "model": MODEL, "device": "h100-sxm", "parallel": {"pp": 2, "dp": dp, "cp": cp},
        "batch": {"microbatches": microbatches, "sequence": 8192, "documents": documents}, "schedule": "1f1b",
        "network": {"name": "hockney", "bandwidth": "50 GB/s"}, "costs": {"host_kernel": "0 ms"}, **sections,
    })  # fmt: skip


def tokens_and_squares(replicas: Replicas) -> tuple[int, int]:
    bins = [each for row in replicas for microbatch in row for each in microbatch]
    return sum(each.tokens for each in bins), sum(each.squares for each in bins)


@settings(max_examples=settings().max_examples // 2)
@given(
    lengths=LENGTHS, replicas=st.integers(1, 3), micro=st.integers(1, 2), microbatches=st.integers(1, 3),
    whole=st.booleans(), linear=st.sampled_from([0, 300]),
)  # fmt: skip
def test_balanced_replicas_hold_the_same_documents_and_their_maximum_is_not_larger(
    lengths: list[int], replicas: int, micro: int, microbatches: int, linear: int, *, whole: bool
) -> None:
    packing = Packing(limit=100, replicas=replicas, micro=micro, microbatches=microbatches, linear=linear)
    endless = np.tile(np.array(lengths), 1800)

    def arranged(*, balanced: bool) -> Replicas:
        return packing.arrange([endless], known=False, whole=whole, balanced=balanced)

    arrived, balanced = arranged(balanced=False), arranged(balanced=True)
    assert tokens_and_squares(arrived) == tokens_and_squares(balanced)
    assert packing.maximum(balanced) <= packing.maximum(arrived)
    assert [len(row) for row in balanced] == [microbatches] * replicas
    assert all(each.tokens <= 100 * micro for row in balanced for microbatch in row for each in microbatch)
    if not whole:
        assert tokens_and_squares(arrived)[0] == 100 * micro * microbatches * replicas


@settings(max_examples=settings().max_examples // 2)
@given(lengths=LENGTHS, replicas=st.integers(1, 3), dynamic=st.booleans())
def test_all_documents_of_a_step_are_in_it(lengths: list[int], replicas: int, *, dynamic: bool) -> None:
    packing = Packing(limit=100, replicas=replicas, cp=4, dynamic=dynamic)
    rows = np.array(lengths * replicas)

    def arranged(*, balanced: bool) -> Replicas:
        return packing.arrange([rows], known=True, whole=True, balanced=balanced)

    try:
        arrived = arranged(balanced=False)
    except ValueError:
        return  # fewer microbatches than replicas
    kept = np.minimum(rows, 100)
    assert (
        tokens_and_squares(arrived)
        == (kept.sum(), (kept * kept).sum())
        == tokens_and_squares(arranged(balanced=True))
    )
    assert packing.maximum(arranged(balanced=True)) <= packing.maximum(arrived)
    for microbatch in (each for row in arrived for each in row):
        assert 0 < sum(each.cp for each in microbatch) <= 4
        assert all(each.tokens <= 25 * each.cp for each in microbatch)


def test_a_document_of_the_whole_sequence_is_the_uniform_step() -> None:
    plain, packed = step(None), step({"fixed": 8192})
    short = step({"lengths": [4096, 1024, 1024, 2048]})

    assert packed.metrics.step_ns == plain.metrics.step_ns
    assert packed.prepared.workload.model_flops == plain.prepared.workload.model_flops
    assert packed.metrics.memory.peak_bytes.tolist() == plain.metrics.memory.peak_bytes.tolist()
    assert short.metrics.step_ns < plain.metrics.step_ns
    assert short.metrics.memory.peak_bytes.tolist() == plain.metrics.memory.peak_bytes.tolist()


def test_attention_follows_the_sum_of_squares() -> None:
    def core_flops(documents: dict[str, Any]) -> int:
        (costs,) = step(documents).prepared.workload.classes
        return sum(kernel.flops for kernel in costs.kernels() if kernel.name == "attention core")

    whole = core_flops({"fixed": 8192})
    assert core_flops({"fixed": 1024}) * 8 == whole
    assert core_flops({"lengths": [4096, 2048, 2048]}) * 8 == whole * 3  # 16 + 4 + 4 of 64


def test_unlike_microbatches_have_few_classes_whose_work_is_close() -> None:
    documents = {"lognormal": {"median": 300, "sigma": 1.5}}
    run = step(documents, dp=4, microbatches=64)
    costs = run.prepared.workload

    assert 8 < len(costs.classes) <= MOST_PACKS
    _, sequences = sequences_of(run.prepared.resolved)
    assert sequences is not None
    in_packs = sum(pack.tokens * times for pack, times in zip(sequences.packs, sequences.counts, strict=True))
    assert in_packs == costs.tokens
    assert costs.tokens == 4 * 64 * 8192
    # Two samples of the same distribution have nearly the same FLOPs, and those of one document have more.
    other = step({**documents, "seed": 2}, dp=4, microbatches=64).prepared.workload
    assert other.model_flops != costs.model_flops
    assert other.model_flops == pytest.approx(costs.model_flops, rel=0.02)
    assert costs.model_flops < 0.9 * step(None, dp=4, microbatches=64).prepared.workload.model_flops


def test_replicas_can_have_numbers_of_microbatches_of_their_own() -> None:
    documents = {"lengths": [8192, 8192, 8192, 4096, 4096, 2048], "count": 6}
    batch = {"sequence": 8192, "documents": documents}
    first, second = (step(None, dp=2, batch={**batch, "replica": replica}) for replica in (0, 1))

    assert (first.prepared.schedule.microbatches, second.prepared.schedule.microbatches) == (3, 2)
    assert second.prepared.schedule == step(None, microbatches=2).prepared.schedule
    assert first.metrics.step_ns == second.metrics.step_ns
    again = pptrace.simulate(dict(second.provenance["configuration"]))
    assert again.prepared.schedule.microbatches == 2
    equal = step(None, dp=2, batch={"sequence": 8192, "documents": {**documents, "equal": True}, "replica": 1})
    assert equal.prepared.schedule.microbatches == 3


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_table_without_its_last_microbatches_is_valid(schedule: str) -> None:
    whole = step(None, microbatches=6, schedule=schedule).prepared
    table = whole.schedule.of_first(2)

    simulate(table, replace(whole.workload, microbatch_class=whole.workload.microbatch_class[:0]))
    assert table.microbatches == 2


def test_dynamic_groups_save_the_collectives_of_short_documents() -> None:
    short, long = {"fixed": 512}, {"fixed": 8192}
    static, dynamic = (step({**short, "whole": True, "dynamic_cp": on}, cp=4, dp=2) for on in (False, True))

    assert dynamic.metrics.step_ns < static.metrics.step_ns
    assert not dynamic.prepared.workload.classes[0].f_collective_ns.any()
    assert dynamic.prepared.workload.tokens == static.prepared.workload.tokens
    same = [step({**long, "dynamic_cp": on, "whole": True}, cp=4, dp=2).metrics.step_ns for on in (False, True)]
    assert same[0] == same[1] == step(None, cp=4, dp=2).metrics.step_ns


def test_attention_of_a_table_follows_the_squares() -> None:
    def times(document: int) -> tuple[int, int, int, int]:
        costs = {
            "name": "table", "forward": "10 us", "backward": ["20 us", "24 us"], "forward_attention": "4 us",
            "backward_attention": "8 us", "activation": "1 kB",
        }  # fmt: skip
        run = step({"fixed": document}, **{**TABLE, "costs": costs})
        (one,) = run.prepared.workload.classes
        assert one.activation_bytes.tolist() == [1000, 1000]
        return one.f_ns.tolist()[0], one.b_ns.tolist()[1], one.i_ns.tolist()[1], one.w_ns.tolist()[1]

    assert times(8192) == (10_000, 24_000, 12_000, 12_000)
    assert times(2048) == (7_000, 18_000, 9_000, 9_000)


@pytest.mark.parametrize(("documents", "keys", "said"), [
    ({"fixed": 8}, {**TABLE, "costs": {**TABLE["costs"], "forward_attention": "2 s"}}, "longer than the forward"),
    ({}, {}, "no lengths: write lengths, lognormal"),
    ({"fixed": 8, "uniform": [1, 2]}, {}, "uniform, fixed: keep one of them"),
    ({"uniform": [9, 2]}, {}, "9 to 2: write the smaller length first"),
    ({"histogram": {"many": 1}}, {}, "'many' is not a number of tokens"),
    ({"histogram": {"8": 0}}, {}, "all shares are 0"),
    ({"lengths": "no-such.csv"}, {}, "batch.documents.lengths: no-such.csv cannot be read"),
    ({"fixed": 8, "dynamic_cp": True}, {}, "groups are powers of two up to parallel.cp (1)"),
    ({"fixed": 8000, "count": 40}, {"dp": 2}, "fill 20 microbatches of a replica, not 4: remove one of"),
    ({"fixed": 8000, "count": 40, "equal": True}, {"dp": 2}, "fill 20 sequences in order of arrival"),
    ({"fixed": 8000, "count": 1}, {"dp": 2}, "1 documents are fewer than the sequences of the step"),
    ({"fixed": 8192, "count": 9}, {"dp": 2, "microbatches": None, "schedule": "dualpipe-v"}, "have 4 to 5"),
    ({"fixed": 8, "balance": "work"}, {"model": None, "device": None, "costs": {"name": "unit"}}, "work weighs"),
])  # fmt: skip
def test_documents_that_do_not_fit_are_one_line(documents: Any, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        step(documents, **keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
