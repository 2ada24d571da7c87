"""The Perfetto UI shows the segments of overlapped pairs, and answers questions about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from paired_steps import paired_step

from pptrace.timeline.counters import in_flight
from pptrace.traces import kineto, perfetto

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
WRONG = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
TAKEN = (
    "SELECT category, EXTRACT_ARG(arg_set_id, 'segment') AS segment, count() AS slices, sum(dur) / 1000000 AS ms"
    " FROM slice WHERE segment IS NOT NULL GROUP BY 1, 2 ORDER BY 4 DESC, 2"
)
FLOWS = (
    "SELECT DISTINCT EXTRACT_ARG(a.arg_set_id, 'segment'), EXTRACT_ARG(b.arg_set_id, 'segment') FROM flow"
    " JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in ORDER BY 1, 2"
)


def test_segments_are_slices_with_typed_fields(perfetto_ui: Any, tmp_path: Path, screenshots: Path) -> None:
    timeline = paired_step()
    perfetto.write(replace(timeline, counters=in_flight(timeline)), tmp_path / "pairs.pftrace", {})
    perfetto_ui.load(tmp_path / "pairs.pftrace")

    assert perfetto_ui.query(WRONG) == []
    assert perfetto_ui.query(TAKEN) == [
        ("collective", "all-reduce", 24, 48), ("compute", "mlp", 6, 30), ("compute", "mlp-input", 6, 30),
        ("compute", "mlp-weight", 6, 30), ("compute", "attention", 6, 18), ("compute", "attention-input", 6, 18),
        ("compute", "attention-weight", 6, 18),
    ]  # fmt: skip
    asked = re.findall(r"```sql\n(.*?);?\n```", PAGE.read_text(), re.DOTALL)[2]
    assert perfetto_ui.query(asked)[0] == ("all-reduce", 24, 48_000_000)
    ways = perfetto_ui.query(FLOWS)
    assert ("all-reduce", None) in ways
    assert (None, "attention") in ways
    assert (None, "mlp-input") in ways
    (_, below), _ = perfetto_ui.tracks()
    assert [name for name, _ in below] == ["phases", "send → rank 1", "tensor parallel", "in flight"]
    perfetto_ui.screenshot(screenshots / "segments.png", expanded=True)


def test_the_dialect_shows_them_too(perfetto_ui: Any, tmp_path: Path) -> None:
    kineto.write(paired_step(), tmp_path / "pairs.json", {})
    perfetto_ui.load(tmp_path / "pairs.json")

    assert perfetto_ui.query(WRONG) == []
    named = "SELECT count() FROM slice WHERE category = 'kernel' AND name = 'F 1 attention'"
    assert perfetto_ui.query(named) == [(2,)]
    collectives = "SELECT count() FROM slice WHERE category = 'kernel' AND name GLOB 'ncclDevKernel_AllReduce*'"
    assert perfetto_ui.query(collectives) == [(24,)]
