"""``explain``, ``replay`` and ``calibrate`` on traces of our own, and on what is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

STEP = """\
schedule: table.csv
costs: {name: table, forward: 10 ms, backward: [20 ms, 25 ms], boundary: 1 MB}
network: {name: hockney, bandwidth: 1 GB/s, latency: 100 us}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pptrace: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    (tmp_path / "step.yaml").write_text(STEP, encoding="utf-8")
    pptrace("simulate", "step.yaml", "-o", "step.pftrace", "-o", "step.json")
    return tmp_path


@pytest.mark.parametrize("trace", ["step.pftrace", "step.json"])
def test_a_simulated_trace_is_explained_whole(pptrace: Any, trace: str) -> None:
    (result,) = json.loads(pptrace("replay", trace, "--json").out)

    assert result["replayed_ns"] == result["measured_ns"]
    told = "simulated: measured 102.200 ms, replayed 102.200 ms: 100.00% explained\n"
    assert pptrace("replay", trace).out == told


def test_an_explanation_names_parts_ranks_and_what_would_shorten_the_step(pptrace: Any) -> None:
    result = json.loads(pptrace("explain", "step.pftrace", "--json").out)
    text = pptrace("explain", "step.pftrace").out

    assert sum(result["parts_ns"].values()) == result["step_ns"]
    assert result["what_if"]["slowest"]["rank"] == 1
    assert result["what_if"]["free_communication_ns"] < result["what_if"]["replayed_ns"]
    assert "without the slowness of rank 1" in text
    assert "without any bubble" in text


@pytest.mark.parametrize("planned", ["step.yaml", "table.csv"])
def test_a_configuration_and_a_table_are_steps_to_explain(pptrace: Any, planned: str) -> None:
    document = json.loads(pptrace("explain", planned, "--json").out)
    answer = pptrace("explain", planned, "--step", "2")

    assert sum(document["parts_ns"].values()) == document["step_ns"]
    assert document["unattributed"] == document["notes"] == []
    assert answer.out.startswith(f"{planned}, simulated: step ")
    assert answer.err == f"note: --step has no effect: {planned} is not a measurement\n"


def test_a_configuration_is_explained_as_its_trace_is(pptrace: Any) -> None:
    plan, trace = (json.loads(pptrace("explain", name, "--json").out) for name in ("step.yaml", "step.pftrace"))

    assert plan == trace


def test_a_fit_of_a_simulation_gives_its_costs_back(pptrace: Any, folder: Path) -> None:
    result = json.loads(pptrace("calibrate", "step.pftrace", "--json", "-o", "costs.yaml").out)

    assert {(item["kind"], item["stage"]): item["mean_ns"] for item in result["fitted"]} == {
        ("F", 0): 10_000_000, ("F", 1): 10_000_000, ("B", 0): 20_000_000, ("B", 1): 25_000_000,
    }  # fmt: skip
    assert result["link"]["median_ns"] == 1_100_000
    again = json.loads(pptrace("simulate", "costs.yaml", "--schedule", "table.csv", "--json").out)
    first = json.loads(pptrace("simulate", "step.yaml", "--json").out)
    assert again["step_ns"] == first["step_ns"]
    assert (folder / "costs.yaml").exists()


def test_two_sizes_of_messages_tell_latency_and_bandwidth_apart(pptrace: Any, folder: Path) -> None:
    (folder / "three.csv").write_text(
        "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n2F0,2F1,2F2,2F3,2B0,2B1,2B2,2B3\n",
        encoding="utf-8",
    )
    boundary = "costs.boundary=[1 MB, 4 MB]"
    options = (
        "--set",
        boundary,
        "--set",
        "costs.backward=20 ms",
        "--schedule",
        "three.csv",
        "-o",
        "three.pftrace",
    )
    pptrace("simulate", "step.yaml", *options)

    link = json.loads(pptrace("calibrate", "three.pftrace", "--json").out)["link"]

    assert link["latency_ns"] == pytest.approx(100_000, rel=0.01)
    assert link["bytes_per_s"] == pytest.approx(1e9, rel=0.01)


NODES = """\
schedule: four.csv
costs: {name: table, forward: 10 ms, backward: 20 ms, boundary: [1 MB, 4 MB, 2 MB]}
network:
  {name: hockney, bandwidth: 1 GB/s, latency: 100 us, node: {ranks: 2, bandwidth: 10 GB/s, latency: 10 us}}
"""


