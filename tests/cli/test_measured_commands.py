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
    (found,) = json.loads(pptrace("replay", trace, "--json").out)

    assert found["replayed_ns"] == found["measured_ns"]
    told = "simulated: measured 102.200 ms, replayed 102.200 ms: 100.00% explained\n"
    assert pptrace("replay", trace).out == told


def test_an_explanation_names_parts_ranks_and_what_would_shorten_the_step(pptrace: Any) -> None:
    found = json.loads(pptrace("explain", "step.pftrace", "--json").out)
    text = pptrace("explain", "step.pftrace").out

    assert sum(found["parts_ns"].values()) == found["step_ns"]
    assert found["what_if"]["slowest"]["rank"] == 1
    assert found["what_if"]["free_communication_ns"] < found["what_if"]["replayed_ns"]
    assert "with rank 1 repaired, the slowest" in text
    assert "without any bubble" in text


def test_a_fit_of_a_simulation_gives_its_costs_back(pptrace: Any, folder: Path) -> None:
    found = json.loads(pptrace("calibrate", "step.pftrace", "--json", "-o", "costs.yaml").out)

    assert {(one["kind"], one["stage"]): one["median_ns"] for one in found["fitted"]} == {
        ("F", 0): 10_000_000, ("F", 1): 10_000_000, ("B", 0): 20_000_000, ("B", 1): 25_000_000,
    }  # fmt: skip
    assert found["link"]["median_ns"] == 1_100_000
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


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("explain", "nothing"), "nothing: No such file or directory"),
        (("explain", "empty"), "empty: is an empty folder"),
        (("replay", "table.csv"), "no importer recognises it"),
        (("replay", "step.yaml"), "pip install pptrace-profilers"),
        (("calibrate", "step.pftrace", "-o", "costs.json"), "a calibration is written as .yaml"),
        (("explain", "step.pftrace", "--step", "7"), "no step 7: there are 0 to 0, and median"),
        (("diff", "step.pftrace", "nothing"), "there is no such file or folder"),
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
