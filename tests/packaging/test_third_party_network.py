"""A network of someone else, installed with pip beside the core, joins the ranks of a simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fresh_environment import Environment

pytestmark = pytest.mark.packaging

EXAMPLE = Path(__file__).parents[2] / "examples" / "third-party-network"
SCHEDULE = """
def make(ranks, microbatches):
    return [[f"{rank}{kind}{m}" for kind in "FB" for m in range(microbatches)] for rank in range(ranks)]
"""
STEP = """
schedule: ./mine.py:make
parallel: {pp: 6}
batch: {microbatches: 4}
costs: {name: table, forward: 1 ms, backward: 2 ms, boundary: 8 MB}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SCHEDULE)
    (tmp_path / "step.yaml").write_text(STEP)
    return tmp_path


def test_the_core_lists_the_network_with_its_distribution(environment: Environment, folder: Path) -> None:
    document = json.loads(environment.run("pptrace", "plugins", "--json", cwd=folder))

    (plugin,) = [each for each in document["plugins"] if each["distribution"] == "pptrace-torus"]
    assert [offer["name"] for offer in plugin["offers"]["networks"]] == ["torus"]
    assert document["failed"] == []


def test_the_core_simulates_on_the_network(environment: Environment, folder: Path) -> None:
    """A message takes 8 ms on its links, and 1 us for each: 2 x 3 ranks, five hops over seven links."""

    def step_ns(*network: str) -> int:
        text = environment.run("pptrace", "simulate", "step.yaml", *network, "--json", cwd=folder)
        return int(json.loads(text)["step_ns"])

    torus = ("--network", "torus", "--set", "network.bandwidth=1 GB/s", "--set", "network.latency=1 us")
    first_hop, later_hops = 4 * 8, 4 * 8
    forward, backward = 1 + first_hop + 4 * 1 + later_hops + 1, 2 + first_hop + 4 * 2 + later_hops + 2
    assert step_ns(*torus) == (forward + backward) * 1_000_000 + 2 * 7 * 1_000
    assert step_ns("--network", "ideal") == (1 + 2) * (4 + 5) * 1_000_000


def test_the_examples_own_test_passes(environment: Environment, folder: Path) -> None:
    (folder / "test_example.py").write_text((EXAMPLE / "test_torus.py").read_text())

    assert "2 passed" in environment.run("python", "-m", "pytest", "-q", cwd=folder)


def test_a_new_network_installs_passes_its_own_test_and_runs(environment: Environment, folder: Path) -> None:
    environment.run("pptrace", "new-plugin", "--network", "made-wires", cwd=folder)
    made = folder / "pptrace-made-wires"

    environment.pip("install", f"{made}[test]", cwd=folder)

    assert "2 passed" in environment.run("python", "-m", "pytest", "-q", cwd=made)
    environment.run("pptrace", "simulate", "step.yaml", "--network", "made-wires", cwd=folder)
