"""Both steps in one trace, as the official messages see it."""

from __future__ import annotations

import gzip
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compared_steps import MS, ROWS, compared, one_step, side_of_step
from decoded_trace import BEGIN, COUNTER, END, Decoded
from msgspec.structs import replace

from pptrace.measured.diff import diff
from pptrace.measured.diff_document import Diff
from pptrace.measured.diff_scene import labels, lateness
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace.measured.diff import StepDiff
    from pptrace.measured.sides import Side
    from pptrace.timeline.timeline import Timeline


def decoded(folder: Path, found: StepDiff, sides: list[Side]) -> Decoded:
    Diff(found, sides, ()).save(folder / "both.pftrace")
    return Decoded((folder / "both.pftrace").read_bytes())


def slices(trace: Decoded) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Yield track, start, end and fields of each slice; on a track, each begin is followed by its end."""
    ends: dict[str, list[int]] = defaultdict(list)
    for packet in trace.events(END):
        ends[trace.path(packet.track_event.track_uuid)].append(packet.timestamp)
    begins = [trace.fields(packet) for packet in trace.events(BEGIN)]
    for track, times in ends.items():
        own = sorted((begin for begin in begins if begin["track"] == track), key=lambda one: one["ts"])
        for item, end in zip(own, sorted(times), strict=True):
            yield track, item["ts"], end, item


def category(fields: dict[str, Any]) -> str:
    """Return a slice's category, which is interned in runs and spelt out elsewhere."""
    return str((fields.get("category") or fields["categories"])[0])


@pytest.fixture
def trace(tmp_path: Path) -> Decoded:
    return decoded(tmp_path, *compared())


def test_each_rank_s_tracks_stand_together(trace: Decoded) -> None:
    threads = sorted(
        (track.thread.tid, track.thread.thread_name) for track in trace.tracks.values() if track.HasField("thread")
    )

    names = [name for _, name in threads]
    assert names.pop(0) == "ladder"
    assert names == [
        f"rank {rank} · {which}" for rank in range(3) for which in ("1 simulated", "2 measured", "difference")
    ]
    assert names == sorted(names)
    below = [track.name for track in trace.tracks.values() if track.parent_uuid and track.HasField("counter")]
    assert below == ["lateness"] * 3


def test_both_steps_are_there_whole_and_start_at_once(trace: Decoded) -> None:
    _, sides = compared()
    ranks = [" · 1 simulated", " · 2 measured"]
    for which, side in zip(ranks, sides, strict=True):
        ours = [item for item in slices(trace) if which in item[0]]
        timeline = side.timeline
        assert sorted((start, end) for _, start, end, _ in ours) == sorted(
            zip(timeline.start_ns.tolist(), timeline.end_ns.tolist(), strict=True)
        )
        computed = [start for track, start, _, _ in ours if track.endswith(which)]
        assert min(computed) == 0


def test_nothing_overlaps_on_a_track(trace: Decoded) -> None:
    by_track = defaultdict(list)
    for track, start, end, _ in slices(trace):
        by_track[track].append((start, end))

    for spans in by_track.values():
        ordered = sorted(spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))


def test_differences_are_named_by_how_much_later_an_action_ends(trace: Decoded) -> None:
    difference, sides = compared()
    expected = set()
    # Stage 1 takes a quarter longer, and all actions are in both: an action's lateness is its two ends apart.
    first, second = (
        {
            (str(item.timeline[row].action), item.timeline[row].rank): item.timeline[row]
            for row in range(len(item.timeline))
        }
        for item in sides
    )
    for key, there in second.items():
        late = there.end_ns - first[key].end_ns
        if there.stream == 0 and late:
            expected.add(
                (f"rank {there.rank} · difference", there.start_ns, there.end_ns, f"{late / MS:+,.3f} ms")
            )

    shown = {
        (track, start, end, item["name"])
        for track, start, end, item in slices(trace)
        if category(item) == "difference"
    }

    assert shown == expected
    assert len(difference.matched) == 24


def test_slices_say_which_action_they_are_of(trace: Decoded) -> None:
    shown = next(item for _, _, _, item in slices(trace) if category(item) == "difference")

    assert {"kind", "rank", "stage", "microbatch"} <= {name.rpartition(".")[2] for name in shown}


def test_a_counter_steps_to_each_rank_s_lateness_in_milliseconds(trace: Decoded) -> None:
    difference, _ = compared()
    late = lateness(difference)
    shown = defaultdict(list)
    for packet in trace.events(COUNTER):
        shown[trace.path(packet.track_event.track_uuid)].append(
            (packet.timestamp, packet.track_event.double_counter_value)
        )

    for rank in range(3):
        own = late.rank == rank
        expected = zip(late.end_ns[own].tolist(), (late.late_ns[own] / 1e6).tolist(), strict=True)
        assert shown[f"rank {rank} · difference/lateness"] == [(0, 0.0), *expected]


