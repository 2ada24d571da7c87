"""``pptrace calibrate``: fit costs and network to measured traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import completers
from pptrace.cli.options import measured_options, one_output, read
from pptrace.cli.output import echo_documents
from pptrace.sanitize import printable_line

if TYPE_CHECKING:
    from pptrace.timeline.measurement import ImportRequest, Measurement

__all__ = ["command"]

_EXAMPLES = """\b
pptrace calibrate run/ -o costs.yaml
pptrace simulate costs.yaml
pptrace simulate costs.yaml --schedule interleaved-1f1b --vp 2"""


@click.command("calibrate", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=completers.files
)
@measured_options
@click.option(
    "-o", "--output", multiple=True, callback=one_output, metavar="FILE", shell_complete=completers.files,
    help="Write a configuration: .yaml.",
)  # fmt: skip
@click.option(
    "--node-ranks", type=click.IntRange(min=2), default=None, metavar="N",
    help="Consecutive pipeline ranks that share a node: their messages are fitted apart.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    traces: tuple[Path, ...],
    request: ImportRequest,
    output: str | None,
    node_ranks: int | None,
    *,
    as_json: bool,
) -> None:
    """Fit times per stage, overhead and network to TRACES, files or a folder, all steps pooled.

    Lines of NCCL Inspector, which know no actions, give the network alone.
    """
    from pptrace.measured.calibration import calibrate, extend_to_pipeline
    from pptrace.measured.calibration_check import check_calibration
    from pptrace.measured.calibration_document import calibrated_yaml, calibration_document
    from pptrace.measured.matching import matching_schedules
    from pptrace.measured.sides import measured_side
    from pptrace.plugins.registry import Registry
    from pptrace.run.trace_files import simulation_behind

    if output is not None and not output.lower().endswith((".yaml", ".yml")):
        raise click.UsageError(f"{output}: a calibration is written as .yaml")
    measurement, measured = read(traces, request, without_actions=True)
    if not measurement.steps:
        _network_alone(measurement, traces[0], output, as_json=as_json)
        return
    side = measured_side(measurement, str(traces[0]))
    for incomplete in side.incomplete:
        click.echo(printable_line(f"note: {incomplete}"), err=True)
    registry, steps = Registry.load(), side.step_computations
    fit = calibrate(steps, node_ranks or 0)
    if measurement.numbers:
        fit = extend_to_pipeline(fit, steps[0], measurement.numbers, measurement.ranks)
    check, names = (
        check_calibration(fit, steps, registry, measured=measured),
        matching_schedules(steps[0], registry),
    )
    echo_documents(calibration_document(fit, check, names), as_json=as_json)
    if output is not None:
        known = None if measured else simulation_behind(side.timeline, registry)
        _write(output, calibrated_yaml(fit, traces[0].name, names, check, known))


def _network_alone(measurement: Measurement, traces: Path, output: str | None, *, as_json: bool) -> None:
    """Fit a network where that is all that was recorded.

    Raises:
        TraceError: not even that was, or nothing of it can be told.
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
            message = "latency and bandwidth cannot be told apart: a network needs messages of several sizes"
            raise TraceError(message, file=traces)
        _write(output, text)


def _write(output: str, text: str) -> None:
    from pptrace.files import replace_file

    with replace_file(Path(output)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    sys.stderr.write(f"wrote {printable_line(str(output))}\n")
