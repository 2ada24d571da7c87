"""Measure the program against another commit, pair by pair, and write the table of docs/performance.md.

    python benchmarks/performance.py --against COMMIT [--rounds 5] [--only TEXT] [--trace FILE] [--write]

Each work is measured in a process per commit, in turn, so that other programs disturb both alike. A figure is from
the least processor time of all rounds, each the least of some repetitions. The first repetition compiles and does
not count. A ``git worktree`` in a temporary folder has the other commit, with the plugins of that commit and the
packages of this environment. ``--trace`` names a recorded trace of PyTorch's profiler on a GPU, such as HTA's
nccl_data.json.gz, whose import is measured. ``--write`` replaces the table in docs/performance.md, or only its
measured rows with ``--only``. PyTorch's own simulator is measured where torch is installed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs" / "performance.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
STEP = "examples/llama3-70b.yaml"
TRACE = "PPTRACE_BENCH_TRACE"
"""Environment variable with the recorded trace."""
REPEATS = 3


class Work(NamedTuple):
    """A piece of work that is measured."""

    name: str
    unit: str
    """What is counted per second of processor time; ``s`` for the seconds, ``bytes`` for memory per action."""
    measure: Callable[[], float]
    """Returns the figure of one round in this process."""


def processor_s() -> float:
    """Return the processor time of this process and its children."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)  # os.times counts hundredths of a second


def rate(
    amount: float, work: Callable[[], object], repeats: int = REPEATS, clock: Callable[[], float] = processor_s
) -> float:
    """Return how much of an amount is done per second, by default of processor time."""
    work()
    times = []
    for _ in range(repeats):
        begin = clock()
        work()
        times.append(clock() - begin)
    return amount / min(times)


def simulated(schedule: str, policy: str = "async", chunks: int = 1, cores: int = 1) -> Callable[[], float]:
    """Return the measurement of building, simulating and measuring a step, in millions of actions per second.

    Seconds are of processor time on one core, and elapsed on two.
    """

    def measure_step() -> float:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        from pptrace.network.contract import Flat
        from pptrace.plugins.construction import build_policy, checked_options
        from pptrace.plugins.registry import Registry
        from pptrace.plugins.requests import ScheduleRequest
        from pptrace.sim.simulation import simulate
        from pptrace.steps.workload import Workload
        from pptrace.timeline.metrics import measure

        registry = Registry.load()
        request = ScheduleRequest(ranks=128, microbatches=2048, chunks=chunks)
        costs = Workload.uniform(128 * chunks, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=2**25)
        network = Flat(rate_kbps=50_000_000, latency_ns=5_000)
        offer, provided = registry.schedules[schedule].offer, registry.message_policies[policy]

        def step() -> int:
            table = cast("Any", offer.build(request))
            timeline = simulate(
                table, costs, network, build_policy(provided, table, checked_options(provided, {}, "p2p.options"))
            )
            metrics = measure(timeline, costs)
            _ = metrics.path, metrics.groups  # computed at the first use
            return len(table) + 4 * 2048 * (table.stages - 1)

        return rate(step() / 1e6, step, *((REPEATS, processor_s) if cores == 1 else (10, time.perf_counter)))

    return measure_step


def memory() -> float:
    """Return the most memory of a process with a step of 12 million actions, above that at rest, per action."""
    import bench_scale

    from pptrace.plugins.registry import Registry

    Registry.load()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, actions = bench_scale.step(bench_scale.RANKS, bench_scale.MICROBATCHES)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / actions


def transfers(pattern: str) -> Callable[[], float]:
    """Return the measurement of messages that share links, in millions of transfers per second."""

    def measure_transfers() -> float:
        import bench_contention
        from bench_contention import EACH, HOSTS

        return HOSTS * EACH / 1e6 / min(bench_contention.kernel_times(pattern)[1:])

    return measure_transfers


def trace(encoder: str, *, reads: bool = False) -> Callable[[], float]:
    """Return the measurement of writing or reading a trace, in millions of slices per second."""

    def measure_trace() -> float:
        from bench_kineto import staircase

        module = importlib.import_module(f"pptrace.traces.{encoder}")
        timeline = staircase(64, 2048)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            module.write(timeline, path, {})
            work = (lambda: module.read([path])) if reads else (lambda: module.write(timeline, path, {}))
            return rate(len(timeline) / 1e6, work)

    return measure_trace


def imported() -> float:
    """Return megabytes of JSON per elapsed second of a recorded trace, repeated to 250 MB and compressed."""
    from bench_import import repeated

    from pptrace.timeline.measurement import ImportRequest
    from pptrace_profilers.plugin import measure_kineto

    source = Path(os.environ[TRACE])
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "rank0.json.gz", 0
        with gzip.open(path, "wb", compresslevel=1) as file:
            for part in repeated(gzip.decompress(source.read_bytes()), 250_000_000):
                size += file.write(part)
        return rate(size / 1e6, lambda: measure_kineto([path], ImportRequest()), 2, time.perf_counter)


def command(*words: str, amount: float = 0.0) -> Callable[[], float]:
    """Return the measurement of a command: its processor seconds, or an amount per second of them."""

    def measure_command() -> float:
        code = "from pptrace.cli.main import main; main()"
        with tempfile.TemporaryDirectory() as folder:
            done = [word.replace("FOLDER", folder) for word in words]
            per_second = rate(
                amount or 1.0,
                lambda: subprocess.run([sys.executable, "-c", code, *done], check=True, capture_output=True),
            )
        return per_second if amount else 1 / per_second

    return measure_command


