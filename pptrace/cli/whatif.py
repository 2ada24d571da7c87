"""``pptrace whatif``: what single changes would bring a step, each simulated."""

from __future__ import annotations

import json

import click

from pptrace.cli import completers
from pptrace.cli.options import config_file, experiment_flags, given_flags
from pptrace.cli.output import status

_EXAMPLES = """\b
pptrace whatif llama.yaml
pptrace whatif llama.yaml --lost 2 --json
"""


@click.command("whatif", epilog=_EXAMPLES)
@click.argument("config", nargs=-1, metavar="[CONFIG]", shell_complete=completers.files)
@experiment_flags()
@click.option(
    "--lost", type=click.IntRange(0), default=0, metavar="N",
    help="Workers (pipeline ranks) that fail: their microbatches go to the replicas of their stages.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    config: tuple[str, ...], sets: tuple[str, ...], lost: int, *, as_json: bool, **flags: str | None
) -> None:
    """Simulate CONFIG's step again with one thing changed at a time, on as many GPUs.

    Twice the bandwidth, a free network, half the bubble, even stages, no stragglers, one more microbatch; with
    --lost, fewer workers. The first row is the largest lever of the step as it is.
    """
    file = config_file(config)
    from pptrace.config.resolution import load
    from pptrace.plugins.registry import Registry
    from pptrace.run.run import simulate
    from pptrace.search.what_if import whatif

    with status("simulating"):
        found = whatif(simulate(load(file, sets, given_flags(flags)), Registry.load()), lost=lost)
    click.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if as_json else found.summary())
