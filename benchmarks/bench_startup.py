"""Whole processes: how long small commands take, beside another installation or ``import torch``.

python benchmarks/bench_startup.py [--runs 7] [--against TREE_OR_PYTHON]

With ``--against`` each command runs here and there in turn, so what else the machine does falls on both.
A Python is an interpreter in which another pptrace is installed. A tree is another checkout, run with this Python,
whose list of installed plugins it then reads: fair between trees that have the same plugins.
Bytecode is kept, as in any installation; the first run of each side, which may write it, is not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
START = ["-c", "from pptrace.cli.main import main; main()"]
FLAGS = ["--schedule", "1f1b", "--pp", "4", "--microbatches", "8"]
KEPT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


class Side(NamedTuple):
    """An installation: its name, its Python, its environment and the folder whose examples it reads."""

    name: str
    python: str
    environment: dict[str, str]
    tree: Path


class Took(NamedTuple):
    """Seconds of one process."""

    wall: float
    cpu: float


def here() -> Side:
    """Return this checkout, as the Python that runs this finds it."""
    return Side("here", sys.executable, KEPT, HERE)


def other(place: Path) -> Side:
    """Return another installation: a checkout, or the Python in whose environment it is."""
    if place.is_dir():
        tree = place.resolve()
        paths = os.pathsep.join(map(str, [tree, *sorted(tree.glob("plugins/*/src"))]))
        return Side(str(place), sys.executable, KEPT | {"PYTHONPATH": paths}, tree)
    python = str(place.absolute())  # not resolved: a link into an environment is what makes it one
    asked = [python, "-c", "import pptrace; print(pptrace.__file__)"]
    found = subprocess.run(asked, env=KEPT, cwd="/", check=True, capture_output=True, text=True).stdout.strip()
    tree = Path(found).parents[1]
    return Side(str(place), python, KEPT, tree if (tree / "examples").is_dir() else HERE)


def timed(command: list[str], environment: dict[str, str], folder: str) -> Took:
    """Run one process to its end."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=folder)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measured(commands: list[tuple[list[str], dict[str, str]]], runs: int, folder: str) -> list[list[Took]]:
    """Run commands in turn, so many times and once before; return what each took."""
    rounds = [[timed(command, environment, folder) for command, environment in commands] for _ in range(runs + 1)]
    return [list(took) for took in zip(*rounds[1:], strict=True)]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--against", type=Path, metavar="TREE_OR_PYTHON", help="another installation")
    parser.add_argument("--only", default="", metavar="TEXT", help="commands whose name has this text")
    args = parser.parse_args()
    sides = [here(), *([other(args.against)] if args.against else [])]
    with tempfile.TemporaryDirectory() as folder:
        quick = ["simulate", "examples/llama3-70b.yaml"]
        compared = ["compare", "--schedules", "gpipe,1f1b", "--pp", "4", "--microbatches", "8"]
        commands = {
            "pptrace --help": ["--help"],
            "first steps": ["simulate", *FLAGS],
            "quick start": quick,
            "quick start with its trace": [*quick, "-o", f"{folder}/step.pftrace"],
            "compare": compared,
            "explain --help": ["explain", "--help"],
            "plan --help": ["plan", "--help"],
        }
        for name, words in commands.items():
            if args.only not in name:
                continue
            pairs = [([side.python, *START, *_placed(words, side.tree)], side.environment) for side in sides]
            try:
                each = measured(pairs, args.runs, folder)
            except subprocess.CalledProcessError as error:
                print(f"{name:>28}: left out, {error.cmd[0]} refuses it: {error.stderr.decode().strip()[-200:]}")
                continue
            for side, took in zip(sides, each, strict=True):
                _print(name, side.name if args.against else "", took)
        if importlib.util.find_spec("torch") is not None and not args.against:
            _print(
                "import torch",
                "",
                measured([([sys.executable, "-c", "import torch"], KEPT)], args.runs, folder)[0],
            )
    print(f"{args.runs} runs after one, load {os.getloadavg()[0]:.1f}")


def _placed(words: list[str], tree: Path) -> list[str]:
    return [str(tree / word) if word.startswith("examples/") else word for word in words]


def _print(name: str, side: str, took: list[Took]) -> None:
    figures = (f"{what} {statistics.median(each):.3f} s (min {min(each):.3f})" for what, each in _columns(took))
    print(f"{name:>28}: {', '.join(figures)}{f', {side}' if side else ''}", flush=True)


def _columns(took: list[Took]) -> list[tuple[str, list[float]]]:
    return [("wall", [one.wall for one in took]), ("processor", [one.cpu for one in took])]


if __name__ == "__main__":
    main()
