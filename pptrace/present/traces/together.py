"""Both steps as one Perfetto trace: each rank's two steps above each other, below them what tells them apart.

A rank has three threads, in this order: its first step, its second, and slices as long as the second's actions
that say by how much those end later or earlier, with that lateness as a counter below. Both steps start at once.
Above the ranks stands the ladder.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.hops import Hops
from pptrace.export.perfetto.columns import PlainColumn
from pptrace.export.perfetto.extension import descriptor_set
from pptrace.export.perfetto.layout import SEQUENCE
from pptrace.export.perfetto.marker import TITLE_KEY
from pptrace.export.perfetto.names import CATEGORIES, DIFFERENCE_CATEGORY, Names
from pptrace.export.perfetto.slices import Slices
from pptrace.export.perfetto.tracks import Tracks
from pptrace.export.perfetto.writer import write_packets
from pptrace.present.traces.lateness import counter_run, difference_runs, lateness
from pptrace.present.traces.rungs import write_rungs
from pptrace.present.traces.shifted import earliest_ns, shifted
from pptrace.printable import printable
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.analysis.steps.sides import Side
    from pptrace.export.perfetto.layout import Run
    from pptrace.timeline.timeline import Timeline

__all__ = ["labels", "write_together"]

_ABREAST = 3
_STATE_CLEARED = 1
_SHARED_AXIS = "lateness"


def write_together(path: Path, findings: StepDiff, sides: Sequence[Side]) -> None:
    """Write both steps of a diff as one trace.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head, uuids = Trace(), count(1)
    steps, start_ns = _aligned([side.timeline for side in sides], findings)
    named = [Names.of(step) for step in steps]
    texts = [*named[0].names, *named[1].names]
    named[1] = replace(named[1], name=named[1].name + np.int32(len(named[0].names)))
    runs: list[Run] = []
    _write_attributes(head, findings, segments=any(step.parts is not None for step in steps))
    first_row = process = 0
    for place, (step, names, label) in enumerate(zip(steps, named, labels(sides), strict=True)):
        tracks = Tracks(
            step, head, Hops.of(step), suffix=f" · {place + 1} {label}", place=place, abreast=_ABREAST,
            process=process, uuids=uuids,
        )  # fmt: skip
        tracks.write(set())
        process = tracks.process
        slices = Slices(step, np.array(tracks.lanes, dtype=np.int32), names, first_row)
        slices.columns["cause"] = PlainColumn(np.where(step.cause < 0, -1, step.cause + first_row))
        runs += slices.runs()
        first_row += len(step)
    late = lateness(findings)
    differences, counters = _more_tracks(tracks, max(step.placement.ranks for step in findings.steps))
    begins_ns = int(findings.steps[0].start_ns.min()) if len(findings.steps[0]) else 0
    write_rungs(head, tracks, findings, start_ns - begins_ns)
    spelt, slices_of_differences = difference_runs(findings, late, start_ns, differences, len(texts) + 1)
    runs += [*slices_of_differences, counter_run(late, start_ns, counters)]
    _write_interned(head, [*texts, *spelt])
    write_packets(path, head.SerializeToString(), sorted(runs, key=lambda run: run.place))


def labels(sides: Sequence[Side]) -> tuple[str, str]:
    """Return what tells two sides apart in a word: how they came about, else their order."""
    if sides[0].measured == sides[1].measured:
        return "first", "second"
    return ("measured", "simulated") if sides[0].measured else ("simulated", "measured")


def _aligned(timelines: Sequence[Timeline], findings: StepDiff) -> tuple[list[Timeline], int]:
    """Return both steps with their first computations at one time, and that time."""
    begins = [int(step.start_ns.min()) if len(step) else 0 for step in findings.steps]
    plain = [replace(one, counters=(), routes=None, why=None) for one in timelines]
    start = max(begin - earliest_ns(one) for begin, one in zip(begins, plain, strict=True))
    return [shifted(one, start - begin) for one, begin in zip(plain, begins, strict=True)], start


def _write_attributes(head: Trace, findings: StepDiff, *, segments: bool) -> None:
    attributes = head.packet.add().trace_attributes.attribute
    first, second = map(printable, findings.names)
    attributes.add(key=TITLE_KEY, string_value=f"{first} and {second}")
    attributes.add(key="pptrace.version", string_value=__version__)
    attributes.add(key="pptrace.first", string_value=first)
    attributes.add(key="pptrace.second", string_value=second)
    attributes.add(key="pptrace.first_ns", long_value=int(findings.step_ns.first.value))
    attributes.add(key="pptrace.second_ns", long_value=int(findings.step_ns.second.value))
    embedded = head.packet.add().extension_descriptor.extension_set
    embedded.ParseFromString(descriptor_set(links=False, segments=segments, why=False).SerializeToString())


def _more_tracks(tracks: Tracks, ranks: int) -> tuple[dict[int, int], dict[int, int]]:
    """Describe each rank's track of differences and its counter; return their numbers by rank."""
    digits = len(str(ranks - 1))
    differences, counters = {}, {}
    for rank in range(ranks):
        top = tracks.thread(f"rank {rank:0{digits}} · difference", rank * _ABREAST + 2)
        below = tracks.child(top, "lateness", 0)
        below.counter.unit_name = "ms"
        below.counter.y_axis_share_key = _SHARED_AXIS
        differences[rank], counters[rank] = top.uuid, below.uuid
    return differences, counters


def _write_interned(head: Trace, texts: Sequence[str]) -> None:
    packet = head.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_STATE_CLEARED)
    for iid, category in enumerate(CATEGORIES, 1):
        packet.interned_data.event_categories.add(iid=iid, name=category)
    packet.interned_data.event_categories.add(iid=DIFFERENCE_CATEGORY, name="difference")
    for iid, text in enumerate(texts, 1):
        packet.interned_data.event_names.add(iid=iid, name=printable(text))
