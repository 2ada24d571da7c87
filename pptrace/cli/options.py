"""Options that commands share."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pptrace.cli import completers
from pptrace.config.flags import FLAGS
from pptrace.sanitize import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.timeline.measurement import ImportRequest, Measurement

Function = TypeVar("Function", bound="Callable[..., Any]")

_PREFIX = "flag_"
"""Prefix of the parameters of flags."""


def experiment_flags(*only: str, without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Return a decorator that gives a command the flags of a training step, and ``--set`` as ``sets``.

    The flags arrive as keyword arguments for :func:`given_flags`.

    Args:
        only: the flags; all unless given.
        without: excluded flags, such as ``schedule``.
    """

    def decorate(function: Function) -> Function:
        sets = click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", callback=_checked_sets,
            help="Set any key; may be repeated.",
        )  # fmt: skip
        function = sets(function)
        for name in reversed([name for name in only or FLAGS if name not in without]):
            function = flag_option(name)(function)
        return function

    return decorate


def _checked_sets(context: click.Context, parameter: click.Parameter, sets: tuple[str, ...]) -> tuple[str, ...]:
    """Check settings before the next word is read as a file: ``--set parallel.tp 4``."""
    del context, parameter
    if not all("=" in text for text in sets):
        from pptrace.config.overrides import assignments

        assignments(sets, {})
    return sets


def flag_option(name: str, parameter: str = "") -> Callable[[Function], Function]:
    """Return the option of one flag.

    Args:
        name: the flag.
        parameter: its parameter name; by default, one for :func:`given_flags`.
    """
    flag = FLAGS[name]
    completed = completers.offers(flag.offers, or_file=flag.takes_file) if flag.offers else None
    if flag.choices is not None and not flag.offers:
        completed = completers.words(*flag.choices.words())
    return click.option(
        f"--{name}", parameter or f"{_PREFIX}{name}", metavar="VALUE", help=flag.help, shell_complete=completed
    )


def given_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags by their names, as :func:`~pptrace.config.resolution.load` takes them."""
    return {name: arguments[f"{_PREFIX}{name}"] for name in FLAGS if f"{_PREFIX}{name}" in arguments}


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


def one_output(context: click.Context, parameter: click.Parameter, outputs: tuple[str, ...]) -> str | None:
    """Return the only output of a command that writes one file; a callback of ``-o``.

    Raises:
        click.UsageError: there are several.
    """
    del context, parameter
    if len(outputs) > 1:
        raise click.UsageError(f"one output at a time, not {outputs[0]} and {outputs[1]}")
    return outputs[0] if outputs else None


_OPTIONS = (
    click.option("--layout", default="", help="Sizes of the job, such as pp=4,tp=2, where its traces do not say."),
    click.option("--replica", default="", help="Which pipeline of the job: dp=0,tp=0, slowest or median."),
    click.option(
        "--rules", type=click.Path(path_type=Path), help="A YAML file of rules by which names are actions."
    ),
)


def measured_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--layout``, ``--replica`` and ``--rules`` to a command, as its argument ``request``."""

    @wraps(function)
    def command(layout: str, replica: str, rules: Path | None, **given: Any) -> Any:
        from pptrace.timeline.measurement import ImportRequest

        return function(request=ImportRequest(layout=layout, replica=replica, rules=rules), **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read(
    traces: Sequence[Path], request: ImportRequest, *, without_actions: bool = False
) -> tuple[Measurement, bool]:
    """Read measured or simulated traces; print notes on standard error.

    Returns:
        The measurement, and whether it is recorded and not simulated.

    Raises:
        TraceError: unreadable traces, or traces without actions unless ``without_actions``.
    """
    from pptrace.errors import TraceError
    from pptrace.measured.sides import no_actions
    from pptrace.plugins.registry import Registry
    from pptrace.run.trace_files import read_measurement

    measurement, measured = read_measurement(traces, Registry.load(), request)
    if not measurement.steps and not without_actions:
        raise TraceError(no_actions(measurement), file=traces[0])
    for note in measurement.notes:
        click.echo(printable_line(f"note: {note}"), err=True)
    return measurement, measured
