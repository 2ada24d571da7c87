"""Random segments of actions, for timelines of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from pptrace.timeline.timeline import Parts

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

__all__ = ["drawn_parts"]

NAMES = st.sampled_from(["attention", "all-reduce", "dispatch", 'a "name"', "naïve ↔", "back\\slash", ""])


@st.composite
def drawn_parts(draw: DrawFn, rows: int) -> Parts | None:
    """Draw none, or for each row no segment or any; names may come twice."""
    if draw(st.booleans(), label="no segments"):
        return None
    names = draw(st.lists(NAMES, max_size=4), label="names of segments")
    segment = st.integers(-1, len(names) - 1)
    name = np.array(draw(st.lists(segment, min_size=rows, max_size=rows)), dtype=np.int32)
    place = draw(st.lists(st.sampled_from([0, 1, 7, 300]), min_size=rows, max_size=rows))
    return Parts(number=np.where(name < 0, -1, place), name=name, names=tuple(names))
