"""Import of a large trace of PyTorch's profiler: megabytes of decompressed JSON in a second on one core.

A recorded GPU trace is repeated with shifted times, every argument as it was, until it has the size that is asked
for; each repetition is given eight annotated actions, so that its kernels are attributed. A separate
process imports the file on one core, or on two with ``--cores 2``. It prints its time and its largest memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIFT_US = 700_000
ACTIONS = 8
TIME = re.compile(rb'"ts": (\d+)\.(\d{3})')
ARRAY = re.compile(rb'"traceEvents": \[')
HERE = "PPTRACE_BENCH_IMPORT"


def repeated(trace: bytes, size: int) -> Iterator[bytes]:
    """Yield a file of about that size."""
    opened = ARRAY.search(trace)
    if opened is None:
        raise SystemExit("no traceEvents in the trace")
    text = trace.decode()
    begins = len(trace[: opened.end()].decode()) - 1
    closed = len(text[: json.JSONDecoder().raw_decode(text, begins)[1] - 1].encode())
    body = trace[opened.end() : closed].strip()
    first = min(int(found[1]) for found in TIME.finditer(body))
    pid = re.search(rb'"cat": "cpu_op".*?"pid": (\d+), "tid": (\d+)', body)
    yield trace[: opened.end()]
    for number in range(max(size // len(body), 1)):
        shift = number * SHIFT_US
        yield b",\n" if number else b"\n"
        yield TIME.sub(lambda found, by=shift: b'"ts": %d.%s' % (int(found[1]) + by, found[2]), body)
        for action in range(ACTIONS):
            where = (*pid.groups(), first + shift + action * SHIFT_US // ACTIONS, SHIFT_US // ACTIONS)
            name = b"PP:0%s%d" % (b"FB"[action % 2 : action % 2 + 1], number * ACTIONS // 2 + action // 2)
            yield (
                b',\n  {\n    "ph": "X", "cat": "user_annotation", "name": "%s", "pid": %s, "tid": %s,\n'
                b'    "ts": %d.000, "dur": %d.000,\n    "args": {\n      "External id": 1\n    }\n  }'
            ) % (name, *where)
    yield b"\n  " + trace[closed:]


def imported(path: Path) -> dict[str, float]:
    """Import a file here, on as many cores as the environment says."""
    from pptrace.timeline.measurement import ImportRequest
    from pptrace_profilers import measurement, pytorch_process  # noqa: F401 - imports do not count
    from pptrace_profilers.plugin import measure_kineto

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ[HERE])])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    measured = measure_kineto([path], ImportRequest())
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "started_mb": before / 1000,
        "slices": sum(len(step.timeline) for step in measured.steps),
        "left": sum(one.count for one in measured.unattributed),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help="a recorded trace, such as HTA's nccl_data.json.gz")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1)
    options = parser.parse_args()
    if os.environ.get(HERE):
        print(json.dumps(imported(options.trace)))
        return
    packed = options.trace.read_bytes()
    trace = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    with tempfile.TemporaryDirectory() as name:
        plain, packed_path = Path(name) / "rank0.json", Path(name) / "rank0.json.gz"
        with plain.open("wb") as file, gzip.open(packed_path, "wb", compresslevel=1) as zipped:
            for part in repeated(trace, options.megabytes * 1_000_000):
                file.write(part)
                zipped.write(part)
        size = plain.stat().st_size / 1e6
        for path in (plain, packed_path):
            runs = [_run(path, options.cores) for _ in range(options.repeat)]
            best = min(runs, key=lambda run: run["cpu_seconds"])
            print(
                f"{path.suffix:6} {size:6.0f} MB of JSON {size / best['cpu_seconds']:4.0f} MB/s of CPU, "
                f"{size / min(run['seconds'] for run in runs):4.0f} MB/s by the clock, "
                f"peak {best['peak_mb']:.0f} MB of which {best['started_mb']:.0f} MB before, "
                f"{best['slices']:.0f} slices, {best['left']:.0f} operations in no action"
            )


def _run(path: Path, cores: int) -> dict[str, float]:
    command = [sys.executable, __file__, str(path)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, HERE: str(cores)}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
