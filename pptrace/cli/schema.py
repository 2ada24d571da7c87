"""``pptrace schema``: the JSON Schema by which editors complete configuration files."""

from __future__ import annotations

import json

import click

__all__ = ["command"]


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of configuration files, the installed plugins' options included.

    \b
    pptrace schema > pptrace.schema.json
    then, as the first line of a YAML file:
    # yaml-language-server: $schema=pptrace.schema.json
    """
    from pptrace.config.schema import json_schema
    from pptrace.hooks.registry import Registry

    registry = Registry.load()
    sections = {
        "schedule": registry.schedules,
        "network": registry.networks,
        "costs": registry.cost_models,
        "model": registry.models,
        "device": registry.devices,
    }
    models = {
        section: {name: p.offer.options() for name, p in offers.items() if getattr(p.offer, "options", None)}
        for section, offers in sections.items()
    }
    names = {section: sorted(offers) for section, offers in sections.items()}
    click.echo(json.dumps(json_schema(models, names), indent=2))
