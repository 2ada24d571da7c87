"""Names of actions as cells: a prefix per kind and stage, a unit, and the closing quote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.export.kineto.cells import Block
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Names"]

_BLANK = ord(" ")
_DENSE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The ends of a timeline's names, each written once: unit, span beyond one, and a quote."""

    ends: Block
    """Shape (ends, width), blanks behind."""
    end: Int32s
    """Each row's end."""

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Collect the pairs of unit and span that occur."""
        widest = int(timeline.span.max(initial=1)) + 1
        keys, end = _interned((timeline.unit.astype(np.int64) + 1) * widest + timeline.span)
        pairs = zip((keys // widest - 1).tolist(), (keys % widest).tolist(), strict=True)
        texts = [_end(unit, span) for unit, span in pairs]
        width = max(map(len, texts), default=1)
        padded = b"".join(text.ljust(width) for text in texts)
        return cls(ends=np.frombuffer(padded, dtype=np.uint8).reshape(-1, width), end=end)

    def after(
        self,
        prefix: NDArray[np.integer],
        texts: Mapping[int, bytes],
        rows: slice,
        plain: frozenset[int] = frozenset(),
    ) -> Block:
        """Return ``texts[prefix]`` and the row's end, or for the ``plain`` prefixes only a quote."""
        width = max((len(text) for text in texts.values()), default=0) + self.ends.shape[1]
        block = np.full((prefix.size, width), _BLANK, dtype=np.uint8)
        for code, text in texts.items():
            hit = np.flatnonzero(prefix == code)
            head = text + b'"' if code in plain else text
            block[hit, : len(head)] = np.frombuffer(head, dtype=np.uint8)
            if code not in plain:
                block[hit, len(head) : len(head) + self.ends.shape[1]] = self.ends[self.end[rows][hit]]
        return block


def _end(unit: int, span: int) -> bytes:
    text = ("" if unit < 0 else str(unit)) + (f"+{span}" if span > 1 else "")
    return text.encode() + b'"'


def _interned(keys: Int64s) -> tuple[Int64s, Int32s]:
    """Return the distinct keys and each row's index among them."""
    if int(keys.max(initial=0)) >= _DENSE:
        distinct, index = np.unique(keys, return_inverse=True)
        return distinct, index.astype(np.int32)
    present = np.zeros(int(keys.max(initial=0)) + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1)[keys]
