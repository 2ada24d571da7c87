"""Another checkout and this one, measured pair by pair: what else the machine does falls on both.

Each checkout has a process of its own, which makes its timeline once. Its first write is the cold one: it
loads what it needs, and compiles what no earlier run left compiled.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["answer", "compare", "compare_cases"]

HERE = Path(__file__).resolve().parents[1]


def compare(against: Path, exporter: str, ranks: int, microbatches: int, *, pairs: int) -> None:
    """Print how two checkouts write the same staircase with ``pptrace.traces.EXPORTER``."""
    trees = [against.resolve(), HERE]
    command = [sys.executable, str(Path(__file__)), exporter, str(ranks), str(microbatches)]
    workers = [
        subprocess.Popen([*command, str(tree)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for tree in trees
    ]
    runs = [[_asked(worker) for worker in workers] for _ in range(pairs + 1)]
    for worker in workers:
        worker.communicate()
    before, now = zip(*runs, strict=True)
    load = os.getloadavg()[0]
    print(f"{exporter}: {now[0]['slices']:,} slices, {against} beside this checkout, load {load:.1f}")
    _row("first write, s", before[0]["seconds"], now[0]["seconds"])
    for label, name in ((f"least of {pairs}, s", "seconds"), (f"least of {pairs}, s of processor", "cpu_seconds")):
        _row(label, *(min(run[name] for run in side[1:]) for side in (before, now)))
    _row("peak memory, bytes/slice", before[-1]["held_bytes"], now[-1]["held_bytes"])


def compare_cases(script: Path, against: Path, cases: Iterable[str], rounds: int) -> None:
    """Print the least figures that a benchmark measures of each case with two checkouts, and their ratio."""
    workers = [_server(script, tree) for tree in (HERE, against.resolve())]
    for case in cases:
        pairs = [[_figure(worker, case) for worker in workers] for _ in range(rounds)]
        ours, theirs = (min(times) for times in zip(*pairs, strict=True))
        load = os.getloadavg()[0]
        print(
            f"{case:>28}: {ours:.3f} s against {theirs:.3f} s = {theirs / ours:.2f} times (load {load:.1f})",
            flush=True,
        )
    for worker in workers:
        worker.communicate()


def answer(measured: Callable[[str], float]) -> None:
    """Answer each line of the input, a case, with its figure."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measured(line.strip())) + "\n")
        sys.stdout.flush()


def _server(script: Path, tree: Path) -> subprocess.Popen[str]:
    paths = [tree, *sorted(tree.glob("plugins/*/src")), HERE / "benchmarks"]
    return subprocess.Popen(
        [sys.executable, str(script), "--serve", str(tree)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}, text=True,
    )  # fmt: skip


def _figure(worker: subprocess.Popen[str], case: str) -> float:
    asking, answers = cast("IO[str]", worker.stdin), cast("IO[str]", worker.stdout)
    asking.write(case + "\n")
    asking.flush()
    return float(json.loads(answers.readline()))


def _row(label: str, before: float, now: float) -> None:
    print(f"{label:28} {before:9.3f} {now:9.3f}   ratio {before / now:.2f}")


def _asked(worker: subprocess.Popen[str]) -> dict[str, float]:
    """Let a worker write once; return what it took."""
    asking, answers = cast("IO[str]", worker.stdin), cast("IO[str]", worker.stdout)
    asking.write("\n")
    asking.flush()
    answer: dict[str, float] = json.loads(answers.readline())
    return answer


def _serve(exporter: str, ranks: int, microbatches: int, tree: str) -> None:
    """Write once per line of the input, with the checkout ``tree``, and answer what it took."""
    sys.path[:0] = [tree, f"{tree}/benchmarks"]
    timeline = import_module("bench_kineto").staircase(ranks, microbatches)
    before = _resident_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        for _ in sys.stdin:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            import_module(f"pptrace.traces.{exporter}").write(timeline, path, {})
            took = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - begin_cpu}
            path.unlink()
            held = (_resident_bytes() - before) / len(timeline)
            print(json.dumps({**took, "held_bytes": held, "slices": len(timeline)}), flush=True)


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
