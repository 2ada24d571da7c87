"""Writing pieces of a file while the next ones are made."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

__all__ = ["write_behind"]


def write_behind(file: BinaryIO, pieces: Iterable[bytes | memoryview], *, waiting: int) -> None:
    """Write pieces in order; all but the last ``waiting`` are done with when the next one is asked for.

    Raises:
        OSError: the file cannot be written.
    """
    with ThreadPoolExecutor(max_workers=1) as writer:
        pending: deque[Future[int]] = deque()
        for piece in pieces:
            pending.append(writer.submit(file.write, piece))
            if len(pending) > waiting:
                pending.popleft().result()
        for future in pending:
            future.result()
