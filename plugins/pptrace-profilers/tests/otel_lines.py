"""Spans of a small pipeline as OpenTelemetry's exporters write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

__all__ = ["MS", "WAYS", "spans", "written"]

MS = 1_000_000
EPOCH = 1_790_000_000 * 1_000 * MS
WAYS = ("lens", "pretty", "own", "otlp")
"""NeMo Lens, the SDK, an exporter of one's own, a collector."""
SIZES = {"dl.world_size": 2, "dl.pipeline_parallel.size": 2, "dl.tensor_parallel.size": 1}


Fields = dict[str, Any]


def written(way: str, name: str, span: tuple[int, int], attributes: Fields, resource: Fields) -> str:
    """Return a span with its start and end as an exporter writes it."""
    known: Fields = {"name": name, "trace_id": "0x" + "ab" * 16, "span_id": "0x" + "cd" * 8}
    if way == "own":
        times: Fields = dict(zip(("start_time_unix_nano", "end_time_unix_nano"), span, strict=True))
        return json.dumps({**known, **times, "attributes": attributes, "resource": {"attributes": resource}})
    if way == "otlp":
        process, own = (
            [{"key": key, "value": {"intValue": str(value)}} for key, value in item.items()]
            for item in (resource, attributes)
        )
        times = dict(zip(("startTimeUnixNano", "endTimeUnixNano"), map(str, span), strict=True))
        scopes = [{"scope": {"name": "nemo.lens"}, "spans": [
            {"traceId": "ab" * 16, "name": name, **times, "attributes": own}]}]  # fmt: skip
        return json.dumps({"resourceSpans": [{"resource": {"attributes": process}, "scopeSpans": scopes}]})
    stamps = [datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for at in span]
    record = {
        "name": name, "context": {key: known[key] for key in ("trace_id", "span_id")}, "kind": "SpanKind.INTERNAL",
        "parent_id": None, "start_time": stamps[0], "end_time": stamps[1], "attributes": attributes, "events": [],
        "links": [], "resource": {"attributes": resource},
    }  # fmt: skip
    return json.dumps(record, indent=4 if way == "pretty" else None)


def spans(pipeline: Any, rank: int, way: str, *, numbered: bool = False, every: bool = True) -> list[str]:
    """Return a rank's spans of two steps; messages' spans are missing in the steady state unless ``every`` is."""
    resource = {**SIZES, "dl.rank": rank}
    lines = []
    for step in range(2):
        begin = EPOCH + step * 200 * MS
        acts = [
            (item.text, f"microbatch.{direction(item.text)}", item.start, item.end) for item in pipeline.of(rank)
        ]
        ends = [
            (text, f"p2p.{'send' if 'SEND' in text else 'recv'}_{direction(text)}", sent.start, sent.end)
            for text, _, sent in pipeline.ends(rank)
            if every or text.endswith("F0")
        ]
        others = [("", "train.iteration", -MS, 99 * MS), ("", "optimizer.step", 93 * MS, 98 * MS)]
        for text, name, start, end in (*sorted([*acts, *ends], key=lambda one: one[2]), *others):
            given = {"megatron.microbatch_id": int(text[-1])} if numbered and "microbatch" in name else {}
            given |= {"megatron.iteration": 40 + step} if "iteration" in name else {}
            lines.append(written(way, f"megatron.{name}", (begin + start, begin + end), given, resource))
    return lines


def direction(text: str) -> str:
    return "forward" if text[-2] == "F" else "backward"
