"""Programs that the independent model has for PyTorch are what PyTorch's schedules call, seen by stand-ins."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from framework_calls import Message, Post, Program, Wait, Writer, received, sent
from framework_programs_torch import Action, interleaved_1f1b_rows
from oracle_frameworks import torch_1f1b, torch_gpipe, torch_runtime
from oracle_pytorch_tables import with_waits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from framework_calls import End

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ENTRY = re.compile(r"(\d+)(F|B|SEND_F|RECV_F|SEND_B|RECV_B|WAIT_SEND_F|WAIT_SEND_B)(\d+)")


class Stage:
    """Stands in for ``PipelineStage``: it writes down its computes and names its messages."""

    def __init__(self, index: int, rank_of: Mapping[int, int], writer: Writer, dist: Any) -> None:
        self.stage_index, self._rank_of, self._writer, self._dist = index, rank_of, writer, dist
        self.is_first, self.is_last, self.submod = index == 0, index == len(rank_of) - 1, None

    def _op(self, message: Message, other: int, *, sends: bool) -> list[Any]:
        peer = self._rank_of.get(other, self._writer.rank)
        if peer == self._writer.rank:
            return []
        end = sent(message, peer) if sends else received(message, peer)
        op = self._dist.isend if sends else self._dist.irecv
        edge = (self._writer.rank, peer) if sends else (peer, self._writer.rank)
        group = SimpleNamespace(group_name=str(edge) if self._writer.per_edge else "pp")
        return [SimpleNamespace(op=op, tensor=end, peer=peer, group=group, group_peer=peer, tag=0)]

    def get_fwd_recv_ops(self, m: int) -> list[Any]:
        return self._op(Message("F", self.stage_index - 1, m), self.stage_index - 1, sends=False)

    def get_fwd_send_ops(self, m: int) -> list[Any]:
        return self._op(Message("F", self.stage_index, m), self.stage_index + 1, sends=True)

    def get_bwd_recv_ops(self, m: int) -> list[Any]:
        return self._op(Message("B", self.stage_index + 1, m), self.stage_index + 1, sends=False)

    def get_bwd_send_ops(self, m: int) -> list[Any]:
        return self._op(Message("B", self.stage_index, m), self.stage_index - 1, sends=True)

    def forward_one_chunk(self, m: int, *_: Any, **__: Any) -> None:
        self._writer.compute("F", self.stage_index, m)

    def backward_one_chunk(self, m: int, **_: Any) -> None:
        self._writer.compute("B", self.stage_index, m)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def has_waits(schedules: Any) -> bool:
    """Whether the installed PyTorch is 2.15 or later."""
    return hasattr(schedules, "_add_wait_send")


def calls_of(
    schedules: Any, patch: pytest.MonkeyPatch, name: str, rank: int, rank_of: Mapping[int, int], *,
    per_edge: bool = False, **state: Any,
) -> Program:  # fmt: skip
    """What ``_step_microbatches`` of a rank calls, on stand-ins for its stages and for communication."""
    writer = Writer(rank, per_edge=per_edge)

    def request(handle: int) -> Any:
        return SimpleNamespace(wait=lambda: writer.wait([handle]))

    def isend(end: End, **_: Any) -> Any:
        return request(writer.single(end))

    def irecv(end: End, **_: Any) -> Any:
        return request(writer.single(end))

    def batch(ops: list[Any]) -> list[Any]:
        return [request(handle) for handle in writer.batch([op.tensor for op in ops])]

    for call, stand_in in (("isend", isend), ("irecv", irecv), ("batch_isend_irecv", batch)):
        patch.setattr(schedules.dist, call, stand_in)
    stages = [Stage(stage, rank_of, writer, schedules.dist) for stage, at in rank_of.items() if at == rank]
    schedule = object.__new__(getattr(schedules, name))
    vars(schedule).update(
        _stage=stages[0], _stages=stages, rank=rank, scale_grads=False, _finalize_gradients=True, **state
    )
    count = state["_n_microbatches"]
    schedule._check_inputs = lambda *_: ([None] * count, [{}] * count)
    for skipped in ("_initialize_stage", "_initialize_stages", "_maybe_compute_loss", "_maybe_get_loss",
                    "_update_losses", "_assert_unsharded"):  # fmt: skip
        setattr(schedule, skipped, lambda *_: None)
    schedule._step_microbatches()
    return writer.calls


def plain(program: Program) -> list[Any]:
    """Calls, each wait once, neighbouring waits together; operations are named by their place among them."""
    number: dict[int, int] = {}
    entries: list[Any] = []
    waited: set[int] = set()
    for call in program:
        if isinstance(call, Post):
            number[call.handle] = len(number)
            entries.append((call.ends, call.communicator))
        elif isinstance(call, Wait):
            handles = [number[handle] for handle in call.handles if number[handle] not in waited]
            waited |= set(handles)
            if entries and isinstance(entries[-1], set):
                entries[-1] |= set(handles)
            elif handles:
                entries.append(set(handles))
        else:
            entries.append(call)
    return entries


@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (2, 2), (3, 3), (3, 7), (4, 9)])
def test_one_stage_a_rank(
    name: str,
    ranks: int,
    microbatches: int,
    per_edge: bool,  # noqa: FBT001 - a parameter
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if per_edge and not has_waits(schedules):
        pytest.skip("PyTorch before 2.15 has no communicators per edge")
    program = {"ScheduleGPipe": torch_gpipe, "Schedule1F1B": torch_1f1b}[name]
    programs = program(ranks, microbatches, per_edge=per_edge)
    rank_of = {rank: rank for rank in range(ranks)}

    for rank in range(ranks):
        calls = calls_of(
            schedules, monkeypatch, name, rank, rank_of, per_edge=per_edge, _n_microbatches=microbatches,
            _num_stages=ranks,
        )  # fmt: skip
        assert plain(calls) == plain(programs[rank])


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (3, 9, 3), (4, 10, 2)])
def test_runtime(ranks: int, microbatches: int, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    rows = interleaved_1f1b_rows(ranks, microbatches, chunks)
    rank_of = {stage: stage % ranks for stage in range(ranks * chunks)}
    cells = [[f"{action.stage}{action.kind}{action.microbatch}" for action in row] for row in rows]
    if has_waits(schedules):
        cells = with_waits(cells)
        rows = [[_action(cell) for cell in row] for row in cells]
    actions = [list(map(schedules._Action.from_str, row)) for row in cells]

    for rank, program in enumerate(torch_runtime(rows, rank_of)):
        calls = calls_of(
            schedules, monkeypatch, "_PipelineScheduleRuntime", rank, rank_of, _n_microbatches=microbatches,
            pipeline_order_with_comms=actions, _comp_type_to_function_map={}, backward_counter=Counter(),
            fwd_recv_ops={}, bwd_recv_ops={}, unshard_ops=defaultdict(list), unsharded_stages=set(),
            _has_backward=True, _finalized_stages=set(),
        )  # fmt: skip
        assert plain(calls) == plain(program)


def _action(cell: str) -> Action:
    entry = ENTRY.fullmatch(cell)
    assert entry is not None
    return Action(entry[2], int(entry[1]), int(entry[3]))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 1), (2, 7), (3, 9), (4, 10), (4, 16), (5, 3)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_rows_of_the_interleaved_schedule(ranks: int, microbatches: int, chunks: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if has_waits(schedules):
        pytest.skip("PyTorch 2.15 has other rounds, with waits for reductions")
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        with pytest.raises(ValueError, match="multiple"):
            interleaved_1f1b_rows(ranks, microbatches, chunks)
        return
    schedule = SimpleNamespace(
        n_local_stages=chunks, number_of_rounds=rounds, microbatches_per_round=microbatches // rounds,
        pp_group_size=ranks, _n_microbatches=microbatches,
    )  # fmt: skip
    computes = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations
    filled = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(computes(schedule, rank)), microbatches)
        for rank in range(ranks)
    }

    rows = schedules._add_send_recv(filled, lambda stage: stage % ranks, ranks * chunks)

    entries = [[ENTRY.fullmatch(str(entry)) for entry in rows[rank]] for rank in range(ranks)]
    theirs = [[_action(entry[0]) for entry in row if entry] for row in entries]
    assert interleaved_1f1b_rows(ranks, microbatches, chunks) == theirs
