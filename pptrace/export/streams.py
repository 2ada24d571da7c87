"""What traces call the streams of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.model.kinds import Stream

__all__ = ["stream_title"]

_SPELT_OUT = {"COMM": "communication", "RECV": "receive"}


def stream_title(stream: Stream) -> str:
    """Return a stream's name in words.

    >>> from pptrace.model.kinds import Stream
    >>> stream_title(Stream.COMM), stream_title(Stream.DATA_PARALLEL)
    ('communication', 'data parallel')
    """
    return _SPELT_OUT.get(stream.name) or stream.name.lower().replace("_", " ")
