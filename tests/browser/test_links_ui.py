"""The Perfetto UI shows messages on the links that they went over, with arrows along their routes."""

from __future__ import annotations

import re
from collections import Counter as Tally
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shown_steps import RANKS, step

from pptrace.traces import kineto, perfetto
from pptrace.traces.scene import Hops

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Routes, Timeline

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
FORMATS: dict[str, Any] = {"pftrace": perfetto, "json": kineto}


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return step("links")


@pytest.fixture(scope="module")
def routes(timeline: Timeline) -> Routes:
    assert timeline.routes is not None
    return timeline.routes


@pytest.fixture(scope="module", params=FORMATS)
def form(
    request: pytest.FixtureRequest, timeline: Timeline, perfetto_ui: Any, tmp_path_factory: pytest.TempPathFactory
) -> str:
    path = tmp_path_factory.mktemp("links") / f"step.{request.param}"
    FORMATS[request.param].write(timeline, path, {})
    perfetto_ui.load(path)
    return str(request.param)


@pytest.fixture
def fields(form: str) -> None:
    if form == "json":
        pytest.skip("the Chrome format has no typed fields")


def test_links_are_a_group_with_a_track_and_a_counter_each(
    form: str, timeline: Timeline, routes: Routes, perfetto_ui: Any
) -> None:
    used = [routes.name[link] for link in np.unique(routes.link)]
    titles = [f"{name} ({50 if 'spine' in name else 450} GB/s)" for name in used]
    (group,) = [below for name, below in perfetto_ui.tracks() if name.split()[0] == "links"]
    found = [name for name, _ in group]
    if form == "pftrace":
        assert Hops.of(timeline).lane_copy.max() > 0  # messages overlap, and still a link is one track
        assert found == [name for pair in zip(titles, used, strict=True) for name in pair]
    else:
        threads = {name.rpartition(" ")[0].partition(" #")[0] for name in found if "GB/s" in name}
        assert threads == set(titles)
        assert {name.split()[0] for name in found if "GB/s" not in name} == set(used)


def test_every_message_is_on_each_link_of_its_route(form: str, routes: Routes, perfetto_ui: Any) -> None:
    assert form
    slices = perfetto_ui.query("SELECT name, count() FROM slice WHERE category = 'link' GROUP BY 1")
    hops = np.diff(routes.ptr)
    assert Tally(count for _, count in slices) == Tally(hops[hops > 0].tolist())
    assert ("SEND_F 3 2>3", 4) in slices


@pytest.mark.usefixtures("fields")
def test_arrows_go_from_the_transfer_along_the_route(routes: Routes, perfetto_ui: Any) -> None:
    wanted = ("b", "transfer"), ("b", "hop"), ("b", "link"), ("a", "row"), ("a", "transfer"), ("a", "hop")
    columns = ", ".join(f"EXTRACT_ARG({alias}.arg_set_id, '{name}')" for alias, name in wanted)
    arrows = perfetto_ui.query(
        f"SELECT {columns} FROM flow f JOIN slice a ON a.id = f.slice_out"  # noqa: S608 - our names
        " JOIN slice b ON b.id = f.slice_in WHERE b.category = 'link'"
    )
    expected = [
        (row, hop, link, *((row, None, None) if hop == 0 else (None, row, hop - 1)))
        for row, (start, stop) in enumerate(pairwise(routes.ptr.tolist()))
        for hop, link in enumerate(routes.link[start:stop].tolist())
    ]
    assert Tally(arrows) == Tally(expected)


def test_arrows_go_through_the_links_and_no_message_s_ends_there(
    form: str, routes: Routes, perfetto_ui: Any
) -> None:
    assert form
    into, out = (
        perfetto_ui.query(
            f"SELECT count() FROM flow f JOIN slice s ON s.id = f.{end} WHERE s.category = 'link'"  # noqa: S608 - our words
        )
        for end in ("slice_in", "slice_out")
    )
    assert into == out == [(routes.link.size,)]


def test_a_message_that_is_selected_is_kept_as_a_picture(form: str, perfetto_ui: Any, screenshots: Path) -> None:
    ((selected,),) = perfetto_ui.query("SELECT min(id) FROM slice WHERE name = 'SEND_F 3 2>3'")
    select = "id => window.app.trace.selection.selectSqlEvent('slice', id, {switchToCurrentSelectionTab: false})"
    perfetto_ui.page.evaluate(select, selected)
    path = screenshots / f"selected-on-a-link-{form}.png"
    perfetto_ui.screenshot(path, expanded=True)
    assert path.stat().st_size > 20_000


@pytest.mark.usefixtures("fields")
def test_the_page_s_queries_give_what_it_says(timeline: Timeline, routes: Routes, perfetto_ui: Any) -> None:
    queries = re.findall(r"```sql\n(.*?);?\n```", PAGE.read_text(), re.DOTALL)
    longest, busiest = (perfetto_ui.query(query) for query in queries[:2])
    assert [took for _, took, _ in longest] == [2_000_001] * 5
    assert all(name.startswith("B ") and 0 <= stage < RANKS for name, _, stage in longest)
    row = np.repeat(np.arange(len(timeline)), np.diff(routes.ptr))
    moved = [int(timeline.size_bytes[row[routes.link == link]].sum()) for link in range(len(routes.name))]
    assert [moves for _, _, moves in busiest] == sorted(moved, reverse=True)[:5]
    assert all(moved[routes.name.index(name.split(" (")[0])] == moves for name, _, moves in busiest)
