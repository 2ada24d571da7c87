"""A comparison drawn: whole, the same each time, and only where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_schedules import small_registry

from pptrace.api import compare
from pptrace.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.search.compare import Comparison


@pytest.fixture
def comparison() -> Comparison:
    return compare(
        schedules="eager,lumped,even,chunky,even:microbatches=3", pp=2, microbatches=4, registry=small_registry()
    )


def test_the_same_comparison_is_the_same_bytes(comparison: Comparison, tmp_path: Path) -> None:
    one, two = (comparison.save(tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two"))

    assert one == two


def test_every_schedule_and_level_is_named(comparison: Comparison, tmp_path: Path) -> None:
    drawn = comparison.save(tmp_path / "compare.svg").read_text()

    for word in ("eager", "lumped", "even", "chunky", "formula", "table", "simulated", "cannot run", "~1"):
        assert word in drawn, word


def test_a_user_s_settings_change_nothing(comparison: Comparison, tmp_path: Path) -> None:
    import matplotlib as mpl

    plain = comparison.save(tmp_path / "plain.svg").read_bytes()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        changed = comparison.save(tmp_path / "changed.svg").read_bytes()
        assert mpl.rcParams["font.size"] == 30

    assert changed == plain


def test_another_suffix_is_refused(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"compare.jpg: a picture ends in .png, .svg, .pdf"):
        comparison.save(tmp_path / "compare.jpg")


def test_an_old_picture_outlives_one_that_fails(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "compare.png"
    old.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pptrace.search.compare._draw_bubbles", fail)
    with pytest.raises(KeyboardInterrupt):
        comparison.save(old)

    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
