"""Three made-up kinds on the whole road, run by itself: ``python made_up_kinds.py FOLDER``.

The table of kinds is compiled from a source with three more members and rows; no other module is touched. Prints
what was found, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline

MODULE = "pptrace.steps.kinds"
MEMBERS = """
    PREFETCH = 23
    CHECK = 24
    CLIP = 25
"""
ROWS = """
    Kind.PREFETCH: Traits(
        role=Role.COPY, stream=Stream.COPY_IN, activation=1, trace_color="good", meaning="prefetch",
    ),
    Kind.CHECK: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, slots=3, color=("#654321", "#654321"),
        trace_color="terrible", meaning="check",
    ),
    Kind.CLIP: Traits(role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, trace_color="bad"),
"""
MADE_UP = ("PREFETCH", "CHECK", "CLIP")
TABLE = "0F0,0PREFETCH0,0F1,0CHECK0,0B0,0B1,0CLIP\n1F0,1F1,1B0,1PREFETCH1,1B1,1CLIP\n"
PAIRED = TABLE.replace("1F1,1B0", "(1F1;1B0)OVERLAP_F_B")


class Enlarged(SourceFileLoader):
    """Loads the table of kinds with more of them."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = Path(path).read_text(encoding="utf-8")
        for mark, more in (("\n    @property\n    def traits", MEMBERS), ('}  # fmt: skip\n"""One row per', ROWS)):
            before, found, after = text.partition(mark)
            assert found, f"the table of kinds has no {mark!r}"
            text = before + more + found + after
        return compile(text, path, "exec")


class Finder:
    """Finds the table of kinds."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _target: Any = None) -> ModuleSpec | None:
        """Return how to load it; nothing of any other module."""
        usual = PathFinder.find_spec(name, path) if name == MODULE else None
        if usual is None or usual.origin is None:
            return None
        return importlib.util.spec_from_file_location(name, usual.origin, loader=Enlarged(name, usual.origin))


def costs() -> Workload:
    """Return costs of two stages in which the made-up kinds take 7, 5 and 4 ns."""
    from pptrace.steps.kinds import Kind, Stream
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload

    def one(name: str, took: int) -> list[tuple[Segment, ...]]:
        return [(Segment(name=name, duration_ns=took),)] * 2

    reduce = Segment(name="all-reduce", duration_ns=4, stream=Stream.TENSOR_PARALLEL)
    forward = [(Segment(name="attention", duration_ns=6), reduce)] * 2
    made_up = {Kind.PREFETCH: one("copy", 7), Kind.CHECK: one("check", 5), Kind.CLIP: one("clip", 4)}
    whole = Workload.uniform(2, boundary_bytes=1, activation_bytes=100)
    return whole.segmented({Kind.F: forward, Kind.B: one("backward", 20), **made_up})


def through_traces(timeline: Timeline, folder: Path) -> list[str]:
    """Return what is lost in both formats."""
    from pptrace.traces import kineto, perfetto

    perfetto.write(timeline, folder / "step.pftrace", {})
    kineto.write(timeline, folder / "step.json", {})
    again = perfetto.read([folder / "step.pftrace"]), kineto.read([folder / "step.json"])
    return [timeline.difference(item) for item in again]


def found_in(table: Schedule, folder: Path) -> dict[str, Any]:
    """Return what becomes of a table on the road."""
    from pptrace.report.table_drawing import draw, svg_text
    from pptrace.sim.simulation import simulate
    from pptrace.timeline.metrics import measure

    workload, drawing = costs(), draw(table)
    timeline = simulate(table, workload)
    metrics = measure(timeline, workload)
    lost = through_traces(timeline, folder)
    events = json.loads((folder / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    kernels = [event for event in events if "kind" in event.get("args", {})]
    return {
        "rows": table.rows(),
        "slices": [[str(item.action), item.stream.name, item.end_ns - item.start_ns]
                   for item in map(timeline.__getitem__, range(len(timeline))) if item.action.kind >= 23],
        "busy_ns": metrics.busy_ns.tolist(),
        "peak_activation_bytes": metrics.memory.peak_activation_bytes.tolist(),
        "lost": lost,
        "colors": sorted({event["cname"] for event in kernels if event["args"]["kind"] in MADE_UP}),
        "drawn": [[str(cell.action), cell.length] for cell in drawing.cells if cell.action.kind >= 23],
        "picture": "#654321" in svg_text(drawing, "made up"),
    }  # fmt: skip


def main() -> None:
    """Run a table without a pair, and one with."""
    sys.meta_path.insert(0, Finder())
    from pptrace.steps.text_forms import load_table
    from pptrace.steps.validation import validate

    folder, found = Path(sys.argv[1]), []
    for text in (TABLE, PAIRED):
        path = folder / "table.csv"
        path.write_text(text, encoding="utf-8")
        table = load_table(path).schedule
        validate(table)
        found.append(found_in(table, folder))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
