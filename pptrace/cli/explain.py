"""``pptrace explain``: where the time of a measured step went, and what would shorten it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import complete
from pptrace.cli.measured_options import measured_options, read

if TYPE_CHECKING:
    from pptrace.timeline.measurement import Measurement

__all__ = ["command"]

_EXAMPLES = """\b
pptrace explain run/
pptrace explain run/ --step 2 --json"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files()
)
@measured_options
@click.option("--step", default="median", show_default=True, help="Which step: a number, median or all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    traces: tuple[Path, ...], layout: str, replica: str, rules: Path | None, step: str, *, as_json: bool
) -> None:
    """Say where the time of a step in TRACES went: parts, causes, ranks, and what would shorten it.

    Where no action of a pipeline is found: communication and computation by rank and name.
    """
    from pptrace.analysis.explanation.explanation import explained, explained_document, explained_lines
    from pptrace.analysis.steps.sides import measured_side

    measurement = read(traces, layout, replica, rules, without_actions=True)
    name = str(traces[0])
    if not measurement.steps:
        _summed(measurement, name, as_json=as_json)
        return
    side = measured_side(measurement, name, step)
    for told in side.incomplete:
        click.echo(f"note: {told}", err=True)
    steps = [explained(replace(side, chosen=at, pools=False)) for at in range(len(side.steps))]
    found = steps if step == "all" else [steps[side.chosen]]
    if as_json:
        documents = [explained_document(one, steps, measurement) for one in found]
        click.echo(json.dumps(documents if step == "all" else documents[0], indent=2))
    else:
        click.echo("\n\n".join("\n".join(explained_lines(name, one, steps, measurement)) for one in found))


def _summed(measurement: Measurement, name: str, *, as_json: bool) -> None:
    from pptrace.analysis.explanation.operations import summed_document, summed_lines

    told = (
        json.dumps(summed_document(measurement), indent=2)
        if as_json
        else "\n".join(summed_lines(measurement, name))
    )
    click.echo(told)
