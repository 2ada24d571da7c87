"""The command line, which imports the module of a command when the command runs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pptrace.cli.output import plain_streams
from pptrace.errors import PptraceError
from pptrace.plugins.guards import SIGNALS, UserInterrupt, interrupt
from pptrace.plugins.providers import COMMANDS
from pptrace.sanitize import printable_line
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace.plugins.registry import Registry

_STARTUP_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""Variables, unless the user sets them, that disable slow start-up work of libraries: numpy's threads for float
products, which pptrace does not use, and pydantic's search for plugins."""
_ERROR = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_TERMINATED = 143
_CRASHED = 70
"""EX_SOFTWARE of sysexits.h; 1 is a result of ``diff`` and ``sweep``."""


class _LazyGroup(click.Group):
    """The core's commands, which need no plugin, and the commands of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_helps(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"pptrace.cli.{cmd_name.replace('-', '_')}")
            command: click.Command = module.command
            return command
        provided = _registry(ctx).commands.get(cmd_name)
        return None if provided is None else provided.offer.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from pptrace.errors import nearest
            from pptrace.plugins.registry import more_of

            registry = _registry(ctx)
            if args[0] not in registry.commands:
                suggestion = nearest(args[0], {**COMMANDS, **registry.commands})
                advice = more_of(type(registry).commands, registry)
                raise click.UsageError(f"no such command {args[0]!r}{suggestion}{advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_helps(ctx).items()))


def _registry(ctx: click.Context) -> Registry:
    from pptrace.plugins.registry import Registry

    if not isinstance(ctx.obj, Registry):
        ctx.obj = Registry.load(warn=_warn(ctx))
    return ctx.obj


def _helps(ctx: click.Context) -> dict[str, str]:
    """Return all commands with their help; an error in plugins becomes a warning."""
    try:
        offered = _registry(ctx).commands
    except PptraceError as error:
        _warn(ctx)(str(error))
        return COMMANDS
    return COMMANDS | {name: provided.offer.summary for name, provided in offered.items()}


def _warn(ctx: click.Context) -> Callable[[str], None]:
    """Return a function that prints a warning, except during shell completion."""
    return lambda line: None if ctx.resilient_parsing else _show_warning(line, UserWarning)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pptrace")
def cli() -> None:
    """Simulate pipeline-parallel training steps, and look at them in trace viewers.

    First steps: pptrace simulate --schedule 1f1b --pp 4 --microbatches 8
    """


def main() -> NoReturn:
    """Run the command line; every error that a user can cause is one line and exit code 2."""
    warnings.showwarning = _show_warning
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # the error names the plugin
    for name, value in _STARTUP_VARIABLES.items():
        os.environ.setdefault(name, value)
    with plain_streams(), _handle_signals():
        code = _run()
    gc.freeze()  # no garbage collection at exit
    sys.exit(code)


@contextmanager
def _handle_signals() -> Iterator[None]:
    """End commands cleanly on Ctrl-C and SIGTERM, unless the shell ignores the signal.

    Both signals remove temporary files and end workers.
    """
    original = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in original.items():
        if handler in {signal.default_int_handler, signal.SIG_DFL}:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in original.items():
            signal.signal(number, handler)


def _run() -> int:
    """Run the command line, and return its exit code."""
    out = sys.stdout
    try:
        code = cli.main(prog_name="pptrace", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort as abort:  # click has ended the line of the ^C
        code = _report_interrupt(abort.__cause__)
    except KeyboardInterrupt as error:
        sys.stderr.write("\n")
        code = _report_interrupt(error)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except BrokenPipeError:
        code = _broken_pipe()
    except SystemExit:
        if sys.stdout is out:
            raise
        code = _broken_pipe()  # click exits with 1 at a broken pipe
    except Exception as error:  # noqa: BLE001 - a bug has its own message and status
        code = _report_error(error)
    return code if isinstance(code, int) else 0


def _broken_pipe() -> int:
    """Return the status of a broken pipe, and discard all later output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE


def _report_error(error: Exception) -> int:
    """Print an error, in one line unless it is a bug, and return the exit code."""
    if isinstance(error, click.ClickException):
        sys.stderr.write(_usage_message(error))
        return error.exit_code
    if isinstance(error, PptraceError):
        sys.stderr.write(f"pptrace: {printable_line(str(error))}\n")
        return error.exit_code
    if isinstance(error, MemoryError):
        sys.stderr.write("pptrace: out of memory: take fewer ranks or microbatches, or trim exports with --only\n")
        return _ERROR
    if isinstance(error, OSError) and error.errno is not None:
        name = f"{printable_line(str(error.filename))}: " if error.filename else ""
        sys.stderr.write(f"pptrace: {name}{error.strerror}\n")
        return _ERROR
    import traceback

    traceback.print_exception(error)
    sys.stderr.write(f"pptrace: this is a bug in pptrace {__version__}; please report the lines above\n")
    return _CRASHED


def _report_interrupt(cause: BaseException | None) -> int:
    """Print that a signal ended the command, and return the shell's status for it."""
    terminated = isinstance(cause, UserInterrupt) and cause.args == (signal.SIGTERM,)
    sys.stderr.write(f"pptrace: {'terminated' if terminated else 'interrupted'}\n")
    return _TERMINATED if terminated else _INTERRUPTED


def _usage_message(error: click.ClickException) -> str:
    """Return click's message as one line, or its help for a missing command."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"{error.format_message()}\n"
    line = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption) and (key := _key_of_flag(error)):
        line = f"No such option {error.option_name!r}: write {key} in the configuration, or --set {key}=VALUE"
    if isinstance(error, click.NoSuchOption | click.MissingParameter) and error.ctx is not None:
        line += f" (see {error.ctx.command_path} --help)"
    return f"pptrace: {line}\n"


def _key_of_flag(error: click.NoSuchOption) -> str:
    """Return the key of a flag that a command with ``--set`` lacks; empty if another parameter matches."""
    from pptrace.config.flags import FLAGS

    name = error.option_name.removeprefix("--")
    flag = FLAGS.get(name)
    has_longer_match = any(name.startswith(error.option_name) for name in error.possibilities or ())
    parameters = {parameter.name for parameter in error.ctx.command.params} if error.ctx is not None else set()
    takes_key = "sets" in parameters and name not in parameters
    return flag.key if flag and takes_key and not has_longer_match else ""


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    del category
    sys.stderr.write(f"pptrace: warning: {printable_line(str(message))}\n")
