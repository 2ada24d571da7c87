"""Phases of DualPipe's overlapped forward and backward: attention, experts, and the two ways between them.

DeepSeek's published profile (github.com/deepseek-ai/profile-data) marks a forward and a backward that run
together as ``1F1B``, and in it, layer by layer::

    combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F)

Here a half of a layer is a stage: its attention 2l, its experts 2l + 1. What goes forward is a later microbatch
than what goes back, from the last layer to the first. ``dispatch`` and ``combine`` carry an activation or a
gradient to the next half, within the rank's own group.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import Action, Kind
from pptrace_profilers.recording.recording import Ran

if TYPE_CHECKING:
    from pptrace_profilers.events.table import Events

__all__ = ["phases_of"]

_PHASE = re.compile(r"(attn|mlp|dispatch|combine)\(([FBW])\)")
_PAIR = "1F1B"
_KINDS = {
    ("attn", "F"): Kind.F, ("attn", "B"): Kind.I, ("attn", "W"): Kind.W,
    ("mlp", "F"): Kind.F, ("mlp", "B"): Kind.I, ("mlp", "W"): Kind.W,
    ("dispatch", "F"): Kind.SEND_F, ("combine", "F"): Kind.SEND_F,
    ("dispatch", "B"): Kind.SEND_B, ("combine", "B"): Kind.SEND_B,
}  # fmt: skip
_FROM = {("dispatch", "F"): 0, ("combine", "F"): 1, ("combine", "B"): 2, ("dispatch", "B"): 1, "attn": 0, "mlp": 1}
"""The half that works, or that a phase carries from, counted from its layer's attention."""


def phases_of(events: Events) -> dict[int, Ran]:
    """Return the phases by event; empty where a file has none."""
    found = {number: match for number, name in enumerate(events.names) if (match := _PHASE.fullmatch(name))}
    if not found:
        return {}
    annotated = events.of({"user_annotation"})
    rows = np.flatnonzero(np.isin(events.name, list(found)) & annotated)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    pairs = np.flatnonzero(annotated & (events.name == _number(events, _PAIR)))
    pair = np.searchsorted(np.sort(events.start_ns[pairs]), events.start_ns[rows], side="right").tolist()
    seen: dict[tuple[int, str], list[int]] = {}
    for row, number in zip(rows.tolist(), pair, strict=True):
        seen.setdefault((number, events.named(row)), []).append(row)
    phases = {}
    for (number, name), ones in seen.items():
        match = found[_number(events, name)]
        for index, row in enumerate(ones):
            action = _action(match[1], match[2], index, len(ones), max(number - 1, 0))
            phases[row] = Ran(
                action=action, start_ns=int(events.start_ns[row]), end_ns=int(events.end_ns[row]),
                braid=max(number - 1, 0),
            )  # fmt: skip
    return phases


def _number(events: Events, name: str) -> int:
    return events.names.index(name) if name in events.names else -1


def _action(what: str, way: str, index: int, layers: int, pair: int) -> Action:
    """Return the action of a phase that comes for the ``index``-th time in its pair."""
    layer = index if way == "F" else layers - 1 - index
    half = _FROM.get((what, way), _FROM.get(what, 0))
    return Action(kind=_KINDS[what, way], stage=2 * layer + half, unit=2 * pair + (way == "F"))
