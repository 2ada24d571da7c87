"""``pptrace costs``: costs of a cost model, and an editable table of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pptrace.cli import completers
from pptrace.cli.options import config_file, experiment_flags, given_flags, one_output
from pptrace.cli.output import echo_documents
from pptrace.sanitize import printable_line

_EXAMPLES = """\b
pptrace costs llama.yaml
pptrace costs llama.yaml --tp 4 -o costs.yaml
pptrace simulate costs.yaml"""


@click.command("costs", epilog=_EXAMPLES)
@click.argument("config", nargs=-1, metavar="[CONFIG]", shell_complete=completers.files)
@experiment_flags()
@click.option(
    "-o", "--output", multiple=True, callback=one_output, metavar="FILE", shell_complete=completers.files,
    help="Write a configuration with these costs as a table: .yaml.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    config: tuple[str, ...], sets: tuple[str, ...], output: str | None, *, as_json: bool, **flags: str | None
) -> None:
    """Print what CONFIG's actions cost: times, bytes, segments and kernels by stage, without simulating it."""
    from pptrace.config.resolution import load
    from pptrace.files import replace_file
    from pptrace.plugins.registry import Registry
    from pptrace.run.cost_listing import costs_document, costs_yaml
    from pptrace.run.preparation import prepare

    if output is not None and not output.lower().endswith((".yaml", ".yml")):
        raise click.UsageError(f"{output}: costs are written as .yaml")
    prepared = prepare(load(config_file(config), sets, given_flags(flags)), Registry.load())
    echo_documents(costs_document(prepared.workload), as_json=as_json)
    if output is not None:
        with replace_file(Path(output)) as temporary:
            temporary.write_text(costs_yaml(prepared.workload, prepared.resolved.to_dict()), encoding="utf-8")
        sys.stderr.write(f"wrote {printable_line(output)}\n")
