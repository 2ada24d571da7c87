"""Shares of the vocabulary on all ranks: the public code's order, its memory, barriers, and 1F1B's bubble."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pptrace.plugin import ConstraintError, Kind, ScheduleRequest, Workload, simulate
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import Registry
from pptrace.steps.validation import validate

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule

ROOT = Path(__file__).parents[3]
EXCEPTION = 3
"""The case whose published rows disagree: vocabulary of 256,000, sequences of 2048."""
PASSES = {1: (Kind.I, Kind.W), 2: (Kind.F, Kind.B)}
"""The actions that end pass S, and that are pass T, by the number of barriers."""

PUBLIC_CODE = {  # of sail-sg/VocabularyParallelism, with functions replaced by records; T and S are its S passes
    1: (
        "F0 F1 F2 F3 S0 F4 T0 S1 T1 S2 T2 S3 B0 F5 T3 S4 B1 F6 T4 S5 B2 F7 T5 S6 B3 T6 S7 B4 B5 B6 B7 T7",
        "F0 F1 F2 S0 F3 T0 S1 T1 S2 B0 T2 S3 F4 B1 T3 S4 F5 B2 T4 S5 F6 B3 T5 S6 F7 B4 T6 S7 B5 B6 B7 T7",
        "F0 F1 S0 F2 T0 S1 B0 T1 S2 F3 B1 T2 S3 F4 B2 T3 S4 F5 B3 T4 S5 F6 B4 T5 S6 F7 B5 T6 S7 B6 B7 T7",
        "F0 S0 F1 B0 T0 S1 F2 B1 T1 S2 F3 B2 T2 S3 F4 B3 T3 S4 F5 B4 T4 S5 F6 B5 T5 S6 F7 B6 T6 S7 B7 T7",
    ),
    2: (
        "F0 F1 F2 F3 S0 F4 T0 S1 F5 T1 S2 T2 S3 T3 S4 B0 F6 T4 S5 B1 F7 T5 S6 B2 T6 S7 B3 T7 B4 B5 B6 B7",
        "F0 F1 F2 S0 F3 T0 S1 F4 T1 S2 T2 S3 B0 T3 S4 F5 B1 T4 S5 F6 B2 T5 S6 F7 B3 T6 S7 B4 T7 B5 B6 B7",
        "F0 F1 S0 F2 T0 S1 F3 T1 S2 B0 T2 S3 F4 B1 T3 S4 F5 B2 T4 S5 F6 B3 T5 S6 F7 B4 T6 S7 B5 T7 B6 B7",
        "F0 S0 F1 T0 S1 F2 B0 T1 S2 F3 B1 T2 S3 F4 B2 T3 S4 F5 B3 T4 S5 F6 B4 T5 S6 F7 B5 T6 S7 B6 T7 B7",
    ),
}  # fmt: skip


def table_of(ranks: int, microbatches: int, barriers: int) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=2, options={"barriers": barriers})
    return build_schedule(Registry.load().schedules["vocab-1f1b"], request)


@pytest.mark.parametrize("barriers", PUBLIC_CODE)
def test_the_order_is_the_public_code_s(barriers: int) -> None:
    table = table_of(4, 8, barriers)
    last, follows = PASSES[barriers]
    names = {last: "S", follows: "T"}

    rows = []
    for rank in range(4):
        shares = [action for action in table[rank] if action.stage < 4 or action.kind in names]
        names_of = (action.kind.name if action.stage < 4 else names[action.kind] for action in shares)
        rows.append(" ".join(f"{name}{action.microbatch}" for name, action in zip(names_of, shares, strict=True)))

    assert tuple(rows) == PUBLIC_CODE[barriers]


@pytest.mark.parametrize(("ranks", "barriers"), [*product((2, 3, 5, 8), PUBLIC_CODE)])
def test_tables_run_and_hold_as_many_microbatches_as_the_paper_s(ranks: int, barriers: int) -> None:
    for microbatches in (1, 2, ranks, ranks + 1, 3 * ranks + 2):
        table = table_of(ranks, microbatches, barriers)
        validate(table)
        for rank in range(ranks):
            held = np.cumsum([
                {Kind.F: 1, Kind.B: -1}[action.kind] for action in table[rank] if action.stage == rank
            ])  # fmt: skip
            assert held.max() == min(microbatches, ranks - rank + barriers)


@pytest.mark.parametrize(("ranks", "barriers"), [*product((2, 4, 7), PUBLIC_CODE)])
def test_shares_without_time_leave_the_step_of_1f1b(ranks: int, barriers: int) -> None:
    times = np.array([1000] * ranks + [0] * ranks)
    costs = Workload.uniform(2 * ranks, f_ns=times, b_ns=2 * times)

    step = simulate(table_of(ranks, 2 * ranks + 3, barriers), costs)

    assert step.end_ns.max() == 3000 * (2 * ranks + 3 + ranks - 1)


@pytest.mark.parametrize("barriers", PUBLIC_CODE)
def test_a_pass_t_waits_for_the_slowest_share(barriers: int) -> None:
    ranks = 4
    times = np.array([1000] * ranks + [200, 2500, 100, 400])
    step = simulate(table_of(ranks, 9, barriers), Workload.uniform(2 * ranks, f_ns=times, b_ns=2 * times))
    last, follows = PASSES[barriers]

    for microbatch in range(9):
        of_shares = (step.stage >= ranks) & (step.microbatch == microbatch)
        assert step.start_ns[of_shares & (step.kind == follows)].min() >= (
            step.end_ns[of_shares & (step.kind == last)].max()
        )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"chunks": 4}, "a share of the vocabulary per rank, not 4"),
        ({"ranks": 1}, "over the ranks, and there is one"),
    ],
)
def test_other_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    request = ScheduleRequest(**{"ranks": 4, "microbatches": 8, "chunks": 2, **sizes})
    with pytest.raises(ConstraintError, match=message):
        build_schedule(Registry.load().schedules["vocab-1f1b"], request)


def test_the_example_compares_with_the_paper_as_the_readme_states() -> None:
    printed = (ROOT / "examples" / "vocabulary.out").read_text(encoding="utf-8")
    lines = re.findall(r"^ *([\d,]+)  (.{12})  (.+)$", printed, re.MULTILINE)
    rows = [[float(figure) for figure in figures.replace("%", "").split()] for _, _, figures in lines]
    paired = [row for index, row in enumerate(rows) if index // 4 != EXCEPTION]

    assert len(rows) == 32
    for published_mfu, mfu, published_speed, speed, published_peak, peak in paired:
        assert speed == pytest.approx(published_speed, abs=0.1)
        assert -0.5 < mfu - published_mfu < 8.5
        assert 1.5 < published_peak - peak < 3.5
    assert [row[3] for row in rows[21::4]] == pytest.approx([1.12, 1.36, 1.61], abs=0.025)
    for two, one in zip(rows[2::4], rows[3::4], strict=True):
        assert two[1] == one[1]
        assert two[5] > one[5]
