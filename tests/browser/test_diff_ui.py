"""What a diff writes, in a browser: the report from disk, and both steps in the Perfetto UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from compared_steps import compared, one_step, side_of_step
from recorded_side import recorded

from pptrace.measured.computations import extract_computations
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import Diff

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title='run'</script>\"><img src=x onerror=\"document.title='run'\">"
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def both(perfetto_ui: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("diff") / "both.pftrace"
    difference, sides = compared()
    Diff(difference, sides, ()).save(path)
    perfetto_ui.load(path)
    return path


@pytest.fixture
def page(perfetto_ui: Any) -> Iterator[Any]:
    """Yield a page that nothing can be fetched by but files from disk."""
    context = perfetto_ui.page.context.browser.new_context(viewport={"width": 1140, "height": 900})
    page = context.new_page()
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    context.close()


def test_the_ui_finds_nothing_wrong_with_both_steps(both: Path, perfetto_ui: Any) -> None:
    assert both
    sql = "SELECT name, severity, value FROM stats WHERE value > 0 AND (severity != 'info' OR name GLOB 'flow*')"
    assert perfetto_ui.query(sql) == []
    assert perfetto_ui.query("SELECT max(depth) FROM slice") == [(0,)]


def test_each_rank_s_tracks_stand_below_each_other(both: Path, perfetto_ui: Any) -> None:
    assert both
    expected = [
        f"rank {rank} · {which}" for rank in range(3) for which in ("1 simulated", "2 measured", "difference")
    ]
    assert [name for name, _ in perfetto_ui.tracks()] == ["ladder", *expected]


def test_differences_and_counters_say_the_same(both: Path, perfetto_ui: Any) -> None:
    assert both
    ((named, counted),) = perfetto_ui.query(
        "SELECT (SELECT sum(CAST(substr(name, 2) AS REAL)) FROM slice WHERE category = 'difference'),"
        " (SELECT sum(value) FROM counter)"
    )
    difference, _ = compared()
    assert named == pytest.approx(counted)
    last = perfetto_ui.query("SELECT value FROM counter ORDER BY ts DESC LIMIT 1")[0][0]
    assert last == pytest.approx(difference.step_ns.change.value / 1e6)


def test_pictures_are_kept(both: Path, perfetto_ui: Any, screenshots: Path) -> None:
    assert both
    for expanded in (False, True):
        path = screenshots / f"diff{'-expanded' if expanded else ''}.png"
        perfetto_ui.screenshot(path, expanded=expanded)
        assert path.stat().st_size > 20_000


def test_the_report_opens_from_disk_and_asks_for_nothing(page: Any, tmp_path: Path, screenshots: Path) -> None:
    difference, sides = compared(names=(HOSTILE, HOSTILE))
    Diff(difference, sides, (HOSTILE,)).save(tmp_path / "report.html")

    page.goto((tmp_path / "report.html").as_uri())

    assert page.said == []
    assert page.asked == [(tmp_path / "report.html").as_uri()]
    assert page.title() == f"{HOSTILE} and {HOSTILE}"
    assert page.locator("script, img").count() == 0
    assert page.locator("svg").count() == 3
    page.screenshot(path=screenshots / "report.png", full_page=True)


def test_the_report_fits_and_heeds_light_dark_and_paper(page: Any, tmp_path: Path) -> None:
    difference, sides = compared()
    Diff(difference, sides, ()).save(tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())

    shown = {}
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        page.emulate_media(media=media, color_scheme=scheme)
        shown[media, scheme] = page.evaluate(BACKGROUND)

    assert shown["screen", "light"] == shown["print", "dark"] == "rgb(255, 255, 255)"
    assert shown["screen", "dark"] != shown["screen", "light"]
    for width in (1140, 600, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_the_native_trace_processor_puts_both_sides_on_one_timeline(native_processor: Any, tmp_path: Path) -> None:
    step = one_step()
    sides = [side_of_step(step), recorded(tmp_path / "run", step)]
    Diff(diff(*sides), sides, ()).save(tmp_path / "both.tar")

    processor = native_processor(tmp_path / "both.tar")

    try:
        assert processor.query("SELECT name FROM stats WHERE value > 0 AND severity = 'error'") == []
        named = processor.query("SELECT name FROM machine WHERE name IS NOT NULL ORDER BY name")
        assert named == [*((f"measured rank {rank}",) for rank in range(3)), ("simulated",)]
        simulated = processor.query(
            "SELECT EXTRACT_ARG(arg_set_id, 'rank') || substr(name, 1, 1) || substr(name, 3) AS action, ts, dur"
            " FROM slice WHERE category = 'compute' ORDER BY 1"
        )
        measured = processor.query("SELECT name, ts, dur FROM slice WHERE name GLOB '[0-9][FB][0-9]' ORDER BY 1")
        assert simulated == measured
        assert len(measured) == len(extract_computations(step))
    finally:
        processor.close()
