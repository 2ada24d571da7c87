"""The printed modules mark what a pipeline does, in a stand-in of PyTorch of the same names."""

# ruff: noqa: ARG002, FBT001, FBT002, SLF001 - stand-ins take what the real ones take, and tests look inside

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from torch_stand_in import Tensor, loaded

from pptrace.cli.main import cli
from pptrace.plugin import OutputError, Registry
from pptrace_profilers.annotation import command, module_for

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pptrace.testing.fixtures"]


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


def test_restored_stages_have_the_methods_that_they_had(torch: Any) -> None:
    stage, other = Stage(), Stage()
    own_forward = stage.forward_one_chunk = lambda chunk: f"own {chunk}"
    isend = torch.distributed.isend
    module, second = loaded("pytorch"), loaded("pytorch")
    module.annotate(SimpleNamespace(_stage=stage))
    second.annotate(SimpleNamespace(_stage=other))

    second.restore(SimpleNamespace(_stage=other))

    assert vars(other).keys() == {"arriving", "leaving"}
    assert torch.distributed.isend.marks, "another module still marks messages"
    module.restore(SimpleNamespace(_stage=stage))
    assert vars(stage).keys() == {"arriving", "leaving", "forward_one_chunk"}
    assert stage.forward_one_chunk is own_forward
    assert torch.distributed.isend is torch.c10d.isend is isend


def test_a_schedule_that_marks_its_own_is_left_alone(torch: Any) -> None:
    class Runtime:
        _stages = (Stage(),)

    torch.schedules._PipelineScheduleRuntime = Runtime
    torch.schedules._get_profiler_function_name = str
    loaded("pytorch").annotate(Runtime())

    assert not hasattr(Runtime._stages[0], "pptrace_marks")
    assert not hasattr(torch.distributed.isend, "marks")


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


def test_the_command_is_offered_and_found_by_its_name(registry: Registry) -> None:
    found = CliRunner().invoke(cli, ["annotate"], obj=registry)

    assert registry.commands["annotate"].provider.distribution == "pptrace-profilers"
    assert found.output == module_for("pytorch")
