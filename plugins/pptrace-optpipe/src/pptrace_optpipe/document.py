"""The document of a search, and its drawing."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from pptrace.plugin import format_size, table_lines, write_picture
from pptrace_optpipe.bounds import copy_ratio
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part
from pptrace_optpipe.start_schedules import AGAIN, COPIED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace_optpipe.search import Optimised
    from pptrace_optpipe.start_schedules import Rival

__all__ = ["document", "dots", "draw_pareto", "lines", "pareto_lines"]


def document(
    found: Optimised, memory: int, rivals: Sequence[Rival] = (), limits: Sequence[int] = ()
) -> dict[str, Any]:
    """Return everything as plain JSON values: times in ns, sizes in bytes; ``limits`` are by rank."""
    rows, problem = found.rows, found.problem
    return {
        "schedule": found.rival or "optpipe",
        "step_ns": found.simulated.step_ns,
        "bound_ns": found.bound_ns or None,
        "gap": round(found.gap, 6) if found.bound_ns else None,
        "proved": found.proved,
        "bubble": round(found.simulated.bubble, 6),
        "memory_limit_bytes": memory or None,
        "rank_limit_bytes": list(limits) if memory else None,
        "peak_bytes": list(found.simulated.peak_bytes),
        "offloaded": [_microbatches(row, Part.O) for row in rows],
        "recomputed": [_microbatches(row, Part.C) for row in rows],
        "split": [_split(row) for row in rows],
        "without_offload_bytes": list(_kept(found)),
        "copy_ratio": [
            round(copy_ratio(problem, rank), 6) if problem.offload else None for rank in range(problem.ranks)
        ]
        if problem is not None
        else [],
        "search_s": round(found.seconds, 3),
        "hand_made": [{**dot, "fits": one.fits} for one, dot in zip(rivals, dots(rivals), strict=True)],
    }


def dots(rivals: Sequence[Rival]) -> list[dict[str, Any]]:
    """Return the steps and memory of other plugins' schedules as plain values."""
    return [
        {"schedule": one.name, "step_ns": one.simulated.step_ns, "peak_bytes": one.peak_bytes} for one in rivals
    ]


def lines(found: Optimised, memory: int, rivals: Sequence[Rival] = (), limits: Sequence[int] = ()) -> list[str]:
    """Return a short report; ``limits`` are by rank."""
    step, bound = found.simulated.step_ns, found.bound_ns
    verdict = f"{_ms(bound)}: " + (
        "no order of these stages is faster" if found.proved else f"gap {found.gap:.2%}"
    )
    report = [
        f"step     {_ms(step)}, bubble {found.simulated.bubble:.2%}",
        f"bound    {verdict if bound else 'not known: stages are placed otherwise than was searched'}",
        f"memory   {_limit(memory, limits)}",
        *_beside(found, rivals),
    ]
    kept = _kept(found)
    for rank, (row, peak) in enumerate(zip(found.rows, found.simulated.peak_bytes, strict=False)):
        gone, again = (sum(op.part is part for op in row) for part in (Part.O, Part.C))
        anew = f"{again} computed again, " if again else ""
        without = "without copies" if not again else "without either" if gone else "otherwise"
        why = f"; {without} it would hold {format_size(kept[rank])}" if gone or again else ""
        if gone and found.problem is not None:
            why += f"; copies take {copy_ratio(found.problem, rank):.0%} of its work"
        if again and found.problem is not None:
            more = sum(found.problem.recompute[op.stage] for op in row if op.part is Part.C)
            why += f"; computing again takes {more / found.problem.work(rank):.0%} of it"
        backwards = sum(op.part in (Part.I, Part.B) for op in row)
        report.append(
            f"rank {rank:<3} peak {format_size(peak)}, {gone} activations offloaded, {anew}"
            f"{_split(row)} of {backwards} backwards split{why}"
        )
    return report


def _limit(memory: int, limits: Sequence[int]) -> str:
    """Return what ranks may hold, rank by rank where that differs."""
    if not memory:
        return "no limit"
    if min(limits, default=memory) == max(limits, default=memory):
        return format_size(min(limits, default=memory))
    said, first = [], 0
    for size, group in groupby(limits):
        last = first + len(list(group)) - 1
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        said.append(f"{format_size(size)} on {ranks}")
        first = last + 1
    return ", ".join(said)


def _beside(found: Optimised, rivals: Sequence[Rival]) -> list[str]:
    """Return a line on the best schedule of other plugins."""
    best = min((one for one in rivals if one.fits), key=lambda one: one.simulated.step_ns, default=None)
    if found.rival:
        return [f"schedule {found.rival}: nothing shorter was found"]
    if best is None:
        return ["others   none that is made by hand fits"] if rivals else []
    more = best.simulated.step_ns / found.simulated.step_ns - 1
    return [f"others   {best.name} takes {more:.1%} longer, the shortest that is made by hand and fits"]


def pareto_lines(points: list[tuple[int, Optimised | None]]) -> list[str]:
    """Return one line per limit, with a bar for the step."""
    longest = max((one.simulated.step_ns for _, one in points if one is not None), default=1)
    rows = [["memory", "step", "bound", "gap", "offloaded", ""]]
    for memory, one in points:
        if one is None:
            rows.append([format_size(memory), "nothing fits", "", "", "", ""])
            continue
        step, offloads = one.simulated.step_ns, sum(op.part is Part.O for row in one.rows for op in row)
        bound, gap = (_ms(one.bound_ns), f"{one.gap:.2%}") if one.bound_ns else ("-", "-")
        bar = "#" * round(30 * step / longest)
        rows.append([format_size(memory), _ms(step), bound, gap, str(offloads), f"{bar} {one.rival}"])
    return table_lines(rows, {4, 5})


def _ms(time: int) -> str:
    return f"{time / 1e6:.3f} ms"


def _microbatches(row: list[Op], part: Part) -> list[list[int]]:
    return [[op.stage, op.microbatch] for op in row if op.part is part]


def _split(row: list[Op]) -> int:
    """Return how many backwards have something between their parts."""
    computed = [op for op in row if op.part in (Part.F, Part.I, Part.W)]
    whole = sum(one.part is Part.I and other == one._replace(part=Part.W) for one, other in pairwise(computed))
    return sum(op.part is Part.I for op in computed) - whole


def _kept(found: Optimised) -> tuple[int, ...]:
    """Return what ranks would use if the same order had no copies, and nothing were computed again."""
    problem = found.problem
    if problem is None or NO_LIMIT in problem.limit:
        return found.simulated.peak_bytes
    bare = play(problem, [[op for op in row if op.part in (*COMPUTED, Part.B)] for row in found.rows])
    now = play(problem, list(found.rows))
    if bare is None or now is None:
        return found.simulated.peak_bytes
    return tuple(
        peak + without - held
        for peak, without, held in zip(found.simulated.peak_bytes, bare.peak, now.peak, strict=True)
    )


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
        axes.legend(loc="upper right")

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
