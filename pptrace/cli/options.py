"""Options that commands share, and their shell completion."""

from __future__ import annotations

from functools import wraps
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from pptrace.cli.output import echo_notes
from pptrace.config.flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from click import Context, Parameter

    from pptrace.steps.text_forms import TableFile
    from pptrace.timeline.measurement import ImportRequest, Measurement

    Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
    Items: TypeAlias = list[CompletionItem[str]]
    Completer: TypeAlias = Callable[[Context, Parameter, str], Items]


_PREFIX = "flag_"
"""Prefix of the parameters of flags."""


class Source(Struct, frozen=True):
    """The configuration that a command runs: a file, settings and flags."""

    words: tuple[str, ...]
    """The arguments of the command."""
    sets: tuple[str, ...]
    """``key.path=value`` texts."""
    flags: dict[str, str | None]
    """Values by flag, as :func:`~pptrace.config.resolution.load` takes them."""

    @property
    def file(self) -> Path | None:
        """The configuration file among the arguments, if any.

        Raises:
            click.UsageError: there are several, or it is a file of another kind.
        """
        files = [Path(word) for word in self.words]
        if not files:
            return None
        if len(files) > 1:
            raise click.UsageError(f"one configuration at a time, not {files[0]} and {files[1]}")
        (file,) = files
        if file.suffix.lower() in {".csv", ".txt"}:
            raise click.UsageError(f"{file} is a schedule table: write --schedule {file}")
        if file.suffix.lower() in {".sh", ".toml"}:
            raise click.UsageError(f"{file} is not a configuration: pptrace recipe converts jobs of frameworks")
        if not file.exists() and file.suffix.lower() not in {".yaml", ".yml"}:
            raise click.UsageError(f"{file}: no such file; if it is a schedule, write --schedule {file}")
        return file

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return the result of a function of the Python interface; its errors name flags."""
        return unwrap(function)(self.file, sets=self.sets, **arguments, **self.flags)


def experiment_flags(*only: str, without: Sequence[str] = (), config: bool = True) -> Option:
    """Return a decorator that adds a configuration file, flags and ``--set`` to a command, as its ``source``.

    Args:
        only: the flags; all by default.
        without: excluded flags, such as ``schedule``.
        config: whether the command takes a configuration file.
    """
    names = [name for name in only or FLAGS if name not in without]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_source(sets: tuple[str, ...], config: tuple[str, ...] = (), **arguments: Any) -> Any:
            flags = {name: arguments.pop(f"{_PREFIX}{name}") for name in names}
            return function(source=Source(config, sets, flags), **arguments)

        command: Callable[..., Any] = click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", callback=_checked_sets,
            help="Set any key; may be repeated.",
        )(with_source)  # fmt: skip
        for name in reversed(names):
            command = _flag_option(name)(command)
        argument = click.argument("config", nargs=-1, metavar="[CONFIG]", shell_complete=complete_files)
        return argument(command) if config else command

    return decorate


def _checked_sets(context: click.Context, parameter: click.Parameter, sets: tuple[str, ...]) -> tuple[str, ...]:
    """Check settings before the next word is read as a file: ``--set parallel.tp 4``."""
    del context, parameter
    if not all("=" in text for text in sets):
        from pptrace.config.overrides import assignments

        assignments(sets, {})
    return sets


def _flag_option(name: str) -> Option:
    """Return the option of one flag."""
    flag = FLAGS[name]
    completer = complete_offers(flag.offers, or_file=flag.takes_file) if flag.offers else None
    if flag.choices is not None and not flag.offers:
        completer = complete_words(*flag.choices.words())
    return click.option(f"--{name}", f"{_PREFIX}{name}", metavar="VALUE", help=flag.help, shell_complete=completer)


def outputs_option(text: str) -> Option:
    """Return the repeatable option ``-o`` with a help text; its parameter is ``outputs``."""
    return click.option(
        "-o", "--output", "outputs", multiple=True, metavar="FILE", shell_complete=complete_files, help=text
    )


def output_option(text: str, *suffixes: str, subject: str = "") -> Option:
    """Return the option ``-o`` of a command that writes one file.

    Args:
        text: the help.
        suffixes: the allowed suffixes of the file; any by default.
        subject: error message for other suffixes, such as ``costs are written as .yaml``.
    """

    def check(context: click.Context, parameter: click.Parameter, outputs: tuple[str, ...]) -> str | None:
        del context, parameter
        if len(outputs) > 1:
            raise click.UsageError(f"one output at a time, not {outputs[0]} and {outputs[1]}")
        if suffixes and outputs and not outputs[0].lower().endswith(suffixes):
            raise click.UsageError(f"{outputs[0]}: {subject}")
        return outputs[0] if outputs else None

    return click.option(
        "-o", "--output", multiple=True, callback=check, metavar="FILE", shell_complete=complete_files, help=text
    )


def share(text: str) -> float:
    """Return the share of 1 that an option states, such as ``2%`` or ``0.02``.

    Raises:
        click.BadParameter: it is no share.
    """
    from pptrace.config.quantities import parse_share
    from pptrace.errors import ConfigError

    try:
        return parse_share(text, "")
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def executor_options(default: str | None, text: str) -> Option:
    """Return a decorator that adds the options ``--executor``, with a help text, and ``--workers``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        workers = click.option(
            "--workers", type=click.IntRange(1), metavar="N", help="Parallel simulations; one per core."
        )
        return click.option(
            "--executor", default=default, show_default=default is not None, metavar="NAME[:KEY=VALUE]",
            shell_complete=complete_offers("executors"), help=text,
        )(workers(function))  # fmt: skip

    return decorate


