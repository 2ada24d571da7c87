"""``pptrace schema``: the JSON Schema by which editors complete configuration files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from pptrace.config.flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugins.providers import Provided


_EXAMPLES = """\b
pptrace schema > pptrace.schema.json
# then add this first line to a YAML file:
# yaml-language-server: $schema=pptrace.schema.json"""


@click.command("schema", epilog=_EXAMPLES)
def command() -> None:
    """Print the JSON Schema of configuration files, the installed plugins' options included."""
    from pptrace.config.json_schema import json_schema
    from pptrace.plugins.registry import Registry

    registry = Registry.load()
    sections: dict[str, Mapping[str, Provided[Any]]] = {
        name: getattr(registry, flag.offers) for name, flag in FLAGS.items() if flag.offers
    }
    models = {
        section: {name: p.offer.options() for name, p in offers.items() if getattr(p.offer, "options", None)}
        for section, offers in sections.items()
    }
    for read in ("model", "device"):
        readers = {name: getattr(p.offer, read) for name, p in registry.cost_models.items()}
        models[read] = {name: make() for name, make in readers.items() if make is not None}
    names = {section: sorted(offers) for section, offers in sections.items()}
    click.echo(json.dumps(json_schema(models, names), indent=2))
