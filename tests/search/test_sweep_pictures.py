"""Pictures of a sweep: what they show, that equal rows give equal bytes, and what cannot be drawn."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pytest

from pptrace.errors import ConfigError, PptraceError
from pptrace.search.sweep import Sweep
from pptrace.search.sweep_charts import (
    PLOTS,
    _draw_difference,
    _draw_lines,
    figure_of,
    number_of,
    panels_of,
    roles_of,
)

if TYPE_CHECKING:
    from pathlib import Path


OWN = {"error": None, "pptrace": "0", "plugins": None, "over": "", "configuration": "c", "point": "p"}


def row(microbatches: Any, schedule: str, network: str = "1 GB/s", **figures: Any) -> dict[str, Any]:
    axes = {"microbatches": microbatches, "schedule": schedule, "network.bandwidth": network}
    return axes | {"step_ns": None, "idle": None, "mfu": None} | figures | OWN


def swept(rows: list[dict[str, Any]], *over: str) -> Sweep:
    return Sweep(over=over or ("microbatches", "schedule", "network.bandwidth"), rows=tuple(rows))


def steps() -> Sweep:
    step = {("a", "1 GB/s"): 3, ("b", "1 GB/s"): 4, ("a", "10 GB/s"): 2, ("b", "10 GB/s"): 1}
    rows = [
        row(
            microbatches,
            schedule,
            network,
            step_ns=microbatches * step[schedule, network] * 10**9,
            idle=0.5,
            mfu=0.1,
        )
        for microbatches in (8, 16, 32)
        for schedule in "ab"
        for network in ("1 GB/s", "10 GB/s")
    ]
    return swept(rows)


def words(path: Path) -> list[str]:
    """Return the texts of a picture."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def test_lines_have_units_a_line_per_schedule_and_a_panel_per_other_value(tmp_path: Path) -> None:
    steps().save(tmp_path / "f.svg")

    message = words(tmp_path / "f.svg")
    assert {"microbatches", "step time [s]", "a", "b", "8", "16", "32"} <= set(message)
    assert {"network.bandwidth 1 GB/s", "network.bandwidth 10 GB/s"} <= set(message)


def test_winners_are_named_with_their_margins(tmp_path: Path) -> None:
    steps().save(tmp_path / "f.svg", plot="winners")

    message = words(tmp_path / "f.svg")
    assert message.count("a") == message.count("b") == 3
    assert message.count("33%") == 3
    assert message.count("100%") == 3
    assert {"microbatches", "network.bandwidth", "lowest step time, and its margin over the second"} <= set(
        message
    )


def test_ties_and_lone_and_missing_winners_are_said(tmp_path: Path) -> None:
    rows = [row(8, "a", idle=0.5), row(8, "b", idle=0.5), row(16, "a", idle=0.25), row(16, "b"), row(32, "a")]
    swept(rows, "microbatches", "schedule").save(tmp_path / "f.svg", plot="winners", y="idle")

    message = words(tmp_path / "f.svg")
    assert {"tie", "only one", "-"} <= set(message)


@pytest.mark.parametrize(
    ("column", "title"), [("mfu", "MFU"), ("tokens_per_s_per_gpu", "tokens per second and GPU")]
)
def test_the_best_mfu_and_throughput_are_the_highest(column: str, title: str, tmp_path: Path) -> None:
    rows = [row(8, "slow", **{column: 0.25}), row(8, "fast", **{column: 0.5})]
    swept(rows, "microbatches", "schedule").save(tmp_path / "f.svg", plot="winners", y=column)

    assert {"fast", "50%", f"highest {title}, and its margin over the second"} <= set(words(tmp_path / "f.svg"))


def test_differences_are_measured_by_the_first_schedule(tmp_path: Path) -> None:
    steps().save(tmp_path / "f.svg", plot="difference")

    assert "step time, difference to a [%]" in words(tmp_path / "f.svg")


def test_a_difference_is_the_share_by_which_a_schedule_is_behind_the_first() -> None:
    from matplotlib.figure import Figure

    rows, drawn = steps().rows, Figure()
    over = ("microbatches", "schedule", "network.bandwidth")
    roles = roles_of(over, rows, None, numbers=True)

    _draw_difference(drawn, roles, [figure_of("step_ns", rows)], panels_of(roles.panels, rows))

    base, line = zip(*(axes.get_lines() for axes in drawn.axes), strict=True)
    assert [axes.get_title()[-7:] for axes in drawn.axes] == [" 1 GB/s", "10 GB/s"]
    assert [list(each.get_ydata()) for each in base] == [[0, 0, 0], [0, 0, 0]]
    assert [list(each.get_xdata()) for each in line] == [[8, 16, 32]] * 2
    assert [list(each.get_ydata()) for each in line] == [
        pytest.approx([100 / 3] * 3),  # 4 against 3
        pytest.approx([-50] * 3),  # 1 against 2
    ]
    assert [label.get_text() for label in drawn.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize("schedules", [2, 7, 12])
def test_legends_are_within_the_picture(schedules: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [
        row(8 * size, f"interleaved-1f1b:vp={number}", idle=0.2, formula_bubble=0.1)
        for size in (1, 2) for number in range(schedules)
    ]  # fmt: skip
    drawn = Figure(figsize=(6.9, 4.4), layout="constrained")
    canvas = FigureCanvasAgg(drawn)
    figures = [figure_of(column, rows) for column in ("idle", "formula_bubble")]

    _draw_lines(
        drawn, roles_of(("microbatches", "schedule"), rows, None, numbers=True), figures, panels_of((), rows)
    )
    canvas.draw()

    (legend,) = drawn.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == schedules + 2
    assert (box.x0 >= 0, box.y0 >= 0, box.x1 <= drawn.bbox.x1, box.y1 <= drawn.bbox.y1) == (True,) * 4


def test_long_names_of_winners_are_whole(tmp_path: Path) -> None:
    rows = [row(8, "interleaved-1f1b", step_ns=1), row(8, "1f1b", step_ns=2)]
    swept(rows, "microbatches", "schedule").save(tmp_path / "f.svg", plot="winners")

    assert "interleaved-1f1b" in words(tmp_path / "f.svg")


def test_several_figures_of_one_unit_are_drawn_in_one_picture(tmp_path: Path) -> None:
    steps().save(tmp_path / "f.svg", y=["idle", "mfu"])

    assert {"simulated idle time and MFU [%]", "simulated idle time", "MFU"} <= set(words(tmp_path / "f.svg"))


@pytest.mark.parametrize("plot", PLOTS)
def test_equal_rows_give_equal_bytes(tmp_path: Path, plot: str) -> None:
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    steps().save(one, plot=plot)
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "else", "axes.facecolor": "red"}):
        steps().save(other, plot=plot)

    assert one.read_bytes() == other.read_bytes()


