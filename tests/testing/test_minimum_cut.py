"""The minimum cut against all sets of links that cut."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.network.contract import Links, Paths
from pptrace.testing.networks import minimum_cut


@st.composite
def link_lists(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    rates = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    one = st.lists(st.integers(0, len(rates) - 1), min_size=1, max_size=4, unique=True)
    return rates, draw(st.lists(one, max_size=6))


@given(link_lists())
def test_the_minimum_cut_is_the_cheapest_of_all_sets_of_links_that_cut(
    drawn: tuple[list[int], list[list[int]]],
) -> None:
    rates, lists = drawn
    links = Links(rate_kbps=rates)
    paths = Paths.along(links, np.cumsum([0, *map(len, lists)]), [link for way in lists for link in way])

    rate_kbps, cut = minimum_cut(links, paths)

    sets = [
        set(some) for count in range(len(rates) + 1) for some in itertools.combinations(range(len(rates)), count)
    ]
    cutting = [some for some in sets if not joined(lists, some)]
    assert rate_kbps == min(sum(rates[link] for link in some) for some in cutting)
    assert set(cut) in cutting
    assert sum(rates[link] for link in cut) == rate_kbps


def joined(lists: list[list[int]], without: set[int]) -> bool:
    """Return whether a walk along pieces of the lists leads from a first link to a last one."""
    known = {way[0] for way in lists} - without
    while True:
        steps = {b for way in lists for a, b in itertools.pairwise(way) if a in known} - without - known
        if not steps:
            return bool(known & {way[-1] for way in lists})
        known |= steps


def test_a_link_that_a_path_fills_with_several_flows_counts_for_less() -> None:
    paths = replace(Paths.along(Links(rate_kbps=[10]), [0, 1], [0]), weight=[3])

    assert minimum_cut(Links(rate_kbps=[10]), paths)[0] == Fraction(10, 3)
