"""Phases of DualPipe's overlapped forward and backward: attention, experts, and the two ways between them.

DeepSeek's published profile (github.com/deepseek-ai/profile-data) marks a forward and a backward that run
together as ``1F1B``, and in it, layer by layer::

    combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F)

Here a half of a layer is a stage: its attention 2l, its experts 2l + 1. What goes forward is a later microbatch
than what goes back, from the last layer to the first. ``dispatch`` and ``combine`` carry an activation or a
gradient to the next half, within the rank's own group.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Action, Kind, Pass
from pptrace_profilers.recording.recording import Execution

if TYPE_CHECKING:
    from pptrace_profilers.events.table import Events

__all__ = ["phase_executions"]

_PAIR = "1F1B"
_PHASES = {
    "attn(F)": (Kind.F, 0), "attn(B)": (Kind.I, 0), "attn(W)": (Kind.W, 0),
    "mlp(F)": (Kind.F, 1), "mlp(B)": (Kind.I, 1), "mlp(W)": (Kind.W, 1),
    "dispatch(F)": (Kind.SEND_F, 0), "combine(F)": (Kind.SEND_F, 1),
    "dispatch(B)": (Kind.SEND_B, 1), "combine(B)": (Kind.SEND_B, 2),
}  # fmt: skip
"""By name, the kind, and the half that works or is carried from, counted from its layer's attention."""


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


def _action(name: str, index: int, layers: int, pair: int) -> Action:
    """Return the action of a phase that comes for the ``index``-th time in its pair."""
    kind, half = _PHASES[name]
    forward = kind.traits.direction is Pass.FORWARD
    layer = index if forward else layers - 1 - index
    return Action(kind=kind, stage=2 * layer + half, microbatch=2 * pair + forward)
