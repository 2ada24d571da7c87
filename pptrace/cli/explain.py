"""``pptrace explain``: where the time of a step went, and what would shorten it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import complete
from pptrace.cli.measured_options import measured_options, read
from pptrace.cli.printed import echo_documents
from pptrace.printable import printable_line

if TYPE_CHECKING:
    from pptrace.analysis.steps.sides import Side
    from pptrace.timeline.measurement import ImportRequest

__all__ = ["command"]

_EXAMPLES = """\b
pptrace explain run/
pptrace explain step.yaml
pptrace explain run/ --step 2 --json"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument("steps", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files())
@measured_options
@click.option("--step", default="median", show_default=True, help="Which step: a number, median or all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(steps: tuple[Path, ...], request: ImportRequest, step: str, *, as_json: bool) -> None:
    """Say where the time of a step went: parts, causes, ranks, and what would shorten it.

    STEPS is a configuration, a table, traces, or a folder of them. Where traces hold no action of a pipeline:
    communication and computation by rank and name.
    """
    from pptrace.analysis.steps.sides import measured_side
    from pptrace.present.explanation import operations_document

    side, name = _planned(steps, request, step), str(steps[0])
    if side is None:
        measurement = read(steps, request, without_actions=True)
        if not measurement.steps:
            echo_documents(operations_document(measurement, name), as_json=as_json)
            return
        side = measured_side(measurement, name, step)
    for incomplete in side.incomplete:
        click.echo(printable_line(f"note: {incomplete}"), err=True)
    _explain(side, step, as_json=as_json)


def _planned(steps: tuple[Path, ...], request: ImportRequest, step: str) -> Side | None:
    """Return the step of a configuration or a table, simulated; None for traces."""
    from pptrace.analysis.steps.sources import idle_options, planned_side
    from pptrace.hooks.registry import Registry

    side = planned_side(steps[0], Registry.load())
    if side is None:
        return None
    if len(steps) > 1:
        raise click.UsageError(f"{steps[1]}: a configuration or a table is explained alone")
    idle = idle_options(step, request)
    if idle:
        click.echo(printable_line(f"note: {idle}: {steps[0]} is no measurement"), err=True)
    return side


def _explain(side: Side, step: str, *, as_json: bool) -> None:
    from pptrace.analysis.explanation.explanation import explain
    from pptrace.analysis.figure import with_deviations
    from pptrace.present.explanation import explanation_document

    every = [explain(replace(side, chosen=at, pools=False)) for at in range(len(side.steps))]
    lengths = [round(one.step_ns.value) for one in every]
    documents = [
        explanation_document(
            side.name, with_deviations(one, every if len(every) > 1 else []), lengths, side.measurement
        )
        for one in (every if step == "all" else [every[side.chosen]])
    ]
    echo_documents(documents if step == "all" else documents[0], as_json=as_json)
