"""What running the configuration that is simulated as the best costs over the one that was measured as the best.

    python benchmarks/bench_choices.py steps.csv [--source 'BLOOM*']

A group is what was measured of one model (its heads, which rows tell in settings, among its sizes) on as many GPUs
of a kind, in one precision and with sequences of one length, in several configurations; times are per sequence.
``docs/plan.md`` has the figures. It takes some 10 s.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace_accuracy.records import build_cases, read_rows, read_rules, run_cases

if TYPE_CHECKING:
    from pptrace_accuracy.records import Case

SAME = ("source", "model", "layers", "hidden", "gpu", "n_gpus", "precision", "seq")
"""Columns that all configurations of a group have in common."""
DIVIDED = ("tp", "pp", "cp", "ep", "vp", "mbs", "recompute", "zero", "schedule")
"""Columns of which at least one tells two configurations apart."""

NEAR = 3
"""Places that count as found."""
MOST = 0.02
"""What a choice may cost."""


def group_of(case: Case) -> tuple[str, ...]:
    """Return what a case has in common with others of its group."""
    model: Any = case.settings.get("model", {})
    return (*(case.row.get(name, "") for name in SAME), str(model.get("heads", "")))


def main() -> None:
    """Print each group, and how often the measured optimum is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--source", default="*", help="a pattern of sources' names")
    asked = parser.parse_args()
    cases = [
        case
        for case in build_cases(read_rows(asked.steps), read_rules(None))
        if fnmatchcase(case.row.get("source", ""), asked.source)
    ]
    groups: dict[tuple[str, ...], list[tuple[float, float, tuple[str, ...]]]] = defaultdict(list)
    rows: Any = run_cases(cases)
    for case, row in zip(cases, rows, strict=True):
        if row["error_pct"] is not None:
            batch = float(case.row["gbs"])
            division = tuple(case.row.get(name, "") for name in DIVIDED)
            groups[group_of(case)].append((row["measured_s"] / batch, row["simulated_s"] / batch, division))
    print(f"{'group':72s} configurations  place  costs")
    several = {key: ran for key, ran in groups.items() if len({one[2] for one in ran}) > 1}
    places, costs = [], []
    for key, ran in several.items():
        best, chosen = min(ran), min(ran, key=lambda one: one[1])
        places.append(sorted(ran, key=lambda one: one[1]).index(best) + 1)
        costs.append(chosen[0] / best[0] - 1)
        name = ", ".join(filter(None, key))
        print(f"{name[:72]:72s} {len({one[2] for one in ran}):14d} {places[-1]:6d} {costs[-1]:6.1%}")
    found = sum(place <= NEAR for place in places)
    print(
        f"{sum(map(len, several.values()))} rows in {len(several)} groups: the optimum is first in "
        f"{places.count(1)} and among the first {NEAR} in {found}; the choice costs at most "
        f"{max(costs, default=0):.1%}, over {MOST:.0%} in {sum(cost > MOST for cost in costs)}"
    )


if __name__ == "__main__":
    main()
