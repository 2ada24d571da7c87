"""``pptrace plugins``: list installed plugins, their offers, and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import click

from pptrace.cli.output import echo_documents
from pptrace.errors import PluginError
from pptrace.plugins.providers import Failure, Provider
from pptrace.plugins.registry import OFFER_KINDS, Registry

if TYPE_CHECKING:
    from pptrace.report.document import Document

Plugins: TypeAlias = "list[tuple[Provider, dict[str, dict[str, str]]]]"
"""Loaded plugins with the summaries of their offers by kind and name."""


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    """List plugins and their offers, and plugins that failed to load, with the reason."""
    registry = context.find_object(Registry) or Registry.load(warn=lambda _: None)
    loaded, failures = _list(registry)
    failures += _clashes(registry, failures)
    echo_documents(_document(loaded, failures, registry.disabled), as_json=as_json)


def _list(registry: Registry) -> tuple[Plugins, list[Failure]]:
    """Return loaded and failed plugins; the failure of a plugin's hook does not affect other plugins."""
    loaded: Plugins = []
    failing = []
    for provider in tuple(registry.providers):
        offers: dict[str, dict[str, str]] = {}
        for kind in OFFER_KINDS:
            try:
                provided = registry.offers_of(provider, kind)
            except PluginError as error:
                failing.append(_failure(provider, error))
                continue
            if provided:
                offers[kind.plural.replace("_", " ")] = {item.offer.name: item.offer.summary for item in provided}
        if provider in registry.providers:  # otherwise its hook failed and the registry removed it
            loaded.append((provider, offers))
    return loaded, [*registry.failures, *failing]


def _clashes(registry: Registry, known: list[Failure]) -> list[Failure]:
    """Return the names that two plugins offer, of kinds without another error."""
    clashes = []
    for kind in OFFER_KINDS:
        try:
            registry.offered(kind)
        except PluginError as error:
            provider = next((p for p in registry.providers if p.name == error.plugin), Provider(name=error.plugin))
            failure = _failure(provider, error)
            clashes += [failure] if failure not in known else []
    return clashes


def _failure(provider: Provider, error: PluginError) -> Failure:
    return Failure(provider=provider, reason=str(error).removeprefix(f"{provider}: "))


def _document(loaded: Plugins, failures: list[Failure], disabled: list[Provider]) -> Document:
    """Return a section per plugin, after lines for failures and disabled plugins."""
    from pptrace.report.document import Document, Section

    lead = [*(f"failed: {failure}" for failure in failures), *(f"disabled: {provider}" for provider in disabled)]
    sections = tuple(
        Section(
            title=f"{provider.distribution or '-'} {provider.version or '-'} ({provider.name})",
            blocks=tuple(f"{noun}: {', '.join(names)}" for noun, names in offers.items()) or ("offers nothing",),
        )
        for provider, offers in loaded
    )
    return Document(title="plugins", lead=lead, sections=sections, values=_values(loaded, failures, disabled))


def _values(loaded: Plugins, failures: list[Failure], disabled: list[Provider]) -> dict[str, Any]:
    return {
        "plugins": [
            {
                **_identity(provider),
                "offers": {
                    noun: [{"name": name, "summary": summary} for name, summary in names.items()]
                    for noun, names in offers.items()
                },
            }
            for provider, offers in loaded
        ],
        "failed": [{**_identity(failure.provider), "reason": failure.reason} for failure in failures],
        "disabled": [_identity(provider) for provider in disabled],
    }


def _identity(provider: Provider) -> dict[str, str]:
    return {
        "plugin": provider.name,
        "distribution": provider.distribution,
        "version": provider.version,
    }
