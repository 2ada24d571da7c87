"""Ranks, and moves between rankings."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from pptrace.search.ranking import groups_within, moves, ranked

VALUES = st.lists(st.none() | st.fractions(0, 1, max_denominator=6), max_size=8)


@given(VALUES)
def test_ranks_agree_with_sorting(values: list[Fraction | None]) -> None:
    known = sorted(value for value in values if value is not None)

    assert ranked(values) == tuple(None if value is None else known.index(value) + 1 for value in values)


@given(VALUES)
def test_equal_values_share_a_rank_and_only_they_do(values: list[Fraction | None]) -> None:
    ranks = ranked(values)

    for item, entry in zip(values, ranks, strict=True):
        for other, rank in zip(values, ranks, strict=True):
            if entry is not None and rank is not None:
                assert (item == other) == (entry == rank)


@given(st.lists(st.integers(0, 3), max_size=6))
def test_nobody_moves_from_a_ranking_to_itself(values: list[int]) -> None:
    assert moves(ranked(values), ranked(values)) == (0,) * len(values)


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_what_is_won_is_what_is_lost_where_nobody_ties(before: list[int], after: list[int]) -> None:
    won = moves(ranked(before), ranked(after))

    assert sum(won) == 0
    assert won == tuple(was - now for was, now in zip(before, after, strict=True))


@given(st.permutations(range(5)), st.integers(0, 5))
def test_who_joins_late_moves_nobody(values: list[int], joining: int) -> None:
    """The order of the others is the same, whatever place the new one takes."""
    before = ranked([*values, None])
    after = ranked([*(2 * value for value in values), 2 * joining - 1])

    assert moves(before, after) == (0,) * 6


def test_fractions_are_compared_exactly() -> None:
    third = Fraction(1, 3)

    assert ranked([third, third + Fraction(1, 10**30), Fraction(2, 6)]) == (1, 3, 1)


@given(st.lists(st.integers(1, 60), max_size=8), st.sampled_from([0.0, 0.1, 0.5]))
def test_two_are_in_one_group_where_they_are_that_near(values: list[int], share: float) -> None:
    named = [(value, str(number)) for number, value in enumerate(sorted(values))]
    groups = groups_within(named, share)

    for at, (less, one) in enumerate(named):
        for more, other in named[at + 1 :]:
            assert any(one in group and other in group for group in groups) == (more <= less * (1 + share))
    assert not any(set(item) < set(other) for item in groups for other in groups)
