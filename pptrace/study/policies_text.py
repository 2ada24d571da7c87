"""What policies cost as a table of plain text: a row per policy, a step and its price per schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.experiment.summary import time_text
from pptrace.study.compare_text import slower_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.experiment.run import Run
    from pptrace.study.policies import PolicyRow, PolicyTable

__all__ = ["policy_lines"]


def policy_lines(table: PolicyTable, run: Run, uncertainty: float = 0.0) -> list[str]:
    """Return the lines; ``run``, one of those compared, says how times are written.

    Schedules whose steps are within a share ``uncertainty`` of the shortest are named as the fastest with it.
    """
    policies = table.by_policy()
    schedules = [row.schedule for row in next(iter(policies.values()))]
    least = [_least([rows[at] for rows in policies.values()]) for at in range(len(schedules))]
    cells = [["policy", *schedules]]
    several = len(schedules) > 1
    cells[0] += ["fastest"] if several else []
    for policy, rows in policies.items():
        steps = [_cell(row, one, run) for row, one in zip(rows, least, strict=True)]
        cells.append([policy, *steps, *([_fastest(rows, uncertainty)] if several else [])])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [_line(row, widths, len(schedules)) for row in cells]
    heading = "what each policy costs: the step, and by how much it is over the schedule's shortest"
    return [heading, *lines, *_refused(table)]


def _refused(table: PolicyTable) -> list[str]:
    """Return a line for each schedule that cannot run at all, else for each policy under which it cannot."""
    reasons: dict[str, dict[str, str]] = {}
    for row in table.rows:
        if row.reason and not row.deadlocks:
            reasons.setdefault(row.schedule, {})[row.policy] = row.reason
    lines = []
    for schedule, by_policy in reasons.items():
        if len(by_policy) == len(table.by_policy()):
            lines.append(f"{schedule} cannot run: {next(iter(by_policy.values()))}")
        else:
            lines += [f"{schedule} under {policy} cannot run: {reason}" for policy, reason in by_policy.items()]
    return lines


def _line(cells: Sequence[str], widths: Sequence[int], schedules: int) -> str:
    """Join a row's cells; steps stand right, names left."""
    texts = [
        f"{cell:>{width}}" if 0 < column <= schedules else f"{cell:<{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def _cell(row: PolicyRow, least_ns: int, run: Run) -> str:
    if row.step_ns is None:
        return "deadlocks" if row.deadlocks else "cannot run"
    return f"{time_text(run, row.step_ns)} {slower_text(row.step_ns, least_ns):>7}"


def _least(rows: Sequence[PolicyRow]) -> int:
    return min((row.step_ns for row in rows if row.step_ns is not None), default=0)


def _fastest(rows: Sequence[PolicyRow], uncertainty: float) -> str:
    """Return the schedule with the shortest step under a policy; all where several share it, or are a tie."""
    most = _least(rows) * (1 + uncertainty)
    return " and ".join(row.schedule for row in rows if row.step_ns is not None and row.step_ns <= most) or "-"
