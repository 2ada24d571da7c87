"""The bottleneck is the overhead with the largest saving: policies are simulated, uneven stages computed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import simulate
from pptrace.run import overheads
from pptrace.run.inputs import StepInputs
from pptrace.run.summary import WIDTH

if TYPE_CHECKING:
    from pathlib import Path

RANKS, MICROBATCHES = 4, 16
NETWORK = {"name": "hockney", "bandwidth": "1 GB/s"}
COSTS = {"name": "table", "forward": "10 us", "backward": "20 us", "boundary": "10 KB"}


def one_f_one_b(rank: int) -> list[str]:
    ahead = RANKS - rank
    row = [f"{rank}F{microbatch}" for microbatch in range(ahead)]
    for microbatch in range(MICROBATCHES):
        row.append(f"{rank}B{microbatch}")
        row += [f"{rank}F{microbatch + ahead}"] if microbatch + ahead < MICROBATCHES else []
    return row


def bottleneck(step: Any) -> str:
    return str(step.bottleneck)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text("".join(",".join(one_f_one_b(rank)) + "\n" for rank in range(RANKS)))
    return str(path)


def run(table: str, **changed: Any) -> Any:
    return simulate(**{"schedule": table, "costs": COSTS, "network": NETWORK, "p2p": "async", **changed})


def test_a_policy_is_worth_what_the_step_is_shorter_without_it(table: str) -> None:
    blocking = run(table, p2p="blocking")
    saved = 1 - run(table).metrics.step_ns / blocking.metrics.step_ns

    assert saved > 0.3
    assert bottleneck(blocking) == f"p2p policy {saved:.1%}"


def test_what_no_policy_would_spare_is_the_networks_even_where_peers_come_late_for_it(table: str) -> None:
    waiting = run(table)
    saved = 1 - run(table, network="ideal").metrics.step_ns / waiting.metrics.step_ns

    assert waiting.metrics.idle_by_cause_ns["peer-compute"] > waiting.metrics.idle_by_cause_ns["transfer"]
    assert bottleneck(waiting) == f"transfer {saved:.1%}"


def test_alike_stages_are_never_called_uneven(table: str) -> None:
    for policy in ("async", "sender-blocking", "blocking", "ordered", "batched"):
        assert "uneven" not in bottleneck(run(table, p2p=policy))


def test_uneven_stages_are_worth_what_the_busiest_rank_has_over_the_mean(table: str) -> None:
    last = run(table, costs=COSTS | {"forward": ["10 us", "10 us", "10 us", "50 us"]}, network="ideal")
    over = (70 - (3 * 30 + 70) / 4) * 1000 * MICROBATCHES

    assert bottleneck(last) == f"uneven stages {over / last.metrics.step_ns:.1%}"


def test_fill_and_drain_call_for_more_microbatches(table: str) -> None:
    ideal = run(table, network="ideal")

    assert bottleneck(ideal) == f"bubble {3 / 19:.1%}"


def test_a_reduction_that_is_not_overlapped_is_a_bottleneck(table: str) -> None:
    after = run(table, network="ideal", costs=COSTS | {"reduction": "400 us"})

    assert re.fullmatch(r"reduction [\d.]+%", bottleneck(after))


def test_a_rank_over_its_memory_comes_first(table: str) -> None:
    activations = run(table, p2p="blocking", costs=COSTS | {"activation": "1 GiB", "capacity": "3 GiB"})
    weights = run(table, costs=COSTS | {"weights": "3 GiB", "activation": "1 MiB", "capacity": "2 GiB"})

    assert bottleneck(activations) == "memory"
    assert bottleneck(weights) == "memory"


def test_one_rank_that_always_computes_has_no_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("0F0,0B0\n")

    assert bottleneck(run(str(path), costs="unit")) == "compute alone"


def test_a_step_too_large_to_simulate_again_goes_by_its_idle_time(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overheads, "MOST_ACTIONS", 10)

    assert re.fullmatch(r"(bubble|head-of-line) .*", bottleneck(run(table, p2p="ordered")))


def test_a_policy_under_which_the_step_deadlocks_is_not_compared(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pptrace.errors import DeadlockError

    blocking = run(table, p2p="blocking")

    def stuck(*_: object, **__: object) -> None:
        raise DeadlockError("stuck", cycle=[], policy="async")

    monkeypatch.setattr(StepInputs, "simulate", stuck)

    assert "p2p" not in bottleneck(blocking)


def test_nothing_is_simulated_again_unless_it_is_asked_for(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocking = run(table, p2p="blocking")
    again: list[int] = []
    monkeypatch.setattr(StepInputs, "simulate", lambda _: again.append(1))

    blocking.table()

    assert not again


def test_json_has_the_name_and_the_share_of_the_bottleneck(table: str) -> None:
    blocking = run(table, p2p="blocking")
    saved = 1 - run(table).metrics.step_ns / blocking.metrics.step_ns

    assert blocking.to_dict()["bottleneck"] == {
        "name": "p2p policy", "part": pytest.approx(saved),
    }  # fmt: skip


def test_the_bottleneck_fits_a_line(table: str) -> None:
    costs = COSTS | {"activation": "1000 GiB", "capacity": "3 GiB"}
    for made in (run(table, p2p="blocking"), run(table, costs=costs)):
        lines = [line for line in made.summary().splitlines() if line.startswith("bottleneck: ")]

        assert len(lines) == 1
        assert len(lines[0]) <= WIDTH


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({"network": "ideal"}, 0),
        ({"network": "ideal", "p2p": "blocking"}, 1),
        ({}, 1),
        ({"p2p": "blocking"}, 2),
    ],
)
def test_no_step_is_simulated_twice(
    table: str, changed: dict[str, Any], again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, whole, count = run(table, **changed), StepInputs.simulate, []
    monkeypatch.setattr(StepInputs, "simulate", lambda prepared: count.append(1) or whole(prepared))

    overheads.find_savings(step)

    assert len(count) == again
