"""Formulas that the README prints for the zero-bubble family equal what small tables take and hold."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest

from pptrace.errors import ConstraintError
from pptrace.plugins.requests import ScheduleRequest
from pptrace.testing.schedules import count
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
CHUNKS = {"zb-h1": 1, "zb-h2": 1, "zb-v": 2, "v-half": 2, "v-min": 2, "interleaved-zb": 2}
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PHRASES = {
    "p even": "p % 2 == 0", "p odd": "p % 2 == 1", "3 divides not p": "p % 3 != 0", "3 divides p": "p % 3 == 0",
}  # fmt: skip


def value(text: str, sizes: dict[str, int]) -> Fraction:
    """Evaluate a formula such as ``(p-1) / (3vm+p-1)``."""
    for phrase, formula in PHRASES.items():
        text = text.replace(phrase, formula)
    text = re.sub(r"(?<![a-z])vm(?![a-z])", "v*m", text)
    text = re.sub(r"(?<=[0-9)])\s?(?=[pmvg(]|min|floor)|(?<=3)(?=v)", "*", text)
    names = {name: Fraction(size) for name, size in sizes.items()}
    result: Fraction = eval(text, {"min": min, "floor": math.floor, **names})  # noqa: S307 - a formula of our own page
    return result


def stated(cell: str, sizes: dict[str, int]) -> Fraction | None:
    """Return the value of the first part of a cell whose condition holds."""
    for part in cell.split("; "):
        formula, _, condition = part.removeprefix("at most ").partition(", where ")
        if not condition or value(condition, sizes):
            return value(formula, sizes)
    return None


@pytest.mark.parametrize("name", CHUNKS)
def test_formulas_of_the_readme_hold_for_small_sizes(name: str) -> None:
    line = next(line for line in README.splitlines() if line.startswith(f"| `{name}` | ") and "/" in line)
    bubble, peak = (cell.strip() for cell in line.split("|")[2:4])
    exact = "; at most" not in peak
    compared = 0
    for ranks in (1, 2, 3, 4, 5, 6):
        for microbatches in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10):
            asked = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=CHUNKS[name])
            try:
                if (check := OFFERS[name].check) is not None:
                    check(asked)
            except ConstraintError:
                continue
            rounds = max(1, microbatches // ranks)
            sizes = {"p": ranks, "m": microbatches, "v": CHUNKS[name], "g": microbatches // rounds}
            counted = count(OFFERS[name].build(asked))  # type: ignore[arg-type] # schedules of tables
            printed, held = stated(bubble, sizes), stated(peak.partition("; at most")[0], sizes)
            assert printed in {None, counted.bubble}, sizes
            if held is not None and peak.startswith("at most"):
                assert max(counted.peak_activations) <= held
            elif held is not None:
                assert set(counted.peak_activations) == {held}, sizes
            compared += printed is not None and held is not None
    assert compared > 30 or not exact
