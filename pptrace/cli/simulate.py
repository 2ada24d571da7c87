"""``pptrace simulate``: simulate a training step from a YAML file, from flags, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from pptrace.cli.options import experiment_flags, json_option, outputs_option
from pptrace.cli.output import echo_documents, echo_json, report_written

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.cli.options import Source
    from pptrace.run.run import Run

_EXAMPLES = """\b
pptrace simulate llama.yaml -o step.pftrace
pptrace simulate --schedule 1f1b --pp 8 --microbatches 32
pptrace simulate llama.yaml --set network.bandwidth='200 Gb/s' --json
pptrace simulate llama.yaml -o order.csv"""


@click.command("simulate", epilog=_EXAMPLES)
@experiment_flags()
@outputs_option(
    "Write a trace: .pftrace or .json, with .gz for compressed; {rank} for one file per rank. "
    "Or a picture of the step, .svg, .png or .pdf; a page, .html or .md; or the schedule's table, .csv or .txt."
)
@click.option(
    "--only", metavar="PART ...", multiple=True, help="Trim traces: ranks=0,7 microbatches=0:32, one or both."
)
@click.option("--color", type=click.Choice(["kind", "microbatch"]), default="kind", help="Color slices by.")
@click.option(
    "--advise",
    is_flag=True,
    help="Simulate and list up to 32 other configurations with the same GPUs and the same batch.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Print a line for every rank, also if the output exceeds the height of a terminal.",
)
@json_option("Print all results as JSON.")
@click.option("--explain", is_flag=True, help="Print every resolved value and where it came from.")
def command(
    source: Source,
    outputs: tuple[str, ...],
    only: tuple[str, ...],
    color: str,
    *,
    advise: bool,
    full: bool,
    as_json: bool,
    explain: bool,
) -> None:
    """Simulate one training step of CONFIG, a YAML file, with flags over it."""
    from pptrace.config.resolution import load
    from pptrace.plugins.registry import Registry
    from pptrace.run.advice import advice_document
    from pptrace.run.run import simulate

    # A second part after --only is parsed as an argument: --only ranks=0,7 microbatches=0:32.
    parts = tuple(word for word in source.words if only and word.startswith(("ranks=", "microbatches=")))
    source = replace(source, words=tuple(word for word in source.words if word not in parts))
    only = tuple(part for text in (*only, *parts) for part in text.split())
    resolved = load(source.file, source.sets, source.flags)
    registry = Registry.load()
    if only and not outputs:
        raise click.UsageError("--only trims a trace: name one with -o")
    run = simulate(resolved, registry)
    if advise:
        run.advise()
    paths = run.save(*outputs, only=only, color=color) if outputs else []
    _print(run, paths, as_json=as_json, explain=explain, full=full)
    if advise and not as_json:
        click.echo("")
        echo_documents(advice_document(run, run.advice), as_json=False)
    trimmed = f" ({', '.join(only)} only)" if only else ""
    report_written(f"{path}{trimmed}" for path in paths)


def _print(run: Run, written: list[Path], *, as_json: bool, explain: bool, full: bool) -> None:
    if as_json:
        document = run.to_dict()
        if explain:
            document["explain"] = [
                {"key": key, "value": value, "origin": origin}
                for key, value, origin in run.prepared.resolved.explain()
            ]
        echo_json(document)
        return
    if explain:
        from pptrace.report.document import Document, Table

        rows = tuple((key, str(value), origin) for key, value, origin in run.prepared.resolved.explain())
        echo_documents(Document(title="values", lead=(Table(rows=rows, words=3), "")), as_json=False)
    click.echo(run.summary(written, full=full))
