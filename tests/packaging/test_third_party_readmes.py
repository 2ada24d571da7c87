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


@pytest.fixture(scope="module")
def with_schedules(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("schedules")
    environment.pip("install", "--no-deps", str(ROOT / "plugins" / "pptrace-schedules"), cwd=folder)
    return environment


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_run(name: str, with_schedules: Environment, tmp_path: Path) -> None:
    written = commands(PAGES[name])

    assert written
    for command in written:
        with_schedules.run(*shlex.split(command), cwd=tmp_path)
