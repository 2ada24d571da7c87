"""``pptrace crossover``: find the values at which the faster of two schedules changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pptrace.cli.options import (
    complete_listed_offers,
    complete_words,
    executor_options,
    experiment_flags,
    json_option,
    share,
)
from pptrace.cli.output import echo_result, status

if TYPE_CHECKING:
    from pptrace.cli.options import Source

_EXAMPLES = """\b
pptrace crossover llama.yaml --between chimera,1f1b --over microbatches
pptrace crossover llama.yaml --between hanayo:waves=2,1f1b --over bandwidth='1 GB/s..400 GB/s'
pptrace crossover llama.yaml --between gpipe,1f1b --over network.overhead='1 us..10 ms' --tolerance 0.1%"""

_MOST_POINTS = 1000


@click.command("crossover", epilog=_EXAMPLES)
@click.option(
    "--between", multiple=True, required=True, metavar="A,B", shell_complete=complete_listed_offers("schedules"),
    help="Two schedules, with settings as for compare.",
)  # fmt: skip
@click.option(
    "--over", multiple=True, required=True, metavar="KEY[=LOW..HIGH]",
    shell_complete=complete_words("microbatches", "bandwidth", "latency"),
    help="The key that varies: microbatches, bandwidth, latency, or any key with a number.",
)  # fmt: skip
@click.option(
    "--points", type=click.IntRange(2, _MOST_POINTS), default=12, show_default=True,
    help="Values of the first scan; bisection then finds the crossovers between two of them.",
)  # fmt: skip
@click.option(
    "--tolerance", type=share, metavar="PERCENT", default=0.01, show_default="1%",
    help="Relative accuracy of a crossover; counts are exact.",
)  # fmt: skip
@executor_options(None, "Executor of the simulations; by default, sequential in this process.")
@experiment_flags(without=["schedule"])
@json_option("Print everything as JSON.")
def command(source: Source, over: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Find where the ranking of two schedules by step time changes as a number of CONFIG grows.

    Without a range, microbatches go from 1 to 1024, and other keys over three decades around their value.
    """
    if len(over) > 1:
        raise click.UsageError(f"one axis at a time, not {' and '.join(over)}")
    from pptrace.api import crossover

    with status("searching") as watch:
        result = source.call(crossover, over=over[0], progress=watch, **options)
    echo_result(result, as_json=as_json)
