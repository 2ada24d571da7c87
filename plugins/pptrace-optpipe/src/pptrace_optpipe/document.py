"""Document, JSON values and drawing of a search result."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pptrace.plugin import Document, Kind, ScheduleError, Table, format_size, write_picture
from pptrace_optpipe.bounds import copy_ratio
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import COMPUTED, GRADIENT, NO_LIMIT, Op, OpKind
from pptrace_optpipe.setting import rows_of_table, stages_text
from pptrace_optpipe.start_schedules import AGAIN, COPIED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace_optpipe.search import Optimised
    from pptrace_optpipe.setting import Setting
    from pptrace_optpipe.start_schedules import Rival


class Improvement(Struct, frozen=True, kw_only=True):
    """The result of a search that starts from a run."""

    setting: Setting
    memory: int
    """Limit in bytes per rank."""
    best: Optimised
    present: str
    """Name of the schedule that runs now."""
    present_ns: int
    """Its simulated step."""
    noise: float
    """Relative noise of the run."""
    advice: str
    """The measurement that would make the prediction more accurate; empty for none."""

    @property
    def is_better(self) -> bool:
        """Whether the step is shorter by more than the noise."""
        return self.best.simulated.step_ns < self.present_ns * (1 - self.noise)

    @property
    def line(self) -> str:
        """The comparison with the schedule that runs now."""
        step_ns = self.best.simulated.step_ns
        change = f"{step_ns / 1e6:.3f} ms in place of {self.present_ns / 1e6:.3f} ms ({self.present})"
        if self.best.table.placement != self.setting.placement:
            change += f" with stages {stages_text(self.best.table, self.setting.placement)}"
        verdict = "shorter, more than" if self.is_better else "is not more than"
        return f"{change}: {1 - step_ns / self.present_ns:.1%} {verdict} the noise of {self.noise:.1%}"

    @property
    def uncertainty(self) -> float | None:
        """Relative uncertainty of the predicted step; None where it is not known."""
        costs = self.setting.prepared.resolved.experiment.costs.values
        share = costs.get("split_uncertainty") if self._is_split else None
        return costs.get("uncertainty") if share is None else share

    @property
    def accuracy(self) -> list[tuple[str, str]]:
        """A row on the accuracy of the predicted step, if it is known."""
        advice = f"; {self.advice}" if self.advice and self._is_split else ""
        return [] if self.uncertainty is None else [("known", f"to about ±{self.uncertainty:.1%}{advice}")]

    @property
    def _is_split(self) -> bool:
        """Whether the result has split backwards."""
        return bool((self.best.table.kind == Kind.I).any())

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule that runs now, its step in ns, and the uncertainty, as plain JSON values."""
        return {
            "schedule": self.present, "step_ns": self.present_ns, "noise": round(self.noise, 6),
            "uncertainty": self.uncertainty,
        }  # fmt: skip


def values_of(result: Optimised, setting: Setting, memory: int, run: Improvement | None = None) -> dict[str, Any]:
    """Return a search result as plain JSON values; times are in ns, sizes in bytes."""
    rows, problem = result.rows, result.problem
    return {
        "schedule": result.rival or "optpipe",
        "stages": result.table.stages,
        "is_placement_kept": setting.keeps(result.table),
        "step_ns": result.simulated.step_ns,
        "bound_ns": result.bound_ns or None,
        "gap": round(result.gap, 6) if result.bound_ns else None,
        "proved": result.proved,
        "bubble": round(result.simulated.bubble, 6),
        "memory_limit_bytes": memory or None,
        "rank_limit_bytes": list(setting.limits(memory)) if memory else None,
        "peak_bytes": list(result.simulated.peak_bytes),
        "offloaded": [_microbatches(row, OpKind.O) for row in rows],
        "recomputed": [_microbatches(row, OpKind.C) for row in rows],
        "split": [_split_count(row) for row in rows],
        "without_offload_bytes": list(_peaks_without_copies(result)),
        "copy_ratio": [
            round(copy_ratio(problem, rank), 6) if problem.offload else None for rank in range(problem.ranks)
        ]
        if problem is not None
        else [],
        "search_s": round(result.seconds, 3),
        "hand_made": [
            {**dot, "fits": rival.fits} for rival, dot in zip(result.rivals, dots(result.rivals), strict=True)
        ],
        **({"run": run.to_dict()} if run else {}),
    }


def dots(rivals: Sequence[Rival]) -> list[dict[str, Any]]:
    """Return step times and peak memory of other plugins' schedules as plain values."""
    return [
        {"schedule": rival.name, "step_ns": rival.simulated.step_ns, "peak_bytes": rival.peak_bytes}
        for rival in rivals
    ]


