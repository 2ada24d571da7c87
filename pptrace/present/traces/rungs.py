"""The ladder between two steps as tracks: a waterfall on the time axis.

On the first track stands the shorter step's length, and behind it what the other has more. Below, a track per sort
of time holds the stretch by which it moves the end of the step, from where the one above left it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.export.perfetto.layout import BEGIN, END, SEQUENCE
from pptrace.present.figures import change, ms
from pptrace.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.export.perfetto.tracks import Tracks

__all__ = ["write_rungs"]

_CATEGORY = "ladder"
_ABOVE_THE_RANKS = -1


def write_rungs(head: Trace, tracks: Tracks, findings: StepDiff, start_ns: int) -> None:
    """Write the ladder's tracks and slices, if there is a ladder.

    Args:
        head: the trace.
        tracks: hands out tracks.
        findings: the diff.
        start_ns: when the first step begins in the trace.
    """
    if not findings.ladder:
        return
    first_ns, second_ns = (int(side.value) for side in findings.step_ns)
    top = tracks.thread("ladder", _ABOVE_THE_RANKS)
    whole = f"{'first' if first_ns <= second_ns else 'second'} step {ms(min(first_ns, second_ns))}"
    _write_slice(head, top.uuid, [start_ns, start_ns + min(first_ns, second_ns)], whole)
    if first_ns != second_ns:
        more = change(findings.step_ns.change)
        _write_slice(head, top.uuid, sorted((start_ns + first_ns, start_ns + second_ns)), more)
    before_ns = first_ns
    for place, rung in enumerate(findings.ladder):
        if rung.reached_ns != before_ns:
            track = tracks.child(top, rung.name, place)
            ends = sorted((start_ns + before_ns, start_ns + rung.reached_ns))
            _write_slice(head, track.uuid, ends, f"{rung.name} {change(rung.change_ns)}")
        before_ns = rung.reached_ns


def _write_slice(head: Trace, track: int, ends_ns: Sequence[int], name: str) -> None:
    start_ns, end_ns = ends_ns
    begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=start_ns)
    begin.track_event.type, begin.track_event.track_uuid = BEGIN, track
    begin.track_event.name = printable(name)
    begin.track_event.categories.append(_CATEGORY)
    end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=end_ns)
    end.track_event.type, end.track_event.track_uuid = END, track
