"""The reference of commands has every command with every flag (``--regenerate`` writes it from the commands)."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from pptrace.cli.main import cli
from pptrace.config.flags import FLAGS
from pptrace.plugins.providers import COMMANDS
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs_plugins

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
OPENING = """# Commands

{index}
All commands take `-h` and `--help`, and `pptrace COMMAND --help` prints a section of this page. For completion of
commands, options, names and files, add `eval "$(_PPTRACE_COMPLETE=bash_source pptrace)"` to `~/.bashrc`. Other
shells use `zsh_source` and `fish_source`.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | `diff`: the steps differ; `sweep`: a point failed |
| 2 | an error in the input, or no result |
| 70 | a bug in pptrace |
| 130, 143 | ended by Ctrl-C or SIGTERM |
| 141 | the reader of the output ended early |

"""
SHARED = """## Configuration flags

Each flag sets a key of the [configuration](configuration.md). It overrides `--set`, and both override the file.

"""


def test_the_reference_has_every_command_and_flag(pytestconfig: pytest.Config) -> None:
    opening = OPENING.replace("{index}", index())
    page = opening + "\n".join([*sections(cli, "pptrace"), SHARED + shared_flags()])

    if pytestconfig.getoption("--regenerate"):
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8")


def test_every_core_command_has_a_heading() -> None:
    headings = re.findall(r"^## pptrace ([\w-]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[: len(COMMANDS)] == list(COMMANDS)


def index() -> str:
    """Return the table of all commands."""
    commands = Registry.load().commands
    summaries = COMMANDS | {name: provided.offer.summary for name, provided in commands.items()}
    rows = [f"| [`{name}`](#pptrace-{name}) | {summary} |" for name, summary in summaries.items()]
    return "| command | purpose |\n|---|---|\n" + "\n".join(rows) + "\n"


def sections(group: click.Group, path: str) -> Iterator[str]:
    """Yield the section of every command of a group, and of groups in it."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield section(command, f"{path} {name}")
        if isinstance(command, click.Group):
            yield from sections(command, f"{path} {name}")


def section(command: click.Command, path: str) -> str:
    """Return the reference of one command."""
    context = click.Context(command, info_name=path)
    usage = command.get_usage(context).removeprefix("Usage: ")
    described = inspect.cleandoc(command.help or "").split("\f")[0]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    own = [row(option, context) for option in options if not is_shared(option)]
    shared = [f"`{option.opts[0]}`" for option in options if is_shared(option)]
    parts = [
        f"## {path}" if path.count(" ") == 1 else f"### {path}",
        f"```text\n{' '.join(usage.split())}\n```",
        described,
        "| option | default | meaning |\n|---|---|---|\n" + "\n".join(own) if own else "",
        f"[Configuration flags](#configuration-flags): {', '.join(shared)}." if shared else "",
        f"```bash\n{inspect.cleandoc(command.epilog.replace(chr(8), '')).strip()}\n```" if command.epilog else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def is_shared(option: click.Option) -> bool:
    """Return whether an option is the flag of a configuration key."""
    flag = FLAGS.get(option.opts[0].removeprefix("--"))
    return flag is not None and option.help == flag.help


def row(option: click.Option, context: click.Context) -> str:
    """Return an option's row of a table."""
    names = "/".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    default = option.default if isinstance(option.default, str | int) and not option.is_flag else ""
    meaning = (option.help or "") + (" Required." if option.required else "")
    cells = [f"`{names}{value}`", f"`{default}`" if default != "" else "", meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def shared_flags() -> str:
    """Return the table of the flags of configuration keys."""
    rows = [f"| `--{name}` | `{flag.key}` | {flag.help} |" for name, flag in FLAGS.items()]
    return "| flag | key | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
