"""Both formats name the same peer for every message, on ranks and on links."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from decoded_trace import BEGIN, Decoded
from msgspec.structs import replace

from pptrace.api import simulate
from pptrace.steps.kinds import COMMUNICATION
from pptrace.timeline.messages import messages
from pptrace.timeline.timeline import Routes, Timeline
from pptrace.timeline.trim import select_ranks, trim
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULES: dict[str, dict[str, int]] = {
    "1f1b": {},
    "interleaved-1f1b": {"vp": 2},
    "zb-v": {},
    "chimera": {},
    "vocab-1f1b": {},
}
"""Schedules of looped, interleaved, V-shaped and bidirectional placements, and of stages that are no chain."""
PARTS = {
    "whole step": lambda timeline: timeline,
    "ranks": lambda timeline: trim(timeline, [0, 2], None),
    "microbatches": lambda timeline: trim(timeline, None, [2, 3]),
    "measured ranks": lambda timeline: select_ranks(timeline, [0, 1, 3])[0],
}
Peers = dict[tuple[str, int], int]
"""The peer by category, of slices on ranks or on links, and row; -1 where the format names none."""


def step(schedule: str, policy: str) -> Timeline:
    """Return a step in which every message passes one link."""
    parallel = {"pp": 4, **SCHEDULES[schedule]}
    config = {"schedule": schedule, "parallel": parallel, "batch": {"microbatches": 8}, "p2p": {"policy": policy}}
    timeline = simulate(config).timeline
    ptr = np.concatenate([[0], np.cumsum(COMMUNICATION.mask(timeline.kind))])
    routes = Routes(name=("a",), rate_kbps=np.array([1]), ptr=ptr, link=np.zeros(ptr[-1], dtype=np.int32))
    return replace(timeline, routes=routes)


def kineto_peers(timeline: Timeline, path: Path, options: dict[str, Any]) -> Peers:
    kineto.write(timeline, path, options)
    peers, first = {}, 100_000
    for event in json.loads(path.read_text())["traceEvents"]:
        arguments = event.get("args", {})
        if "Collective name" in arguments:
            peer = arguments.get("Dst Rank", arguments.get("Src Rank", -1))
            peers["rank", arguments["correlation"] - first] = peer
        elif event.get("cat") == "link":
            peers["link", arguments["transfer"] - first] = arguments["peer"]
    return peers


def perfetto_peers(timeline: Timeline, path: Path, options: dict[str, Any]) -> Peers:
    perfetto.write(timeline, path, options)
    decoded, peers = Decoded(path.read_bytes()), {}
    for fields in map(decoded.fields, decoded.events(BEGIN)):
        if fields.get("category") == ["communication"]:
            peers["rank", fields["Step.row"]] = fields.get("Step.peer", -1)
        elif fields.get("category") == ["link"]:
            peers["link", fields["Step.transfer"]] = fields.get("Step.peer", -1)
    return peers


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("policy", ["ordered", "blocking"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_formats_name_the_same_peers(schedule: str, policy: str, part: str, tmp_path: Path) -> None:
    timeline = PARTS[part](step(schedule, policy))
    for options in ({}, {"rank": 1}) if 1 in timeline.lane_rank else ({},):
        peers = kineto_peers(timeline, tmp_path / "a.json", options)

        assert peers
        assert peers == perfetto_peers(timeline, tmp_path / "a.pftrace", options)
        assert all(peers["link", row] == peer for (_, row), peer in peers.items())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_peers_are_the_ranks_of_the_other_ends(schedule: str, tmp_path: Path) -> None:
    timeline = step(schedule, "blocking")
    ends, rank = messages(timeline), timeline.rank_of_row()

    peers = perfetto_peers(timeline, tmp_path / "a.pftrace", {})

    assert (timeline.lane_peer < 0).all()
    assert all(peers["rank", row] == rank[other] for row, other in zip(ends.send, ends.recv, strict=True))
    assert all(peers["rank", row] == rank[other] for row, other in zip(ends.recv, ends.send, strict=True))
