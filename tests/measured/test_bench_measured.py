"""The benchmark of measured runs takes runs of several sizes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from pptrace.api import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import write_table

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_runs_of_other_microbatches_have_no_prediction(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fourth run has two microbatches in two slices each, so the first two predict it."""
    for name, microbatches, slices in (("a", 2, 1), ("b", 2, 1), ("c", 3, 1), ("d", 4, 2)):
        rows = [[f"{stage}{kind}{index}" for kind in "FB" for index in range(microbatches)] for stage in range(2)]
        table = tmp_path / f"{name}.csv"
        write_table(Schedule.from_rows(rows), table)
        (tmp_path / "runs" / name).mkdir(parents=True)
        costs = {"name": "table", "forward": "10 ms", "backward": "20 ms"}
        schedule = {"name": str(table), "options": {"slices": slices}}
        simulate({"schedule": schedule, "costs": costs}).save(tmp_path / "runs" / name / "step.json")

    module(root).main(tmp_path / "runs")

    table_rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("% |")]
    assert [line.count(" - ") for line in table_rows[-4:]] == [1, 1, 3, 1]
    assert [line.count("+0.0") for line in table_rows[-4:]] == [3, 3, 1, 3]


def module(root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("bench_measured", root / "benchmarks" / "bench_measured.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
