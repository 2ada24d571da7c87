"""A plugin of someone else, installed with pip beside the core, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fresh_environment import Environment

pytestmark = pytest.mark.packaging

EXAMPLE = Path(__file__).parents[2] / "examples" / "third-party-plugin"
SIZES = ("--pp", "4", "--microbatches", "8")


def test_the_core_lists_the_plugin_with_its_distribution(environment: Environment, tmp_path: Path) -> None:
    document = json.loads(environment.run("pptrace", "plugins", "--json", cwd=tmp_path))

    (plugin,) = [each for each in document["plugins"] if each["distribution"] == "pptrace-eager-1f1b"]
    assert plugin["version"] == "0.1.0"
    assert [offer["name"] for offer in plugin["offers"]["schedules"]] == ["ahead-1f1b"]
    assert document["failed"] == []


def test_the_core_simulates_with_the_plugin(environment: Environment, tmp_path: Path) -> None:
    text = environment.run("pptrace", "simulate", "--schedule", "ahead-1f1b", *SIZES, cwd=tmp_path)

    assert "ahead-1f1b" in text


def test_the_core_simulates_a_schedule_from_a_file(environment: Environment, tmp_path: Path) -> None:
    rows = "[[f'{r}{k}{u}' for k in 'FB' for u in range(microbatches)] for r in range(ranks)]"
    (tmp_path / "mine.py").write_text(f"def make(ranks, microbatches):\n    return {rows}\n")

    environment.run("pptrace", "simulate", "--schedule", "./mine.py:make", *SIZES, cwd=tmp_path)
    environment.run("pptrace", "show", "./mine.py:make", *SIZES, cwd=tmp_path)


def test_a_new_plugin_installs_passes_its_own_test_and_runs(environment: Environment, tmp_path: Path) -> None:
    environment.run("pptrace", "new-plugin", "made-here", cwd=tmp_path)
    folder = tmp_path / "pptrace-made-here"

    environment.pip("install", f"{folder}[test]", cwd=tmp_path)

    assert "2 passed" in environment.run("python", "-m", "pytest", "-q", cwd=folder)
    environment.run("pptrace", "simulate", "--schedule", "made-here", *SIZES, cwd=tmp_path)
    environment.run("pptrace", "show", "made-here", *SIZES, cwd=tmp_path)


def test_the_examples_own_test_passes(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text((EXAMPLE / "test_eager_1f1b.py").read_text())

    assert "2 passed" in environment.run("python", "-m", "pytest", "-q", cwd=tmp_path)