SWEEP = ["sweep", STEP, "--tp", "1", "--dp", "1", "--vp", "1", "--fresh", "--workers", "1"]
WORKS = (
    Work("1F1B 128 x 2,048, `async`: built, simulated, measured", "M actions", simulated("1f1b")),
    Work("the same with `megatron`", "M actions", simulated("1f1b", "megatron")),
    Work("interleaved 1F1B with two chunks", "M actions", simulated("interleaved-1f1b", chunks=2)),
    Work("1F1B 128 x 2,048, two cores, elapsed", "M actions", simulated("1f1b", cores=2)),
    Work("`megatron`, two cores, elapsed", "M actions", simulated("1f1b", "megatron", cores=2)),
    Work("interleaved 1F1B, two cores, elapsed", "M actions", simulated("interleaved-1f1b", chunks=2, cores=2)),
    Work("memory of interleaved 1F1B 128 x 8,192", "bytes", memory),
    Work("512 hosts, max-min: rings", "M transfers", transfers("ring, jittered")),
    Work("512 hosts, max-min: permutations", "M transfers", transfers("permutations, jittered")),
    Work("writing `.pftrace`", "M slices", trace("perfetto")),
    Work("reading `.pftrace`", "M slices", trace("perfetto", reads=True)),
    Work("writing Chrome JSON", "M slices", trace("kineto")),
    Work("importing a trace of PyTorch's profiler (`.json.gz`), two cores, elapsed", "MB of JSON", imported),
    Work(
        "`pptrace sweep`: schedules and microbatches", "points",
        command(
            *SWEEP, "--over", "pp=8..32+8", "--over", "schedule=gpipe,1f1b", "--over", "microbatches=16..128+16",
            "-o", "FOLDER/sweep.csv", amount=64,
        ),
    ),
    Work(
        "`pptrace sweep`: costs alone", "points",
        command(
            *SWEEP[:2], *SWEEP[-3:], "--over", "sequence=1024..9008+32", "-o", "FOLDER/sweep.csv", amount=250,
        ),
    ),
    Work("`pptrace --help`", "s", command("--help")),
    Work("`pptrace simulate`", "s", command("simulate", STEP)),
    Work("`pptrace simulate -o step.pftrace`", "s", command("simulate", STEP, "-o", "FOLDER/step.pftrace")),
)  # fmt: skip


def torch_rate() -> float:
    """Return millions of actions per second of PyTorch's order, sends and receives, and dry run of 1F1B."""
    import bench_simulation

    done = bench_simulation.torch_unit_steps(128, 2048)
    return float(done["actions"] / done["warm_s"] / 1e6)


class Side:
    """A process that measures with the packages of a checkout."""

    def __init__(self, tree: Path) -> None:
        paths = [tree, *sorted(tree.glob("plugins/*/src")), HERE / "benchmarks"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or a new checkout compiles in each process
        self._tree, self._environment = tree, environment

    def figure(self, number: int) -> float | None:
        """Return the figure of a work, None where the checkout cannot do it."""
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--measure", str(number)], cwd=self._tree, env=self._environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        answer = cast("IO[str]", process.stdout).read()
        return None if process.wait() else float(json.loads(answer.splitlines()[-1]))


def row(work: Work, before: Sequence[float], now: Sequence[float]) -> str:
    """Return the row of a work."""
    is_least = work.unit in {"s", "bytes"}
    choose = min if is_least else max
    old, new = (choose(figures) if figures else None for figures in (before, now))
    ratio = "" if not old or not new else f"{(old / new if is_least else new / old):.2f}"
    unit = {"s": "s", "bytes": "bytes per action"}.get(work.unit, f"{work.unit}/s")
    cells = [f"{figure:.3g}" if figure is not None else "-" for figure in (old, new)]
    return f"| {work.name} | {unit} | {' | '.join(cells)} | {ratio} |"


def main() -> None:
    """Print the table, and write it into the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", default="HEAD~1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="works whose name has this text")
    parser.add_argument("--trace", type=Path, help="a recorded trace of a GPU")
    parser.add_argument("--write", action="store_true", help="replace the table, or its measured rows")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        print(WORKS[asked.measure].measure())
        return
    if asked.trace is not None:
        os.environ[TRACE] = str(asked.trace.resolve())
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE)]
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), asked.against], check=True)
        try:
            lines = measured(tree, asked)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        measured_rows = {line.split(" | ")[0]: line for line in lines}
        if asked.only:
            lines = [measured_rows.get(line.split(" | ")[0], line) for line in TABLE.findall(page)[0].splitlines()]
        text = "\n".join(lines) + "\n"
        PAGE.write_text(TABLE.sub(lambda _: text, page), encoding="utf-8")


def measured(tree: Path, asked: argparse.Namespace) -> list[str]:
    """Measure every work in turn, and return the lines of the table."""
    lines = [f"| work | figure | {asked.against} | now | ratio |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    sides = [Side(tree), Side(HERE)]
    for number, work in enumerate(WORKS):
        if asked.only not in work.name or (work.measure is imported and TRACE not in os.environ):
            continue
        rounds = [[side.figure(number) for side in sides] for _ in range(asked.rounds)]
        before, now = (
            [figure for figure in of_side if figure is not None] for of_side in zip(*rounds, strict=True)
        )
        lines.append(row(work, before, now))
        print(lines[-1], flush=True)
    if importlib.util.find_spec("torch") is not None and not asked.only:
        lines.append(f"| PyTorch's simulator, 1F1B 128 x 2,048 | M actions/s | | {torch_rate():.3g} | |")
        print(lines[-1])
    print(f"load {os.getloadavg()[0]:.1f}")
    return lines


if __name__ == "__main__":
    main()
