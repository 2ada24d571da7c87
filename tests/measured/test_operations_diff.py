"""Two traces without actions are compared by kernel, stream and operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace.errors import ConfigError, OutputError
from pptrace.measured.diff_document import compare_steps
from pptrace.measured.operations_diff import OperationsDiff, compare_operations
from pptrace.plugins.registry import Registry
from pptrace.report.document import page_of, text_of
from pptrace.timeline.measurement import ImportRequest, KernelTotal, Measurement

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("before", "after")
LONG = f"void ns::gemm<float, {'x' * 80}>(float*)"


def total(
    what: str, total_ns: int, count: int = 2, rank: int = 0, stream: int = 7, operator: str = ""
) -> KernelTotal:
    return KernelTotal(rank=rank, what=what, stream=stream, operator=operator, count=count, total_ns=total_ns)


def measurement(*kernels: KernelTotal) -> Measurement:
    return Measurement(steps=(), kernels=kernels, notes=("no action",))


BEFORE = measurement(
    total(LONG, 4_000_000, operator="aten::mm"), total("add", 1_000_000, stream=9), total("old", 500_000, 1)
)
AFTER = measurement(
    total(LONG, 9_000_000, operator="aten::mm"), total("add", 1_000_000, stream=9), total("new", 250_000, 1)
)


def test_changes_are_summed_by_kernel_stream_and_operator_with_the_largest_first() -> None:
    found = compare_operations((BEFORE, AFTER), NAMES, 0.02)

    assert [(row.what, row.change_ns) for row in found.kernels] == [
        (LONG, 5_000_000), ("old", -500_000), ("new", 250_000), ("add", 0),
    ]  # fmt: skip
    assert [(row.what, row.change_ns) for row in found.streams] == [("stream 7", 4_750_000), ("stream 9", 0)]
    assert [(row.what, row.change_ns) for row in found.operators] == [
        ("aten::mm", 5_000_000), ("no operator", -250_000),
    ]  # fmt: skip
    for rows in (found.kernels, found.streams, found.operators):
        assert sum(row.change_ns for row in rows) == found.total_ns[1] - found.total_ns[0]
    assert not found.same


def test_short_names_are_shown_and_whole_names_are_in_json_and_tooltips() -> None:
    found = compare_operations((BEFORE, AFTER), NAMES, 0.02)
    text = text_of(found.document())

    assert "\n  gemm " in text
    assert LONG not in text
    assert "kernels on one side only: 2" in text
    assert found.to_dict()["kernels"][0] == {
        "what": LONG, "count": [2, 2], "total_ns": [4_000_000, 9_000_000], "change_ns": 5_000_000,
    }  # fmt: skip
    assert 'title="void ns::gemm&lt;float, ' in page_of(found.document())


def test_a_trace_does_not_differ_from_itself() -> None:
    found = compare_operations((BEFORE, BEFORE), NAMES, 0.0)

    assert found.same
    assert found.change == 0


def test_common_ranks_are_compared_with_a_mark() -> None:
    both = measurement(total("add", 1000, rank=0), total("add", 9000, rank=3))
    found = compare_operations((both, measurement(total("add", 1000, rank=3))), NAMES, 0.02)

    assert found.partial == "after has no data of rank 0; figures are those of rank 3"
    assert found.kernels[0].total_ns == (9000, 1000)
    assert "by kernel *" in text_of(found.document())


def test_traces_without_actions_are_a_diff_and_one_beside_a_step_is_an_error(tmp_path: Path) -> None:
    registry, request = Registry.load(), ImportRequest()
    found = compare_steps(BEFORE, AFTER, 0.02, "median", request, registry)

    assert isinstance(found, OperationsDiff)
    assert [path.name for path in found.save(tmp_path / "report.html")] == ["report.html"]
    with pytest.raises(OutputError, match="needs actions of a pipeline"):
        found.save(tmp_path / "both.pftrace")
    table = tmp_path / "table.csv"
    table.write_text("0F0,0B0\n1F0,1B0\n")
    for sides in ((BEFORE, table), (table, BEFORE)):
        with pytest.raises(ConfigError, match="holds no recognised action of a pipeline"):
            compare_steps(*sides, 0.02, "median", request, registry)
