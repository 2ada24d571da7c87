"""What the example prints agrees with the paper's results as far as its page says; the page has these figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRINTED = (ROOT / "examples" / "stp.out").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TABLES = [[line.split() for line in table.splitlines()[1:]] for table in PRINTED.split("\n\n")]
_, A800, H20, _, OFFLOAD = TABLES

GAINS = {4: (4.0, 6.0), 8: (10.0, 12.0)}
"""By tensor-parallel size, on A800 over interleaved 1F1B, in per cent (section 3.5)."""
POINTS = 3.0
WITH_OFFLOADING = [row for row in H20 if row[1:4] == ["2", "8", "8192"]]
"""There the paper's STP fits only with offloading, and its memory is below interleaved 1F1B's."""


def percent(text: str) -> float:
    return float(text.removesuffix("%"))


@pytest.mark.parametrize("row", A800, ids=" ".join)
def test_gains_on_a800_are_the_paper_s_within_three_points(row: list[str]) -> None:
    low, high = GAINS[int(row[1])]

    for gain in map(percent, row[5:8]):
        assert low - POINTS <= gain <= high + POINTS
        assert gain > 0 > percent(row[8])


def test_gains_grow_with_the_tensor_parallel_size_in_every_model_and_sequence() -> None:
    for model in {row[0] for row in A800}:
        for sequence in {row[3] for row in A800}:
            rows = [row for row in A800 if (row[0], row[3]) == (model, sequence)]
            four, eight = ([percent(one) for one in row[5:8]] for row in rows)
            assert max(four) < min(eight)


def test_the_best_case_communicates_for_as_much_of_a_forward_as_the_paper_states() -> None:
    (row,) = [row for row in A800 if row[:4] == ["12.1b", "8", "2", "6144"]]

    assert percent(row[4]) == pytest.approx(27.5, abs=0.1)
    assert percent(row[7]) == pytest.approx(12.2, abs=0.5)


@pytest.mark.parametrize("row", H20, ids=" ".join)
def test_gains_on_h20_are_the_paper_s_within_three_points(row: list[str]) -> None:
    assert percent(row[5]) == pytest.approx(percent(row[6]), abs=POINTS)


@pytest.mark.parametrize("row", A800, ids=" ".join)
def test_merged_backwards_bring_zb_v_near_1f1b_i_and_split_ones_do_not(row: list[str]) -> None:
    assert abs(percent(row[8])) < 1
    assert percent(row[9]) < percent(row[8]) - 2


@pytest.mark.parametrize("row", H20, ids=" ".join)
def test_zb_v_on_h20_is_the_paper_s_within_three_points_but_where_the_page_says(row: list[str]) -> None:
    most = 4.3 if row[1] == "2" else POINTS

    assert percent(row[7]) == pytest.approx(percent(row[8]), abs=most)


@pytest.mark.parametrize("row", [*A800, *H20], ids=" ".join)
def test_memory_has_the_paper_s_order_in_every_row(row: list[str]) -> None:
    one_f_one_b, zb_v, stp = map(int, row[-6:-3])

    assert zb_v < one_f_one_b < stp
    if row not in WITH_OFFLOADING:
        published = tuple(map(int, row[-3:]))
        assert published[1] < published[0] < published[2]


def test_gains_on_h20_have_the_paper_s_order() -> None:
    for sequence in ("6144", "8192"):
        gains = [percent(row[5]) for row in H20 if row[3] == sequence]
        assert gains == sorted(gains)


def test_offloading_takes_a_tenth_to_a_fifth_of_the_peak_for_less_than_one_per_cent_of_the_speed() -> None:
    *_, row = OFFLOAD

    assert -19.2 <= percent(row[6]) <= -10
    assert percent(row[7]) > -1


def test_the_page_shows_what_the_example_prints() -> None:
    shown = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

    assert PRINTED in shown
