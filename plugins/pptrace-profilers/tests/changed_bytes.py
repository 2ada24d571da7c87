"""Random changes of a file's bytes, and what an importer makes of them."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pptrace.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement

__all__ = ["changed", "changes", "outcome", "try_changes"]

SECONDS = float(os.environ.get("PPTRACE_FUZZ_SECONDS", "0"))
_ROUND = 20
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TOKENS = (
    b"NaN", b"-1", b"1e400", b"-1e308", b"9223372036854775807", b"18446744073709551616", b"1e15", b"null", b"true",
    b'"x"', b"[]", b"{}", b"[[[[[[[[", b"{", b"}", b"]", b'"', b",", b"\x00", b"\xff\xfe", b"0",
    b'"\\ud800"', b"\n",
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, float, float, bytes]]:
    """Draw changes: what, where, how much, and by what."""
    what = st.sampled_from(["replace", "insert", "delete", "repeat", "cut", "number", "number", "flip"])
    by = st.sampled_from(_TOKENS) | st.binary(max_size=4)
    one = st.tuples(what, st.floats(0, 1, exclude_max=True), st.floats(0, 1), by)
    return draw(st.lists(one, min_size=1, max_size=4))


def changed(content: bytes, what: str, where: float, much: float, by: bytes) -> bytes:
    at = int(where * len(content))
    length = int(much**8 * (len(content) - at))  # mostly a few bytes
    start, end = at, at + max(len(by), length)
    if what == "number":
        result = list(_NUMBER.finditer(content))
        start, end = result[int(where * len(result))].span() if result else (0, 0)
    elif what == "flip":
        by, end = bytes(byte ^ (1 << int(much * 7)) for byte in content[at : at + 1]), at + 1
    elif what == "repeat":
        by, end = content[at : at + 1 + length], at
    elif what in {"delete", "cut"}:
        by, end = b"", len(content) if what == "cut" else at + 1 + length
    elif what == "insert":
        end = at
    return content[:start] + by + content[end:]


def outcome(measure: Any, paths: list[Path], request: ImportRequest) -> Measurement | str:
    """Return the measurement, or the one line that says why there is none."""
    try:
        found: Measurement = measure(paths, request)
    except (TraceError, ConfigError) as error:
        lines = str(error).splitlines()
        if len(lines) != 1 or not error.file or error.file not in lines[0]:
            raise
        return lines[0]
    return found


def try_changes(try_one: Callable[[list[tuple[str, float, float, bytes]]], None], share: float = 1.0) -> None:
    """Try 20 changes, and more for ``PPTRACE_FUZZ_SECONDS``."""
    until, number = time.monotonic() + SECONDS * share, 0
    while not number or time.monotonic() < until:
        test = settings(
            max_examples=_ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )(seed(number)(given(changes())(try_one)))
        test()
        number += 1
