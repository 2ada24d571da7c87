"""One environment for all tests of packaging: the core and the plugins of the examples, from their wheels."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_environment import Environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the core, the third parties' plugins, and pytest."""
    folder = tmp_path_factory.mktemp("packaging")
    wheels = folder / "wheels"
    made = Environment(folder / "venv")
    examples = sorted(str(path) for path in ROOT.glob("examples/third-party-*"))
    alone = () if importlib.util.find_spec("hatchling") is None else ("--no-build-isolation",)
    build = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "wheel",
        "--no-deps",
        *alone,
        "-w",
        str(wheels),
        str(ROOT),
        *examples,
    ]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    made.pip("install", "pytest", *map(str, sorted(wheels.glob("*.whl"))), cwd=folder)
    return made
