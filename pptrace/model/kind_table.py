"""The table of kinds as kernels read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.kinds import KINDS, Kind, Result, Role

if TYPE_CHECKING:
    from pptrace.model.columns import Int8s

__all__ = ["TABLE", "KindTable", "kind_table"]


class KindTable(NamedTuple):
    """The table as kernels read it: columns of one value per kind, in the order of their numbers."""

    role: Int8s
    """:class:`Role`."""
    stream: Int8s
    """:class:`Stream`."""
    direction: Int8s
    """:class:`Pass`."""
    result: Int8s
    """The result that it leaves, -1 for a kind that belongs to a stage alone."""
    second_result: Int8s
    """Another one, -1 for none."""
    feeds: Int8s
    """0 where other stages' forwards need its result, 1 where their backwards do, else -1."""
    wait_ptr: Int8s
    """Shape (kinds + 1,): the kinds that it waits for are ``wait[wait_ptr[k]:wait_ptr[k + 1]]``."""
    wait: Int8s
    """Those kinds."""
    awaited: Int8s
    """Whether any kind waits for it."""
    activation: Int8s
    """:attr:`Traits.activation`."""
    weight_activation: Int8s
    """:attr:`Traits.weight_activation`."""
    copied: Int8s
    """:attr:`Traits.copied`."""
    recomputed: Int8s
    """:attr:`Traits.recomputed`."""


def kind_table() -> KindTable:
    """Return the table in columns; a kind of a microbatch without a named result has one of its own."""
    rows = list(KINDS.values())
    own = iter(range(len(Result), len(Result) + len(rows)))
    result = [-1 if row.per_stage else int(row.results[0]) if row.results else next(own) for row in rows]
    second = [int(row.results[1]) if len(row.results) > 1 else -1 for row in rows]
    computes = [row.role is Role.COMPUTE for row in rows]
    fed = {Result.ACTIVATION: 0, Result.GRADIENT: 1}
    feeds = [
        fed.get(row.results[0], -1) if does and row.results else -1
        for does, row in zip(computes, rows, strict=True)
    ]
    wait = [[int(Kind[name]) for name in row.waits_for] for row in rows]
    awaited = {kind for kinds in wait for kind in kinds}
    columns = (
        [row.role for row in rows], [row.stream for row in rows], [row.direction for row in rows], result, second,
        feeds, np.cumsum([0, *map(len, wait)]), [kind for kinds in wait for kind in kinds],
        [kind in awaited for kind in range(len(rows))], [row.activation for row in rows],
        [row.weight_activation for row in rows], [row.copied for row in rows], [row.recomputed for row in rows],
    )  # fmt: skip
    return KindTable(*(np.array(column, dtype=np.int8) for column in columns))


TABLE = kind_table()
"""The table, made once."""
