"""A diff as plain JSON values, times in nanoseconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["diff_document"]


def diff_document(found: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> dict[str, Any]:
    """Return everything that a diff found."""
    pairs = found.matched
    return {
        "sides": list(found.names),
        "same": found.same,
        "tolerance": found.tolerance,
        "step_ns": list(found.step_ns),
        "step_varies_ns": list(found.step_varies_ns),
        "change": found.change,
        "matched": {
            "actions": len(pairs), "by_order": pairs.by_order,
            "only_first": int(pairs.only_first.size), "only_second": int(pairs.only_second.size),
            "folded_stages": list(found.folded),
        },
        "ladder": [asdict(rung) for rung in found.rungs],
        "no_ladder": found.no_ladder or None,
        "parts_ns": {name: list(pair) for name, pair in found.parts.items()},
        "parts_vary_ns": {name: list(pair) for name, pair in found.parts_vary_ns.items()},
        "kinds": [{**asdict(row), "ratio": row.ratio} for row in found.kinds],
        "actions": [
            {
                "rank": one.rank, "action": str(one.action), "first_ns": one.first_ns, "second_ns": one.second_ns,
                "change_ns": one.change_ns, "at_ns": one.at_ns, "noise_ns": one.noise_ns,
            }
            for one in found.changes[:top]
        ],
        "actions_changed": len(found.changes),
        "actions_within_noise": found.noise,
        "divergence": None if found.divergence is None else {
            **asdict(found.divergence),
            "action": str(found.divergence.action), "chain": list(found.divergence.chain),
        },
        "culprits": [asdict(one) for one in found.culprits],
        "orders": [asdict(one) for one in found.orders],
        "messages": [{**asdict(way), "bytes_per_s": [way.rate(0), way.rate(1)]} for way in found.ways],
        "critical_path_ns": [dict(chain.by_kind_ns) for chain in found.chains],
        "critical_path_varies_ns": [dict(varies) for varies in found.paths_vary_ns],
        "paths_part": None if found.parted is None else asdict(found.parted),
        "memory": [asdict(one) for one in found.memory],
        "spans_ns": [list(spans) for spans in found.spans_ns],
        "medians_over_steps": list(found.pools),
        "notes": list(notes),
    }  # fmt: skip
