"""What would outgrow the machine is refused before any of it is made."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config import limits
from pptrace.run.preparation import ACTION_BYTES, RECEIVING_BYTES

if TYPE_CHECKING:
    from pathlib import Path

MINE = '''
def make(ranks, microbatches):
    """Every forward, then every backward."""
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits, "_spare", lambda: 20 << 30)
    return tmp_path


@pytest.mark.parametrize("command", ["simulate", "show"])
def test_a_step_that_memory_cannot_hold_is_refused_before_it_is_made(pptrace: Any, command: str) -> None:
    pptrace("simulate", "--schedule", "./mine.py:make", "--pp", 2, "--microbatches", 2)
    schedule = ["./mine.py:make"] if command == "show" else ["--schedule", "./mine.py:make"]
    tracemalloc.start()
    started = time.monotonic()

    line = pptrace(command, *schedule, "--pp", 4096, "--microbatches", 65536).complaint

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line == (
        "--microbatches: batch.microbatches: 536,870,912 actions on 4,096 ranks would take about 135.0 GiB of "
        "memory, and 16.0 GiB are to spare: take fewer microbatches, or set PPTRACE_MOST_MEMORY to allow more"
    )
    assert peak < 32 << 20
    assert time.monotonic() - started < 20


def test_a_search_whose_end_cannot_run_does_not_begin(pptrace: Any) -> None:
    between = "./mine.py:make,./mine.py:make:p2p=ordered"
    large = pptrace("crossover", "--between", between, "--pp", 4, "--over", "microbatches=1..99999999").complaint
    beyond = pptrace(
        "crossover", "--between", between, "--pp", 4, "--over", "microbatches=1..9999999999"
    ).complaint

    assert "batch.microbatches: 799,999,992 actions on 4 ranks would take about" in large
    assert beyond == "--over microbatches: batch.microbatches: must be at most 2147483647, not 9999999999"
    counted = pptrace(
        "crossover", "--between", between, "--pp", 4, "--over", "microbatches=1..2000000000"
    ).complaint
    assert "make 16,000,000,000 actions; the maximum is 2,147,483,647" in counted


@pytest.mark.parametrize(("policy", "each"), [("async", ACTION_BYTES), ("ordered", RECEIVING_BYTES)])
def test_the_limit_is_the_user_s(pptrace: Any, monkeypatch: pytest.MonkeyPatch, policy: str, each: int) -> None:
    step = ("simulate", "--schedule", "./mine.py:make", "--pp", 2, "--microbatches", 4, "--p2p", policy)
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", str(2 * 2 * 4 * each))
    assert pptrace(*step).code == 0
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", str(2 * 2 * 4 * each - 1))

    assert "set PPTRACE_MOST_MEMORY to allow more" in pptrace(*step).complaint


def test_the_machine_says_what_it_has_to_spare() -> None:
    assert 1 << 20 < limits._available() < 1 << 50
    assert 0 < limits.most_memory() < 1 << 50
