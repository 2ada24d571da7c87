"""Reader of the Chakra traces that pptrace writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import Counter, StepPart, TraceError, UnpackedFile, join_parts, links_of, named_damage
from pptrace_chakra.messages import attributes_of, parse, value_of
from pptrace_chakra.writer import COUNTER_KEY, FORMAT, FORMAT_KEY, LINKS_KEY, PROVENANCE_KEY, SLICE_KEY, STEP_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import Timeline


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows of ranks without a file are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, is truncated, was not written by pptrace, or is of another run.
    """
    return join_parts([_read_part(path) for path in paths])


def _read_part(path: Path) -> StepPart:
    raw = UnpackedFile.read_whole(path)
    with named_damage(path):
        messages = parse(raw, path)
        metadata = next(messages)
        described = attributes_of(metadata)
        if described[FORMAT_KEY] > FORMAT:
            raise TraceError(f"has format {described[FORMAT_KEY]}; this pptrace reads up to {FORMAT}", file=path)
        step = json.loads(described[STEP_KEY])
        values, hops = [], []
        for node in messages:
            attributes = attributes_of(node)
            if SLICE_KEY in attributes:
                values.append(attributes[SLICE_KEY])
                row = attributes[SLICE_KEY][0]
                hops += [[row, place, link] for place, link in enumerate(attributes.get(LINKS_KEY, ()))]
        table = np.array(values, dtype=np.int64).reshape(-1, len(step["columns"]))
        table = table[np.argsort(table[:, 0], kind="stable")]
        lanes = np.array(step["lanes"], dtype=np.int64).reshape(-1, 4)
        if lanes[:, 3].sum() != len(table):
            raise TraceError(f"holds {len(table)} of its {lanes[:, 3].sum()} slices; write it again", file=path)
        return StepPart(
            path=path, step=step, provenance=json.loads(described[PROVENANCE_KEY]), lanes=lanes,
            columns=dict(zip(step["columns"], table.T, strict=True)), links=links_of(step),
            counters=tuple(_counters(step, metadata)), hops=np.array(hops, dtype=np.int64).reshape(-1, 3),
        )  # fmt: skip


def _counters(step: Mapping[str, Any], metadata: Any) -> Iterator[Counter]:
    points = [value_of(attribute) for attribute in metadata.attr if attribute.name == COUNTER_KEY]
    for (rank, name, unit), values in zip(step["counters"], points, strict=True):
        at_ns, value = np.array(values, dtype=np.int64).reshape(2, -1)
        yield Counter(rank=rank, name=name, unit=unit, at_ns=at_ns, value=value)
