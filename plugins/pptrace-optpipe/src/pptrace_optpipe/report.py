"""What a search found, as text and as plain values: step, bound, memory, copies, split backwards, and why."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pptrace.plugin import format_size
from pptrace_optpipe.bounds import copy_ratio
from pptrace_optpipe.playing import play
from pptrace_optpipe.problem import COMPUTED, NO_LIMIT, Op, Part

if TYPE_CHECKING:
    from pptrace_optpipe.optimising import Optimised

__all__ = ["document", "lines", "pareto_lines"]


def document(found: Optimised, memory: int) -> dict[str, Any]:
    """Return everything as plain JSON values: times in ns, sizes in bytes."""
    rows = found.rows
    return {
        "step_ns": found.simulated.step_ns,
        "bound_ns": found.bound_ns,
        "gap": round(found.gap, 6),
        "proved": found.proved,
        "bubble": round(found.simulated.bubble, 6),
        "memory_limit_bytes": memory or None,
        "peak_bytes": list(found.simulated.peak_bytes),
        "offloaded": [_microbatches(row, Part.O) for row in rows],
        "split": [_split(row) for row in rows],
        "without_offload_bytes": list(_kept(found)),
        "copy_ratio": [
            round(copy_ratio(found.problem, rank), 6) if found.problem.offload else None
            for rank in range(found.problem.ranks)
        ],
        "search_s": round(found.seconds, 3),
    }


def lines(found: Optimised, memory: int) -> list[str]:
    """Return a short report."""
    step, bound = found.simulated.step_ns, found.bound_ns
    verdict = "nothing is faster" if found.proved else f"gap {found.gap:.2%}"
    report = [
        f"step     {_ms(step)}, bubble {found.simulated.bubble:.2%}",
        f"bound    {_ms(bound)}: {verdict}",
        f"memory   {'no limit' if not memory else format_size(memory)}",
    ]
    kept = _kept(found)
    for rank, (row, peak) in enumerate(zip(found.rows, found.simulated.peak_bytes, strict=True)):
        gone = sum(op.part is Part.O for op in row)
        ratio = copy_ratio(found.problem, rank)
        saved = f"; without copies it would hold {format_size(kept[rank])}; copies take {ratio:.0%} of its work"
        why = saved if gone else ""
        backwards = sum(op.part is Part.I for op in row)
        report.append(
            f"rank {rank:<3} peak {format_size(peak)}, {gone} activations offloaded, "
            f"{_split(row)} of {backwards} backwards split{why}"
        )
    return report


def pareto_lines(points: list[tuple[int, Optimised | None]]) -> list[str]:
    """Return one line per limit, with a bar for the step."""
    longest = max((one.simulated.step_ns for _, one in points if one is not None), default=1)
    table = [f"{'memory':>10}  {'step':>12}  {'bound':>12}  {'gap':>7}  offloaded"]
    for memory, one in points:
        if one is None:
            table.append(f"{format_size(memory):>10}  {'nothing fits':>12}")
            continue
        step, gone = one.simulated.step_ns, sum(op.part is Part.O for row in one.rows for op in row)
        bar = "#" * round(30 * step / longest)
        table.append(
            f"{format_size(memory):>10}  {_ms(step):>12}  {_ms(one.bound_ns):>12}  {one.gap:7.2%}  {gone:<9} {bar}"
        )
    return table


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
    """Return what ranks would use if the same order had no copies."""
    problem = found.problem
    bare = play(problem, [[op for op in row if op.part in (*COMPUTED, Part.B)] for row in found.rows])
    now = play(problem, found.rows)
    if bare is None or now is None or NO_LIMIT in problem.limit:
        return found.simulated.peak_bytes
    return tuple(
        peak + without - held
        for peak, without, held in zip(found.simulated.peak_bytes, bare.peak, now.peak, strict=True)
    )
