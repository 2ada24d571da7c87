"""Orders of overlapped pairs' segments that a configuration gives, over those that a schedule brings."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.config.resolve import Resolved
    from pptrace.schedule.table import Schedule

__all__ = ["with_interleave"]


def with_interleave(resolved: Resolved, table: Schedule) -> Schedule:
    """Return a table with the orders that the configuration gives.

    Raises:
        ConfigError: kinds that no pair of the table has, or a member that such a pair lacks.
    """
    given = resolved.experiment.schedule.interleave
    if not given:
        return table
    there = _pairs(table)
    orders = dict(table.interleave)
    for name, turns in given.items():
        key = f"schedule.interleave.{name}"
        kinds = tuple(Kind[word] for word in name.split("+") if word in Kind.__members__)
        if kinds not in there or len(kinds) != name.count("+") + 1:
            known = ", ".join(sorted("+".join(kind.name for kind in pair) for pair in there)) or "none at all"
            raise resolved.error(key, f"the table has no such pair; it has {known}")
        _check_turns(resolved, key, turns, len(kinds))
        orders[kinds] = tuple(turns)
    return replace(table, interleave=MappingProxyType(orders))


def _check_turns(resolved: Resolved, key: str, turns: Sequence[int], members: int) -> None:
    for place, turn in enumerate(turns):
        if turn >= members:
            raise resolved.error(f"{key}[{place}]", f"member {turn} of a pair of {members}: they count from 0")


def _pairs(table: Schedule) -> set[tuple[Kind, ...]]:
    """Return the kinds of the members of every sort of pair."""
    rows = np.flatnonzero(table.pair >= 0)
    columns = table.rank_of_row()[rows], table.pair[rows], table.kind[rows]
    members = zip(*(column.tolist() for column in columns), strict=True)
    alike = {tuple(kind for _, _, kind in pair) for _, pair in groupby(members, key=lambda row: row[:2])}
    return {tuple(Kind(kind) for kind in pair) for pair in alike}
