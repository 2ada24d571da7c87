"""The printed modules mark what a pipeline does, in stand-ins of PyTorch and Megatron-LM of the same names."""

# ruff: noqa: ARG001, ARG002, ARG004, FBT001, FBT002 - stand-ins take what the real ones take

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.cli.annotate import command, module_for
from pptrace.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Tensor:
    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def is_floating_point(self) -> bool:
        return not self.whole


@pytest.fixture
def log() -> list[str]:
    """Return what was marked and what was posted in it, in order."""
    return []


@pytest.fixture
def torch(log: list[str], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for torch: a profiler that notes names, and messages that go nowhere."""

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        log.append(name)
        yield
        log.append(f"/{name}")

    def isend(tensor: Tensor, dst: int | None = None, **_: Any) -> str:
        log.append("isend")
        return "sent"

    def irecv(tensor: Tensor, src: int | None = None, **_: Any) -> str:
        log.append("irecv")
        return "received"

    names = ("torch", "torch.distributed", "torch.distributed.distributed_c10d", "torch.profiler",
             "torch.distributed.pipelining", "torch.distributed.pipelining.schedules")  # fmt: skip
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        above, _, own = name.rpartition(".")
        if above:
            setattr(modules[above], own, module)
    modules["torch.profiler"].record_function = record_function  # type: ignore[attr-defined]
    for each in ("torch.distributed", "torch.distributed.distributed_c10d"):
        vars(modules[each]).update(isend=isend, irecv=irecv)
    return SimpleNamespace(
        distributed=modules["torch.distributed"], c10d=modules["torch.distributed.distributed_c10d"],
        schedules=modules["torch.distributed.pipelining.schedules"],
    )  # fmt: skip


def loaded(framework: str) -> Any:
    module = ModuleType("pptrace_annotate")
    exec(compile(module_for(framework), "pptrace_annotate.py", "exec"), vars(module))  # noqa: S102 - our own text
    return module


class Stage:
    """A stage as torch.distributed.pipelining has it."""

    stage_index = 2

    def __init__(self) -> None:
        self.arriving, self.leaving = Tensor(), Tensor()

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, kwargs: Any = None) -> str:
        return f"forward {fwd_chunk_id} of {args}"

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> str:
        return f"backward {bwd_chunk_id} {loss} {full_backward} {last_backward}"

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> str:
        return f"weight {bwd_chunk_id}"

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        return [SimpleNamespace(tensor=self.arriving)]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        return [SimpleNamespace(tensor=self.leaving)]

    get_bwd_recv_ops, get_bwd_send_ops = get_fwd_recv_ops, get_fwd_send_ops


def test_a_stage_of_pytorch_is_marked(torch: Any, log: list[str]) -> None:
    stage = Stage()
    schedule = SimpleNamespace(_stage=stage)
    module = loaded("pytorch")
    assert module.annotate(schedule) is schedule
    module.annotate(schedule)

    (receive,), send = stage.get_fwd_recv_ops(5), stage.get_bwd_send_ops(4)[0]
    assert torch.distributed.isend(send.tensor, 1) == "sent"
    assert torch.c10d.irecv(tensor=receive.tensor, group_src=1) == "received"
    assert stage.forward_one_chunk(5, "x") == "forward 5 of x"
    assert stage.backward_one_chunk(4, loss="l", last_backward=True) == "backward 4 l True True"
    assert stage.backward_one_chunk(6, full_backward=False) == "backward 6 None False False"
    assert stage.backward_weight_one_chunk(6) == "weight 6"
    torch.distributed.isend(Tensor(), 3)

    assert [one for one in log if not one.startswith("/")] == [
        "PP:2SEND_B4", "isend", "PP:2RECV_F5", "irecv", "PP:2F5", "PP:2B4", "PP:2I6", "PP:2W6", "isend",
    ]  # fmt: skip
    assert log.count("/PP:2F5") == 1


def test_a_schedule_that_marks_its_own_is_left_alone(torch: Any) -> None:
    class Runtime:
        _stages = (Stage(),)

    torch.schedules._PipelineScheduleRuntime = Runtime
    torch.schedules._get_profiler_function_name = str
    loaded("pytorch").annotate(Runtime())

    assert not hasattr(Runtime._stages[0], "pptrace_marks")
    assert not hasattr(torch.distributed.isend, "marks")


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

    assert [one for one in log if one.startswith("PP:")] == [f"PP:1{one}" for one in MIDDLE] * 2


def test_megatron_s_chunks_are_stages_and_their_receives_have_no_names(torch: Any, log: list[str]) -> None:
    megatron = Megatron(torch, chunks=2)
    loaded("megatron").annotate(megatron.schedules, megatron.communication, megatron.state)
    megatron.step(chunk=1)

    assert [one for one in log if one.startswith("PP:")] == [
        f"PP:4{one}" for one in MIDDLE if not one.startswith("RECV")
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

    assert [one for one in log if one.startswith("PP:")] == [
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

    assert [one for one in log if one.startswith("PP:")] == [
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
    core.parallel_state = megatron.state  # type: ignore[attr-defined]
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


def test_the_module_is_printed_or_written_and_says_how_it_is_used(tmp_path: Path) -> None:
    printed = CliRunner().invoke(command, [])
    written = CliRunner().invoke(command, ["--framework", "megatron", "-o", str(tmp_path / "marks.py")])

    assert printed.output == module_for("pytorch")
    assert "pptrace_annotate.annotate(schedule)" in printed.output
    assert "wrote" in written.output
    assert (tmp_path / "marks.py").read_text(encoding="utf-8") == module_for("megatron")


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, ["-o", str(tmp_path / "nowhere" / "marks.py")])

    assert isinstance(refused.exception, OutputError)
    assert "the folder does not exist" in str(refused.exception)


def test_a_framework_that_nobody_knows_is_refused() -> None:
    refused = CliRunner().invoke(command, ["--framework", "jax"])

    assert refused.exit_code == 2
    assert "'pytorch', 'megatron'" in refused.output
