"""What a GPU did: actions by their kernels, gaps, collectives, messages by NCCL's kernels, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_gpu_trace import AUTOGRAD, SmallGpuTrace

from pptrace.steps.kinds import Kind, Stream
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Slice

PIPELINE = {"default_pg": [0, 1], "mesh_pp": [0, 1]}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def measured(folder: Path, *traces: SmallGpuTrace) -> Measurement:
    return measure_kineto([trace.write(folder) for trace in traces], ImportRequest())


def slices(measurement: Measurement) -> dict[tuple[str, int], Slice]:
    timeline = measurement.steps[0].timeline
    rows = (timeline[row] for row in range(len(timeline)))
    return {(str(item.action), item.rank): item for item in rows}


def gaps(measurement: Measurement) -> dict[str, int]:
    step = measurement.steps[0]
    return {str(step.timeline[row].action): gap for row, gap in enumerate(step.gap_ns.tolist()) if gap}


def test_an_action_lasts_from_its_first_to_its_last_kernel_and_its_gap_is_the_host_s(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F0", 0, 10)
    trace.kernel("gemm", 1, 5, 20)
    trace.kernel("gelu", 2, 20, 24)
    trace.kernel("norm", 9, 30, 33)
    trace.kernel("side", 3, 22, 26, stream=9)
    trace.annotate("PP:0B0", 10, 40)
    trace.kernel("gemm_backward", 12, 35, 50, thread=AUTOGRAD)

    result = measured(tmp_path, trace)

    action_slices = slices(result)
    assert (action_slices["0F0", 0].start_ns, action_slices["0F0", 0].end_ns) == (0, 28_000)
    assert (action_slices["0B0", 0].start_ns, action_slices["0B0", 0].end_ns) == (30_000, 45_000)
    assert gaps(result) == {"0F0": 4_000}  # between 26 and 30, when no stream had any
    assert action_slices["0F0", 0].enter_ns == 0
    assert action_slices["0B0", 0].enter_ns == 28_000  # launched long before, at the head of its stream since then
    assert result.unattributed == ()


def test_an_own_collective_is_neither_computation_nor_a_gap(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F0", 0, 10)
    trace.kernel("gemm", 1, 10, 20)
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2, 20, 26, stream=21, Collective_name="allreduce")
    trace.kernel("gemm", 3, 24, 30)
    trace.kernel("ncclDevKernel_AllGather_RING_LL", 4, 31, 35, stream=21, Collective_name="all_gather")
    trace.annotate("PP:0F1", 10, 20)
    trace.kernel("gemm", 11, 33, 40)

    result = measured(tmp_path, trace)

    action_slices = slices(result)
    # The last collective ends inside the next action, which did not wait for all of it.
    assert (action_slices["0F0", 0].start_ns, action_slices["0F0", 0].end_ns) == (0, 23_000)
    assert action_slices["0F0", 0].collective_ns == 4_000 + 2_000
    assert gaps(result) == {"0F0": 1_000}
    assert result.unattributed == ()


def test_a_message_waits_for_its_peer_and_then_moves(tmp_path: Path) -> None:
    sender, receiver = (SmallGpuTrace(rank=rank, world=2, groups=PIPELINE) for rank in (0, 1))
    message: dict[str, Any] = {"In_msg_nelems": 1000, "Out_msg_nelems": 1000, "dtype": "BFloat16"}
    sender.annotate("PP:0F0", 0, 5)
    sender.kernel("gemm", 1, 2, 50)
    sender.annotate("PP:0SEND_F0", 5, 6)
    sender.kernel(SEND_RECV, 5.5, 50, 80, stream=20, Collective_name="send", Dst_Rank=1, **message)
    receiver.annotate("PP:1RECV_F0", 0, 1)
    receiver.kernel(SEND_RECV, 0.5, 1, 81, stream=20, Collective_name="recv", Src_Rank=0, **message)
    receiver.annotate("PP:1F0", 1, 8)
    receiver.kernel("gemm", 2, 82, 100)

    result = measured(tmp_path, sender, receiver)

    action_slices = slices(result)
    send, receive = action_slices["0SEND_F0", 0], action_slices["1RECV_F0", 1]
    assert (send.peer, receive.peer, send.size_bytes, receive.size_bytes) == (1, 0, 2000, 2000)
    assert (receive.enter_ns, receive.start_ns, receive.end_ns) == (0, 48_000, 79_000)
    assert (send.enter_ns, send.start_ns, send.end_ns) == (48_000, 48_000, 79_000)
    assert result.unattributed == ()


def test_a_batch_without_arguments_carries_what_the_host_posted_before_it(tmp_path: Path) -> None:
    traces = [SmallGpuTrace(rank=rank, world=4, groups={"mesh_pp": [1, 3]}) for rank in (1, 3)]
    for own, trace in enumerate(traces):
        other = 1 - own
        for turn in range(2):
            at = 100 * turn
            trace.annotate(f"PP:{own}F{turn}", at, at + 10)
            trace.kernel("gemm", at + 1, at + 2, at + 20)
            trace.annotate(f"nccl:send {own}->{other}", at + 20, at + 21)
            trace.annotate(f"nccl:recv {own}<-{other}", at + 21, at + 22)
            trace.annotate("nccl:coalesced", at + 22, at + 60)
            trace.kernel(SEND_RECV, at + 23, at + 30, at + 40, stream=20)
            trace.annotate(f"PP:{own}B{turn}", at + 40, at + 50)
            trace.kernel("gemm", at + 41, at + 42, at + 60)

    result = measured(tmp_path, *traces)

    timeline = result.steps[0].timeline
    action_slices = slices(result)
    assert ("0SEND_F1", 0) in action_slices
    assert ("0RECV_B1", 0) in action_slices
    assert ("1RECV_F0", 1) in action_slices
    assert ("1SEND_B0", 1) in action_slices
    assert int(np.isin(timeline.kind, [Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B]).sum()) == 8
    assert result.unattributed == ()


def test_a_batch_s_messages_are_named_by_the_actions_around_their_posts(tmp_path: Path) -> None:
    traces = [SmallGpuTrace(rank=rank, world=2, groups=PIPELINE) for rank in (0, 1)]
    names = [("0SEND_F3", "0RECV_B1"), ("1SEND_B1", "1RECV_F3")]
    for own, (trace, (send, receive)) in enumerate(zip(traces, names, strict=True)):
        trace.annotate(f"PP:{own}F3", 0, 5)
        trace.kernel("gemm", 1, 2, 20)
        trace.annotate(f"PP:{own}B1", 5, 9)
        trace.kernel("gemm", 6, 20, 30)
        trace.annotate(f"PP:{send}", 10, 12)
        trace.annotate(f"PP:{receive}", 12, 14)
        trace.kernel(SEND_RECV, 15, 30, 44, stream=20)

    result = measured(tmp_path, *traces)

    assert {name for name, _ in slices(result)} >= {"0SEND_F3", "0RECV_B1", "1SEND_B1", "1RECV_F3"}
    assert result.unattributed == ()


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclSendRecvKernel_copy_i8(ncclColl)", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        (SEND_RECV, True),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)", True),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", True),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", True),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", True),
        ("void dpsk::ep::internode::combine<8>(int4*)", True),
        ("nvshmemi_transfer_rma_nbi", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(T1::Params)", False),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_kernels_that_communicate_are_known_by_name(name: str, tmp_path: Path, *, communicates: bool) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F0", 0, 10)
    trace.kernel("gemm", 1, 10, 20)
    trace.kernel(name, 2, 20, 30, stream=21)
    trace.kernel("gemm", 3, 30, 40)

    result = measured(tmp_path, trace)

    assert slices(result)["0F0", 0].collective_ns == (10_000 if communicates else 0)
    assert gaps(result) == {}


def test_reductions_over_replicas_are_actions_of_the_stage_last_worked_on(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    for stage in (0, 1):
        trace.annotate(f"PP:{stage}B0", 20 * stage, 20 * stage + 10)
        trace.kernel("gemm", 20 * stage + 1, 20 * stage + 2, 20 * stage + 12)
        trace.kernel(
            "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 20 * stage + 15, 20 * stage + 16, 20 * stage + 30,
            stream=40, Collective_name="_reduce_scatter_base", Process_Group_Description="mesh_dp_shard",
        )  # fmt: skip
    trace.kernel(
        "ncclDevKernel_AllGather_RING_LL", 50, 55, 60, stream=40,
        Collective_name="_allgather_base", Process_Group_Description="DATA_PARALLEL_GROUP_WITH_CP",
    )  # fmt: skip

    result = measured(tmp_path, trace)

    timeline = result.steps[0].timeline
    action_slices = slices(result)
    assert {name for name, _ in action_slices} == {"0B0", "1B0", "0REDUCE_GRAD", "1REDUCE_GRAD", "1UNSHARD"}
    assert action_slices["1REDUCE_GRAD", 0].stream is Stream.DATA_PARALLEL
    assert (action_slices["0REDUCE_GRAD", 0].start_ns, action_slices["0REDUCE_GRAD", 0].end_ns) == (14_000, 28_000)
    assert not (timeline.collective_ns > 0).any()
    assert result.unattributed == ()


def test_what_belongs_to_no_action_is_counted_by_name_and_time(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F0", 0, 10)
    trace.kernel("gemm", 1, 2, 20)
    trace.kernel("adam", 30, 31, 36)
    trace.kernel("adam", 31, 36, 40)
    trace.kernel("lost", None, 50, 58)
    trace.kernel(SEND_RECV, 60, 61, 62, stream=20)

    left = measured(tmp_path, trace).unattributed

    assert [(item.what, item.count, item.total_ns) for item in left] == [
        ("adam", 2, 9_000), ("lost", 1, 8_000), (SEND_RECV, 1, 1_000),
    ]  # fmt: skip


def test_an_end_whose_other_one_is_missing_is_kept_and_counted(tmp_path: Path) -> None:
    traces = [SmallGpuTrace(rank=rank, world=2, groups=PIPELINE) for rank in (0, 1)]
    for own, trace in enumerate(traces):
        trace.annotate(f"PP:{own}F0", 0, 5)
        trace.kernel("gemm", 1, 2 + 30 * own, 20 + 30 * own)
    traces[0].annotate("PP:0SEND_F0", 6, 7)
    traces[0].kernel(SEND_RECV, 6.5, 20, 31, stream=20)

    result = measured(tmp_path, *traces)

    assert slices(result)["0SEND_F0", 0].peer == 1
    assert [(operation.rank, operation.what) for operation in result.unattributed] == [
        (0, "sends to an unknown rank without a matching end")
    ]


def test_an_action_without_a_kernel_takes_no_time(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    for number, name in enumerate(("PP:0F0", "PP:0I0", "PP:0W0")):
        trace.annotate(name, 10 * number, 10 * number + 5)
    trace.kernel("gemm", 1, 2, 40)
    trace.kernel("gemm", 21, 40, 60)

    action_slices = slices(measured(tmp_path, trace))

    assert action_slices["0I0", 0].start_ns == action_slices["0I0", 0].end_ns
    assert (action_slices["0W0", 0].start_ns, action_slices["0W0", 0].end_ns) == (38_000, 58_000)


def test_the_inner_of_two_annotations_of_one_action_counts(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("Forward 0", 0, 40)
    trace.kernel("copy", 1, 2, 3)
    trace.annotate("PP:0F0", 10, 30)
    trace.kernel("gemm", 11, 12, 25)

    result = measured(tmp_path, trace)

    assert {name for name, _ in slices(result)} == {"0F0"}
    assert [operation.what for operation in result.unattributed] == ["copy"]


def test_steps_are_recognized_by_the_host_though_kernels_run_later(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    for step in range(3):
        at = 100 * step
        trace.annotate(f"ProfilerStep#{step}", at, at + 100)
        trace.annotate("PP:0F0", at + 90, at + 99)
        trace.kernel("gemm", at + 95, at + 110, at + 130)

    steps = measured(tmp_path, trace).steps

    assert [step.label for step in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert [len(step.timeline) for step in steps] == [1, 1, 1]


def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    for number in range(500):
        trace.annotate(f"PP:0F{number}", 10 * number, 10 * number + 9)
        trace.kernel("gemm", 10 * number + 1, 10 * number + 2, 10 * number + 8)
    path = trace.write(tmp_path)
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])

    result = measure_kineto([path], ImportRequest())

    assert "ends in the middle" in " ".join(result.notes)
    assert 200 < len(result.steps[0].timeline) < 300
