"""``pptrace whatif``: simulate the effect of single changes on a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pptrace.cli.options import experiment_flags, json_option
from pptrace.cli.output import echo_result, status

if TYPE_CHECKING:
    from pptrace.cli.options import Source

_EXAMPLES = """\b
pptrace whatif llama.yaml
pptrace whatif llama.yaml --lost 2 --json
pptrace whatif mixture.yaml --balance-experts
"""


@click.command("whatif", epilog=_EXAMPLES)
@experiment_flags()
@click.option(
    "--lost", type=click.IntRange(0), default=0, metavar="N",
    help="Workers (pipeline ranks) that fail: their microbatches go to the replicas of their stages.",
)  # fmt: skip
@click.option(
    "--balance-experts", is_flag=True,
    help="Balance the tokens of experts: placements as DeepSeek's EPLB plans them, without and with replicas of "
    "full experts, and equal numbers of tokens. Needs model.expert_load.",
)  # fmt: skip
@json_option("Print everything as JSON.")
def command(source: Source, lost: int, *, balance_experts: bool, as_json: bool) -> None:
    """Simulate CONFIG's step again with one change at a time, on the same number of GPUs.

    The changes are twice the bandwidth, a free network, half the bubble, even stages, no stragglers, and one
    more microbatch. With --lost, they include fewer workers, and with --balance-experts other placements of
    experts. The first row is the bottleneck of the unchanged step.
    """
    file = source.file
    from pptrace.config.resolution import load
    from pptrace.plugins.registry import Registry
    from pptrace.run.run import simulate
    from pptrace.search.what_if import whatif

    with status("simulating"):
        result = whatif(
            simulate(load(file, source.sets, source.flags), Registry.load()),
            lost=lost,
            balance_experts=balance_experts,
        )
    echo_result(result, as_json=as_json)
