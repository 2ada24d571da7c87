"""What describes a training step on the command line: a file, flags over it, and ``--set``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pptrace.cli import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["config_file", "experiment_flags", "given_flags"]

Function = TypeVar("Function", bound="Callable[..., Any]")

_HELP = {
    "schedule": "A plugin's schedule, FILE.py:FUNCTION, or a table (.csv).",
    "pp": "Pipeline ranks.",
    "tp": "Tensor-parallel size.",
    "dp": "Data-parallel replicas.",
    "cp": "Context-parallel size.",
    "ep": "Expert-parallel size.",
    "vp": "Model chunks per rank.",
    "global": "Sequences in a step, over all replicas.",
    "microbatches": "Microbatches that one pipeline runs.",
    "micro": "Sequences in a microbatch.",
    "sequence": "Tokens in a sequence.",
    "model": "A model preset.",
    "device": "A device preset.",
    "network": "A network model.",
    "cluster": "A cluster preset, such as dgx-h100x32.",
    "contention": "What messages that meet do: none, fifo or max-min.",
    "p2p": "How messages are issued: async, sender-blocking, blocking, ordered or batched.",
    "costs": "A cost model.",
}

_COMPLETED = {
    "schedule": complete.offers("schedules", "py", "csv", "txt"),
    "model": complete.offers("models"),
    "device": complete.offers("devices"),
    "network": complete.offers("networks"),
    "cluster": complete.offers("clusters"),
    "contention": complete.words("none", "fifo", "max-min"),
    "p2p": complete.words("async", "sender-blocking", "blocking", "ordered", "batched"),
    "costs": complete.offers("cost_models"),
}

_PREFIX = "flag_"
"""Keeps the parameters of flags apart from a command's own."""


def experiment_flags(*, without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Return a decorator that gives a command the flags of a training step, and ``--set`` as ``sets``.

    The flags arrive as keyword arguments for :func:`given_flags`.

    Args:
        without: flags that the command has no use for, such as ``schedule``.
    """

    def decorate(function: Function) -> Function:
        sets = click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated."
        )
        function = sets(function)
        for name in reversed([name for name in _HELP if name not in without]):
            function = click.option(
                f"--{name}", f"{_PREFIX}{name}", metavar="VALUE", help=_HELP[name],
                shell_complete=_COMPLETED.get(name),
            )(function)  # fmt: skip
        return function

    return decorate


def given_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags by their names, as :func:`~pptrace.config.resolve.load` takes them."""
    return {name: arguments[f"{_PREFIX}{name}"] for name in _HELP if f"{_PREFIX}{name}" in arguments}


def config_file(words: Sequence[str]) -> Path | None:
    """Return the configuration among a command's arguments, if any.

    Raises:
        click.UsageError: there are several, or it is a schedule's file.
    """
    files = [Path(word) for word in words]
    if not files:
        return None
    if len(files) > 1:
        raise click.UsageError(f"one configuration at a time, not {files[0]} and {files[1]}")
    (file,) = files
    if file.suffix.lower() in {".csv", ".txt"}:
        raise click.UsageError(f"{file} is a schedule table: write --schedule {file}")
    if not file.exists() and file.suffix.lower() not in {".yaml", ".yml"}:
        raise click.UsageError(f"{file}: no such file; if it is a schedule, write --schedule {file}")
    return file
