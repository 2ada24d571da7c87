"""A folder with a step, and schedules that count how often they are asked, for tests of sweeps."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MINE", "UNITS", "calls", "fill", "names"]

MINE = '''
import time
from pathlib import Path
from pptrace.errors import ConstraintError


def eager(ranks, units):
    """Every forward, then every backward."""
    with Path("calls").open("a") as calls:
        calls.write(f"{ranks} {units}\\n")
    return [[f"{r}F{u}" for u in range(units)] + [f"{r}B{u}" for u in range(units)] for r in range(ranks)]


def slow(ranks, units):
    time.sleep(0.05)
    return eager(ranks, units)


def even(ranks, units):
    if units % 2:
        raise ConstraintError(f"{units} is odd", nearest=str(units + 1), key="batch.microbatches")
    return eager(ranks, units)
'''
STEP = """\
schedule: ./mine.py:eager
parallel: {pp: 4}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
costs: {name: table, forward: 10 ms, backward: 20 ms, boundary: 64 MiB}
"""
UNITS = "microbatches=2..16+2"


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
