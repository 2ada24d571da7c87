"""Ranks of one pipeline that hold the same stage reduce its gradients, over what lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import simulate
from pptrace.errors import ConfigError
from pptrace.run.overheads import metrics_under
from pptrace.steps.message_calls import Policy
from pptrace.timeline.idle import IdleCause

if TYPE_CHECKING:
    from pathlib import Path

BOTH_WAYS = """
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule


def make(request):
    rows = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    return Schedule.from_rows(rows, placement=Placement.of_stages([[0, 1], [1, 0]], microbatches=2))
"""
COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "gradients": "10 MB"}
NETWORK = {"name": "hockney", "bandwidth": "1 GB/s", "latency": "1 us"}


@pytest.fixture
def schedule(tmp_path: Path) -> str:
    (tmp_path / "both.py").write_text(BOTH_WAYS, encoding="utf-8")
    return f"{tmp_path / 'both.py'}:make"


def run(schedule: str, *, costs: Any = COSTS, **values: Any) -> Any:
    return simulate(schedule=schedule, pp=2, microbatches=2, costs=costs, **({"network": NETWORK} | values))


def test_two_holders_reduce_over_the_link_between_them(schedule: str) -> None:
    off = run(schedule, data_parallel={"stage_replicas": False})
    on = run(schedule)

    # A ring of two: each sends half, then receives the other half's sum; two stages, one after the other.
    each = 2 * (5_000_000 + 1_000)
    assert on.metrics.step_ns - off.metrics.step_ns == pytest.approx(2 * each, rel=1e-3)
    assert on.metrics.idle_ns[:, IdleCause.REDUCTION].tolist() == on.metrics.reduction_ns.tolist()


def test_what_is_not_reduced_is_said(schedule: str) -> None:
    off = run(schedule, data_parallel={"stage_replicas": False})
    unknown = run(schedule, costs={**COSTS, "gradients": "0 B"})

    assert any("data_parallel.stage_replicas is false" in note for note in off.metrics.notes)
    assert any("costs table have no gradients" in note for note in unknown.metrics.notes)
    assert unknown.metrics.step_ns == off.metrics.step_ns
    assert run(schedule).metrics.notes == ()


def test_what_a_step_costs_without_its_policy_still_reduces(schedule: str) -> None:
    on = run(schedule, p2p="ordered")

    again = metrics_under(on, Policy())

    assert again is not None
    assert again.reduction_ns.tolist() == on.metrics.reduction_ns.tolist()


def test_nothing_changes_where_each_stage_has_one_rank(tmp_path: Path) -> None:
    table = tmp_path / "plain.csv"
    table.write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")

    plain, asked = (
        simulate(schedule=str(table), costs=COSTS, network=NETWORK, data_parallel={"stage_replicas": choice})
        for choice in (False, True)
    )

    assert plain.metrics.step_ns == asked.metrics.step_ns
    assert plain.metrics.notes == asked.metrics.notes == ()


def test_on_a_cluster_holders_reduce_over_its_links(schedule: str) -> None:
    fabric = {"name": "hockney", "bandwidth": "1 GB/s", "latency": "1 us"}
    cluster = {"gpus": 1, "nics": 1, "nodes": 2, "node": {"name": "ideal"}, "fabric": fabric}
    on = run(schedule, network=None, cluster=cluster, data_parallel={"stage_replicas": True})
    flat = run(schedule, data_parallel={"stage_replicas": True})

    assert on.metrics.reduction_ns.tolist() == flat.metrics.reduction_ns.tolist()


def test_costs_without_gradients_are_refused(schedule: str) -> None:
    with pytest.raises(
        ConfigError, match=r"data_parallel.stage_replicas: costs table have no gradients to reduce"
    ):
        run(schedule, costs={**COSTS, "gradients": "0 B"}, data_parallel={"stage_replicas": True})


@pytest.mark.needs_plugins
@pytest.mark.parametrize("zero", [1, 2])
def test_holders_reduce_their_shares_of_sharded_gradients(schedule: str, zero: int) -> None:
    model = {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}

    def reduction_ns(stage: int, **data: Any) -> int:
        run_costs, data = {"name": "roofline", "zero": stage}, {"bandwidth": "50 GB/s", **data}
        step = simulate(
            schedule=schedule, pp=2, dp=4, costs=run_costs, model=model, device="h100-sxm", data_parallel=data,
            network={"name": "hockney", "bandwidth": "1 GB/s"}, batch={"microbatches": 2, "sequence": 1024},
        )  # fmt: skip
        return int(step.prepared.workload.reduce_ns.sum())

    whole, shares = (reduction_ns(stage) - reduction_ns(stage, stage_replicas=False) for stage in (0, zero))
    assert 4 * shares == pytest.approx(whole, rel=1e-3)
