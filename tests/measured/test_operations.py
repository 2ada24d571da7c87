"""What is told of a measurement without any action: sums by rank and name, and what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.measured.explanation import MARK_ACTIONS_HINT, operations_document
from pptrace.measured.operations_diff import kernel_cells, readable, without_parameters
from pptrace.report.document import plain, text_of
from pptrace.timeline.measurement import Clock, Measurement, Summary

KERNEL = "void at::native::(anonymous namespace)::add<float, (kind)2>(float*, long)"


def summary(rank: int, what: str, count: int, total_ns: int, size_bytes: int = 0) -> Summary:
    return Summary(
        rank=rank, what=what, communicates=what.startswith("nccl"), count=count, total_ns=total_ns,
        size_bytes=size_bytes,
    )  # fmt: skip


@pytest.fixture
def measurement() -> Measurement:
    summaries = [summary(rank, "ncclDevKernel_SendRecv(int)", 2, 4_000_000, 8_000_000) for rank in (0, 1)]
    summaries += [summary(rank, KERNEL, 10, 10_000_000 * (rank + 1)) for rank in (0, 1)]
    summaries += [summary(1, f"gemm_{size}", 1, 1_000_000) for size in range(3)]
    clocks = (Clock(rank=0, offset_ns=0, bound_ns=0), Clock(rank=1, offset_ns=-1_000_000, bound_ns=2_000, pairs=4))
    return Measurement(steps=(), summaries=tuple(summaries), clocks=clocks, notes=("cut",))


def test_ranks_and_names_are_summed_and_what_to_do_is_said(measurement: Measurement) -> None:
    text = text_of(operations_document(measurement, "run"))

    assert "rank 0       4.000 ms           2  7.63 MiB    10.000 ms          10" in text
    assert "ncclDevKernel_SendRecv      4  8.000 ms  2.000 ms  15.3 MiB   2 GB/s" in text
    assert "add<float, 2>     20  30.000 ms  1.500 ms" in text
    assert "clock of rank 1: shifted by -1.000 (±0.002) ms" in text
    assert text.endswith(MARK_ACTIONS_HINT)


def test_names_beyond_the_top_are_one_row_that_nothing_is_missing_from(measurement: Measurement) -> None:
    lines = text_of(operations_document(measurement, "run", top=2)).splitlines()

    (rest,) = [line.split() for line in lines if "further names" in line]
    assert rest == ["2", "further", "names", "2", "2.000", "ms", "1.000", "ms"]


def test_the_sums_of_ranks_are_those_of_their_names(measurement: Measurement) -> None:
    document = plain(operations_document(measurement, "run"))

    assert document["step"] is None
    for rank in document["ranks"]:
        own = [item for item in document["summaries"] if item["rank"] == rank["rank"]]
        for key in ("count", "total_ns", "size_bytes"):
            assert rank["communication"][key] + rank["computation"][key] == sum(item[key] for item in own)
    assert document["notes"] == ["cut", MARK_ACTIONS_HINT]


@pytest.mark.parametrize("name", ["a" * 900, "f<(a)1>", "(x)"])
def test_a_name_without_parameters_stays(name: str) -> None:
    assert without_parameters(name) == name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("a" * 90, "a" * 90),
        ("(x)", "(x)"),
        ("f<(a)1>", "f<1>"),
        ("void at::native::(anonymous namespace)::add<float, (kind)2>(float*, long)", "add<float, 2>"),
        (
            "void at::elementwise<2, at::gpu<at::add(at::Iterator&)::{lambda()#2}::operator()() const>(int)>()",
            "elementwise<2, gpu<add>>",
        ),
    ],
)
def test_names_of_kernels_are_readable(name: str, short: str) -> None:
    assert readable(name) == short


def test_short_names_are_unique_and_the_whole_name_is_the_tooltip() -> None:
    names = [
        f"void ns::a_kernel_with_a_rather_long_name_for_{part}<int, {'x' * 60}>(int)"
        for part in ("rows", "columns")
    ]
    cells = kernel_cells([*names, "gemm"])

    assert [cells[name].text for name in names] == [
        "a_kernel_with_a_rather_long_name_for_rows", "a_kernel_with_a_rather_long_name_for_columns",
    ]  # fmt: skip
    assert [cells[name].title for name in names] == names
    assert cells["gemm"].text == "gemm"


@given(st.lists(st.text("ab:<>(){} ,", min_size=1, max_size=80), max_size=6, unique=True))
def test_different_kernels_have_different_names(names: list[str]) -> None:
    cells = kernel_cells(names)

    assert len({cell.text for cell in cells.values()}) == len(names)


def test_names_that_differ_in_parameters_alone_are_summed() -> None:
    summaries = (summary(0, "f(int)", 1, 2_000_000), summary(0, "f(float)", 3, 4_000_000))

    text = text_of(operations_document(Measurement(steps=(), summaries=summaries), "run"))

    assert "f      4  6.000 ms  1.500 ms" in text
