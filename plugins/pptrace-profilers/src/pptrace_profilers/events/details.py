"""All arguments of the few events that need them, from the text of their block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pptrace_profilers.events.records import Detailed, detached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_profilers.events.records import Event, Number

__all__ = ["detailed_events"]

_ONE = msgspec.json.Decoder(Detailed)
_ALL = msgspec.json.Decoder(list[Detailed])


def detailed_events(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return some events of a block with all their arguments, in the same order.

    Args:
        block: text of whole events.
        events: those of them that are wanted, in the order of the text.
    """
    detailed: list[Detailed] = []
    at = 0
    for event in events:
        with_arguments, at = _next(block, event, at)
        if with_arguments is None:
            return _among_all(block, events)
        detailed.append(with_arguments)
    return detailed


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
            detailed = _ONE.decode(text)
        except msgspec.DecodeError:
            continue
        if (detailed.pid, *_identity(detailed)) == (event.pid, *_identity(event)):
            return detached(detailed), at
    return None, at


def _among_all(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return the same, of a block that is written otherwise."""
    rest = iter(_ALL.decode(b"[" + block + b"]"))
    return [next(detached(one) for one in rest if _identity(one) == _identity(event)) for event in events]


def _identity(event: Event) -> tuple[str, Number, Number]:
    return event.name, event.ts, event.tid
