"""Whatever is in a file, an importer gives a measurement or one line: bytes of small traces, changed at random.

``PPTRACE_FUZZ_SECONDS`` is how long each format is tried; a failure is shrunk and names its round's seed.
"""

from __future__ import annotations

import gzip
import os
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from otel_lines import spans
from straggler_parquet import operations, write_job

from pptrace.errors import ConfigError, TraceError
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers import importers
from pptrace_profilers.importers import measure_kineto
from pptrace_profilers.plugin import pptrace_importers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Measure = Callable[[list[Path], ImportRequest], Measurement]

SECONDS = float(os.environ.get("PPTRACE_FUZZ_SECONDS", "0.5"))
_ROUND = 40
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
        found = list(_NUMBER.finditer(content))
        start, end = found[int(where * len(found))].span() if found else (0, 0)
    elif what == "flip":
        by, end = bytes(byte ^ (1 << int(much * 7)) for byte in content[at : at + 1]), at + 1
    elif what == "repeat":
        by, end = content[at : at + 1 + length], at
    elif what in {"delete", "cut"}:
        by, end = b"", len(content) if what == "cut" else at + 1 + length
    elif what == "insert":
        end = at
    return content[:start] + by + content[end:]


SORTS: dict[str, tuple[str, Measure]] = {
    "kineto": ("kineto", measure_kineto),
    "kineto, packed": ("kineto", measure_kineto),
    "chrome": ("chrome", importers.measure_chrome),
    "nccl": ("nccl", importers.measure_nccl),
    "inspector": ("inspector", importers.measure_inspector),
    "nsys": ("nsys", importers.measure_nsys),
    "pftrace": ("pftrace", importers.measure_pftrace),
    "otel": ("otel", importers.measure_otel),
    "stragglers": ("stragglers", importers.measure_stragglers),
}


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


def written(sort: str, pipeline: Any, folder: Path) -> tuple[list[Path], ImportRequest]:
    if sort == "nsys":
        return [pipeline.nsys(folder / "run.sqlite")], ImportRequest()
    if sort == "chrome":
        return [pipeline.chrome(folder)], ImportRequest(rules=pipeline.rules(folder))
    if sort == "otel":
        paths = [folder / f"rank{rank}.jsonl" for rank in (0, 1)]
        for rank, path in enumerate(paths):
            path.write_text("\n".join(spans(pipeline, rank, "lens")), encoding="utf-8")
        return paths, ImportRequest()
    if sort == "stragglers":
        return [write_job(folder / "job.parquet", operations(lambda *_: 0.01))], ImportRequest()
    return getattr(pipeline, sort)(folder), ImportRequest()


@pytest.mark.parametrize("name", SORTS)
def test_changed_files_give_a_measurement_or_one_line(name: str, pipeline: Any, tmp_path: Path) -> None:
    sort, measure = SORTS[name]
    paths, request = written(sort, pipeline, tmp_path)
    target = paths[-1]
    whole = target.read_bytes()
    if name == "kineto":
        whole = gzip.decompress(whole)

    def try_one(steps: list[tuple[str, float, float, bytes]]) -> None:
        content = whole
        for step in steps:
            content = changed(content, *step)
        target.write_bytes(content)
        for chosen in (paths, [target]):
            found = outcome(measure, chosen, request)
            assert found.strip() if isinstance(found, str) else found.steps or found.summaries

    _for_a_while(try_one)


@pytest.mark.parametrize("head", [b"\n", b"[", b"{", b"\x1f\x8b", b"SQLite format 3\x00", b'{"header":{', b""])
def test_any_bytes_are_for_an_importer_that_says_what_is_wrong_or_for_none(head: bytes, tmp_path: Path) -> None:
    offers = list(pptrace_importers())
    path = tmp_path / "file"

    def try_one(steps: list[tuple[str, float, float, bytes]]) -> None:
        content = head
        for _, _, _, by in steps:
            content += by
        path.write_bytes(content)
        for offer in offers:
            assert offer.measure is not None
            offer.recognises(path, content)
            outcome(offer.measure, [path], ImportRequest())

    _for_a_while(try_one, share=0.2)


def _for_a_while(try_one: Callable[[list[tuple[str, float, float, bytes]]], None], share: float = 1.0) -> None:
    until, number = time.monotonic() + SECONDS * share, 0
    while not number or time.monotonic() < until:
        test = settings(
            max_examples=_ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )(seed(number)(given(changes())(try_one)))
        test()
        number += 1
