"""The module for Megatron-LM marks what its schedules do, in a stand-in of the same names."""

# ruff: noqa: ARG001, ARG002, ARG004, SLF001 - stand-ins take what the real ones take, and tests look inside

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch_stand_in import Tensor, loaded

if TYPE_CHECKING:
    import pytest


class Megatron:
    """Megatron's schedules as one middle rank runs them: 1F1B without interleaving, three microbatches."""

    def __init__(self, torch: Any, chunks: int = 1) -> None:
        self.torch = torch
        self.schedules = SimpleNamespace(forward_step=self.forward_step, backward_step=self.backward_step)
        self.communication = SimpleNamespace(P2PCommunicator=self.communicator())
        self.state = SimpleNamespace(
            get_pipeline_model_parallel_rank=lambda: 1,
            get_pipeline_model_parallel_world_size=lambda: 3,
            get_virtual_pipeline_model_parallel_rank=lambda: None,
            get_virtual_pipeline_model_parallel_world_size=lambda: chunks if chunks > 1 else None,
        )

    @staticmethod
    def forward_step(
        forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, input_tensor: Any,
        forward_data_store: Any, config: Any, cp_group_size: int = 1, current_microbatch: int | None = None,
        vp_stage: int | None = None,
    ) -> tuple[Tensor, int]:  # fmt: skip
        return Tensor(), 7

    @staticmethod
    def backward_step(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, config: Any) -> Tensor:
        return Tensor()

    def communicator(self) -> type:
        distributed = self.torch.distributed

        class P2PCommunicator:
            def _communicate(
                self, *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool,
                tensor_shape: Any = None,
            ) -> Tensor:  # fmt: skip
                distributed.irecv(Tensor(whole=True), 0)  # a shape
                arrived = Tensor()
                if tensor_send_prev is not None:
                    distributed.isend(tensor_send_prev, 0)
                if recv_prev:
                    distributed.irecv(arrived, 0)
                if tensor_send_next is not None:
                    distributed.isend(tensor_send_next, 2)
                if recv_next:
                    distributed.irecv(arrived, 2)
                return arrived

        return P2PCommunicator

    def step(self, chunk: int | None = None) -> None:
        talk = self.communication.P2PCommunicator()._communicate

        def moved(**what: Any) -> Tensor:
            given = {"tensor_send_next": None, "tensor_send_prev": None, "recv_prev": False, "recv_next": False}
            return talk(**{**given, **what})

        def forward(number: int, arrived: Tensor) -> Tensor:
            out, _ = self.schedules.forward_step(
                None, None, None, 3, arrived, [], None, current_microbatch=number, vp_stage=chunk
            )
            return out

        first = forward(0, moved(recv_prev=True))
        moved(tensor_send_next=first)
        second = forward(1, moved(recv_prev=True))
        gradient = self.schedules.backward_step(None, first, moved(tensor_send_next=second, recv_next=True), None)
        third = forward(2, moved(tensor_send_prev=gradient, recv_prev=True))
        for output, given in (
            (second, {"tensor_send_next": third, "recv_next": True}),
            (third, {"recv_next": True}),
        ):
            gradient = self.schedules.backward_step(None, [output], moved(**given), None)
            moved(tensor_send_prev=gradient)


MIDDLE = [
    "RECV_F0", "F0", "SEND_F0", "RECV_F1", "F1", "SEND_F1", "RECV_B0", "B0", "SEND_B0", "RECV_F2", "F2", "SEND_F2",
    "RECV_B1", "B1", "SEND_B1", "RECV_B2", "B2", "SEND_B2",
]  # fmt: skip


def test_megatron_s_schedule_is_marked_step_after_step(torch: Any, log: list[str]) -> None:
    megatron = Megatron(torch)
    loaded("megatron").annotate(megatron.schedules, megatron.communication, megatron.state)
    for _ in range(2):
        megatron.step()

    assert [entry for entry in log if entry.startswith("PP:")] == [f"PP:1{item}" for item in MIDDLE] * 2


def test_megatron_s_chunks_are_stages_and_their_receives_have_no_names(torch: Any, log: list[str]) -> None:
    megatron = Megatron(torch, chunks=2)
    loaded("megatron").annotate(megatron.schedules, megatron.communication, megatron.state)
    megatron.step(chunk=1)

    assert [entry for entry in log if entry.startswith("PP:")] == [
        f"PP:4{item}" for item in MIDDLE if not item.startswith("RECV")
    ]


