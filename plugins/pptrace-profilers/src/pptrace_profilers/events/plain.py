"""A Chrome JSON file's events as plain values, with all their arguments, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import check_events
from pptrace_profilers.events.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["PlainEvents"]

_DECODER = msgspec.json.Decoder(list[dict[str, Any]])


class PlainEvents:
    """Events in the order of the file; ``cut`` and ``bad`` are whole once all were taken.

    An array without an end, an empty object at its end and commas too many are all taken as they are.
    """

    def __init__(self, path: Path, mend: Callable[[bytes], bytes] | None = None) -> None:
        """Take a file, and what turns a writer's broken JSON into whole."""
        self._blocks, self._mend = Blocks(path), mend
        self.bad = 0
        """Values among the events that are no objects."""

    @property
    def cut(self) -> bool:
        """Whether the file ends in the middle of an event."""
        return self._blocks.cut

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unfolds without end.
        """
        count = 0
        for block in self._blocks:
            text = self._mend(block) if self._mend is not None else block
            try:
                events = _DECODER.decode(b"[" + text + b"]")
                count += len(events)
                check_events(count, self._blocks.path)
                self._blocks.expect(count - self.bad, self.bad)
                yield from events
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                for event in self._blocks.values(text):
                    count += 1
                    if isinstance(event, dict):
                        yield event
                    else:
                        self.bad += 1
                check_events(count, self._blocks.path)
                self._blocks.expect(count - self.bad, self.bad)
