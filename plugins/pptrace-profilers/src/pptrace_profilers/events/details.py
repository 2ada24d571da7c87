"""All arguments of the few events that need them, from the text of their block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pptrace_profilers.events.records import Detailed, on_its_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_profilers.events.records import Event

__all__ = ["detailed"]

_ONE = msgspec.json.Decoder(Detailed)
_ALL = msgspec.json.Decoder(list[Detailed])


def detailed(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return some events of a block with all their arguments, in the same order.

    Args:
        block: text of whole events.
        events: those of them that are wanted, in the order of the text.
    """
    found: list[Detailed] = []
    at = 0
    for event in events:
        one, at = _next(block, event, at)
        if one is None:
            return _among_all(block, events)
        found.append(one)
    return found


def _next(block: bytes, event: Event, at: int) -> tuple[Detailed | None, int]:
    """Return an event that is written with ``ph`` first and plain values before its name, and where to go on."""
    name = msgspec.json.encode(event.name)
    while (at := block.find(name, at)) >= 0:
        start, stop = block.rfind(b"{", 0, at), block.find(b'"ph"', at)
        at += len(name)
        text = block[start : stop if stop >= 0 else len(block)]
        if stop >= 0:
            text = text.rstrip().removesuffix(b"{").rstrip().removesuffix(b",")
        try:
            one = _ONE.decode(text)
        except msgspec.DecodeError:
            continue
        if (one.name, one.ts, one.tid, one.pid) == (event.name, event.ts, event.tid, event.pid):
            return on_its_own(one), at
    return None, at


def _among_all(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return the same, of a block that is written otherwise."""
    rest = iter(_ALL.decode(b"[" + block + b"]"))
    return [
        next(on_its_own(one) for one in rest if (one.name, one.ts, one.tid) == (event.name, event.ts, event.tid))
        for event in events
    ]
