"""Extra time of the configuration that the simulation chooses, over the one that was measured as the best.

    python benchmarks/bench_choices.py steps.csv [--source 'BLOOM*'] [--stack-alone]

A group has the measured configurations of one model (with its number of heads) on as many GPUs of a kind, in one
precision and with sequences of one length. They are of one publisher, in one or several releases, each of which is
simulated with its own stack. Times are per sequence. A choice is *the same* if it differs from the best measured
step only in what a plan does not vary, such as the release. ``docs/plan.md`` has the figures. It takes some 20 s.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pptrace.search.plan import MARGIN, MARGIN_EQUAL_SIZES
from pptrace_accuracy.records import build_cases, read_rows, read_rules, run_cases

if TYPE_CHECKING:
    from pptrace_accuracy.records import Case

COMMON = ("series", "model", "layers", "hidden", "gpu", "n_gpus", "precision", "seq")
"""Columns that all configurations of a group have in common, and the publisher."""
SIZES = ("tp", "pp", "cp", "ep", "dp")
FIRST = 3
"""Places that count as among the first."""
LIMIT = 0.02
"""Largest extra time of a good choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A measured configuration; times are in seconds per sequence."""

    measured_s: float
    simulated_s: float
    settings: Any

    @property
    def varied(self) -> list[Any]:
        """What a plan varies: sizes, microbatch, schedule, ZeRO, recomputation and stages."""
        model, costs = self.settings["model"], self.settings.get("costs", {})
        sizes = {name: self.settings["parallel"].get(name) or 1 for name in (*SIZES, "vp")}
        options = [model.get(name) for name in ("recompute", "recompute_modules", "layout", "layers_per_stage")]
        return [sizes, self.settings["batch"]["micro"], self.settings["schedule"], costs.get("zero"), *options]

    def ties(self, other: Step) -> bool:
        """Return whether a plan that chooses another step reports this one as tied."""
        sizes = [tuple(each.settings["parallel"].get(name) or 1 for name in SIZES) for each in (self, other)]
        margin = MARGIN_EQUAL_SIZES if sizes[0] == sizes[1] else MARGIN
        return self.simulated_s <= other.simulated_s * (1 + float(margin))


def group_of(case: Case) -> tuple[str, ...]:
    """Return publisher, common columns and heads of a case."""
    publisher = case.row["source"].split()[0]
    heads = str(case.settings["model"].get("heads", ""))
    return (publisher, *(case.row.get(name, "") for name in COMMON), heads)


def read_groups(cases: list[Case]) -> dict[tuple[str, ...], list[Step]]:
    """Return the simulated steps of each group with several configurations."""
    groups: dict[tuple[str, ...], list[Step]] = defaultdict(list)
    for case, row in zip(cases, run_cases(cases), strict=True):
        if row["error_pct"] is not None:
            batch = float(case.row["gbs"])
            step = Step(
                measured_s=row["measured_s"] / batch,
                simulated_s=row["simulated_s"] / batch,
                settings=case.settings,
            )
            groups[group_of(case)].append(step)
    return {key: steps for key, steps in groups.items() if any(steps[0].settings != s.settings for s in steps)}


def main() -> None:
    """Print each group, and how often the measured optimum is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--source", default="*", help="a pattern of sources' names")
    parser.add_argument(
        "--stack-alone", action="store_true", help="omit costs and messages other than the stack's"
    )
    options = parser.parse_args()
    cases = [
        case
        for case in build_cases(read_rows(options.steps), read_rules(None))
        if fnmatchcase(case.row.get("source", ""), options.source)
    ]
    if options.stack_alone:
        cases = [
            replace(
                case,
                settings=case.default_settings
                | {key: case.settings[key] for key in case.settings if key == "stack"},
            )
            for case in cases
        ]
    print(f"{'group':64s} steps  place of the best  its lag  tied  choice costs  same")
    places, costs, ties, others = [], [], [], []
    groups = read_groups(cases)
    for key, steps in groups.items():
        best, chosen = (
            min(steps, key=lambda s: (s.measured_s, s.simulated_s)),
            min(steps, key=lambda s: s.simulated_s),
        )
        places.append(sum(step.simulated_s < best.simulated_s for step in steps) + 1)
        costs.append(chosen.measured_s / best.measured_s - 1)
        ties.append(best.ties(chosen))
        if best.varied != chosen.varied:
            others.append(costs[-1])
        name, lag = ", ".join(filter(None, key)), best.simulated_s / chosen.simulated_s - 1
        tied, same = ("yes" if flag else "no" for flag in (ties[-1], best.varied == chosen.varied))
        figures = f"{len(steps):5d} {places[-1]:18d} {lag:8.1%} {tied:>5s} {costs[-1]:13.1%} {same:>5s}"
        print(f"{name[:64]:64s} {figures}")
    among = sum(place <= FIRST for place in places)
    several = sum(any(step.varied != steps[0].varied for step in steps) for steps in groups.values())
    print(
        f"{sum(map(len, groups.values()))} steps in {len(groups)} groups: the best measured is first in "
        f"{places.count(1)}, among the first {FIRST} in {among}, and tied in {sum(ties)}; the choice costs "
        f"at most {max(costs, default=0):.1%}, over {LIMIT:.0%} in {sum(cost > LIMIT for cost in costs)}"
    )
    print(
        f"{several} groups differ in what a plan varies: another configuration than the best measured is chosen "
        f"in {len(others)}, and costs at most {max(others, default=0):.1%}"
    )


if __name__ == "__main__":
    main()
