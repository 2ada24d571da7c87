"""What all tests share: where the sources are, and which tests need the in-house plugins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest
from forked_python import ForkedPython

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
IN_HOUSE = {"models", "networks", "profilers", "schedules"}
"""Entry points of the plugins that live in this repository."""
CORE_ALONE = ("tests/cli/", "tests/measured/", "tests/run/", "tests/search/")
"""Tests of the core without plugins, unless they are marked ``needs_plugins``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="Write the recorded outputs of examples and README anew."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = IN_HOUSE - {entry.name for entry in entry_points(group="pptrace")}
    for item in items:
        if missing and item.get_closest_marker("needs_plugins"):
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(sorted(missing))}"))


@pytest.fixture(autouse=True)
def _core_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable plugins in tests of the core alone, which are then the same whatever is installed."""
    if request.node.nodeid.startswith(CORE_ALONE) and not request.node.get_closest_marker("needs_plugins"):
        monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's folder."""
    return ROOT


@dataclass(frozen=True, kw_only=True)
class Shell:
    """Runs scripts as a user would: commands on PATH, no settings of the tests."""

    programs: Path
    """Folder with ``pptrace`` and ``python``."""
    command: Path
    """Folder with a ``pptrace``, and a ``python`` for files, that start in milliseconds."""

    def run(self, script: str, folder: Path) -> str:
        """Run a bash script and return what it printed; a command that fails ends it."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "PPTRACE", "COV")) or key == "PPTRACE_KERNEL_CACHE"
        }
        environment = {**kept, "PATH": f"{self.command}:{self.programs}:{kept['PATH']}"}
        command = ["bash", "-euo", "pipefail", "-c", script]
        result = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
        return result.stdout


def _modules(*plugins: str) -> Iterator[str]:
    """Yield the modules of the core and of installed plugins, but none that imports a library with threads."""
    for package in ("pptrace", *(f"pptrace_{name}" for name in plugins)):
        if spec := find_spec(package):
            names = [each.name for each in walk_packages(spec.submodule_search_locations, f"{package}.")]
            yield from (name for name in names if not name.startswith("pptrace.testing"))  # needs pytest


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield a shell with the programs of ``PPTRACE_BIN``, of this environment, or of this source tree."""
    programs = Path(os.environ.get("PPTRACE_BIN") or Path(sys.executable).parent)
    if not (programs / "pptrace").exists():
        programs = tmp_path_factory.mktemp("bin")
        for name, start in (("python", ""), ("pptrace", "-c 'from pptrace.cli.main import main; main()'")):
            script = (
                f'#!/bin/sh\nPYTHONPATH={":".join(filter(None, sys.path))} exec {sys.executable} {start} "$@"\n'
            )
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
    command = tmp_path_factory.mktemp("command")
    with ForkedPython(*_modules(*sorted(IN_HOUSE), "optpipe"), python=str(programs / "python")) as python:
        python.write_commands(command)
        yield Shell(programs=programs, command=command)


@pytest.fixture(scope="session")
def forked_python() -> Iterator[ForkedPython]:
    """Yield a Python that has imported the core, for programs whose start is not what is tested."""
    with ForkedPython(*_modules()) as python:
        yield python


@pytest.fixture
def examples(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the examples, without their recorded outputs and out of the source tree's sight."""
    folder = tmp_path / "examples"
    folder.mkdir()
    for file in (root / "examples").iterdir():
        if file.is_file() and file.suffix != ".out":
            shutil.copy(file, folder)
        elif file.name.startswith("run-"):
            shutil.copytree(file, folder / file.name)
    return folder
