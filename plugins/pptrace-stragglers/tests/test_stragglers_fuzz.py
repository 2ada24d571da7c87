"""A changed Parquet file gives a measurement or one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from changed_bytes import changed, outcome, try_changes
from straggler_parquet import operations, write_job

from pptrace.timeline.measurement import ImportRequest
from pptrace_stragglers.measurement import measure_job

if TYPE_CHECKING:
    from pathlib import Path


def test_changed_files_give_a_measurement_or_one_line(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", operations(lambda *_: 0.01))
    whole = path.read_bytes()

    def try_one(steps: list[tuple[str, float, float, bytes]]) -> None:
        content = whole
        for step in steps:
            content = changed(content, *step)
        path.write_bytes(content)
        found = outcome(measure_job, [path], ImportRequest())
        assert found.strip() if isinstance(found, str) else found.steps

    try_changes(try_one)
