"""``pptrace costs``: costs of a cost model, and an editable table of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli.options import experiment_flags, json_option, output_option
from pptrace.cli.output import echo_documents, echo_notes

if TYPE_CHECKING:
    from pptrace.cli.options import Source

_EXAMPLES = """\b
pptrace costs llama.yaml
pptrace costs llama.yaml --tp 4 -o costs.yaml
pptrace simulate costs.yaml"""


@click.command("costs", epilog=_EXAMPLES)
@experiment_flags()
@output_option(
    "Write a configuration with these costs as a table: .yaml.",
    ".yaml",
    ".yml",
    subject="costs are written as .yaml",
)
@json_option()
def command(source: Source, output: str | None, *, as_json: bool) -> None:
    """Print the costs of CONFIG's actions by stage: times, bytes, segments and kernels. Simulates no step."""
    from pptrace.config.resolution import load
    from pptrace.files import print_or_write
    from pptrace.plugins.registry import Registry
    from pptrace.run.cost_listing import costs_document, costs_yaml
    from pptrace.run.preparation import prepare

    registry = Registry.load()
    prepared = prepare(load(source.file, source.sets, source.flags), registry)
    echo_documents(costs_document(prepared.workload), as_json=as_json)
    if output is not None:
        text, missing = costs_yaml(prepared, registry)
        print_or_write(text, Path(output))
        if missing:
            echo_notes([f"{output} lacks {', '.join(missing)}: its step differs from that of the configuration"])
