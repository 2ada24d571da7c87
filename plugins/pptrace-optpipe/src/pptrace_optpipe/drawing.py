"""Step against memory as a picture: what searches found under limits, and what other plugins' schedules take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.plugin import write_picture
from pptrace_optpipe.rivals import AGAIN, COPIED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace_optpipe.optimising import Optimised
    from pptrace_optpipe.rivals import Rival

__all__ = ["draw_pareto"]

_FOUND, _BOUND, _MADE, _COPIED, _AGAIN = "#0072b2", "#8c959f", "#d55e00", "#e69f00", "#cc79a7"
_GIB = 2**30
_NEAR = 0.07
"""The part of the picture within which names stand together."""


def draw_pareto(points: Sequence[tuple[int, Optimised]], rivals: Sequence[Rival], path: Path) -> None:
    """Write a picture, .png, .svg or .pdf: steps and bounds over limits, and a dot for each schedule made by hand.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        limits = [memory / _GIB for memory, _ in points]
        axes.step(limits, [one.simulated.step_ns / 1e6 for _, one in points], where="post", color=_FOUND, lw=1.8,
                  marker="o", ms=4, label="found within a limit")  # fmt: skip
        bounded = [(memory / _GIB, one.bound_ns / 1e6) for memory, one in points if one.bound_ns]
        axes.plot(
            *zip(*bounded, strict=True) if bounded else ([], []),
            color=_BOUND,
            lw=1.2,
            ls="--",
            label="bound",
            drawstyle="steps-pre",
        )
        plain = [one for one in rivals if not one.name.endswith((COPIED, AGAIN))]
        copied, again = (
            {one.name.removesuffix(suffix): one for one in rivals if one.name.endswith(suffix)}
            for suffix in (COPIED, AGAIN)
        )
        for colour, label, own in (
            (_MADE, "made by hand", plain),
            (_COPIED, "the same with copies to the host", list(copied.values())),
            *([(_AGAIN, "the same with forwards computed again", list(again.values()))] if again else []),
        ):
            axes.scatter([_at(one)[0] for one in own], [_at(one)[1] for one in own], color=colour, s=22, zorder=3,
                         label=label)  # fmt: skip
        for one in plain:
            for others, colour in ((copied, _COPIED), (again, _AGAIN)):
                if one.name in others:
                    axes.plot(*zip(_at(one), _at(others[one.name]), strict=True), color=colour, lw=0.6)
        for (x, y), names in _labels(plain).items():
            axes.annotate("\n".join(names), (x, y), (5, 4), textcoords="offset points", fontsize=7)
        axes.set(xlabel="memory of the fullest rank, GiB", ylabel="step, ms")
        axes.legend(fontsize=8, frameon=False, loc="upper right")
        axes.grid(color="#eaeef2", lw=0.8)
        axes.set_axisbelow(True)

    write_picture(path, (9.0, 5.4), draw)


def _at(rival: Rival) -> tuple[float, float]:
    return rival.peak_bytes / _GIB, rival.simulated.step_ns / 1e6


def _labels(rivals: Sequence[Rival]) -> dict[tuple[float, float], list[str]]:
    """Return names by where they stand; those of dots that are near each other stand together."""
    if not rivals:
        return {}
    apart = [(max(values) - min(values) or 1) * _NEAR for values in zip(*map(_at, rivals), strict=True)]
    places: dict[tuple[float, float], list[str]] = {}
    for one in sorted(rivals, key=_at):
        x, y = _at(one)
        place = next((at for at in places if abs(at[0] - x) < apart[0] and abs(at[1] - y) < apart[1]), (x, y))
        places.setdefault(place, []).append(one.name)
    return places
