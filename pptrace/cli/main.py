"""The command line: commands are found by name, and their modules imported when they run."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from pptrace.errors import PptraceError
from pptrace.version import __version__

__all__ = ["cli", "main"]

COMMANDS = {
    "simulate": "Simulate one training step: a summary, and traces with -o.",
    "compare": "Compare schedules as formula, as table and simulated.",
    "crossover": "Find where another of two schedules becomes the faster one.",
    "diff": "Compare two steps, simulated or measured, action by action.",
    "replay": "Simulate what was measured again: how much of it the model explains.",
    "explain": "Say where the time of a step went, and what would shorten it.",
    "calibrate": "Fit costs and network to measured traces.",
    "annotate": "Print a module that marks a pipeline's actions in PyTorch's profiler.",
    "sweep": "Simulate a grid of steps in parallel: a tidy table, and pictures.",
    "show": "Draw a schedule's idealised table.",
    "validate": "Check a schedule table in a file.",
    "open": "Open a trace in the Perfetto UI.",
    "network": "Show a cluster's links, its routes, and what a pipeline leaves of them.",
    "convert": "Convert tables and traces between formats.",
    "plugins": "List plugins, what they offer, and what failed to load.",
    "new-plugin": "Write a schedule or network plugin to start from.",
    "schema": "Print the JSON Schema of configuration files.",
    "completion": "Print the shell completion script.",
}
"""Commands with the help that ``pptrace --help`` shows, without importing them."""

_INTERRUPTED = 130
_BROKEN_PIPE = 141


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pptrace.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from pptrace.errors import nearest

            raise click.UsageError(f"no such command {args[0]!r}{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pptrace")
def cli() -> None:
    """Simulate pipeline-parallel training steps, and look at them in trace viewers.

    First steps: pptrace simulate --schedule 1f1b --pp 4 --microbatches 8
    """


def main() -> NoReturn:
    """Run the command line; every error that a user can cause is one line and exit code 2."""
    warnings.showwarning = _show_warning
    _open_closed_streams()
    try:
        code = cli.main(prog_name="pptrace", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:  # click has ended the line of the ^C
        code = _interrupted("")
    except KeyboardInterrupt:
        code = _interrupted()
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        sys.stderr.write(_refusal(error))
        code = error.exit_code
    except PptraceError as error:
        text = str(error).replace("\n", "\\n")  # a file's name may hold one
        sys.stderr.write(f"pptrace: {text}\n")
        code = error.exit_code
    except MemoryError:
        sys.stderr.write("pptrace: out of memory: take fewer ranks or microbatches, or trim exports with --only\n")
        code = 2
    except BrokenPipeError:
        # The reader of a pipe went away; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _BROKEN_PIPE
    except OSError as error:
        if error.errno is None:
            raise
        name = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"pptrace: {name}{error.strerror}\n")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Let output go nowhere where the shell closed a stream, as ``>&-`` does."""
    if sys.stdout is None:
        sys.stdout = io.StringIO()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def _interrupted(before: str = "\n") -> int:
    sys.stderr.write(f"{before}pptrace: interrupted\n")
    return _INTERRUPTED


def _refusal(error: click.ClickException) -> str:
    """Return click's message as one line, or the help that it shows where no command is named."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"{error.format_message()}\n"
    line = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption | click.MissingParameter) and error.ctx is not None:
        line += f" (see {error.ctx.command_path} --help)"
    return f"pptrace: {line}\n"


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    del category
    sys.stderr.write(f"pptrace: warning: {message}\n")
