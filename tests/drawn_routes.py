"""Random routes over links, and counters of the whole cluster, for timelines of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from pptrace.timeline.timeline import Counter, Routes

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

__all__ = ["cluster_counters", "drawn_routes"]

LATEST = 2**40
NAMES = st.sampled_from(["leaf0>spine2", "gpu0>nvswitch", 'a "name"', "naïve ↔", ""])
RATES = st.sampled_from([0, 1, 50_000_000, 25_781_250, 2**62])


@st.composite
def drawn_routes(draw: DrawFn, rows: int) -> Routes | None:
    """Draw none, or links and for each row any list of them; names and links may come twice."""
    if draw(st.booleans(), label="no routes"):
        return None
    links = draw(st.lists(st.tuples(NAMES, RATES), max_size=4))
    choice = st.lists(st.integers(0, len(links) - 1), max_size=4) if links else st.just([])
    result = [draw(choice) for _ in range(rows)]
    return Routes(
        name=tuple(name for name, _ in links),
        rate_kbps=np.array([rate for _, rate in links], dtype=np.int64),
        ptr=np.concatenate([[0], np.cumsum([len(item) for item in result], dtype=np.int64)]),
        link=np.array([link for item in result for link in item], dtype=np.int64),
    )


@st.composite
def cluster_counters(draw: DrawFn) -> tuple[Counter, ...]:
    """Draw counters of no rank, each of another name."""
    result = []
    for name in draw(st.sets(NAMES, max_size=2)):
        points = draw(st.dictionaries(st.integers(0, LATEST), st.integers(-(2**40), 2**62), max_size=3))
        result.append(
            Counter(
                rank=-1,
                name=name,
                unit=draw(st.sampled_from(["%", "bytes/s"])),
                at_ns=np.array(sorted(points), dtype=np.int64),
                value=np.array([points[at] for at in sorted(points)], dtype=np.int64),
            )
        )
    return tuple(result)
