"""``pptrace new-plugin``: write a complete plugin with a schedule or a network."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import click

from pptrace.errors import ConfigError, OutputError, PluginError
from pptrace.plugins.registry import OfferKind, Registry
from pptrace.sanitize import printable_line

if TYPE_CHECKING:
    from pptrace.plugins.providers import Provider

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "{kind}/readme.md.txt": "README.md",
    "{kind}/module.py.txt": "{package}.py",
    "{kind}/test.py.txt": "test_{package}.py",
}
"""Target of each file of the skeleton."""
_OFFERS: dict[str, OfferKind[Any]] = {"schedule": Registry.schedules, "network": Registry.networks}
"""Offer kind of each kind of plugin."""
_NEXT = {
    "schedule": "pptrace show {name} --pp 4 --microbatches 8",
    "network": "pptrace simulate --schedule 1f1b --pp 4 --microbatches 8 --network {name}",
}
"""Command that uses the new offer, by kind of plugin."""


@click.command("new-plugin")
@click.argument("name")
@click.option("--schedule/--network", default=True, help="Kind of plugin: a schedule, the default, or a network.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder to make the plugin's folder in.",
    show_default="here",
)
@click.pass_context
def command(context: click.Context, name: str, into: Path, *, schedule: bool) -> None:
    """Write a plugin with a schedule, or a network, called NAME: module, pyproject, README and test."""
    registry = context.find_object(Registry) or Registry.load(warn=lambda _: None)
    kind = "schedule" if schedule else "network"
    _check_name(name, kind, registry)
    folder = write_plugin(name, into, kind=kind)
    click.echo(f"wrote {printable_line(str(folder))}")
    install = f"pip install -e {shlex.quote(str(folder))}"
    click.echo(f"next: {install} && {_NEXT[kind].format(name=name)}")


def write_plugin(name: str, into: Path, *, kind: str = "schedule") -> Path:
    """Write the plugin of a schedule or network ``name`` into a new folder of ``into``, completely or not at all.

    Raises:
        OutputError: the new folder exists, or ``into`` is missing or cannot be written to.
    """
    folder = into / f"pptrace-{name}"
    if folder.exists() or folder.is_symlink():
        raise OutputError("it exists already; choose another name or another --into", file=folder)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".new-plugin-", dir=into))
    except OSError as error:
        raise OutputError(f"cannot write here: {error.strerror}", file=into) from error
    try:
        _write_files(scratch / folder.name, name, kind)
        (scratch / folder.name).rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write the plugin: {error.strerror}", file=folder) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write_files(folder: Path, name: str, kind: str) -> None:
    package = f"pptrace_{name.replace('-', '_')}"
    folder.mkdir()
    skeleton = resources.files("pptrace.cli") / "skeleton"
    for source, target in _FILES.items():
        path = folder / target.format(package=package)
        text = Template((skeleton / source.format(kind=kind)).read_text(encoding="utf-8"))
        path.write_text(text.substitute(name=name, package=package, kind=kind), encoding="utf-8")


def _check_name(name: str, kind: str, registry: Registry) -> None:
    if not _NAME.fullmatch(name):
        suggestion = "-".join(re.findall(r"[a-z0-9]+", name.lower())) or f"my-{kind}"
        message = f"{name!r} is not lower-case letters and digits in words joined by hyphens; try {suggestion}"
        raise ConfigError(message, key="NAME")
    for provider in registry.providers:
        if name in _names(registry, provider, _OFFERS[kind]):
            message = f"{provider} offers a {kind} named {name!r} already; choose another name"
            raise ConfigError(message, key="NAME")
    providers = [*registry.providers, *registry.disabled, *(failure.provider for failure in registry.failures)]
    if any(provider.distribution == f"pptrace-{name}" for provider in providers):
        raise ConfigError(f"a distribution pptrace-{name} is installed already; choose another name", key="NAME")


def _names(registry: Registry, provider: Provider, kind: OfferKind[Any]) -> set[str]:
    try:
        return {provided.offer.name for provided in registry.offers_of(provider, kind)}
    except PluginError:  # a failing plugin must not prevent a new one
        return set()
