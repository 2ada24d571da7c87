"""Overlapped pairs hide communication where costs have segments, by default; where they cannot, a note says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.plugins.registry import Registry
from pptrace.run.neighbourhood import estimate
from pptrace.run.trace_files import simulated_source
from pptrace.steps.kinds import Kind
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.run.run import Run

pytestmark = pytest.mark.needs_plugins

EXPERTS: dict[str, Any] = {
    "model": "qwen3-30b-a3b", "device": "h100-sxm", "schedule": "dualpipe", "stack": "ideal",
    "parallel": {"pp": 4, "dp": 8, "ep": 8}, "batch": {"microbatches": 16, "sequence": 4096},
}  # fmt: skip
DENSE: dict[str, Any] = {
    "model": "llama3-8b", "device": "h100-sxm", "parallel": {"pp": 4},
    "batch": {"microbatches": 16, "sequence": 4096},
}  # fmt: skip
PAIRED = ["dualpipe", "dualpipe-v", "combined-1f1b", "stp"]
NOTHING = "the pairs of this schedule overlap nothing"


def with_costs(configuration: dict[str, Any], **changed: Any) -> Run:
    return pptrace.simulate({**configuration, **changed})


def overlap_notes(run: Run) -> list[str]:
    return [note for note in run.to_dict()["notes"] if note.startswith(NOTHING)]


def test_dualpipe_hides_the_exchanges_of_its_pairs_by_default() -> None:
    """The first rank has m - 3p/2 + 1 pairs; each hides all exchanges of its forward and its backward."""
    overlapped, whole = with_costs(EXPERTS), with_costs(EXPERTS, costs={"segments": False})

    ranks, microbatches = 4, 16
    workload = whole.prepared.workload
    exchanges_ns = workload.collective_ns(Kind.F) + workload.collective_ns(Kind.B)
    (group,) = overlapped.metrics.groups
    assert group.total_ns.tolist() == [microbatches * exchanges_ns[0]] * ranks
    assert group.hidden_ns[0] == group.hidden_ns[-1] == (microbatches - 3 * ranks // 2 + 1) * exchanges_ns[0]
    assert overlapped.step_ns < 0.9 * whole.step_ns
    assert overlap_notes(overlapped) == []


@pytest.mark.parametrize("name", PAIRED)
def test_the_default_is_what_segments_true_gives(name: str) -> None:
    chunks = {"schedule": name, "parallel": {**EXPERTS["parallel"], **({} if name == "dualpipe" else {"vp": 2})}}
    default, chosen = with_costs(EXPERTS, **chunks), with_costs(EXPERTS, **chunks, costs={"segments": True})

    assert default.step_ns == chosen.step_ns
    assert default.metrics.groups[0].hidden > 0
    assert (default.prepared.workload.segments, default.prepared.workload.f_ns.tolist()) == (
        chosen.prepared.workload.segments, chosen.prepared.workload.f_ns.tolist()
    )  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v", "chimera"])
def test_schedules_without_pairs_have_no_segments_and_the_same_step(name: str) -> None:
    chunks = {"vp": 2} if name in {"interleaved-1f1b", "zb-v"} else {}
    parts = {"schedule": name, "parallel": {**EXPERTS["parallel"], **chunks}}
    default, off = with_costs(EXPERTS, **parts), with_costs(EXPERTS, **parts, costs={"segments": False})

    assert not default.prepared.workload.segments
    assert default.step_ns == off.step_ns
    assert default.timeline.end_ns.tolist() == off.timeline.end_ns.tolist()
    assert overlap_notes(default) == []


def test_tensor_parallel_collectives_are_hidden_by_default_too() -> None:
    parts = {"schedule": "dualpipe-v", "parallel": {"pp": 4, "tp": 4, "vp": 2}}
    overlapped, whole = with_costs(DENSE, **parts), with_costs(DENSE, **parts, costs={"segments": False})

    assert overlapped.step_ns < whole.step_ns
    assert overlapped.metrics.groups[0].hidden > 0


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        ({"parallel": {"pp": 4}, "batch": {"microbatches": 8}},
         "unit costs have no segments; set a model, or costs.name to table with costs.segments"),
        ({"parallel": {"pp": 4}, "batch": {"microbatches": 8},
          "costs": {"name": "table", "forward": "2 ms", "backward": "4 ms"}},
         "costs have no segments; set costs.segments"),
        ({"parallel": {"pp": 4}, "batch": {"microbatches": 8},
          "costs": {"name": "table", "segments": {"F": [{"name": "mlp", "time": "2 ms"}]}, "backward": "4 ms"}},
         "no segment of these costs communicates; set the stream of one under costs.segments"),
        (DENSE,
         "costs have no segments, as no action has a collective; set parallel.tp, parallel.cp or parallel.ep"),
        ({**EXPERTS, "costs": {"segments": False}},
         "costs have no segments, as costs.segments is false; set it to true"),
        ({**EXPERTS, "costs": {"overlap_tp": True}}, "costs have no segments; set costs.segments"),
    ],
)  # fmt: skip
def test_pairs_that_overlap_nothing_are_noted(configuration: dict[str, Any], reason: str) -> None:
    run = with_costs(configuration, schedule="dualpipe")

    assert overlap_notes(run) == [f"{NOTHING}: {reason}"]
    assert f"note: {NOTHING}: {reason}" in " ".join(run.summary().split())
    assert overlap_notes(with_costs(configuration, schedule="1f1b")) == []


def test_a_table_file_with_pairs_has_segments_by_default(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", encoding="utf-8")
    file = {"model": "qwen3-30b-a3b", "device": "h100-sxm", "parallel": {"dp": 8, "ep": 8},
            "batch": {"sequence": 4096}, "schedule": str(table)}  # fmt: skip

    overlapped, whole = with_costs(file), with_costs(file, costs={"segments": False})

    assert overlapped.step_ns < whole.step_ns
    assert overlap_notes(overlapped) == []


def test_the_costs_behind_a_trace_have_the_segments_that_it_was_simulated_with() -> None:
    run = with_costs(EXPERTS)

    behind = simulated_source(run.traced(), run.registry)

    assert behind is not None
    assert behind.workload.segments == run.prepared.workload.segments


def test_schedules_are_compared_on_the_same_terms() -> None:
    """What a microbatch's actions take alone is the same with and without pairs."""
    alone = with_costs(EXPERTS, schedule="1f1b").prepared.workload
    paired = with_costs(EXPERTS).prepared.workload

    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        assert paired.duration_ns(kind).tolist() == alone.duration_ns(kind).tolist()
        assert paired.collective_ns(kind).tolist() == alone.collective_ns(kind).tolist()
    rows = pptrace.compare(EXPERTS, schedules=["1f1b", "dualpipe"]).table()
    steps = {row["schedule"]: row["step_ns"] for row in rows}
    assert steps["1f1b"] == with_costs(EXPERTS, schedule="1f1b").step_ns
    assert steps["dualpipe"] == with_costs(EXPERTS).step_ns


def test_an_estimate_leaves_out_what_pairs_hide() -> None:
    workload = Workload.uniform(4, f_ns=10, b_ns=20, f_collective_ns=4, b_collective_ns=2)
    offer = Registry.load().schedules["dualpipe"]

    exposed, hidden = (estimate(offer, workload, 4, 32, hides=hides) for hides in (False, True))

    assert exposed is not None
    assert hidden is not None
    assert hidden.step_ns == pytest.approx(exposed.step_ns * 24 / 30, abs=1)


def test_offers_say_which_schedules_have_pairs() -> None:
    schedules = Registry.load().schedules

    assert {name for name in schedules if schedules[name].offer.has_pairs} == {*PAIRED}
