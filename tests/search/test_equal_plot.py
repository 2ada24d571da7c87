"""A comparison on equal memory as a picture: every schedule, its variant, the limit, and who does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_schedules import small_registry

from pptrace.api import compare
from pptrace.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.search.equal_memory import EqualComparison

COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 GiB", "weights": "1 GiB"}


@pytest.fixture
def comparison() -> EqualComparison:
    return compare(
        schedules="eager,even,chunky",
        memory="6 GiB",
        vary="vp,micro",
        pp=2,
        microbatches=4,
        costs=COSTS,
        registry=small_registry(),
    )


def test_the_same_comparison_is_the_same_bytes(comparison: EqualComparison, tmp_path: Path) -> None:
    one, two = (comparison.save(tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two"))

    assert one == two


def test_schedules_limit_and_what_does_not_fit_are_named(comparison: EqualComparison, tmp_path: Path) -> None:
    drawn = comparison.save(tmp_path / "compare.svg").read_text()

    assert not comparison.rows[2].fits
    for word in (
        "eager",
        "even",
        "limit, 6 GiB",
        "state",
        "activations",
        "chunky does not fit: rank 0 needs 10 GiB",
    ):
        assert word in drawn, word


def test_another_suffix_is_refused(comparison: EqualComparison, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"compare.jpg: a picture ends in .png, .svg, .pdf"):
        comparison.save(tmp_path / "compare.jpg")
