"""Time ratios by kind and stage as a coloured table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pptrace.analysis.steps.words import ms
from pptrace.model.action import Kind
from pptrace.present.diff_words import ratio
from pptrace.present.elements import Markup, element, joined

if TYPE_CHECKING:
    from pptrace.analysis.diff.findings import KindRow
    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["heat_map"]

_COLUMNS = 16
"""Stages beside each other."""
_STRONGEST, _FAINTEST_RANGE = 0.72, math.log(1.1)
"""Opacity of the largest ratio, and how large that is at least taken for."""
_LONGER, _SHORTER = "196,71,61", "47,143,91"


def heat_map(found: StepDiff) -> Markup:
    """Return the map, 16 stages a table."""
    stages = sorted({row.stage for row in found.kinds})
    by = {(row.kind, row.stage): row for row in found.kinds}
    names = [kind.name for kind in Kind if any((kind.name, stage) in by for stage in stages)]
    reach = max(
        [
            _FAINTEST_RANGE,
            *(abs(math.log(row.ratio)) for row in found.kinds if row.ratio is not None and row.ratio > 0),
        ]
    )
    tables = []
    for low in range(0, len(stages), _COLUMNS):
        shown = stages[low : low + _COLUMNS]
        head = element("tr", element("th", "stage"), *(element("th", str(stage)) for stage in shown))
        body = [
            element("tr", element("th", name), *(_cell(by.get((name, stage)), reach) for stage in shown))
            for name in names
        ]
        tables.append(element("table", element("thead", head), element("tbody", *body), class_="heat"))
    return element("div", joined(tables), class_="wide")


def _cell(row: KindRow | None, reach: float) -> Markup:
    if row is None:
        return element("td", "-", class_="soft")
    title = (
        f"{row.kind} of stage {row.stage}: {row.count[0]} and {row.count[1]} actions, "
        f"median {ms(row.median_ns[0])} and {ms(row.median_ns[1])}, "
        f"quartiles {ms(row.spread_ns[0])} and {ms(row.spread_ns[1])} apart{_varies(row)}"
    )
    if row.ratio is None:
        return element("td", "one side only", class_="soft", title=title)
    strength = min(abs(math.log(row.ratio)) / reach, 1) * _STRONGEST if row.ratio > 0 else _STRONGEST
    colour = _LONGER if row.ratio > 1 else _SHORTER
    return element("td", ratio(row), title=title, style=f"background:rgba({colour},{strength:.3f})")


def _varies(row: KindRow) -> str:
    known = [
        f"{ms(varies)} of the {side}"
        for side, varies in zip(("first", "second"), row.varies_ns, strict=True)
        if varies is not None
    ]
    return f", medians vary from step to step by {' and '.join(known)}" if known else ""
