"""``pptrace explain``: explain the time of a step, and changes that shorten it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from pptrace.cli.options import json_option, measured_options, outputs_option, read, traces_argument
from pptrace.cli.output import echo_documents, echo_notes, report_written

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.measured.sides import Side
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Document
    from pptrace.timeline.measurement import ImportRequest

_EXAMPLES = """\b
pptrace explain run/
pptrace explain step.yaml
pptrace explain run/ --step 2 --json
pptrace explain job.parquet -o stragglers.html -o heat.png -o ideal.pftrace"""


@click.command("explain", epilog=_EXAMPLES)
@traces_argument("steps")
@measured_options
@click.option("--step", default="median", show_default=True, help="Which step: a number, median or all.")
@outputs_option(
    "Write a page (.html, .md). For a job of several replicas also a heat map (.png, .svg, .pdf) or the ideal "
    "step (.pftrace)."
)
@json_option()
def command(
    steps: tuple[Path, ...], request: ImportRequest, step: str, outputs: tuple[str, ...], *, as_json: bool
) -> None:
    """Attribute the time of a step: parts, causes, ranks, and upper bounds of savings.

    STEPS is a configuration, a table, traces, or a folder of traces. For a job of several replicas, prints the
    slow workers, the causes of the slowdown, and the cost of each. For traces without actions of a pipeline,
    prints communication and computation by rank and by name.
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
    side, name = _simulated_side(steps, request, step, registry), str(steps[0])
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
    echo_notes((*notes, *(side.incomplete if side is not None else ())))
    if side is not None:
        documents = _explanation_documents(side, step, registry)
        documents[0] = with_analyses(documents[0], parts)
    paths = save_explanation(outputs, documents[0], parts.values(), registry)
    echo_documents(documents if step == "all" else documents[0], as_json=as_json)
    report_written(paths)


def _simulated_side(steps: tuple[Path, ...], request: ImportRequest, step: str, registry: Registry) -> Side | None:
    """Return the simulated step of a configuration or a table; None for traces."""
    from pptrace.measured.sides import ignored_options, simulate_source

    side = simulate_source(steps[0], registry)
    if side is None:
        return None
    if len(steps) > 1:
        raise click.UsageError(f"{steps[1]}: a configuration or a table is explained alone")
    ignored = ignored_options(step, request)
    if ignored:
        echo_notes([f"{ignored}: {steps[0]} is not a measurement"])
    return side


def _explanation_documents(side: Side, step: str, registry: Registry) -> list[Document]:
    from pptrace.measured.explanation import explain, explanation_document
    from pptrace.measured.sides import partial_data
    from pptrace.report.numbers import with_deviations

    results = [explain(replace(side, chosen=index, pools=False), registry) for index in range(len(side.steps))]
    lengths = [round(result.step_ns.value) for result in results]
    return [
        explanation_document(
            side.name,
            with_deviations(result, results if len(results) > 1 else []),
            lengths,
            side.measurement,
            partial_data([side]),
        )
        for result in (results if step == "all" else [results[side.chosen]])
    ]