def test_arrows_and_causes_stay_within_a_step(trace: Decoded) -> None:
    flows: dict[int, set[str]] = defaultdict(set)
    rows: dict[str, set[int]] = defaultdict(set)
    causes: dict[str, set[int]] = defaultdict(set)
    for track, _, _, item in slices(trace):
        step = track.split("/")[0].partition(" · ")[2]
        for flow in [*item.get("flow_ids", ()), *item.get("terminating_flow_ids", ())]:
            flows[flow].add(step)
        if category(item) not in {"difference", "ladder"}:
            rows[step].add(item["Step.row"])
            causes[step].update({item["Step.cause"]} if "Step.cause" in item else ())

    assert flows
    assert all(len(steps) == 1 for steps in flows.values())
    assert causes["1 simulated"]
    assert causes["1 simulated"] <= rows["1 simulated"]
    assert causes["2 measured"] <= rows["2 measured"]
    assert not rows["1 simulated"] & rows["2 measured"]


def test_the_ladder_s_rungs_lead_from_one_step_s_end_to_the_other_s(trace: Decoded) -> None:
    difference, _ = compared()
    rungs = [(track, start, end) for track, start, end, item in slices(trace) if category(item) == "ladder"]

    first, second = (int(side.value) for side in difference.step_ns)
    assert sorted((start, end) for track, start, end in rungs if track == "ladder") == [
        (0, first),
        (first, second),
    ]
    reached = first
    for rung in difference.ladder:
        own = [(start, end) for track, start, end in rungs if track == f"ladder/{rung.name}"]
        assert own == ([] if rung.reached_ns == reached else [tuple(sorted((reached, rung.reached_ns)))])
        reached = rung.reached_ns
    assert reached == second


def test_a_step_against_itself_has_no_difference(tmp_path: Path) -> None:
    step = one_step()

    trace = decoded(tmp_path, *compared(step, step))

    assert [item for _, _, _, item in slices(trace) if category(item) == "difference"] == []
    ladder = [(start, end) for _, start, end, item in slices(trace) if category(item) == "ladder"]
    assert ladder == [(0, int(step.end_ns.max()))]
    assert {packet.track_event.double_counter_value for packet in trace.events(COUNTER)} == {0.0}


def late_by(timeline: Timeline, by_ns: int, entered_ns: int) -> Timeline:
    return replace(
        timeline, start_ns=timeline.start_ns + by_ns, end_ns=timeline.end_ns + by_ns,
        enter_ns=np.full(len(timeline), entered_ns, dtype=np.int64),
    )  # fmt: skip


def test_steps_that_begin_elsewhere_are_aligned_and_no_time_is_negative(tmp_path: Path) -> None:
    step = one_step()

    trace = decoded(tmp_path, *compared(late_by(step, 7 * MS, -2 * MS), late_by(step, 3 * MS, 1 * MS)))

    starts = defaultdict(list)
    for track, start, _, _ in slices(trace):
        starts[track].append(start)
    assert min(starts["rank 0 · 1 simulated"]) == min(starts["rank 0 · 2 measured"]) == 9 * MS
    assert {packet.track_event.double_counter_value for packet in trace.events(COUNTER)} == {0.0}
    assert min(item.get("Step.enter_ns", 0) for _, _, _, item in slices(trace)) >= 0


def test_steps_of_other_sizes_stand_together_too(tmp_path: Path) -> None:
    trace = decoded(tmp_path, *compared(second=one_step([["0F0", "0B0"], ["1F0", "1B0"]])))

    names = {track.name for track in trace.tracks.values()}
    assert {"rank 2 · 1 simulated", "rank 1 · 2 measured", "rank 2 · difference"} <= names


def test_packed_it_is_the_same_and_written_again_too(tmp_path: Path) -> None:
    difference, sides = compared()
    plain, packed, again = (tmp_path / name for name in ("a.pftrace", "b.pftrace.gz", "c.pftrace"))

    Diff(difference, sides, ()).save(plain, packed)
    Diff(*compared(), ()).save(again)

    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() == again.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pftrace", "b.pftrace.gz", "c.pftrace"]


def test_it_is_not_taken_for_one_step(tmp_path: Path) -> None:
    difference, sides = compared()
    path = tmp_path / "both.pftrace"
    Diff(difference, sides, ()).save(path)

    assert not perfetto.recognises(path, path.read_bytes()[:4096])


def test_sides_are_called_by_what_tells_them_apart() -> None:
    planned, recorded = side_of_step(one_step()), side_of_step(one_step(), measured=True)

    assert labels([planned, recorded]) == ("simulated", "measured")
    assert labels([recorded, planned]) == ("measured", "simulated")
    assert labels([planned, planned]) == labels([recorded, recorded]) == ("first", "second")


def test_an_action_that_only_one_step_has_differs_from_nothing(tmp_path: Path) -> None:
    shorter = [[cell for cell in row if not cell.endswith("3")] for row in ROWS]
    sides = [side_of_step(one_step()), side_of_step(one_step(shorter))]

    trace = decoded(tmp_path, diff(*sides), sides)

    shown = [item for _, _, _, item in slices(trace) if category(item) == "difference"]
    assert all(item.get("Step.microbatch", 0) != 3 for item in shown)
