"""``pptrace replay``: simulate what was measured with its own order and times."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pptrace.cli import complete
from pptrace.cli.measured_options import measured_options, read

__all__ = ["command"]

_EXAMPLES = """\b
pptrace replay run/
pptrace replay run/ -o replay.pftrace"""


@click.command("replay", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files()
)
@measured_options
@click.option("-o", "--output", metavar="FILE", shell_complete=complete.files(), help="Write the (first) replay.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    traces: tuple[Path, ...], layout: str, replica: str, rules: Path | None, output: str | None, *, as_json: bool
) -> None:
    """Replay the steps in TRACES: their order, durations, transfers and gaps, never when anything started."""
    from statistics import mean, stdev

    from pptrace.analysis.steps.replay import replay
    from pptrace.analysis.steps.words import ms
    from pptrace.errors import ScheduleError

    measurement = read(traces, layout, replica, rules)
    found, failed = [], []
    for step in measurement.steps:
        try:
            found.append((step.label, replay(step.timeline)))
        except ScheduleError as error:
            failed.append(error)
            click.echo(f"note: {step.label} is left out: {error}", err=True)
    if not found:
        raise failed[0]
    rows = [
        {
            "step": label,
            "measured_ns": one.step.span_ns,
            "replayed_ns": one.replayed_ns,
            "explained": one.explained,
        }
        for label, one in found
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        for label, one in found:
            lengths = f"measured {ms(one.step.span_ns)}, replayed {ms(one.replayed_ns)}"
            click.echo(f"{label}: {lengths}: {one.explained:.2%} explained")
        if len(found) > 1:
            shares = [one.explained for _, one in found]
            click.echo(f"{len(shares)} steps: {mean(shares):.2%} ±{stdev(shares):.2%} explained")
    if output is not None:
        from pptrace.export.output import save
        from pptrace.hooks.registry import Registry

        exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
        for path in save(found[0][1].timeline, [output], exporters, {"color": "kind"}):
            click.echo(f"wrote {path}", err=True)
