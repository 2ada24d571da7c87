"""A folder with a step, and schedules that count how often they are asked, for tests of sweeps."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MICROBATCHES", "MINE", "calls", "fill", "names"]

MINE = '''
import time
from pathlib import Path
from pptrace.errors import ConstraintError


def eager(ranks, microbatches):
    """Every forward, then every backward."""
    with Path("calls").open("a") as calls:
        calls.write(f"{ranks} {microbatches}\\n")
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]


def slow(ranks, microbatches):
    time.sleep(0.05)
    return eager(ranks, microbatches)


def even(ranks, microbatches):
    if microbatches % 2:
        raise ConstraintError(f"{microbatches} is odd", nearest=str(microbatches + 1), key="batch.microbatches")
    return eager(ranks, microbatches)
'''
STEP = """\
schedule: ./mine.py:eager
parallel: {pp: 4}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
costs: {name: table, forward: 10 ms, backward: 20 ms, boundary: 64 MiB}
"""
MICROBATCHES = "microbatches=2..16+2"


def calls() -> int:
    """Return how many tables were made since the last time."""
    made = Path("calls")
    count = len(made.read_text().splitlines()) if made.exists() else 0
    made.unlink(missing_ok=True)
    return count


def names() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"mine.py", "step.yaml", "calls", "__pycache__"}


def fill(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    (folder / "step.yaml").write_text(STEP)
