"""Bisection finds what trying every number finds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.search.crossover import Bisection, geometric, rounded

if TYPE_CHECKING:
    from fractions import Fraction


def brute(signs: list[int | None], low: int) -> list[tuple[int, int]]:
    """Return the changes of a sign by looking at every number that has one."""
    known = [(low + index, sign) for index, sign in enumerate(signs) if sign is not None]
    return [(one, other) for (one, before), (other, after) in pairwise(known) if before != after]


@given(
    low=st.integers(1, 50), length=st.integers(2, 300), flip=st.integers(0, 300), tie=st.integers(0, 3),
    gaps=st.sets(st.integers(0, 300)), points=st.integers(2, 20),
)  # fmt: skip
def test_one_flip_is_found_exactly_whatever_is_refused(
    low: int, length: int, flip: int, tie: int, gaps: set[int], points: int
) -> None:
    signs = [None if at in gaps else -1 if at < flip else 0 if at < flip + tie else 1 for at in range(length)]
    search = Bisection(sign=lambda value: signs[value - low], is_discrete=True)

    changes = search.changes(geometric(low, low + length - 1, points))

    everywhere = brute(signs, low)
    tried = [value for value, sign in search.signs.items() if sign is not None]
    if changes:
        # A tie between two points of the same schedule cannot be here, so a flip seen is seen whole, but for
        # numbers beyond the first and last that were tried.
        assert changes == [pair for pair in everywhere if min(tried) <= pair[0] and pair[1] <= max(tried)]
    else:
        assert len({search.signs[value] for value in tried}) <= 1


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=60), st.integers(2, 12))
def test_every_change_that_is_reported_is_one(signs: list[int], points: int) -> None:
    search = Bisection(sign=lambda value: signs[value - 1], is_discrete=True)

    changes = search.changes(geometric(1, len(signs), points))

    assert set(changes) <= set(brute(list(signs), 1))
    assert changes == sorted(changes)


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=12))
def test_a_scan_of_every_number_finds_every_change(signs: list[int]) -> None:
    search = Bisection(sign=lambda value: signs[value - 1], is_discrete=True)

    assert search.changes(list(range(1, len(signs) + 1))) == brute(list(signs), 1)


@given(
    low=st.integers(0, 10**9), more=st.integers(1, 10**12), at=st.fractions(0, 1),
    tolerance=st.sampled_from([0.5, 0.01, 1e-4]),
)  # fmt: skip
def test_a_continuous_flip_is_found_within_its_tolerance(
    low: int, more: int, at: Fraction, tolerance: float
) -> None:
    high = low + more
    flip = low + int(at * more)
    search = Bisection(sign=lambda value: -1 if value < flip else 1, is_discrete=False, tolerance=tolerance)

    changes = search.changes(geometric(low, high, 12))

    if flip <= low:
        assert changes == []
        return
    ((below, above),) = changes
    assert below < flip <= above
    assert above - below <= max(1, tolerance * above)


def test_nothing_is_asked_twice() -> None:
    asked: list[int] = []
    search = Bisection(sign=lambda value: asked.append(value) or (1 if value > 700 else -1), is_discrete=True)

    assert search.changes(geometric(1, 1024, 12)) == [(700, 701)]
    assert len(asked) == len(set(asked)) < 12 + 10


def test_two_flips_in_one_gap_of_the_scan_need_more_points() -> None:
    def sign(value: int) -> int:
        return 1 if 500 <= value < 520 else -1

    assert Bisection(sign=sign, is_discrete=True).changes(geometric(1, 1024, 4)) == []
    assert Bisection(sign=sign, is_discrete=True).changes(geometric(1, 1024, 400)) == [(499, 500), (519, 520)]


@given(low=st.integers(0, 10**6), more=st.integers(1, 10**9), points=st.integers(2, 50))
def test_a_grid_ends_at_both_ends_and_holds_no_more_points_than_asked(low: int, more: int, points: int) -> None:
    grid = geometric(low, low + more, points)

    assert grid == sorted(set(grid))
    assert (grid[0], grid[-1]) == (low, low + more)
    assert len(grid) <= max(points, 3)


@pytest.mark.parametrize(("value", "near"), [(0, 0), (1234, 1230), (1235, 1240), (99_950, 100_000)])
def test_rounding_keeps_digits(value: int, near: int) -> None:
    assert rounded(value, 3) == near
