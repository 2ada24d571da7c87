"""The page about JSON outputs has the keys that the commands print, and no others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pptrace.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = {
    "simulate": "simulate plan-1f1b.yaml",
    "costs": "costs plan-1f1b.yaml",
    "compare": "compare plan-1f1b.yaml --schedules 1f1b,gpipe",
    "crossover": "crossover plan-1f1b.yaml --between 1f1b,gpipe --over microbatches=4..16 --points 3",
    "whatif": "whatif plan-1f1b.yaml",
    "diff": "diff plan-1f1b.yaml run-1f1b",
    "explain": "explain run-1f1b",
    "replay": "replay run-1f1b",
    "calibrate": "calibrate run-1f1b",
    "network": "network dgx-h100x8",
    "accuracy": "accuracy {root}/examples/published-steps/own.csv",
    "optimize": "optimize plan-1f1b.yaml --time 100ms --no-cache",
    "plugins": "plugins",
}
NOT_LISTED = {"plan", "sweep"}
"""Their pages have the keys."""


def listed(root: Path) -> dict[str, set[str]]:
    """Return the keys in the tables of each section."""
    page = (root / "docs" / "json.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)
    rows = (re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) for text in sections[1::2])
    return {
        name: {key for row in found for key in re.findall(r"`([^`]+)`", row)}
        for name, found in zip(sections[::2], rows, strict=True)
    }


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_keys_of_the_page(
    name: str, root: Path, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(examples)

    result = CliRunner().invoke(cli, [*COMMANDS[name].format(root=root).split(), "--json"], catch_exceptions=False)

    printed = json.loads(result.stdout)
    document = printed[0] if isinstance(printed, list) else printed
    old = document.pop("deprecated", {})
    assert document.keys() - old.keys() == listed(root)[name]


def test_every_command_with_json_has_a_section(root: Path) -> None:
    reference = (root / "docs" / "commands.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## pptrace (\w[\w-]*)\n", reference, flags=re.MULTILINE)
    core = dict(zip(sections[::2], sections[1::2], strict=True))

    assert set(listed(root)) == COMMANDS.keys() | NOT_LISTED
    assert set(listed(root)) == {name for name, text in core.items() if "| `--json` |" in text}