def test_links_within_a_node_and_between_nodes_are_distinguished(pptrace: Any, folder: Path) -> None:
    lines = [
        ",".join(f"{rank}{kind}{microbatch}" for kind in "FB" for microbatch in range(4)) for rank in range(4)
    ]
    (folder / "four.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "nodes.yaml").write_text(NODES, encoding="utf-8")
    pptrace("simulate", "nodes.yaml", "-o", "four.pftrace")

    apart = json.loads(pptrace("calibrate", "four.pftrace", "--json", "--node-ranks", "2", "-o", "two.yaml").out)
    told = pptrace("calibrate", "four.pftrace").out

    assert apart["link"]["median_ns"] == 4_100_000
    assert apart["node_link"]["latency_ns"] == pytest.approx(10_000, rel=0.01)
    assert apart["node_link"]["bytes_per_s"] == pytest.approx(10e9, rel=0.01)
    assert "node:\n    ranks: 2\n" in (folder / "two.yaml").read_text(encoding="utf-8")
    pptrace("simulate", "two.yaml", "--schedule", "four.csv")
    assert "links differ" not in told  # there is only one link with messages of one size


def test_ways_that_are_no_sort_of_link_are_named(pptrace: Any, folder: Path) -> None:
    lines = [
        ",".join(f"{rank}{kind}{microbatch}" for kind in "FB" for microbatch in range(4)) for rank in range(4)
    ]
    (folder / "four.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "nodes.yaml").write_text(NODES.replace("[1 MB, 4 MB, 2 MB]", "1 MB"), encoding="utf-8")
    pptrace("simulate", "nodes.yaml", "-o", "four.pftrace")

    told = pptrace("calibrate", "four.pftrace").out

    assert "links differ: rank 0 to rank 1 110 us, rank 1 to rank 2 1.1 ms; if some are within a node, " in told


def test_wires_of_a_node_have_a_bandwidth(pptrace: Any, folder: Path) -> None:
    (folder / "nodes.yaml").write_text(NODES.replace("10 GB/s", "10 B/s"), encoding="utf-8")
    (folder / "four.csv").write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")

    output = pptrace("simulate", "nodes.yaml", "--microbatches", "1")

    assert "node.bandwidth: the smallest bandwidth is 1 kB/s" in output.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("explain", "nothing"), "nothing: cannot be read: no such file or directory"),
        (("explain", "empty"), "empty: is an empty folder"),
        (("explain", "gone.yaml"), "gone.yaml: no such file"),
        (("explain", "step.yaml", "step.pftrace"), "step.pftrace: a configuration or a table is explained alone"),
        (("replay", "table.csv"), "pip install ./plugins/pptrace-profilers"),
        (("replay", "step.yaml"), "step.yaml: is a configuration: name the traces of a run"),
        (("calibrate", "step.pftrace", "-o", "costs.json"), "a calibration is written as .yaml"),
        (("explain", "step.pftrace", "--step", "7"), "no such step; write 0 (simulated), median or all"),
        (("diff", "step.pftrace", "nothing"), "nothing: no such file or folder"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    pptrace: Any, folder: Path, command: tuple[str, ...], message: str
) -> None:
    (folder / "empty").mkdir()

    answer = pptrace(*command)

    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_all_steps_are_explained_one_after_another(pptrace: Any) -> None:
    (one,) = json.loads(pptrace("explain", "step.pftrace", "--step", "all", "--json").out)

    assert one == json.loads(pptrace("explain", "step.pftrace", "--json").out)


ENDING = """\
schedule: table.csv
parallel: {dp: 2}
costs:
  {name: table, forward: 10 ms, backward: 20 ms, boundary: 1 MB, activation: [3 GiB, 1 GiB], weights: 2 GiB,
   gradients: 1 GiB, optimizer: 4 GiB, update: 3 ms, reduction: [2 ms, 4 ms], sync: 1 ms, capacity: 40 GiB}
"""


@pytest.mark.parametrize(("trace", "policy"), [("ending.pftrace", "batched"), ("ending.json", "ordered")])
def test_a_fit_to_a_simulation_keeps_its_policy_its_end_and_its_memory(
    pptrace: Any, folder: Path, trace: str, policy: str
) -> None:
    (folder / "ending.yaml").write_text(ENDING + f"p2p: {{policy: {policy}}}\n", encoding="utf-8")
    was = json.loads(pptrace("simulate", "ending.yaml", "--json", "-o", trace).out)
    (folder / "table.csv").rename(folder / "order.csv")
    output = pptrace("calibrate", trace, "-o", "again.yaml")
    result = json.loads(pptrace("simulate", "again.yaml", "--schedule", "order.csv", "--json").out)

    assert "warning" not in output.out
    for figure in ("step_ns", "peak_memory_bytes", "device_memory_bytes", "over_memory", "reduction_ns"):
        assert result[figure] == was[figure]
    assert result["provenance"]["configuration"]["p2p"]["policy"] == policy


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"pp": 2', '"pp": 900000'),
        ('"name": "table.csv"', '"name": "/proc/self/environ"'),
        ('"dp": 2', '"dp": "x"'),
    ],
)
def test_a_configuration_in_a_trace_that_cannot_be_its_own_is_left_alone(
    pptrace: Any, folder: Path, was: str, becomes: str
) -> None:
    (folder / "ending.yaml").write_text(ENDING.replace("{dp: 2}", "{pp: 2, dp: 2}"), encoding="utf-8")
    pptrace("simulate", "ending.yaml", "-o", "whole.json")
    text = (folder / "whole.json").read_text(encoding="utf-8")
    assert was in text
    (folder / "odd.json").write_text(text.replace(was, becomes), encoding="utf-8")

    for command in (
        ("calibrate", "odd.json", "-o", "odd.yaml"),
        ("explain", "odd.json"),
        ("diff", "odd.json", "odd.json"),
    ):
        assert pptrace(*command).code == 0
    assert "as the simulation had them" not in (folder / "odd.yaml").read_text(encoding="utf-8")


def test_a_step_without_a_flush_is_not_calibrated(pptrace: Any, tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text(
        ",".join(f"0F{step},0B{step},0OPTIMIZER" for step in range(3)), encoding="utf-8"
    )
    assert pptrace("simulate", "--schedule", "order.csv", "-o", "step.pftrace").code == 0

    assert pptrace("calibrate", "step.pftrace").complaint == (
        "step.pftrace: is a step without a flush, whose first and last actions are cut: calibrate a step of 1f1b"
    )