def document(result: Optimised, setting: Setting, memory: int, run: Improvement | None = None) -> Document:
    """Return a short report."""
    step, bound = result.simulated.step_ns, result.bound_ns
    verdict = f"{_ms(bound)}: " + (
        "no order of these stages is faster" if result.proved else f"gap {result.gap:.2%}"
    )
    is_kept = result.table.placement == setting.placement
    other_stages = "" if is_kept else stages_text(result.table, setting.placement)
    rows = [
        *(run.accuracy if run else []),
        ("step", f"{_ms(step)}, bubble {result.simulated.bubble:.2%}"),
        ("bound", verdict if bound else f"not known: {_missing_bound(result)}"),
        *([("stages", other_stages)] if other_stages else []),
        (
            "memory",
            f"{_limit_text(memory, setting.limits(memory))}{setting.workload.reserve_text if memory else ''}",
        ),
        *_comparison(result),
    ]
    kept = _peaks_without_copies(result)
    for rank, (row, peak) in enumerate(zip(result.rows, result.simulated.peak_bytes, strict=False)):
        offloaded, recomputed = (sum(op.kind is kind for op in row) for kind in (OpKind.O, OpKind.C))
        recomputed_text = f"{recomputed} computed again, " if recomputed else ""
        missing = "without copies" if not recomputed else "without either" if offloaded else "otherwise"
        remark = f"; {missing} it would hold {format_size(kept[rank])}" if offloaded or recomputed else ""
        if offloaded and result.problem is not None:
            remark += f"; copies take {copy_ratio(result.problem, rank):.0%} of its work"
        if recomputed and result.problem is not None:
            recompute_work = sum(result.problem.recompute[op.stage] for op in row if op.kind is OpKind.C)
            remark += f"; computing again takes {recompute_work / result.problem.work(rank):.0%} of it"
        backwards = sum(op.kind in GRADIENT for op in row)
        text = f"peak {format_size(peak)}, {offloaded} activations offloaded, {recomputed_text}"
        rows.append((f"rank {rank}", f"{text}{_split_count(row)} of {backwards} backwards split{remark}"))
    return Document(title="optimize", lead=(*([run.line] if run else []), Table(rows=tuple(rows), words=2)))


def _missing_bound(result: Optimised) -> str:
    """Return the reason why a result has no bound."""
    try:
        rows_of_table(result.table)
    except ScheduleError as error:
        return str(error).partition(":")[0]
    is_searched = result.problem is not None
    return (
        "the messages of the step differ from those of the search"
        if is_searched
        else "this placement was not searched"
    )


def _limit_text(memory: int, limits: Sequence[int]) -> str:
    """Return the text of the memory limit, by rank if the limits differ."""
    if not memory:
        return "no limit"
    if min(limits, default=memory) == max(limits, default=memory):
        return format_size(min(limits, default=memory))
    kinds, first = [], 0
    for size, group in groupby(limits):
        last = first + len(list(group)) - 1
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        kinds.append(f"{format_size(size)} on {ranks}")
        first = last + 1
    return ", ".join(kinds)


def _comparison(result: Optimised) -> list[tuple[str, str]]:
    """Return a row that compares the result with the best schedule of other plugins."""
    best = min(
        (rival for rival in result.rivals if rival.fits), key=lambda rival: rival.simulated.step_ns, default=None
    )
    if result.rival:
        return [("schedule", f"{result.rival}: no shorter order was found")]
    if best is None:
        return [("others", "no other installed schedule fits")] if result.rivals else []
    excess = best.simulated.step_ns / result.simulated.step_ns - 1
    return [("others", f"{best.name} takes {excess:.1%} longer, the shortest of the other schedules that fit")]


def pareto_document(points: list[tuple[int, Optimised | None]]) -> Document:
    """Return a table with a row per memory limit, with a bar for the step time."""
    longest = max((result.simulated.step_ns for _, result in points if result is not None), default=1)
    rows: list[tuple[str, ...]] = []
    for memory, result in points:
        if result is None:
            rows.append((format_size(memory), "nothing fits", "", "", "", ""))
            continue
        step, offloads = result.simulated.step_ns, sum(op.kind is OpKind.O for row in result.rows for op in row)
        bound, gap = (_ms(result.bound_ns), f"{result.gap:.2%}") if result.bound_ns else ("-", "-")
        bar = "#" * round(30 * step / longest)
        rows.append((format_size(memory), _ms(step), bound, gap, str(offloads), f"{bar} {result.rival}"))
    head = ("memory", "step", "bound", "gap", "offloaded", "")
    return Document(title="optimize", lead=(Table(head=head, rows=tuple(rows), words=0, left=(4, 5)),))


def _ms(time: int) -> str:
    return f"{time / 1e6:.3f} ms"


def _microbatches(row: list[Op], kind: OpKind) -> list[list[int]]:
    return [[op.stage, op.microbatch] for op in row if op.kind is kind]


