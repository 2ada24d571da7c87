"""Where orders differ, a diff begins with how much of the difference is the order's: simulated, not guessed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from compared_steps import MS, ROWS, one_step, side_of_step, slower_way

from pptrace.cli.main import cli
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import diff_document
from pptrace.report.document import page_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.measured.diff import StepDiff
    from pptrace.timeline.timeline import Timeline

LATE = [
    ["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3"],
    ["1F0", "1F1", "1F2", "1F3", "1B0", "1B1", "1B2", "1B3"],
    ["2F0", "2F1", "2F2", "2F3", "2B0", "2B1", "2B2", "2B3"],
]
"""All forwards, then all backwards."""
SERIAL = [[f"{stage}{kind}{n}" for n in range(4) for kind in "FB"] for stage in range(3)]
"""One microbatch at a time."""
SPLIT = [[cell.replace("B", "I") for cell in row] + [f"{at}W{n}" for n in range(4)] for at, row in enumerate(ROWS)]


def compared(first: Timeline, second: Timeline, *, measured: bool = False) -> StepDiff:
    return diff(*(side_of_step(one, name, measured=measured) for one, name in ((first, "a"), (second, "b"))))


def leading(found: StepDiff) -> list[str]:
    """Return the titles with which the page begins, in order."""
    page = page_of(diff_document(found))
    return re.findall("<h2>(.*?)[,<]", page)


@pytest.mark.parametrize("measured", [False, True])
def test_where_the_order_alone_differs_it_is_reported_first_and_is_the_whole_difference(*, measured: bool) -> None:
    difference = compared(one_step(), one_step(SERIAL), measured=measured)

    assert difference.order_share is not None
    assert difference.order_share.order_ns.value == difference.step_ns.change.value > 0
    assert difference.order_share.times_ns.value == difference.order_share.rest_ns.value == 0
    assert leading(difference)[0] == "effects of order and of times"
    first = text_of(diff_document(difference)).split("effects of order and of times")[1].splitlines()[2]
    assert first.strip().startswith("the order of 2 ranks, with the second's times and network")
    assert first.split()[-3:] == [f"+{difference.step_ns.change.value / MS:.3f}", "ms", "100.0%"]


def test_a_slow_link_in_the_same_order_is_reported_first() -> None:
    difference = compared(one_step(), slower_way(one_step(), 1, 2, 9))

    assert difference.order_share is None
    assert leading(difference)[0] == "slow or fast ranks"
    assert "Largest slowdown, a slow link: rank 1 to rank 2" in page_of(diff_document(difference))
    assert (difference.causes[0].kind, difference.causes[0].what) == ("slow link", "rank 1 to rank 2")


def test_where_both_changed_both_are_reported_with_the_shares_that_runs_of_each_alone_give() -> None:
    slow = {1: 1.5}
    difference = compared(one_step(), one_step(SERIAL, slow=slow))
    halfway = one_step(slow=slow)

    first, half, second = (
        difference.step_ns.first.value, compared(halfway, halfway).step_ns.first.value,
        difference.step_ns.second.value,
    )  # fmt: skip
    assert difference.order_share is not None
    assert difference.order_share.times_ns.value == half - first > 0
    assert difference.order_share.order_ns.value == second - half > 0
    result = text_of(diff_document(difference))
    assert f"{(second - half) / (second - first):.1%}" in result
    assert f"{(half - first) / (second - first):.1%}" in result
    assert "Largest slowdown of times, a slow rank: rank 1" in page_of(diff_document(difference))


def test_times_that_change_more_than_the_order_are_reported_before_it() -> None:
    difference = compared(one_step(LATE), one_step(rate_kbps=10_000, slow={0: 2, 1: 2, 2: 2}))
    message = text_of(diff_document(difference)).split("effects of order and of times")[1]

    assert difference.order_share is not None
    assert abs(difference.order_share.times_ns.value) > abs(difference.order_share.order_ns.value)
    assert message.index("times of actions and messages") < message.index("the order of")


@pytest.mark.parametrize("whole_first", [True, False])
def test_a_backward_that_one_order_splits_takes_what_its_halves_take(*, whole_first: bool) -> None:
    whole, split = one_step(slow={0: 1.4, 1: 1.4, 2: 1.4}), one_step(SPLIT)
    pair = (whole, split) if whole_first else (split, whole)
    difference = compared(*pair)

    assert difference.order_share is not None
    # All actions are alike slower on one side, by the same factor on every stage.
    assert difference.order_share.times_ns.value * (-1 if whole_first else 1) > 10 * MS
    parts = difference.order_share
    assert parts.order_ns.value + parts.times_ns.value + parts.rest_ns.value == difference.step_ns.change.value


@pytest.mark.needs_plugins
def test_two_schedules_of_one_configuration_are_simulated_on_their_network(tmp_path: Path) -> None:
    text = "parallel: {pp: 4}\nbatch: {microbatches: 8}\n"
    text += "costs: {name: table, forward: %s, backward: 40 ms, boundary: 8192 B}\n"
    text += "network: {name: hockney, bandwidth: %s, latency: 100 us}\n"
    sides = {
        "gpipe": ("gpipe", "20 ms", "100 MB/s"), "zb": ("zb-h1", "20 ms", "100 MB/s"),
        "mid": ("gpipe", "25 ms", "1 MB/s"), "both": ("zb-h1", "25 ms", "1 MB/s"),
    }  # fmt: skip
    for name, (schedule, forward, rate) in sides.items():
        (tmp_path / f"{name}.yaml").write_text(
            f"schedule: {schedule}\n" + text % (forward, rate), encoding="utf-8"
        )

    def values(first: str, second: str) -> dict[str, Any]:
        words = ["diff", str(tmp_path / f"{first}.yaml"), str(tmp_path / f"{second}.yaml"), "--json"]
        read: dict[str, Any] = json.loads(CliRunner().invoke(cli, words).stdout)
        return read

    mixed, halfway, reordered = values("gpipe", "both"), values("gpipe", "mid"), values("gpipe", "zb")

    first, second, between = *mixed["step_ns"], halfway["step_ns"][1]
    assert mixed["order_and_times"] == {
        "order_ns": second - between, "times_ns": between - first, "rest_ns": 0,
    }  # fmt: skip
    assert halfway["order_and_times"] is None
    assert reordered["order_and_times"] == {
        "order_ns": reordered["step_ns"][1] - first, "times_ns": 0, "rest_ns": 0,
    }  # fmt: skip
