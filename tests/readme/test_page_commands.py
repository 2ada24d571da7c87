"""Every command on a page has known options with valid values, and every configuration on a page is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from markdown import blocks, commands

from pptrace.cli.main import cli
from pptrace.config.resolution import load
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
STEPS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES if page.is_relative_to(ROOT / "docs")
    for number, (language, text) in enumerate(blocks(page))
    if language == "yaml" and re.search(r"^parallel:", text, re.MULTILINE)
]  # fmt: skip
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
EXPANDED = re.compile(r"[?\[\]{}()~#]|\*(?!\S*\.\w)")
"""What zsh or another shell expands, but for the names of files such as ``rank*.json``."""
COMMAND = re.compile(r"\s(?:\|\||&&|[|>#])(?:\s|$)")
"""What ends a command of a line."""


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_have_known_options(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for line in commands(page):
        if "..." not in line and "…" not in line:
            parse(cli, shlex.split(COMMAND.split(line)[0])[1:])


def test_shells_expand_no_argument() -> None:
    lines = [COMMAND.split(line)[0] for page in PAGES for line in commands(page) if "..." not in line]

    assert [line for line in lines if EXPANDED.search(QUOTED.sub("", line))] == []


@pytest.mark.needs_plugins
@pytest.mark.parametrize("text", STEPS)
def test_configurations_can_be_simulated(text: str, tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(text, encoding="utf-8")

    assert prepare(load(tmp_path / "step.yaml"), Registry.load()).schedule.ranks > 0


def parse(command: click.Command, words: Sequence[str], parent: click.Context | None = None) -> None:
    """Parse words as a command; files that a reader has may be missing."""
    try:
        context = command.make_context(command.name, [*words], parent=parent)
    except click.BadParameter as error:
        if error.message.endswith("does not exist."):
            return
        raise
    if isinstance(command, click.Group):
        _, chosen, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert chosen is not None
        parse(chosen, rest, context)
