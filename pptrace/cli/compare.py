"""``pptrace compare``: compare schedules by formula, by table and by simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pptrace.cli.options import complete_listed_offers, experiment_flags, json_option, outputs_option
from pptrace.cli.output import echo_result, report_written, status

if TYPE_CHECKING:
    from pptrace.cli.options import Source

_EXAMPLES = """\b
pptrace compare llama.yaml --schedules gpipe,1f1b,chimera,hanayo
pptrace compare --pp 8 --microbatches 16 --schedules 1f1b,interleaved-1f1b:vp=2,./mine.py:make
pptrace compare llama.yaml --schedules 1f1b,1f1b:p2p=batched -o compare.csv
pptrace compare llama.yaml --schedules 1f1b,interleaved-1f1b --policies
pptrace compare llama.yaml --schedules 1f1b,zb-h1,zb-v --memory 76GiB
pptrace compare llama.yaml --schedules 1f1b,hanayo,hanayo:waves=2 -o compare.svg"""


@click.command("compare", epilog=_EXAMPLES)
@click.option(
    "--schedules", multiple=True, required=True, metavar="NAME,...",
    shell_complete=complete_listed_offers("schedules"),
    help="Schedules, each with its settings after colons: hanayo:waves=2. May be repeated.",
)  # fmt: skip
@experiment_flags(without=["schedule"])
@outputs_option(
    "Draw the comparison (.png, .svg, .pdf), or write a row per schedule, with --policies one per policy (.csv); "
    "may be repeated."
)
@click.option(
    "--policies",
    is_flag=True,
    help="Also run each schedule under every point-to-point policy, to compare the cost of messages.",
)
@click.option(
    "--memory", metavar="SIZE",
    help="Compare the best settings of each schedule that fit this memory on every rank, such as 76GiB.",
)  # fmt: skip
@click.option(
    "--vary", multiple=True, metavar="NAME,...",
    help="With --memory, the settings that vary; by default vp, micro, recompute, options, offload, "
    "recompute-actions, memory; also zero, sequence-parallel.",
)  # fmt: skip
@json_option("Print everything as JSON.")
def command(source: Source, outputs: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Compare schedules on CONFIG at three levels: formula, idealised table, simulation.

    The row of a schedule that cannot run has the reason. With --memory, each schedule runs with its best settings
    that fit.
    """
    from pptrace.api import compare
    from pptrace.files import check_targets

    check_targets(outputs, (".png", ".svg", ".pdf", ".csv"), "a comparison")
    with status("comparing") as watch:
        comparison = source.call(compare, progress=watch, **options)
    echo_result(comparison, as_json=as_json)
    report_written(comparison.save(output) for output in outputs)
