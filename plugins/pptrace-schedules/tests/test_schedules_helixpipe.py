"""HelixPipe: the order and the messages of the authors' code, its activations, and what is refused."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import pytest

import pptrace
from pptrace.plugin import ConstraintError, ScheduleRequest
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import Registry
from pptrace.steps.validation import validate

Call = tuple[str, int]
"""``attention``, ``layer``, or a layer with the embedding (``input``) or the LM head (``loss``); and an offset."""


def calls(rank: int, ranks: int, loops: int, repeats: int) -> list[list[Call]]:
    """Return the forwards of a rank as ``attention_pipeline`` of the authors' code loops over them."""
    groups: list[list[Call]] = [[("input", 0)]] if rank == 0 else []
    for repeat in range(repeats):
        for loop in range(loops):
            offsets = range(rank) if loop == 0 else range(ranks - 1)
            layer = "input" if rank == 0 and loop == 0 else "layer"
            groups += [[("attention", d), *([(layer, 0)] if d == 0 else [])] for d in reversed(offsets)]
            for d in range(1, ranks):
                loss = [("loss", d)] if rank == 0 and repeat > 0 and loop == 0 else []
                groups.append([*loss, (layer, d), *([("attention", d)] if d == ranks - 1 else [])])
        for d in reversed(range(rank, ranks - 1)):
            next_repeat = [("input", 0)] if repeat < repeats - 1 else []
            groups.append([("attention", d), *([("loss", 0), *next_repeat] if d == 0 else [])])
    return groups + [[("loss", d)] for d in range(1, ranks) if rank == 0]


def run(ranks: int, loops: int, repeats: int, folds: int) -> list[list[str]]:
    """Return the forwards of each rank, by the messages that its calls receive.

    A layer of rank q sends the input of attention with offset d to rank q + d + 1, whose result goes to q + 1.
    The number of the stage is that of the message's last stage, and one more.
    """
    layers, rows = ranks * loops, [list[str]() for _ in range(ranks)]
    queues: dict[tuple[int, str, int, int], deque[tuple[int, int]]] = defaultdict(deque)
    for repeat in range(repeats):
        for d in range(ranks):
            for fold in range(folds):
                queues[0, "input", d, fold].append((-1, repeat))
    pending = [
        deque(
            (*call, fold)
            for group in calls(rank, ranks, loops, repeats)
            for fold in range(folds)
            for call in group
        )
        for rank in range(ranks)
    ]
    while any(pending):
        before = sum(map(len, pending))
        for rank in range(ranks):
            while pending[rank]:
                name, d, fold = pending[rank][0]
                if not queues[rank, name, d, fold]:
                    break
                stage, repeat = queues[rank, name, d, fold].popleft()
                pending[rank].popleft()
                stage += 1
                rows[rank].append(f"{stage}F{(repeat * ranks + d) * folds + fold}")
                if name in {"input", "layer"}:
                    queues[(rank + d + 1) % ranks, "attention", d, fold].append((stage, repeat))
                elif name == "attention":
                    following = "loss" if stage == 2 * layers - 1 else "layer"
                    queues[(rank - d) % ranks, following, d, fold].append((stage, repeat))
        assert sum(map(len, pending)) < before
    return rows


def table(ranks: int, chunks: int, microbatches: int, folds: int = 2) -> Any:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options={"folds": folds})
    return build_schedule(Registry.load().schedules["helixpipe"], request)


@pytest.mark.parametrize(("ranks", "loops", "repeats", "folds"), [
    (2, 1, 1, 1), (2, 2, 2, 2), (3, 2, 1, 2), (4, 1, 2, 2), (4, 3, 2, 1),
])  # fmt: skip
def test_the_order_is_that_of_the_public_code(ranks: int, loops: int, repeats: int, folds: int) -> None:
    schedule = table(ranks, loops, ranks * folds * repeats, folds)
    validate(schedule)

    forwards = run(ranks, loops, repeats, folds)
    assert schedule.rows() == [[*row, *[name.replace("F", "B") for name in reversed(row)]] for row in forwards]


