"""Of the steps that a profiler marked, the one of median length is where a viewer begins."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.cli.open import marked_step

if TYPE_CHECKING:
    from pathlib import Path


def marked(number: int, begin: str, took: str, more: str = "") -> str:
    return (
        f'{{"ph": "X", "name": "ProfilerStep#{number}", "pid": 1, "tid": 1,\n "ts": {begin}, "dur": {took}{more}}}'
    )


def write(path: Path, *events: str) -> Path:
    path.write_text('{"traceEvents": [' + ",\n".join(events) + "]}")
    return path


def test_the_step_of_median_length_to_the_nanosecond_of_the_file_s_clock(tmp_path: Path) -> None:
    steps = (
        marked(1, "1682725898000000", "500"),
        marked(2, "1682725898000500.123", "300.5"),
        marked(3, "1682725898000900", "400"),
    )

    assert marked_step(write(tmp_path / "two.json", *steps[:2])) == (1682725898000500123, 1682725898000800623)
    assert marked_step(write(tmp_path / "all.json", *steps)) == (1682725898000900000, 1682725898001300000)
    (tmp_path / "all.json.gz").write_bytes(gzip.compress((tmp_path / "all.json").read_bytes()))
    assert marked_step(tmp_path / "all.json.gz") == (1682725898000900000, 1682725898001300000)


def test_marks_of_one_name_are_one_step(tmp_path: Path) -> None:
    steps = marked(7, "10", "5"), marked(7, "12", "8", ', "args": {"stream": 7}')

    assert marked_step(write(tmp_path / "trace.json", *steps)) == (10_000, 20_000)


@pytest.mark.parametrize("before", range((1 << 20) - 130, (1 << 20) + 40, 10))
def test_a_mark_where_two_parts_of_the_file_meet_is_found(tmp_path: Path, before: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(" " * before + marked(4, "10", "5"))

    assert marked_step(path) == (10_000, 15_000)


@pytest.mark.parametrize(
    "event",
    [
        {"name": "aten::add", "ts": 1, "dur": 1},
        {"name": "ProfilerStep#1"},
        {"name": "ProfilerStep#1", "ts": 1},
        {"name": "ProfilerStep#1", "ts": "1", "dur": "1"},
        {"name": "ProfilerStep#1", "ts": -1, "dur": 1},
        {"name": "ProfilerStep#1", "ts": 1, "dur": 0},
        {"name": "ProfilerStep#1", "ts": 1, "dur": float("nan")},
        {"name": "ProfilerStep#1", "ts": 1, "dur": float("inf")},
        {"name": "ProfilerStep#1", "ts": 10**300, "dur": 1},
        {"name": "ProfilerStep#1", "args": ["x" * 5000], "ts": 1, "dur": 1},
    ],
)
def test_what_marks_no_step_is_passed_over(tmp_path: Path, event: dict[str, Any]) -> None:
    assert marked_step(write(tmp_path / "trace.json", json.dumps(event))) is None


def test_a_file_that_breaks_off_has_no_marked_step(tmp_path: Path) -> None:
    whole = gzip.compress(write(tmp_path / "trace.json", marked(1, "1", "2")).read_bytes())
    (tmp_path / "cut.json.gz").write_bytes(whole[:-9])

    assert marked_step(tmp_path / "cut.json.gz") is None


def test_a_time_beyond_all_numbers_marks_nothing(tmp_path: Path) -> None:
    assert marked_step(write(tmp_path / "trace.json", marked(1, "1e99999999999999999999", "1"))) is None
    assert marked_step(write(tmp_path / "trace.json", marked(1, "1e-99999", "1"))) == (1, 1000)


def test_of_marks_without_end_the_first_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace.cli.open._MOST_MARKS", 2)
    path = write(tmp_path / "trace.json", marked(1, "10", "5"), marked(2, "20", "7"), marked(3, "30", "6"))

    assert marked_step(path) == (10_000, 15_000)
