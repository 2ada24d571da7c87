"""``pptrace explain``: where the time of a step went, and what would shorten it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import completers
from pptrace.cli.options import measured_options, read
from pptrace.cli.output import echo_documents
from pptrace.sanitize import printable_line

if TYPE_CHECKING:
    from pptrace.measured.sides import Side
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Document
    from pptrace.timeline.measurement import ImportRequest

__all__ = ["command"]

_EXAMPLES = """\b
pptrace explain run/
pptrace explain step.yaml
pptrace explain run/ --step 2 --json
pptrace explain job.parquet -o stragglers.html -o heat.png -o ideal.pftrace"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument("steps", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=completers.files)
@measured_options
@click.option("--step", default="median", show_default=True, help="Which step: a number, median or all.")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", shell_complete=completers.files,
    help="Write a page (.html); of a job's replicas a heat map (.png, .svg, .pdf) or the ideal step (.pftrace).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    steps: tuple[Path, ...], request: ImportRequest, step: str, outputs: tuple[str, ...], *, as_json: bool
) -> None:
    """Say where the time of a step went: parts, causes, ranks, and what would shorten it.

    STEPS is a configuration, a table, traces, or a folder of them. Of a job's replicas: who slows it, where, why,
    and what that costs. Where traces hold no action of a pipeline: communication and computation by rank and name.
    """
    from pptrace.measured.explanation import (
        analyse,
        check_explanation_targets,
        operations_document,
        save_explanation,
        with_analyses,
    )
    from pptrace.measured.sides import measured_side
    from pptrace.plugins.registry import Registry, more_of

    check_explanation_targets(outputs)
    registry = Registry.load()
    side, name = _planned(steps, request, step, registry), str(steps[0])
    parts, notes = {}, []
    if side is None:
        measurement, measured = read(steps, replace(request, every_replica=True), without_actions=True)
        if measurement.steps:
            side = measured_side(measurement, name, step, measured=measured)
            parts = analyse(measurement, side.steps[side.chosen], registry)
            notes = [note for part in parts.values() for note in part.notes]
            if len(measurement.replicas) > 1 and not registry.explanations:
                notes = [f"replicas are not compared{more_of(type(registry).explanations, registry)}"]
        else:
            documents = [operations_document(measurement, name)]
    for note in (*notes, *(side.incomplete if side is not None else ())):
        click.echo(printable_line(f"note: {note}"), err=True)
    if side is not None:
        documents = _explained(side, step, registry)
        documents[0] = with_analyses(documents[0], parts)
    paths = save_explanation(outputs, documents[0], parts.values(), registry)
    echo_documents(documents if step == "all" else documents[0], as_json=as_json)
    for path in paths:
        click.echo(f"wrote {printable_line(str(path))}", err=True)


def _planned(steps: tuple[Path, ...], request: ImportRequest, step: str, registry: Registry) -> Side | None:
    """Return the step of a configuration or a table, simulated; None for traces."""
    from pptrace.measured.sides import ignored_options, simulate_source

    side = simulate_source(steps[0], registry)
    if side is None:
        return None
    if len(steps) > 1:
        raise click.UsageError(f"{steps[1]}: a configuration or a table is explained alone")
    idle = ignored_options(step, request)
    if idle:
        click.echo(printable_line(f"note: {idle}: {steps[0]} is no measurement"), err=True)
    return side


def _explained(side: Side, step: str, registry: Registry) -> list[Document]:
    from pptrace.measured.explanation import explain, explanation_document
    from pptrace.report.numbers import with_deviations

    every = [explain(replace(side, chosen=at, pools=False), registry) for at in range(len(side.steps))]
    lengths = [round(one.step_ns.value) for one in every]
    return [
        explanation_document(
            side.name, with_deviations(one, every if len(every) > 1 else []), lengths, side.measurement
        )
        for one in (every if step == "all" else [every[side.chosen]])
    ]