def test_attention_of_a_layer_is_on_all_ranks_at_once() -> None:
    placement = table(4, 2, 8).placement

    assert [{placement.rank_of(2 * layer + 1, microbatch) for microbatch in range(8)} for layer in range(8)] == [
        {0, 1, 2, 3}
    ] * 8
    assert [placement.rank_of(2 * layer, 5) for layer in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def step(attention: int, name: str, **sizes: Any) -> pptrace.Run:
    """Return a step of eight layers whose core attention takes so many times the remaining layer."""
    whole = [2 * (attention + 1)] * 4
    forward = [0, *([attention, 1] * 8)] if name == "helixpipe" else whole
    costs = {"name": "table", "forward": [f"{time} ms" for time in forward],
             "backward": [f"{2 * time} ms" for time in forward]}  # fmt: skip
    return pptrace.simulate({"schedule": name, "costs": costs, "network": "ideal"}, pp=4, microbatches=8, **sizes)


@pytest.mark.parametrize("attention", [1, 4, 16])
def test_a_longer_attention_leaves_a_smaller_bubble(attention: int) -> None:
    """Section 1 of the paper: the gain over other pipelines grows with the sequence, and so with attention."""
    helix, usual = step(attention, "helixpipe", vp=2), step(attention, "1f1b")

    assert helix.metrics.busy_ns.sum() == usual.metrics.busy_ns.sum()
    assert helix.metrics.step_ns < usual.metrics.step_ns
    assert helix.metrics.bubble <= step(max(1, attention // 4), "helixpipe", vp=2).metrics.bubble


def test_each_rank_holds_as_many_activations() -> None:
    peaks = step(1, "helixpipe", vp=2).memory.peak_activations

    assert peaks.tolist() == [2 * 8 * 2 + 8, *[2 * 8 * 2] * 3]


ENCODER = {"hidden": 64, "ffn": 64, "layers": 2, "heads": 2, "tokens": 16, "stages": 1}
MODEL = {"model": "llama3-8b", "device": "h20", "batch": {"sequence": 4096}}


def test_a_model_gives_the_number_of_layers_per_rank() -> None:
    run = pptrace.simulate({"schedule": "helixpipe", **MODEL}, pp=4, microbatches=8)

    assert run.prepared.chunks == run.prepared.resolved.experiment.parallel.vp == 8
    assert run.prepared.schedule.stages == 2 * 32 + 1
    assert not any("stage_replicas" in note for note in run.prepared.workload.notes)
    # Each rank has two buffers for queries, keys, values and the residual, and two for output and residual.
    width, kv_width = 4096, 2 * 8 * 128
    assert run.memory.buffer_bytes.tolist() == [2 * 4096 * 2 * (2 * width + kv_width + 2 * width)] * 4


def test_all_but_core_attention_can_be_recomputed() -> None:
    """The authors' ``--checkpoint-without-attn``: ranks keep queries, keys, values, outputs and residuals."""
    schedule = {"name": "helixpipe", "recompute": {"stages": list(range(0, 65, 2))}}
    run = pptrace.simulate({"schedule": schedule, **MODEL}, pp=4, microbatches=8)

    width, kv_width = 4096, 2 * 8 * 128
    kept = 8 * 8 * 4096 * 2 * ((2 * width + kv_width) + 2 * width)
    assert kept < run.memory.peak_activation_bytes[2] < 1.1 * kept


@pytest.mark.parametrize(("config", "sizes", "message"), [
    ({}, {"pp": 1, "microbatches": 2}, "computes attention on other ranks than its layer"),
    ({}, {"pp": 4, "microbatches": 12}, "repeats 8 microbatches, 2 per rank, and 12 do not fill them"),
    (MODEL, {"pp": 4, "vp": 4, "microbatches": 8}, "p x v layers, and 4 x 4 are not 32"),
    (MODEL, {"pp": 3, "microbatches": 6}, "3 ranks do not divide 32 layers"),
    ({**MODEL, "model": {"preset": "llama3-8b", "encoder": ENCODER}},
     {"pp": 4, "microbatches": 8}, "no stages of an encoder"),
])  # fmt: skip
def test_impossible_sizes_are_refused(config: dict[str, Any], sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        pptrace.simulate({"schedule": "helixpipe", **config}, **sizes)
