"""``pptrace open``: hand a trace to the Perfetto UI in the browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.errors import PptraceError
from pptrace.viewer import display, sniff
from pptrace.viewer.marked import marked_step
from pptrace.viewer.server import Server
from pptrace.viewer.site import HOST, PUBLIC_PORT, PUBLIC_UI, Site

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]

_MEGABYTE = 1_000_000
_HEAD = 4096
_EXAMPLES = """\b
pptrace open step.pftrace
pptrace open run/
pptrace open job.pftrace --gpu 12345
pptrace open job.pftrace --only ranks=0,7 --only microbatches=0:32
pptrace open step.json.gz --ui perfetto/ui/out/dist
"""


@click.command("open", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ui", type=click.Path(path_type=Path), metavar="DIR", help="Folder of a built Perfetto UI.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PUBLIC_PORT,
    show_default=True,
    help=f"Port to serve on; other than {PUBLIC_PORT} only with --ui, 0 for any free one.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this long without a request.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--only", metavar="PART", multiple=True, help="Traces of ours: ranks=0,7 or microbatches=0:32.")
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="The rank that is GPU N, and its peers.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Replica N, where replicas differ.")
@click.option("--overview/--whole", default=None, help="How busy ranks are; what large traces show first.")
def command(
    file: Path,
    ui: Path | None,
    port: int,
    timeout_s: int,
    only: tuple[str, ...],
    gpu: int | None,
    replica: int | None,
    *,
    no_browser: bool,
    overview: bool | None,
) -> None:
    """Open FILE, a Perfetto (.pftrace) or Chrome JSON trace, also with .gz, in the Perfetto UI.

    Serves that one file, to this machine alone, until the UI has fetched it. The address holds a secret token.
    Ctrl-C ends it sooner. A folder of traces rank by rank opens as one, of its median step.
    """
    from pptrace.cli.opened_part import Wanted, opened_part

    with opened_part(file, Wanted(only=only, gpu=gpu, replica=replica, overview=overview), _say) as trace:
        sniff.check(trace)
        _check_ui(ui, port)
        ours = _ours(trace)
        # a trace of ours is one step, which fills the view as it is
        site = Site(trace=trace, ui=ui, arranged=ours, view=None if ours else marked_step(trace))
        _serve(file, site, port, timeout_s, no_browser=no_browser)


def _ours(trace: Path) -> bool:
    from pptrace.export import perfetto
    from pptrace.limits.reading import open_unpacked

    with open_unpacked(trace) as content:
        return perfetto.recognises(trace, content.read(_HEAD))


def _serve(file: Path, site: Site, port: int, timeout_s: int, *, no_browser: bool) -> None:
    """Serve a site until the UI has what ``file`` names."""
    ui = site.ui
    with Server(site, port) as server:
        address = site.page(server.port)
        click.echo(address)
        sys.stdout.flush()
        _say(f"serving {file} on {HOST}:{server.port} until fetched, or {timeout_s} s without a request")
        _show(address, server.port, public=ui is None, no_browser=no_browser)
        if not server.run(timeout_s):
            raise PptraceError(_unfetched(file, timeout_s, public=ui is None))
        _say(f"fetched {file} ({site.trace.stat().st_size / _MEGABYTE:,.1f} MB); stopped serving it")


def _check_ui(ui: Path | None, port: int) -> None:
    if ui is None and port != PUBLIC_PORT:
        raise PptraceError(
            f"--port {port} needs --ui DIR: {PUBLIC_UI} may fetch from port {PUBLIC_PORT} of this machine only"
        )
    if ui is not None and not (ui / "index.html").is_file():
        raise PptraceError(f"{ui}: there is no index.html; --ui takes the folder of a built Perfetto UI")


def _show(address: str, port: int, *, public: bool, no_browser: bool) -> None:
    elsewhere = _elsewhere(port)
    if no_browser or not display.has_display(os.environ):
        elsewhere()
        return
    display.open_browser(address, elsewhere)
    if public:
        _say(f"if the browser asks whether {PUBLIC_UI} may reach this device, allow it")


def _elsewhere(port: int) -> Callable[[], None]:
    def say() -> None:
        _say("open the address above in a browser here; from another machine, first run there:")
        _say(f"  {display.forward_command(port)}")

    return say


def _unfetched(file: Path, timeout_s: int, *, public: bool) -> str:
    line = f"{file}: nothing fetched it in {timeout_s} s; run again and open the address, or raise --timeout"
    if public:
        line += (
            f" (allow {PUBLIC_UI} to reach this device where the browser asks; Safari refuses, except with --ui)"
        )
    return line


def _say(line: str) -> None:
    click.echo(line, err=True)
