"""Files of settings as values of an axis: one name sets many keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import sweep
from pptrace.errors import ConfigError
from pptrace.search.grid import parse_axes

if TYPE_CHECKING:
    from pathlib import Path

STEP = """\
schedule: table.csv
costs: {name: table, forward: 1 ms, backward: 2 ms, boundary: 1 MB}
network: {name: hockney, bandwidth: 1 GB/s, latency: 1 us}
"""
FILES = {
    "step.yaml": STEP,
    "table.csv": "0F0,0B0\n1F0,1B0\n",
    "slow.yaml": "network:\n  bandwidth: 100 MB/s\n  latency: 10 us\n",
    "fast.yaml": "network:\n  bandwidth: 10 GB/s\ncosts:\n  forward: 500 us\n",
    "empty.yaml": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(over: list[str], **values: Any) -> list[Any]:
    return list(sweep("step.yaml", over=over, executor="serial", **values).rows)


def test_a_file_sets_all_that_stands_in_it_and_its_name_is_the_cell() -> None:
    result = rows(["machine=slow.yaml,fast.yaml"])

    assert [row["machine"] for row in result] == ["slow", "fast"]
    assert [row["network.bandwidth"] for row in result] == ["100 MB/s", "10 GB/s"]
    assert [row["network.latency"] for row in result] == ["10 us", "1 us"]
    assert [row["costs.forward"] for row in result] == ["1 ms", "500 us"]
    assert result[0]["step_ns"] > result[1]["step_ns"]


def test_files_with_equal_names_are_distinguished_by_their_folders(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "slow.yaml").write_text("costs: {forward: 9 ms}\n", encoding="utf-8")

    (axis,) = parse_axes(["machine=slow.yaml,other/slow.yaml"])

    assert [value.text for value in axis.values] == ["slow.yaml", "other/slow.yaml"]


def test_files_cross_with_other_axes() -> None:
    assert len(rows(["machine=slow.yaml,fast.yaml", "costs.backward=1 ms,2 ms"])) == 4


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["machine=slow.yaml,8"], "over machine: 8 is mixed with files of settings"),
        (["machine=slow.yaml,slow.yaml"], "slow.yaml is given twice"),
        (["machine=none.yaml"], "none.yaml"),
        (["machine=empty.yaml"], "empty.yaml: the file is empty"),
        (["machine=slow.yaml", "network.latency=1 us,2 us"], r"over machine also sets it \(network.latency\)"),
        (["machine=slow,fast"], "over machine: no such key"),
    ],
)
def test_files_that_cannot_be_are_refused(over: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows(over)
