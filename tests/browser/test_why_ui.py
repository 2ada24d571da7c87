"""The Perfetto UI shows why ranks wait and the critical path, and the page's queries give the metrics' figures."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace
from shown_steps import RANKS, step

from pptrace.steps.kinds import COMPUTE
from pptrace.steps.workload import Workload
from pptrace.timeline.critical_path import why
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import measure
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
BY_CAUSE, ON_PATH, SLOW, BUSY = range(3, 7)
"""Places of the queries among the page's."""


@pytest.fixture(scope="module")
def timeline(perfetto_ui: Any, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    path = tmp_path_factory.mktemp("why") / "step.pftrace"
    timeline = slower(step("why"), rank=5)
    perfetto.write(timeline, path, {})
    perfetto_ui.load(path)
    return timeline


@pytest.fixture
def asked(perfetto_ui: Any) -> Any:
    queries = re.findall(r"```sql\n(.*?);?\n```", PAGE.read_text(), re.DOTALL)
    return lambda place: perfetto_ui.query(queries[place])


def slower(timeline: Timeline, rank: int) -> Timeline:
    """Let each of the rank's computations begin 250 ns sooner, so that it computes longest."""
    rows = (timeline.rank_of_row() == rank) & COMPUTE.mask(timeline.kind) & (timeline.start_ns > timeline.enter_ns)
    changed = replace(timeline, why=None, start_ns=timeline.start_ns - 250 * rows)
    return replace(changed, why=why(changed))


def test_the_bubble_by_cause_is_the_metrics(timeline: Timeline, asked: Any) -> None:
    idle = measure(timeline, Workload.uniform(RANKS, f_ns=0, b_ns=0)).idle_ns
    result = {(rank, cause): ns for rank, cause, ns, _ in asked(BY_CAUSE)}

    assert result == {
        (rank, cause.word): int(idle[rank, cause])
        for rank in range(RANKS)
        for cause in IdleCause
        if idle[rank, cause]
    }


def test_the_path_s_parts_are_the_metrics(timeline: Timeline, asked: Any) -> None:
    path = measure(timeline, Workload.uniform(RANKS, f_ns=0, b_ns=0)).path
    found: Counter[str] = Counter()
    for _, what, ns, _ in asked(ON_PATH):
        found[what] += ns

    assert dict(found) == dict(path.by_kind_ns)
    assert sum(percent for *_, percent in asked(ON_PATH)) == pytest.approx(100)


def test_the_slow_rank_comes_first(timeline: Timeline, asked: Any) -> None:
    assert timeline.ranks == RANKS
    assert asked(SLOW)[0][0] == 5
    assert len(asked(SLOW)) == RANKS


def test_every_stream_s_busy_time_is_in_the_standard_table(timeline: Timeline, asked: Any) -> None:
    took = timeline.end_ns - timeline.start_ns
    expected: Counter[tuple[str, bool]] = Counter()
    for row, rank in enumerate(timeline.rank_of_row().tolist()):
        expected[f"rank {rank:02}", bool(COMPUTE.mask(timeline.kind[row : row + 1])[0])] += int(took[row])
    found: Counter[tuple[str, bool]] = Counter()
    for thread, stream, _, busy in asked(BUSY):
        found[thread, stream == "compute"] += busy

    assert found == expected


def test_the_path_stands_above_the_ranks_and_why_below_each(
    timeline: Timeline, perfetto_ui: Any, screenshots: Path
) -> None:
    assert timeline.why is not None
    (name, below), *ranks = perfetto_ui.tracks()
    assert (name, [track for track, _ in below]) == ("critical path", ["on rank"])
    assert [[track for track, _ in tracks if "waits" in track] for _, tracks in ranks] == [
        [f"why rank {rank} waits"] for rank in range(RANKS)
    ]
    perfetto_ui.screenshot(screenshots / "why.png", expanded=True)


def test_arrows_follow_the_path_in_chrome_json_too(perfetto_ui: Any, tmp_path: Path, screenshots: Path) -> None:
    timeline = step("why")
    kineto.write(timeline, tmp_path / "step.json", {})
    perfetto_ui.load(tmp_path / "step.json")

    ends = ", ".join(f"EXTRACT_ARG({end}.arg_set_id, 'args.correlation')" for end in "ab")
    arrows = perfetto_ui.query(
        f"SELECT {ends} FROM flow f JOIN slice a ON a.id = f.slice_out JOIN slice b ON b.id = f.slice_in"  # noqa: S608 - our words
    )
    assert timeline.why is not None
    first = min(min(arrow) for arrow in arrows)  # the number of row 0
    along = Counter(pairwise(int(row) + first for row in dict.fromkeys(timeline.why.path.row.tolist())))
    assert along <= Counter(arrows)
    message_rows = messages(timeline)
    ends = np.stack([message_rows.producer, message_rows.send, message_rows.recv, message_rows.consumer]) >= 0
    launches = len(timeline)
    assert len(arrows) == along.total() + launches + int(np.maximum(ends.sum(axis=0) - 1, 0).sum())
    assert perfetto_ui.query("SELECT count() FROM stats WHERE name GLOB 'flow*' AND value > 0") == [(0,)]
    ((selected,),) = perfetto_ui.query("SELECT min(id) FROM slice WHERE name = 'B 3'")
    select = "id => window.app.trace.selection.selectSqlEvent('slice', id, {switchToCurrentSelectionTab: false})"
    perfetto_ui.page.evaluate(select, selected)
    perfetto_ui.screenshot(screenshots / "why-json.png", expanded=True)
