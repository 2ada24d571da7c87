"""Validation of tables with many ranks or wide actions takes time and memory in proportion to the table."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from executed_lines import executed_lines

from pptrace.steps.dependencies import traverse
from pptrace.steps.text_forms import parse_table
from pptrace.steps.validation import validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.schedule import Schedule


def one_microbatch(ranks: int, *kinds: str) -> Schedule:
    """Return a table in which rank after rank waits for the one behind it."""
    return parse_table("".join(",".join(f"{r}{kind}" for kind in kinds) + "\n" for r in range(ranks))).schedule


def one_after_the_other(ranks: int) -> Schedule:
    return one_microbatch(ranks, "F0", "B0")


def wide(microbatches: int) -> Schedule:
    """Return a table whose second rank takes all microbatches at once, and the first one by one."""
    singles = ",".join(f"0F{u}" for u in range(microbatches))
    return parse_table(f"{singles},0B0+{microbatches}\n1F0+{microbatches},1B0+{microbatches}\n").schedule


@pytest.mark.parametrize("table", [one_after_the_other, wide])
def test_a_walk_takes_time_in_proportion_to_its_table(table: Callable[[int], Schedule]) -> None:
    few, many = table(100), table(400)

    assert executed_lines(lambda: traverse(many)) < 4.5 * executed_lines(lambda: traverse(few))


def test_ends_of_stages_take_no_memory_for_pairs_of_ranks_and_stages() -> None:
    table = one_microbatch(4000, "F0", "B0", "OPTIMIZER")
    tracemalloc.start()

    validate(table)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000 * len(table)
