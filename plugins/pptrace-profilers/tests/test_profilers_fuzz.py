"""Whatever is in a file, an importer gives a measurement or one line: bytes of small traces, changed at random.

``PPTRACE_FUZZ_SECONDS`` is how long each format is tried; a failure is shrunk and names its round's seed.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from changed_bytes import changed, outcome, try_changes
from otel_lines import spans

from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers import plugin as importers
from pptrace_profilers.plugin import measure_kineto, pptrace_importers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Measure = Callable[[list[Path], ImportRequest], Measurement]

SORTS: dict[str, tuple[str, Measure]] = {
    "kineto": ("kineto", measure_kineto),
    "kineto, packed": ("kineto", measure_kineto),
    "chrome": ("chrome", importers.measure_chrome),
    "nccl": ("nccl", importers.measure_nccl),
    "inspector": ("inspector", importers.measure_inspector),
    "nsys": ("nsys", importers.measure_nsys),
    "pftrace": ("pftrace", importers.measure_pftrace),
    "pftrace, PyTorch 2.15": ("native_pftrace", importers.measure_pftrace),
    "otel": ("otel", importers.measure_otel),
    "rocprofv3": ("rocprofv3", importers.measure_rocprofv3),
    "xplane": ("xplane", importers.measure_xplane),
}


def written(sort: str, pipeline: Any, folder: Path) -> tuple[list[Path], ImportRequest]:
    if sort == "nsys":
        return [pipeline.nsys(folder / "run.sqlite")], ImportRequest()
    if sort == "xplane":
        return [pipeline.xplane(folder)], ImportRequest()
    if sort == "chrome":
        return [pipeline.chrome(folder)], ImportRequest(rules=pipeline.rules(folder))
    if sort == "otel":
        paths = [folder / f"rank{rank}.jsonl" for rank in (0, 1)]
        for rank, path in enumerate(paths):
            path.write_text("\n".join(spans(pipeline, rank, "lens")), encoding="utf-8")
        return paths, ImportRequest()
    return getattr(pipeline, sort)(folder), ImportRequest()


@pytest.mark.parametrize("name", SORTS)
def test_changed_files_give_a_measurement_or_one_line(name: str, pipeline: Any, tmp_path: Path) -> None:
    sort, measure = SORTS[name]
    paths, request = written(sort, pipeline, tmp_path)
    target = paths[-1]
    whole = target.read_bytes()
    if name in {"kineto", "pftrace, PyTorch 2.15"}:
        whole = gzip.decompress(whole)

    def try_one(steps: list[tuple[str, float, float, bytes]]) -> None:
        content = whole
        for step in steps:
            content = changed(content, *step)
        target.write_bytes(content)
        for chosen in (paths, [target]):
            found = outcome(measure, chosen, request)
            assert found.strip() if isinstance(found, str) else found.steps or found.summaries

    try_changes(try_one)


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

    try_changes(try_one, share=0.2)
