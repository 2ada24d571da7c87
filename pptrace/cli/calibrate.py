"""``pptrace calibrate``: fit costs and network to measured traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli.options import json_option, measured_options, output_option, read, traces_argument
from pptrace.cli.output import echo_documents, echo_notes
from pptrace.files import print_or_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.measured.calibration import Calibration
    from pptrace.plugins.registry import Registry
    from pptrace.timeline.measurement import ImportRequest, Measurement

_EXAMPLES = """\b
pptrace calibrate run/ -o costs.yaml
pptrace simulate costs.yaml
pptrace simulate costs.yaml --schedule interleaved-1f1b --vp 2"""


@click.command("calibrate", epilog=_EXAMPLES)
@traces_argument("traces")
@measured_options
@output_option("Write a configuration: .yaml.", ".yaml", ".yml", subject="a calibration is written as .yaml")
@click.option(
    "--node-ranks", type=click.IntRange(min=2), default=None, metavar="N",
    help="Consecutive pipeline ranks that share a node; messages within a node are fitted separately.",
)  # fmt: skip
@json_option()
def command(
    traces: tuple[Path, ...],
    request: ImportRequest,
    output: str | None,
    node_ranks: int | None,
    *,
    as_json: bool,
) -> None:
    """Fit times per stage, overhead and network to all steps of TRACES, files or a folder.

    TRACES can be several runs, each a folder with a manifest. The newest run with several steps is fitted. If it
    has only whole backwards, another run of the same stages gives the shares of input and weight gradients. Runs
    with other numbers of stages measure the part of an action that does not depend on its layers.

    If no installed schedule has the measured order, that order is written as a table next to the configuration.
    Logs of NCCL Inspector have no actions, so only the network is fitted to them.
    """
    from pptrace.errors import TraceError
    from pptrace.measured.calibration import (
        calibrate,
        check_calibration,
        extend_to_pipeline,
        fit_stage_counts,
    )
    from pptrace.measured.calibration_document import calibrated_yaml, calibration_document
    from pptrace.measured.matching import matching_schedules
    from pptrace.measured.sides import measured_side
    from pptrace.plugins.registry import Registry
    from pptrace.run.trace_files import run_folders, simulated_source
    from pptrace.steps.text_forms import table_text
    from pptrace.timeline.trim import update_intervals

    registry, runs = Registry.load(), run_folders(traces)
    if len(runs) > 1:
        traces = (_run_to_fit(runs, registry, request),)
        echo_notes([f"{traces[0]} is fitted, of {len(runs)} runs"])
    measurement, measured = read(traces, request, without_actions=True)
    if not measurement.steps:
        _calibrate_network(measurement, traces[0], output, as_json=as_json)
        return
    if any(update_intervals(step.timeline) for step in measurement.steps):
        message = "is a step without a flush, whose first and last actions are cut: calibrate a step of 1f1b"
        raise TraceError(message, file=traces[0])
    side = measured_side(measurement, str(traces[0]))
    echo_notes(side.incomplete)
    steps = side.step_computations
    fit = calibrate(
        steps, node_ranks or 0, slices=measurement.slices,
        empty_input_gradient=measurement.empty_input_gradient,
    )  # fmt: skip
    further = {
        str(run): fitted
        for run in (runs if len(runs) > 1 else ())
        if run != traces[0] and (fitted := _fit_further(run, registry, request)) is not None
    }
    fit = fit_stage_counts(fit, [*further.values()])
    for run, fitted in further.items():
        fit = fit.with_shares_of(fitted, run)
    if measurement.numbers:
        fit = extend_to_pipeline(fit, steps[0], measurement.numbers, measurement.ranks)
    check, names = (
        check_calibration(fit, steps, registry, measured=measured, source=str(traces[0]), p2p=measurement.p2p),
        matching_schedules(steps[0], registry, measurement.slices),
    )
    echo_documents(calibration_document(fit, check, names), as_json=as_json)
    if output is not None:
        known = None if measured else simulated_source(side.timeline, registry)
        table = ""
        if not names and not steps[0].partial:
            table = str(Path(output).with_suffix(".order.csv"))
            print_or_write(table_text(steps[0].order), Path(table))
        print_or_write(calibrated_yaml(fit, traces[0].name, names, check, known, table), Path(output))


def _run_to_fit(runs: Sequence[Path], registry: Registry, request: ImportRequest) -> Path:
    """Return the newest run with several steps, else the newest run; a single step may be there for its shares."""
    from pptrace.run.trace_files import read_measurement

    for run in runs:
        measurement, _ = read_measurement([run], registry, request)
        if len(measurement.steps) > 1:
            return run
    return runs[0]


def _fit_further(run: Path, registry: Registry, request: ImportRequest) -> Calibration | None:
    """Return the fit of a further run; None with a note for a run that cannot be read."""
    from pptrace.errors import PptraceError
    from pptrace.measured.calibration import calibrate
    from pptrace.measured.sides import measured_side
    from pptrace.run.trace_files import read_measurement

    try:
        measurement, _ = read_measurement([run], registry, request)
        steps = measured_side(measurement, str(run)).step_computations
    except PptraceError as error:
        echo_notes([f"skipped: {error}"])
        return None
    return calibrate(steps, slices=measurement.slices, empty_input_gradient=measurement.empty_input_gradient)


def _calibrate_network(measurement: Measurement, traces: Path, output: str | None, *, as_json: bool) -> None:
    """Fit a network to traces without actions.

    Raises:
        TraceError: the traces have no messages either, or the fit is not unique.
    """
    from pptrace.errors import TraceError
    from pptrace.measured.calibration import fit_network
    from pptrace.measured.calibration_document import network_document, network_yaml
    from pptrace.measured.sides import no_actions

    if not measurement.by_size:
        raise TraceError(no_actions(measurement), file=traces)
    fits = fit_network(measurement.by_size)
    echo_documents(network_document(fits), as_json=as_json)
    if output is not None:
        text = network_yaml(fits, traces.name)
        if not text:
            message = "latency and bandwidth cannot be distinguished: a network needs messages of several sizes"
            raise TraceError(message, file=traces)
        print_or_write(text, Path(output))
