"""One environment for all tests of packaging: the core and the plugins of the examples, from their wheels."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_environment import Environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the core and the third parties' plugins."""
    folder = tmp_path_factory.mktemp("packaging")
    wheels = folder / "wheels"
    made = Environment(folder / "venv")
    examples = sorted(str(path) for path in ROOT.glob("examples/third-party-*"))
    made.pip("wheel", "--no-deps", "-w", str(wheels), str(ROOT), *examples, cwd=folder)
    made.pip("install", *map(str, sorted(wheels.glob("*.whl"))), cwd=folder)
    return made
