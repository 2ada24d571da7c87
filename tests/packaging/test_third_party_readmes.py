"""The READMEs of the example plugins: their commands run where the plugin and its schedules are installed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown import commands

if TYPE_CHECKING:
    from fresh_environment import Environment

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
PAGES = {page.parent.name: page for page in sorted(ROOT.glob("examples/third-party-*/README.md"))}


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_run(name: str, environment: Environment, tmp_path: Path) -> None:
    environment.pip("install", "--no-deps", str(ROOT / "plugins" / "pptrace-schedules"), cwd=tmp_path)

    written = commands(PAGES[name])

    assert written
    for command in written:
        environment.run(*shlex.split(command), cwd=tmp_path)
