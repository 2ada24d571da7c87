"""A trace of DualPipeV has each segment of a pair on its stream."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pptrace

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS = {"stream": "expert-parallel", "time": "2 ms"}
SEGMENTS: dict[str, list[dict[str, Any]]] = {
    "F": [
        {"name": "attention", "time": "3 ms"}, {"name": "dispatch", **EXPERTS},
        {"name": "experts", "time": "3 ms"}, {"name": "combine", **EXPERTS},
    ],
    "B": [
        {"name": "combine", **EXPERTS}, {"name": "experts-input", "time": "3 ms"},
        {"name": "experts-weight", "time": "3 ms", "needs": [1]}, {"name": "dispatch", "needs": [1], **EXPERTS},
        {"name": "attention-input", "time": "3 ms", "needs": [3], "result": True},
        {"name": "attention-weight", "time": "3 ms", "needs": [4]},
    ],
}  # fmt: skip
STEP = {
    "schedule": "dualpipe-v", "parallel": {"pp": 2, "vp": 2}, "batch": {"microbatches": 6},
    "costs": {"name": "table", "segments": SEGMENTS, "input_gradient": "10 ms", "weight_gradient": "6 ms"},
}  # fmt: skip


def test_a_pair_s_segments_are_on_their_streams(tmp_path: Path) -> None:
    run = pptrace.simulate(STEP)
    run.save(tmp_path / "step.json")

    events = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    streams = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    of_pair = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event.get("args", {}).get("pair", -1) >= 0:
            of_pair[event["pid"], event["args"]["pair"]].append(event)
    assert of_pair
    for pair in of_pair.values():
        pair.sort(key=lambda event: event["ts"])
        computed = [e["name"].split()[-1] for e in pair if "compute" in streams[e["pid"], e["tid"]]]
        assert computed == [
            "attention", "experts-input", "experts-weight", "experts", "attention-input", "attention-weight",
        ]  # fmt: skip
        assert sum("expert parallel" in streams[e["pid"], e["tid"]] for e in pair) == 4