def test_microbatches_are_counted_where_megatron_does_not_tell_them(torch: Any, log: list[str]) -> None:
    """Megatron Core 0.5 and 0.6 call forward_step without current_microbatch and vp_stage."""

    def forward_step(
        forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, input_tensor: Any,
        forward_data_store: Any, config: Any,
    ) -> Tensor:  # fmt: skip
        return Tensor()

    megatron = Megatron(torch, chunks=2)
    chunk = 0
    megatron.state.get_virtual_pipeline_model_parallel_rank = lambda: chunk
    megatron.schedules.forward_step = forward_step
    loaded("megatron").annotate(megatron.schedules, megatron.communication, megatron.state)
    for chunk in (0, 0, 1, 0, 1, 1) * 2:  # noqa: B007 - the stand-in above says it
        megatron.schedules.forward_step(None, None, None, 3, None, [], None)

    assert [entry for entry in log if entry.startswith("PP:")] == [
        "PP:1F0", "PP:1F1", "PP:4F0", "PP:1F2", "PP:4F1", "PP:4F2",
    ] * 2  # fmt: skip


def test_a_forward_and_a_backward_that_run_as_one_are_one_mark(torch: Any, log: list[str]) -> None:
    """Megatron's combined_1f1b: the first call has no backward, the last no forward."""

    def combined_forward_backward_step(
        forward_step_func: Any, data_iterator: Any, f_model: Any, num_microbatches: int, input_tensor: Any,
        forward_data_store: Any, b_model: Any, b_input_tensor: Any, b_output_tensor: Any,
        b_output_tensor_grad: Any, config: Any, f_model_chunk_id: int | None = None,
        current_microbatch: int | None = None,
    ) -> tuple[Tensor | None, int, Tensor | None]:  # fmt: skip
        return (Tensor() if f_model else None), 3, (Tensor() if b_model else None)

    megatron = Megatron(torch, chunks=2)
    combined = SimpleNamespace(combined_forward_backward_step=combined_forward_backward_step)
    loaded("megatron").annotate(megatron.schedules, megatron.communication, megatron.state, combined)

    def run(forward: int | None, output: Tensor | None) -> tuple[Any, int, Any]:
        found: tuple[Any, int, Any] = combined.combined_forward_backward_step(
            None, None, None if forward is None else "model", 2, None, [], output and "model", None,
            [output], None, None, f_model_chunk_id=None if forward is None else 1, current_microbatch=forward,
        )  # fmt: skip
        return found

    first, _, _ = run(0, None)
    second, _, gradient = run(1, first)
    run(None, second)
    torch.distributed.isend(second, 2)
    torch.distributed.isend(gradient, 0)

    assert [entry for entry in log if entry.startswith("PP:")] == [
        "PP:4F0", "PP:(4F1;4B0)OVERLAP_F_B", "PP:4B1", "PP:4SEND_F1", "PP:4SEND_B0",
    ]  # fmt: skip


def test_a_name_goes_with_its_tensor(torch: Any, log: list[str]) -> None:
    """The last stage sends no output on, and another tensor may have its id when it is gone."""
    module = loaded("megatron")
    module.annotate(*(getattr(Megatron(torch), name) for name in ("schedules", "communication", "state")))
    tensor = Tensor()
    module._name_message(tensor, True, "PP:1SEND_F0")
    assert list(module._names) == [(True, id(tensor))]

    del tensor

    assert module._names == {}


def test_megatron_is_found_by_itself_and_marked_once(
    torch: Any, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    megatron = Megatron(torch)
    core, parallel = ModuleType("megatron.core"), ModuleType("megatron.core.pipeline_parallel")
    core.parallel_state = megatron.state
    vars(parallel).update(schedules=megatron.schedules, p2p_communication=megatron.communication)
    for name, module in (
        ("megatron", ModuleType("megatron")),
        ("megatron.core", core),
        (parallel.__name__, parallel),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    module = loaded("megatron")
    module.annotate()
    module.annotate()
    megatron.step()

    assert log.count("PP:1F0") == 1
