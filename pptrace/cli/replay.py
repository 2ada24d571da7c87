"""``pptrace replay``: simulate what was measured with its own order and times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import complete
from pptrace.cli.experiment_flags import one_output
from pptrace.cli.measured_options import measured_options, read
from pptrace.cli.printed import echo_documents

if TYPE_CHECKING:
    from pptrace.timeline.measurement import ImportRequest

__all__ = ["command"]

_EXAMPLES = """\b
pptrace replay run/
pptrace replay run/ -o replay.pftrace"""


@click.command("replay", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files()
)
@measured_options
@click.option(
    "-o", "--output", multiple=True, callback=one_output, metavar="FILE", shell_complete=complete.files(),
    help="Write the (first) replay.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(traces: tuple[Path, ...], request: ImportRequest, output: str | None, *, as_json: bool) -> None:
    """Replay the steps in TRACES: their order, durations, transfers and gaps, never when anything started."""
    from pptrace.analysis.steps.replay import Replayed, replay
    from pptrace.errors import ScheduleError
    from pptrace.present.replay import replay_document

    measurement = read(traces, request)
    replays: dict[str, Replayed] = {}
    failed = []
    for step in measurement.steps:
        try:
            replays[step.label] = replay(step.timeline)
        except ScheduleError as error:
            failed.append(error)
            click.echo(f"note: {step.label} is left out: {error}", err=True)
    if not replays:
        raise failed[0]
    echo_documents(replay_document(replays), as_json=as_json)
    if output is not None:
        from pptrace.export.output import save
        from pptrace.hooks.registry import Registry

        exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
        for path in save(next(iter(replays.values())).timeline, [output], exporters, {"color": "kind"}):
            click.echo(f"wrote {path}", err=True)
