"""``pptrace plan``: find the best configuration of a model on given GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.cli.options import complete_words, executor_options, experiment_flags, json_option, outputs_option
from pptrace.cli.output import echo_result, report_written, status

if TYPE_CHECKING:
    from pptrace.cli.options import Source

_EXAMPLES = """\b
pptrace plan llama.yaml --gpus 256 -o best.yaml
pptrace plan llama.yaml --gpus 256 --memory 76GiB --vary schedule=1f1b,interleaved-1f1b -o points.csv -o points.png
pptrace plan --model llama3-70b --cluster dgx-h100 --sequence 8192 --global 512 --gpus 64 --top 3 --json
"""


@click.command("plan", epilog=_EXAMPLES)
@click.option("--gpus", type=int, metavar="N", help="GPUs of the job; those of CONFIG's sizes by default.")
@click.option("--memory", metavar="SIZE", help="Memory limit of a rank, such as 76GiB; the device's by default.")
@click.option(
    "--objective", default="tokens", show_default=True, metavar="WORD",
    shell_complete=complete_words("tokens", "mfu", "step", "gpus"),
    help="Objective: tokens, mfu, step, or gpus (the fewest that fit).",
)  # fmt: skip
@click.option(
    "--vary", multiple=True, metavar="KEY=VALUE,...",
    help="Values to try, as for --over of sweep: pp=4,8, micro, recompute, zero, layers, schedule=all. May be "
    "repeated.",
)  # fmt: skip
@click.option(
    "--for", "framework", default="", metavar="NAME",
    shell_complete=complete_words("megatron", "torchtitan", "pytorch", "any"),
    help="Framework that runs all places: megatron, torchtitan, pytorch or any; by default that of the stack.",
)  # fmt: skip
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Ranked configurations.")
@click.option("--exhaustive", is_flag=True, help="Simulate all configurations that can run, without bounds.")
@click.option(
    "--time", metavar="TIME", help="Time of the search, such as 60s; then the best so far. No limit by default."
)
@click.option("--no-robustness", "robust", is_flag=True, default=True, flag_value=False,
              help="Do not simulate the first places on other machines.")  # fmt: skip
@click.option(
    "--measured", type=click.Path(path_type=Path), metavar="FILE",
    help="Table with columns command and measured_s (seconds): fit the simulation's bias to it, and rank again.",
)  # fmt: skip
@experiment_flags()
@outputs_option(
    "Write the best configuration (.yaml), or a script (.sh) or recipe of Megatron-Bridge (.py) that runs it. "
    "Other names write all points (.csv, .parquet) or a picture (.png, .svg, .pdf). May be repeated."
)
@executor_options("processes", "Executor of the simulations.")
@click.option("--fresh", is_flag=True, help="Reuse no finished simulations of an earlier start.")
@json_option("Print everything as JSON.")
def command(source: Source, outputs: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Find the best configuration of CONFIG's model on a number of GPUs: division of the model, and schedule.

    Sizes and the split of layers in CONFIG vary; sizes on the command line are fixed. Finished simulations are
    stored next to the first output: after an interruption, the same command continues. After Ctrl-C or --time, the
    best configuration so far is printed. Exits with 2 if no configuration can run and fits.
    """
    from pptrace.cli.sweep import report_journal
    from pptrace.search.plan import plan

    paths = [Path(output) for output in outputs]
    with report_journal(paths), status("planning") as watch:
        result = source.call(plan, outputs=paths, progress=watch, **options)
    echo_result(result, as_json=as_json)
    report_written(result.files_of(paths))
