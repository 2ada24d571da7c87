"""Classes of GPU operations: communication by name, copies and fills by category, else computation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.measured.explanation import operations_document
from pptrace.report.document import text_of
from pptrace.timeline.measurement import ImportRequest, Measurement, Occupied
from pptrace_profilers.naming_rules import BUILT_IN
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from pathlib import Path

COMMUNICATE = (
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*, float*)",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)",
    "void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)",
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(c10::BFloat16**, c10::BFloat16*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)",
    "void (anonymous namespace)::barrier_kernel(unsigned int**, unsigned long)",
)
COMPUTE = (
    "void LayerNormKernel<BlockAllReduce<SumOp, float>>(float*)",
    "blockAllReduceSum(float*)",
    "void softmax_kernel<AllReduceTraits>(float*, all_gather_t)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "set_barrier_kernels(int)",
)


@pytest.mark.parametrize("name", [*COMMUNICATE, *COMPUTE])
def test_kernels_communicate_by_the_name_of_their_function(name: str) -> None:
    assert BUILT_IN.communicate([name]).tolist() == [name in COMMUNICATE]


def measured(tmp_path: Path, **changes: str) -> Measurement:
    """Read a GEMM of 10 µs, an all-reduce and copies that overlap them in part, with other categories."""
    spans = (
        ("kernel", "gemm", 7, 0, 10),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 20, 5, 15),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 21, 15, 15),
        ("gpu_memset", "Memset (Device)", 7, 35, 5),
    )
    events: list[dict[str, Any]] = [
        {
            "ph": "X", "cat": changes.get(category, category), "name": name, "pid": 0, "tid": stream, "ts": start,
            "dur": length, "args": {"stream": stream},
        }
        for category, name, stream, start, length in spans
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}), encoding="utf-8")
    return measure_kineto([path], ImportRequest())


@pytest.mark.parametrize("old", [False, True], ids=["lower case", "capitalised"])
def test_copies_and_fills_are_a_class_of_their_own(tmp_path: Path, *, old: bool) -> None:
    capitals = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}
    result = measured(tmp_path, **(capitals if old else {}))

    sums = {row.what.split()[0]: (row.communicates, row.copies, row.total_ns) for row in result.summaries}
    assert sums == {
        "gemm": (False, False, 10_000), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)": (True, False, 15_000),
        "Memcpy": (False, True, 15_000), "Memset": (False, True, 5_000),
    }  # fmt: skip
    parts = Occupied(rank=0, computing_ns=10_000, exposed_ns=10_000, copying_ns=15_000, idle_ns=5_000)
    assert result.occupied == (parts,)


def test_an_explanation_shows_copies_where_there_are_some(tmp_path: Path) -> None:
    text = text_of(operations_document(measured(tmp_path), "run"))
    without = text_of(operations_document(measured(tmp_path, gpu_memcpy="x", gpu_memset="x"), "run"))

    words = " ".join(text.split())
    assert "in all computing exposed communication exposed copies idle" in words
    assert "rank 0 0.040 ms 0.010 ms 25.0% 0.010 ms 25.0% 0.015 ms 37.5% 0.005 ms 12.5%" in words
    assert "copies, all ranks" in text
    assert "copies" not in without
