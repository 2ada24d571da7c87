"""Names of actions as cells: a prefix per kind and stage, a microbatch, and the closing quote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.export.kineto.cells import Block, Choice, Part
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["Names", "named"]

_BLANK = ord(" ")
_DENSE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The ends of a timeline's names, each written once: microbatch, span beyond one, segment, and a quote."""

    ends: Block
    """Shape (ends, width), blanks behind."""
    end: Int32s
    """Each row's end."""

    @classmethod
    def of(cls, timeline: Timeline, *, segments: bool = False) -> Self:
        """Collect the pairs of microbatch and span that occur, with ``segments`` by the names of segments too."""
        parts = timeline.parts if segments else None
        segment_names = [""] if parts is None else ["", *(f" {name}" for name in parts.names)]
        behind = [json.dumps(name)[1:] for name in segment_names]
        widest, count = int(timeline.span.max(initial=1)) + 1, len(behind)
        pair = (timeline.microbatch.astype(np.int64) + 1) * widest + timeline.span
        keys, end = _interned(pair if parts is None else pair * count + parts.name + 1)
        pairs = zip((keys // count // widest - 1).tolist(), (keys // count % widest).tolist(), strict=True)
        texts = [_end(*pair, behind[key % count]) for pair, key in zip(pairs, keys.tolist(), strict=True)]
        width = max(map(len, texts), default=1)
        padded = b"".join(text.ljust(width) for text in texts)
        return cls(ends=np.frombuffer(padded, dtype=np.uint8).reshape(-1, width), end=end)

    def of_rows(self, rows: slice) -> Block:
        """Return the ends of some rows."""
        width = self.ends.shape[1]
        return self.ends.view(f"V{width}").take(self.end[rows]).view(np.uint8).reshape(-1, width)


def named(
    prefix: Choice, texts: Sequence[bytes] | Mapping[int, bytes], ends: Block, plain: frozenset[int] = frozenset()
) -> list[Part]:
    """Return ``texts[prefix]`` and at once behind it an end, or for the ``plain`` prefixes only a quote."""
    heads = {code: texts[code] + b'"' * (code in plain) for code in prefix.used}
    longest = max(map(len, heads.values()))
    width = max(len(texts[code]) for code in heads) + ends.shape[1]
    if plain.isdisjoint(heads) and longest == min(map(len, heads.values())):
        return [prefix.among(heads), ends]
    if plain.issuperset(heads):
        return [prefix.among(heads), b" " * (width - longest)]
    block = np.full((len(ends), width), _BLANK, dtype=np.uint8)
    for code, head in heads.items():
        hit = np.flatnonzero(prefix.codes == code)
        block[hit, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        if code not in plain:
            block[hit, len(head) : len(head) + ends.shape[1]] = ends[hit]
    return [block]


def _end(microbatch: int, span: int, behind: str) -> bytes:
    text = ("" if microbatch < 0 else str(microbatch)) + (f"+{span}" if span > 1 else "")
    return (text + behind).encode()


def _interned(keys: Int64s) -> tuple[Int64s, Int32s]:
    """Return the distinct keys and each row's index among them."""
    if int(keys.max(initial=0)) >= _DENSE:
        distinct, index = np.unique(keys, return_inverse=True)
        return distinct, index.astype(np.int32)
    present = np.zeros(int(keys.max(initial=0)) + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1)[keys]
