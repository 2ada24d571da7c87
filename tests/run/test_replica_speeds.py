"""Replicas whose devices are slower than others: each is what it would be alone, and the others wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict

import pptrace
from pptrace.errors import ConfigError
from pptrace.run import replicas
from pptrace.search.what_if import at_speeds, whatif
from pptrace.sim.simulation import run_together
from pptrace.timeline.idle import IdleCause, time_spent
from pptrace.timeline.timeline import window
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.needs_plugins


def of_speeds(speeds: Any, dp: int = 3, **keys: Any) -> pptrace.Run:
    return pptrace.simulate({
        "parallel": {"pp": 2, "dp": dp}, "batch": {"microbatches": 4}, "schedule": "1f1b",
        "costs": {"name": "table", "forward": "1 us", "backward": "2 us"},
        "data_parallel": {"speeds": speeds}, **keys,
    })  # fmt: skip


def test_one_replica_at_half_speed_doubles_the_step_and_is_named() -> None:
    plain, slow = of_speeds(None), of_speeds({"1": 0.5})

    assert slow.metrics.step_ns == 2 * plain.metrics.step_ns == 2 * 15_000
    assert "Of 3 replicas this is number 1, which computes longest" in slow.prepared.workload.notes[-1]
    assert "\nnote: Of 3 replicas this is number 1, which computes longest: 30" in slow.summary()
    fast = of_speeds({"1": 0.5}, batch={"microbatches": 4, "replica": 0})
    assert fast.metrics.busy_ns.tolist() == plain.metrics.busy_ns.tolist()


def test_without_stragglers_the_step_is_that_of_equal_replicas() -> None:
    row = next(row for row in whatif(of_speeds({"0-1": 0.25})).rows if row.name == "no stragglers")

    assert row.step_ns == of_speeds(None).metrics.step_ns


def test_a_changed_step_has_one_note_of_its_replica() -> None:
    prepared = of_speeds({"1": 0.5}).prepared
    (own,) = prepared.workload.notes
    (note,) = at_speeds(prepared, compute=0.5).workload.notes

    assert own.endswith("computes longest: 30 us, the fastest 15 us.")
    assert note.endswith("computes longest: 60 us, the fastest 30 us.")


@pytest.mark.parametrize(("speeds", "said"), [
    ({"3": 0.5}, "3: the job has replicas 0 to 2"),
    ({"1": 0}, "data_parallel.speeds"),
    ({"1": -1}, "data_parallel.speeds"),
    ({"x": 0.5}, "'x' names no replicas"),
    ({"1/": 0.5}, "'1/' names no replicas"),
    ({"1/2": 0.5}, "2: the job has ranks 0 to 1"),
    ({"2-1": 0.5}, "2-1 runs backwards: write 1-2"),
    ({"1": 0.5, "0-2/1": 0.5}, "replica 1 rank 1 is also listed under 1:"),
    ({"0-1": 0.5, "1": 0.5}, "replica 1 is also listed under 0-1:"),
])  # fmt: skip
def test_speeds_that_do_not_match_are_one_line(speeds: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of_speeds(speeds)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def alone(forward: list[str], backward: list[str], **keys: Any) -> pptrace.Run:
    return pptrace.simulate({
        "parallel": {"pp": len(forward)}, "batch": {"microbatches": 4}, "schedule": "1f1b",
        "costs": {"name": "table", "forward": forward, "backward": backward}, **keys,
    })  # fmt: skip


def test_a_slow_rank_of_one_replica_is_its_stage_slow_in_that_replica() -> None:
    slow = of_speeds({"1/1": 0.5})
    same = alone(["1 us", "2 us"], ["2 us", "4 us"])

    assert slow.metrics.step_ns == same.metrics.step_ns
    assert slow.metrics.busy_ns.tolist() == same.metrics.busy_ns.tolist()
    assert "this is number 1" in slow.summary()
    other = of_speeds({"1/1": 0.5}, batch={"microbatches": 4, "replica": 2})
    assert other.metrics.busy_ns.tolist() == of_speeds(None).metrics.busy_ns.tolist()


def test_a_slow_rank_that_holds_two_stages_is_slow_in_both() -> None:
    plain, slow = (
        pptrace.simulate({
            "parallel": {"pp": 4, "dp": 1}, "batch": {"microbatches": 8}, "schedule": "chimera",
            "costs": {"name": "table", "forward": "1 us", "backward": "2 us"}, "data_parallel": {"speeds": speeds},
        })
        for speeds in (None, {"0/3": 0.5})
    )  # fmt: skip

    assert slow.metrics.busy_ns.tolist() == (plain.metrics.busy_ns * [1, 1, 1, 2]).tolist()
    assert plain.metrics.step_ns < slow.metrics.step_ns <= 2 * plain.metrics.step_ns


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_replica_waits_for_slower_ones_is_a_cause_of_its_own(tmp_path: Path, *, overlap: bool) -> None:
    keys: dict[str, Any] = {
        "data_parallel": {"speeds": {"1": 0.5}, "overlap": overlap},
        "costs": {"name": "table", "forward": "1 us", "backward": "2 us", "reduction": "5 us"},
    }
    fast = of_speeds(None, **keys, batch={"microbatches": 4, "replica": 0})
    slow = of_speeds(None, **keys)

    waited = fast.metrics.idle_ns[:, IdleCause.SLOWER_REPLICA]
    assert fast.metrics.step_ns == slow.metrics.step_ns
    # Own gradients are whole at 15 us, the last stage's at 13; those of the slow replica at twice that.
    assert waited.tolist() == ([15_000, 13_000] if overlap else [15_000, 15_000])
    assert not slow.metrics.idle_ns[:, IdleCause.SLOWER_REPLICA].any()
    assert (fast.metrics.busy_ns + fast.metrics.idle_ns.sum(axis=1) == fast.metrics.step_ns).all()
    fast.save(tmp_path / "step.pftrace", tmp_path / "step.json")
    for again in (perfetto.read([tmp_path / "step.pftrace"]), kineto.read([tmp_path / "step.json"])):
        assert time_spent(again, window(again)).idle_ns.tolist() == fast.metrics.idle_ns.tolist()


def test_lengths_and_speeds_multiply() -> None:
    both = of_speeds({"1": 0.5}, dp=2, batch={"microbatches": 4, "sequence": 10, "lengths": [10] * 4 + [5] * 4})
    long = of_speeds({"0": 0.5}, dp=2, batch={"microbatches": 4, "sequence": 10, "lengths": [10] * 4 + [5] * 4})

    assert both.metrics.step_ns == of_speeds(None).metrics.step_ns  # half the work at half the speed
    assert long.metrics.step_ns == 2 * both.metrics.step_ns


@pytest.mark.parametrize(("schedule", "policy"), [
    ("1f1b", "async"), ("1f1b", "ordered"), ("zb-h1", "ordered"), ("chimera", "blocking"), ("1f1b", "megatron"),
])  # fmt: skip
@pytest.mark.parametrize("batch", [
    {"microbatches": 4},
    {"microbatches": 4, "sequence": 10, "lengths": [1 + place * 7 % 10 for place in range(12)]},
    {"sequence": 10, "documents": {"uniform": [1, 10], "count": 50}},
])  # fmt: skip
def test_replicas_that_run_together_have_the_times_and_peaks_of_separate_steps(
    schedule: str, policy: str, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = of_speeds(
        {"0/1": 0.5, "1": 0.75}, schedule=schedule, p2p={"policy": policy}, batch=batch,
        network={"name": "hockney", "bandwidth": "1 GB/s", "latency": "100 ns"},
        costs={"name": "table", "forward": "1 us", "backward": ["2 us", "3 us"], "boundary": "1 kB",
               "activation": "1 MiB", "weight_gradient": "1 us" if schedule == "zb-h1" else None},
    ).prepared  # fmt: skip
    assert prepared.differing is not None
    monkeypatch.setattr(replicas, "_FEWEST_TOGETHER", 1)
    results = list[Any]()
    monkeypatch.setattr(
        replicas, "run_together", lambda *given: results.append(run_together(*given)) or results[-1]
    )
    together = replicas.simulate_replicas(prepared, prepared.differing)
    monkeypatch.setattr(replicas, "run_together", lambda *_: None)
    separate = replicas.simulate_replicas(prepared, prepared.differing)

    assert all(results)
    for name, values in asdict(separate).items():
        assert getattr(together, name).tolist() == values.tolist(), name


def test_a_spread_gives_every_gpu_a_time_of_its_own() -> None:
    def spread(**keys: Any) -> pptrace.Run:
        return of_speeds(None, dp=16, data_parallel={"spread": 0.05, **keys})

    one, again, other = spread(), spread(), spread(seed=2)
    assert one.metrics.busy_ns.tolist() == again.metrics.busy_ns.tolist()
    assert one.metrics.busy_ns.tolist() != other.metrics.busy_ns.tolist()
    differing = one.prepared.differing
    assert differing is not None
    assert differing.kinds == 16
    slowness = 1000 / differing.speeds
    assert abs(slowness.mean() - 1) < 0.03
    assert 0.03 < slowness.std() < 0.07
    assert one.metrics.step_ns > of_speeds(None).metrics.step_ns
    wide = of_speeds(None, dp=16, data_parallel={"spread": 0.05}, parallel={"pp": 2, "tp": 8, "dp": 16})
    assert (1000 / wide.prepared.differing.speeds).mean() > 1.05  # a rank waits for the slowest of its eight
    row = next(row for row in whatif(one).rows if row.name == "no stragglers")
    assert row.step_ns == of_speeds(None).metrics.step_ns


def test_numbers_are_keys_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(
        "parallel: {pp: 2, dp: 4}\nbatch: {microbatches: 4}\ndata_parallel: {speeds: {3: 0.5}}\nschedule: 1f1b\n"
    )

    assert "this is number 3" in pptrace.simulate(file).summary()
