"""A run is the same bytes each time, and says where it comes from without saying where it was made."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest
from interpreted import interpreted_kernels

import pptrace_kernel
from pptrace.api import simulate
from pptrace.errors import OutputError
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
COSTS = {"name": "table", "forward": "10 us", "backward": "20 us", "boundary": "1 KB", "activation": "1 MiB"}
NETWORK = {"name": "hockney", "bandwidth": "1 GB/s", "latency": "3 us"}
SUFFIXES = (".pftrace", ".json", ".json.gz")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "secret folder" / "table.csv"
    path.parent.mkdir()
    path.write_text(TABLE)
    return path


def run(table: Path) -> Any:
    return simulate(schedule=str(table), costs=COSTS, network=NETWORK)


def plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return type(value) in {int, float, str, bool, type(None)}


def test_two_runs_export_the_same_bytes_interpreted_and_compiled(table: Path, tmp_path: Path) -> None:
    with interpreted_kernels():
        run(table).save(*(tmp_path / f"first{suffix}" for suffix in SUFFIXES))
    with pptrace_kernel.always_compiled():
        run(table).save(*(tmp_path / f"second{suffix}" for suffix in SUFFIXES))

    for suffix in SUFFIXES:
        assert (tmp_path / f"first{suffix}").read_bytes() == (tmp_path / f"second{suffix}").read_bytes()


def test_neither_document_nor_trace_holds_a_folder(table: Path, tmp_path: Path) -> None:
    made = run(table)
    made.save(tmp_path / "step.pftrace", tmp_path / "step.json")

    assert "secret folder" not in str(made.to_dict())
    for name in ("step.pftrace", "step.json"):
        assert b"secret folder" not in (tmp_path / name).read_bytes()


def test_the_document_holds_plain_that_agree_with_the_metrics(table: Path) -> None:
    made = run(table)

    document = made.to_dict()

    assert plain(document)
    assert document["step_ns"] == made.metrics.step_ns == sum(document["critical_path"]["by_kind_ns"].values())
    assert [row["busy_ns"] + row["idle_ns"] for row in document["ranks"]] == [document["step_ns"]] * 2
    assert document["busy_ns"] + document["idle_ns"] == 2 * document["step_ns"]


def test_a_target_that_cannot_be_written_leaves_no_other(table: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="folder does not exist"):
        run(table).save(tmp_path / "step.pftrace", tmp_path / "missing" / "step.json")

    assert not (tmp_path / "step.pftrace").exists()


@pytest.mark.needs_plugins
@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("v-half", 2), ("interleaved-1f1b", 2), ("chimera", 1)]
)
def test_a_written_table_is_the_order_and_gives_the_same_step(
    name: str, chunks: int, zero: int, tmp_path: Path
) -> None:
    job: dict[str, Any] = {
        "model": {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000},
        "parallel": {"pp": 4, "dp": 2, "vp": chunks}, "batch": {"sequence": 1024, "micro": 1, "global": 16},
        "device": {"preset": "h100-sxm"}, "costs": {"name": "roofline", "zero": zero}, "network": NETWORK,
        "p2p": {"policy": "ordered"},
    }  # fmt: skip
    made = simulate(job, schedule=name, registry=Registry.load())

    made.save(tmp_path / "order.csv")
    again = simulate(job, schedule=str(tmp_path / "order.csv"), registry=Registry.load())

    with (tmp_path / "order.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file))
    inserted = {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
    assert cells == [
        [str(action) for action in made.prepared.schedule[rank] if action.kind.name not in inserted]
        for rank in range(4)
    ]
    assert again.timeline.start_ns.tolist() == made.timeline.start_ns.tolist()
    assert again.step_ns == made.step_ns
