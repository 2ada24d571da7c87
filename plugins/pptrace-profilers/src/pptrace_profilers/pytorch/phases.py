"""Phases of DualPipe's overlapped forward and backward: attention, experts, and the two ways between them.

DeepSeek's published profile (github.com/deepseek-ai/profile-data) marks a forward and a backward that run
together as ``1F1B``, and in it, layer by layer::

    combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F)

Here a half of a layer is a stage: its attention 2l, its experts 2l + 1. What goes forward is a later microbatch
than what goes back, from the last layer to the first. ``dispatch`` and ``combine`` carry an activation or a
gradient to the next half, within the rank's own group. ``combine(B)`` is named by the half that takes what it
brings, for the last layer's gradient comes from a stage that the profile does not hold.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import COMMUNICATION, Action, Kind, Pass
from pptrace_profilers.recording.intervals import uncovered_ns
from pptrace_profilers.recording.recording import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_profilers.events.table import Events

__all__ = ["hidden_phases", "phase_executions"]

_PAIR = "1F1B"
_PHASES = {
    "attn(F)": (Kind.F, 0), "attn(B)": (Kind.I, 0), "attn(W)": (Kind.W, 0),
    "mlp(F)": (Kind.F, 1), "mlp(B)": (Kind.I, 1), "mlp(W)": (Kind.W, 1),
    "dispatch(F)": (Kind.SEND_F, 0), "combine(F)": (Kind.SEND_F, 1),
    "dispatch(B)": (Kind.SEND_B, 1), "combine(B)": (Kind.RECV_B, 1),
}  # fmt: skip
"""By name, the kind, and the half that works, is carried from, or receives, counted from its layer's attention."""


def phase_executions(events: Events) -> dict[int, Execution]:
    """Return the phases by event; empty where a file has none."""
    annotated = events.of({"user_annotation"})
    rows = events.by_start(events.named(_PHASES.__contains__) & annotated)
    pairs = np.sort(events.start_ns[annotated & events.named(_PAIR.__eq__)])
    begun = np.searchsorted(pairs, events.start_ns[rows], side="right")
    layers: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, number in zip(rows.tolist(), begun.tolist(), strict=True):
        layers[number, events.name_of(row)].append(row)
    return {
        row: Execution(
            action=_action(name, layer, len(repeated), max(number - 1, 0)), pair=max(number - 1, 0),
            start_ns=int(events.start_ns[row]), end_ns=int(events.end_ns[row]),
        )
        for (number, name), repeated in layers.items()
        for layer, row in enumerate(repeated)
    }  # fmt: skip


def hidden_phases(executions: Sequence[Execution]) -> str:
    """Return how much of each way between halves was hidden by computation; empty where there is no GPU's pair."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    computing: list[tuple[int, int]] = []
    for one in executions:
        if one.pair < 0 or one.gpu is None:
            continue
        kind, half = one.action.kind, one.action.stage % 2
        span = (one.gpu.start_ns, one.gpu.end_ns)
        carried = next((name for name, phase in _PHASES.items() if phase == (kind, half)), "")
        (computing if kind not in COMMUNICATION else spans[carried]).append(span)
    told = []
    for name, ways in sorted(spans.items()):
        whole = sum(end - start for start, end in ways)
        alone = sum(uncovered_ns(way, computing) for way in ways)
        told.append(
            f"{name} {(whole - alone) / 1e6:.3f} of {whole / 1e6:.3f} ms ({1 - alone / max(whole, 1):.1%})"
        )
    return f"hidden by computation of the same pair: {', '.join(told)}" if told else ""


def _action(name: str, index: int, layers: int, pair: int) -> Action:
    """Return the action of a phase that comes for the ``index``-th time in its pair."""
    kind, half = _PHASES[name]
    forward = kind.traits.direction is Pass.FORWARD
    layer = index if forward else layers - 1 - index
    return Action(kind=kind, stage=2 * layer + half, microbatch=2 * pair + forward)
