"""``pptrace convert``: convert tables to tables, traces to traces, and a trace to its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from pptrace.cli.options import complete_files, measured_options, read, read_table
from pptrace.cli.output import report_written
from pptrace.config.choices import Receive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugins.offers import ExporterOffer
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.timeline import Timeline

_EXAMPLES = """\b
pptrace convert step.pftrace step.json.gz
pptrace convert rank0.json rank1.json step.pftrace
pptrace convert table.csv with-messages.csv --messages asap
pptrace convert table.csv for-pytorch-2.15.csv --waits
pptrace convert step.pftrace order.csv
pptrace convert run/ order.csv
pptrace convert run/ step.svg"""

_TABLES = (".csv", ".txt")
_STEPS = (".pftrace", ".json", ".svg", ".png", ".pdf")

Exporters: TypeAlias = "dict[str, ExporterOffer]"


@click.command("convert", epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("target", shell_complete=complete_files)
@click.option(
    "--messages", type=click.Choice([*Receive.words(), "none"]),
    help="Tables: insert messages, with receives as early as possible (asap) or right before their use "
        "(deferred); none removes messages.",
)  # fmt: skip
@click.option("--waits", is_flag=True, help="Tables with messages: insert a wait for each send, for PyTorch 2.15.")
@measured_options
@click.option(
    "--step", metavar="STEP", default="median", show_default=True,
    help="Measured traces: which step, a number or median.",
)  # fmt: skip
@click.option("--only", metavar="PART", multiple=True, help="Traces: keep ranks=0,7 or microbatches=0:32.")
@click.option("--color", type=click.Choice(["kind", "microbatch"]), default="kind", help="Traces: color by.")
def command(
    sources: tuple[Path, ...],
    target: str,
    messages: str | None,
    waits: bool,  # noqa: FBT001 - a flag
    step: str,
    only: tuple[str, ...],
    color: str,
    **options: Any,
) -> None:
    """Convert SOURCES to TARGET. Names and contents determine the formats.

    Tables are .csv and .txt; traces are .pftrace and .json, with .gz too: what pptrace wrote, or what profilers
    recorded, files or a folder. A step can become a picture too, .svg, .png or .pdf.
    """
    from_table = sources[0].name.lower().endswith(_TABLES)
    to_table = target.lower().endswith(_TABLES)
    if from_table and len(sources) > 1:
        raise click.UsageError(f"one table at a time, not {sources[0]} and {sources[1]}")
    if from_table and not to_table and not target.lower().removesuffix(".gz").endswith(_STEPS):
        raise click.UsageError(f"{target}: a table becomes a table, .csv or .txt")
    if from_table and not to_table:
        raise click.UsageError(f"a table has no times: pptrace simulate --schedule {sources[0]} -o {target}")
    if messages and not to_table:
        raise click.UsageError("--messages is for tables: name a .csv or .txt as the target")
    if waits and not to_table:
        raise click.UsageError("--waits is for tables: name a .csv or .txt as the target")
    if waits and messages == "none":
        raise click.UsageError("--messages none removes the sends that --waits waits for: give one of the two")
    if to_table and only:
        raise click.UsageError("--only is for traces: name a .pftrace or .json as the target")
    if to_table:
        from pptrace.measured.computations import extract_computations

        computed = None if from_table else extract_computations(_read(sources, step, options))
        schedule = read_table(sources[0]).schedule if computed is None else computed.order
        paths = [_convert_table(schedule, target, messages, waits=waits)]
    else:
        from pptrace.plugins.registry import Registry
        from pptrace.run.trace_files import exporter_for

        exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
        exporter_for(target, exporters)
        paths = _convert_trace(_read(sources, step, options), target, exporters, only, color)
    report_written(paths)


def _convert_table(schedule: Schedule, target: str, messages: str | None, *, waits: bool) -> Path:
    from pptrace.steps.text_forms import Dialect, in_dialect, write_table

    if messages == "none":
        schedule = in_dialect(schedule, Dialect.COMPUTE)
    elif messages is not None or waits:
        receive = Receive(messages) if messages is not None else Receive.ASAP
        schedule = in_dialect(schedule, Dialect.WAITS if waits else Dialect.COMMS, receive)
    write_table(schedule, target)
    return Path(target)


def _convert_trace(
    timeline: Timeline, target: str, exporters: Exporters, only: Sequence[str], color: str
) -> list[Path]:
    from pptrace.measured.dependencies import explain_waits
    from pptrace.run.trace_files import save
    from pptrace.timeline.trim import parse_only, trim

    timeline = explain_waits(timeline)
    if only:
        kept = parse_only([part for text in only for part in text.split()])
        timeline = trim(timeline, kept.ranks, kept.microbatches)
    return save(timeline, [target], exporters, {"color": color})


def _read(sources: Sequence[Path], step: str, options: Mapping[str, Any]) -> Timeline:
    """Read the traces of one job; select ``step`` from several measured steps."""
    from pptrace.measured.sides import measured_side

    if step == "all":
        raise click.UsageError("--step all: a trace is of one step, a number or median")
    measurement, _ = read(sources, **options)
    if len(measurement.steps) == 1 and step in {"median", "0"} and not measurement.numbers:
        return measurement.steps[0].timeline
    return measured_side(measurement, str(sources[0]), step).numbered_timeline
