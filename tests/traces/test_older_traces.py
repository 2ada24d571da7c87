"""Traces of format 1 are read as those of today; they wrote ``unit``, ``unit_route`` and ``braid``."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Routes, Slice, Timeline
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from types import ModuleType

FIXTURES = Path(__file__).parent / "fixtures"
BOTH = pytest.mark.parametrize(
    ("exporter", "name"), [(perfetto, "format-1.pftrace.gz"), (kineto, "format-1.json.gz")]
)


def step() -> Timeline:
    """What the files hold: two pipelines of two stages, an overlapped pair, and messages that show their way."""
    slices = [
        _slice(0, Kind.F, 0, 0, (0, 10)),
        _slice(0, Kind.SEND_F, 0, 0, (10, 15), stream=Stream.SEND, peer=1, size_bytes=64),
        _slice(1, Kind.F, 1, 0, (15, 25)),
        _slice(1, Kind.F, 0, 1, (25, 40), pair=3),
        _slice(1, Kind.B, 1, 0, (40, 60), pair=3),
        _slice(1, Kind.SEND_B, 1, 0, (60, 64), stream=Stream.SEND, peer=0, size_bytes=32),
        _slice(0, Kind.B, 0, 0, (64, 84)),
        _slice(0, Kind.F, 1, 1, (84, 99), span=2),
        _slice(0, Kind.REDUCE_GRAD, 0, -1, (99, 120), stream=Stream.DATA_PARALLEL),
    ]
    counter = Counter(rank=1, name="memory", unit="bytes", at_ns=np.array([0, 25]), value=np.array([5, 7]))
    timeline = Timeline.from_slices(slices, Placement.of_stages([[0, 1], [1, 0]], 4))
    carried = timeline.size_bytes > 0
    routes = Routes(
        name=("gpu0>gpu1", "gpu1>gpu0"),
        rate_kbps=np.array([50_000_000, 50_000_000]),
        ptr=np.concatenate([[0], np.cumsum(carried)]),
        link=np.array([0, 1], dtype=np.int32),
    )
    return replace(timeline, counters=(counter,), routes=routes, provenance={"version": "0"})


def _slice(
    rank: int, kind: Kind, stage: int, first: int, when: tuple[int, int],
    *, stream: Stream = Stream.COMPUTE, span: int = 1, peer: int = -1, size_bytes: int = 0, pair: int = -1,
) -> Slice:  # fmt: skip
    return Slice(
        rank=rank, stream=stream, action=Action(kind=kind, stage=stage, microbatch=first, span=span),
        start_ns=when[0], end_ns=when[1], peer=peer, size_bytes=size_bytes, pair=pair,
    )  # fmt: skip


@BOTH
def test_a_trace_of_format_1_is_read_as_the_step_that_it_was(exporter: ModuleType, name: str) -> None:
    assert exporter.read([FIXTURES / name]).difference(step()) == ""


@BOTH
def test_written_anew_it_has_the_names_of_today(exporter: ModuleType, name: str, tmp_path: Path) -> None:
    old = gzip.decompress((FIXTURES / name).read_bytes())
    path = tmp_path / "now"

    exporter.write(exporter.read([FIXTURES / name]), path, {"color": "microbatch"})

    assert exporter.read([path]).difference(step()) == ""
    now = path.read_bytes()
    for former, present in ((b"unit_route", b"microbatch_route"), (b"braid", b"pair")):
        assert former in old
        assert former not in now
        assert present in now