def _split_count(row: list[Op]) -> int:
    """Return how many backwards have other computations between ``I`` and ``W``."""
    computed = [op for op in row if op.kind in (*COMPUTED, OpKind.B)]
    adjacent = sum(
        op.kind is OpKind.I and next_op == op._replace(kind=OpKind.W) for op, next_op in pairwise(computed)
    )
    return sum(op.kind is OpKind.I for op in computed) - adjacent


def _peaks_without_copies(result: Optimised) -> tuple[int, ...]:
    """Return the peak bytes per rank of the same order without copies and without recomputation."""
    problem = result.problem
    if problem is None or NO_LIMIT in problem.limit:
        return result.simulated.peak_bytes
    without_copies = play(problem, [[op for op in row if op.kind in (*COMPUTED, OpKind.B)] for row in result.rows])
    with_copies = play(problem, list(result.rows))
    if without_copies is None or with_copies is None:
        return result.simulated.peak_bytes
    peaks = zip(result.simulated.peak_bytes, without_copies.peak, with_copies.peak, strict=True)
    return tuple(peak + peak_without - peak_with for peak, peak_without, peak_with in peaks)


_RESULT_COLOR = "#0072b2"
_BOUND_COLOR = "#8c959f"
_RIVAL_COLOR = "#d55e00"
_COPIED_COLOR = "#e69f00"
_RECOMPUTED_COLOR = "#cc79a7"
_GIB = 2**30
_LABEL_DISTANCE = 0.07
"""Share of each axis within which dots have a common label."""


def draw_pareto(points: Sequence[tuple[int, Optimised]], rivals: Sequence[Rival], path: Path) -> None:
    """Draw step times and bounds over memory limits, with one dot per hand-made schedule.

    The suffix of the path gives the format: .png, .svg or .pdf.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        limits = [memory / _GIB for memory, _ in points]
        steps_ms = [result.simulated.step_ns / 1e6 for _, result in points]
        axes.step(limits, steps_ms, where="post", color=_RESULT_COLOR, lw=1.8, marker="o", ms=4,
                  label="optimized within a limit")  # fmt: skip
        bounded = [(memory / _GIB, result.bound_ns / 1e6) for memory, result in points if result.bound_ns]
        axes.plot(
            *zip(*bounded, strict=True) if bounded else ([], []),
            color=_BOUND_COLOR,
            lw=1.2,
            ls="--",
            label="lower bound",
            drawstyle="steps-pre",
        )
        plain = [rival for rival in rivals if not rival.name.endswith((COPIED, AGAIN))]
        copied, recomputed = (
            {rival.name.removesuffix(suffix): rival for rival in rivals if rival.name.endswith(suffix)}
            for suffix in (COPIED, AGAIN)
        )
        series = [
            (_RIVAL_COLOR, "other schedules", plain),
            (_COPIED_COLOR, "with copies to the host", copied.values()),
        ]
        if recomputed:
            series.append((_RECOMPUTED_COLOR, "with recomputed forwards", recomputed.values()))
        for color, label, members in series:
            positions = [_dot_position(rival) for rival in members]
            axes.scatter([x for x, _ in positions], [y for _, y in positions], color=color, s=22, zorder=3,
                         label=label)  # fmt: skip
        for rival in plain:
            for variants, color in ((copied, _COPIED_COLOR), (recomputed, _RECOMPUTED_COLOR)):
                if rival.name in variants:
                    ends = (_dot_position(rival), _dot_position(variants[rival.name]))
                    axes.plot(*zip(*ends, strict=True), color=color, lw=0.6)
        for (x, y), names in _labels(plain).items():
            axes.annotate("\n".join(names), (x, y), (5, 4), textcoords="offset points", fontsize=7)
        axes.set(xlabel="peak memory of a rank [GiB]", ylabel="step time [ms]")
        axes.legend(loc="upper right")

    write_picture(path, (9.0, 5.4), draw)


def _dot_position(rival: Rival) -> tuple[float, float]:
    return rival.peak_bytes / _GIB, rival.simulated.step_ns / 1e6


def _labels(rivals: Sequence[Rival]) -> dict[tuple[float, float], list[str]]:
    """Return the schedule names by position; nearby dots have a common position."""
    if not rivals:
        return {}
    spans = (max(values) - min(values) for values in zip(*map(_dot_position, rivals), strict=True))
    near_x, near_y = ((span or 1) * _LABEL_DISTANCE for span in spans)
    names: dict[tuple[float, float], list[str]] = {}
    for rival in sorted(rivals, key=_dot_position):
        x, y = _dot_position(rival)
        near = (dot for dot in names if abs(dot[0] - x) < near_x and abs(dot[1] - y) < near_y)
        names.setdefault(next(near, (x, y)), []).append(rival.name)
    return names