def json_option(text: str = "Print JSON.") -> Option:
    """Return the option ``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def traces_argument(name: str) -> Option:
    """Return the argument of at least one trace, configuration or folder."""
    return click.argument(
        name, nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete_files
    )


_OPTIONS = (
    click.option("--layout", default="", help="Sizes of the job, such as pp=4,tp=2, if its traces do not "
        "contain them."),
    click.option("--replica", default="", help="Which pipeline of the job: dp=0,tp=0, slowest or median."),
    click.option(
        "--rules", type=click.Path(path_type=Path), help="YAML file of rules that map names to actions."
    ),
    click.option(
        "--iteration", type=click.IntRange(0), metavar="N",
        help="Number N of the folder iteration_N.  [default: the last complete one]",
    ),
)  # fmt: skip


def measured_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of recorded runs to a command, as its argument ``request``."""

    @wraps(function)
    def command(layout: str, replica: str, rules: Path | None, iteration: int | None, **arguments: Any) -> Any:
        from pptrace.timeline.measurement import ImportRequest

        request = ImportRequest(layout=layout, replica=replica, rules=rules, iteration=iteration)
        return function(request=request, **arguments)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_table(file: Path) -> TableFile:
    """Read a valid schedule table.

    Raises:
        PptraceError: the file cannot be read, or the table is invalid.
    """
    from pptrace.errors import ScheduleError
    from pptrace.steps.text_forms import load_table
    from pptrace.steps.validation import validate

    table = load_table(file)
    try:
        validate(table.schedule)
    except ScheduleError as error:
        raise table.locate(error) from error
    return table


def read(
    traces: Sequence[Path], request: ImportRequest, *, without_actions: bool = False
) -> tuple[Measurement, bool]:
    """Read measured or simulated traces; print notes on standard error.

    Returns:
        The measurement, and whether it was recorded (true) or simulated.

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
    echo_notes(measurement.notes)
    return measurement, measured


def complete_files(_context: Context, _parameter: Parameter, start: str) -> Items:
    """Return the item with which click makes the shell complete a file name."""
    return [CompletionItem(start, "file")]


def complete_words(*known: str) -> Completer:
    """Return a completer of words, in their order."""
    return lambda _context, _parameter, start: [CompletionItem(word) for word in known if word.startswith(start)]


def complete_offers(kind: str, *, or_file: bool = False) -> Completer:
    """Return a completer of names that plugins offer.

    Args:
        kind: the registry's attribute, such as ``schedules``.
        or_file: whether the value can also be a file. Its item comes first, because click's script for bash drops
            all items before it; bash then completes file names where no name matches.
    """

    def complete(context: Context, parameter: Parameter, start: str) -> Items:
        from pptrace.errors import PptraceError
        from pptrace.plugins.registry import Registry

        try:
            known = getattr(Registry.load(warn=lambda _: None), kind)
        except PptraceError:  # completion shows no errors of plugins
            known = {}
        names = [
            CompletionItem(name, help=known[name].offer.summary)
            for name in sorted(known)
            if name.startswith(start)
        ]
        return (complete_files(context, parameter, start) if or_file else []) + names

    return complete


def complete_listed_offers(kind: str) -> Completer:
    """Return a completer of names that plugins offer, in a list separated by commas."""
    complete_name = complete_offers(kind)

    def complete(context: Context, parameter: Parameter, start: str) -> Items:
        earlier, comma, last = start.rpartition(",")
        return [
            CompletionItem(f"{earlier}{comma}{item.value}", help=item.help)
            for item in complete_name(context, parameter, last)
        ]

    return complete