def test_failed_points_are_gaps(tmp_path: Path) -> None:
    whole = steps()
    failed = row(64, "b", "1 GB/s") | {"error": "no"}
    swept([*whole.rows, failed]).save(tmp_path / "with.svg")
    whole.save(tmp_path / "without.svg")

    assert (tmp_path / "with.svg").read_bytes() == (tmp_path / "without.svg").read_bytes()


@pytest.mark.parametrize(
    ("picture", "complaint"),
    [
        ({"plot": "pie"}, "plot pie: no such picture"),
        ({"y": "step"}, r"^y: step: no such figure \(did you mean 'step_ns'\?"),
        ({"y": "error"}, "^y: error: no such figure"),
        ({"y": []}, "^y: missing"),
        ({"y": ["idle", "step_ns"]}, "^y: figures of one picture have one unit, not idle in %, step_ns in s"),
        ({"y": ["idle", "mfu"], "plot": "difference"}, "^y: 2 figures; difference show 1 at most"),
        ({"x": "pp"}, "^x: pp is not an axis of this sweep"),
        ({"x": "schedule"}, "^x: the values of schedule are not numbers"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    tmp_path: Path, picture: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        steps().save(tmp_path / "f.svg", **picture)

    assert list(tmp_path.iterdir()) == []


def test_axes_without_numbers_or_rivals_are_refused(tmp_path: Path) -> None:
    names = swept([row("x", "a", step_ns=1), row("y", "b", step_ns=1)], "microbatches", "schedule")
    alone = swept([row(8, "a", step_ns=1), row(16, "a", step_ns=1)], "microbatches", "schedule")
    empty = swept([row(8, "a")], "microbatches", "schedule")

    for made, plot, complaint in (
        (names, "lines", "no axis has numbers"),
        (alone, "winners", "there is nothing to compare"),
        (alone, "difference", "there is nothing to compare"),
        (empty, "lines", "no run has a value to draw"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            made.save(tmp_path / "f.svg", plot=plot)


def test_a_sweep_in_which_all_failed_has_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(PptraceError, match="step_ns: no run has a value to draw"):
        swept([row(8, "a") | {"error": "no"}]).save(tmp_path / "f.svg")


@pytest.mark.parametrize(
    ("column", "values", "unit", "drawn"),
    [
        ("step_ns", [2_000_000_000], "s", 2),
        ("step_ns", [3_000_000, None], "ms", 3),
        ("x_ns", [0], "ns", 0),
        ("peak_bytes", [3 * 2**30], "GiB", 3),
        ("idle_fill", [0.25], "%", 25),
        ("peak_activations", [7], "", 7),
    ],
)
def test_figures_have_units_that_suit_them(column: str, values: list[Any], unit: str, drawn: float) -> None:
    rows = [{"pp": 1, column: value} for value in values]

    figure = figure_of(column, rows)

    assert figure.unit == unit
    assert figure.of(rows[0]) == drawn


def test_roles_go_to_schedules_numbers_and_the_rest() -> None:
    rows = steps().rows
    over = ("network.bandwidth", "schedule", "microbatches")

    roles = roles_of(over, rows, None, numbers=True)
    asked = roles_of(over, rows, "batch.microbatches", numbers=True)

    assert (roles.x, roles.lines, roles.panels) == ("network.bandwidth", "schedule", ("microbatches",))
    assert (asked.x, asked.panels) == ("microbatches", ("network.bandwidth",))


def test_too_many_panels_are_refused() -> None:
    rows = [{"pp": pp} for pp in range(25)]

    with pytest.raises(ConfigError, match="25 panels for pp; the maximum is 24"):
        panels_of(["pp"], rows)


def test_quantities_are_numbers_along_an_axis() -> None:
    assert [number_of(cell) for cell in ("400 Gb/s", "1 MiB", "2 us", 0.5, "1f1b", None, True)] == [
        50e9, 2**20, 2000, 0.5, None, None, None,
    ]  # fmt: skip
