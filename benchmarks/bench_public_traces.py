"""Every command that reads recorded runs, on each file of a folder of public traces.

    python benchmarks/bench_public_traces.py FOLDER [TEXT]

Prints a table in Markdown with a row per file: the importer that recognises it, the exit status of each command
(0 for success, 1 for a diff with differences, 2 for a refusal), and seconds. One line per refusal follows. Exits
with 1 if a command crashes, runs too long, or explains an error in several lines. TEXT selects files whose path
contains it. The files are not part of the project. Their sources, each a repository, a commit and a folder:

- facebookresearch/HolisticTraceAnalysis, f4d0062c382f42bd8a74838bcdad1916c7d5d2da, tests/data
- AMD-AGI/TraceLens, 171dd74721ca1ec45709e5805b68ae1f65e27811, tests
- pytorch/kineto, 02522842 and the parent of 949796074d, which removes the folder: tb_plugin/samples
- NVIDIA/nccl, 5067397c2676d5aed50042fc39e5c8ee96eb0027, examples in the README files of plugins/profiler
- deepseek-ai/profile-data, 449602428a1b023acb8a505d4f34fef536535db6: train.json
- pha-Z/nccl, 08e04c6, traces of the example profiler in cursor_nccl_example_profiler_trace_reconstruction.md
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import find_importer, head_of

_COMMANDS = ("explain", "replay", "calibrate", "diff", "convert")
_LONGEST_S = 300
_REFUSED, _DIFFERS = 2, 1


class Outcome(NamedTuple):
    """The end of one command."""

    status: int | None
    """Exit status; None if the command ran too long."""
    message: str
    """Its last line on the standard error if it failed."""
    lines: int
    """Number of lines of an error message."""
    seconds: float
    """Duration."""

    @property
    def is_clean(self) -> bool:
        """Return whether the command succeeded, or refused in one line."""
        return self.status in {0, _DIFFERS} or (self.status == _REFUSED and self.lines == 1)


def main(folder: Path, text: str) -> int:
    """Print the table and the refusals; return the number of commands that did not end cleanly."""
    registry = Registry.load()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and text in str(path)]
    print(f"| file | recognised as | {' | '.join(_COMMANDS)} | seconds |\n|{'---|' * (len(_COMMANDS) + 3)}")
    outcomes: dict[Path, dict[str, Outcome]] = {}
    for path in files:
        with tempfile.TemporaryDirectory() as scratch:
            ends = outcomes[path] = {name: run(name, path, Path(scratch)) for name in _COMMANDS}
        cells = " | ".join("timeout" if end.status is None else str(end.status) for end in ends.values())
        seconds = sum(end.seconds for end in ends.values())
        print(f"| {path.relative_to(folder)} | {importer(path, registry)} | {cells} | {seconds:.1f} |", flush=True)
    for path, ends in outcomes.items():
        by_message: dict[str, list[str]] = {}
        for name, end in ends.items():
            if end.message:
                by_message.setdefault(end.message, []).append(name)
        for message, names in by_message.items():
            print(f"\n{path.relative_to(folder)}, {', '.join(names)}: {message}")
    return sum(not end.is_clean for ends in outcomes.values() for end in ends.values())


def importer(path: Path, registry: Registry) -> str:
    """Return the name of the importer that recognises a file; ``-`` if none does."""
    try:
        offer = find_importer(path, head_of(path), registry)
    except PptraceError:
        return "-"
    return "-" if offer is None else offer.name


def run(name: str, path: Path, scratch: Path) -> Outcome:
    """Run a command on a file; outputs go to a folder."""
    arguments = {
        "calibrate": [path, "-o", scratch / "costs.yaml"],
        "diff": [path, path],
        "convert": [path, scratch / "step.pftrace"],
    }.get(name, [path])
    command = [sys.executable, "-c", "from pptrace.cli.main import main; main()", name, *map(str, arguments)]
    begin = time.perf_counter()
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return Outcome(None, f"more than {_LONGEST_S} s", 1, _LONGEST_S)
    seconds = time.perf_counter() - begin
    if ended.returncode in {0, _DIFFERS}:
        return Outcome(ended.returncode, "", 0, seconds)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")] or ["no message"]
    return Outcome(ended.returncode, lines[-1], len(lines), seconds)


if __name__ == "__main__":
    source, *chosen = sys.argv[1:]
    sys.exit(main(Path(source), "".join(chosen)) > 0)
