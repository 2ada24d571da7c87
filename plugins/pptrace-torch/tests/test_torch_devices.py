"""The way through GPUs, with stubs in place of CUDA."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import ConfigError
from pptrace_torch.command import run_ranks
from pptrace_torch.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forked_python import ForkedPython

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]


@pytest.mark.parametrize(("nccl", "gpus", "counted"), [(True, 0, 0), (True, 3, 3), (False, 4, 0)])
def test_every_rank_needs_a_gpu(*, nccl: bool, gpus: int, counted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pptrace_torch.worker import Job

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    rows = [[f"{rank}F0", f"{rank}B0"] for rank in range(4)]
    job = Job(manifest=Manifest.of(rows, backend="nccl"), steps=1, timeout_s=1, folder="")

    with pytest.raises(ConfigError) as caught:
        run_ranks(job, 4, 1, lambda _: None)
    assert str(caught.value) == f"--backend: nccl needs a GPU per rank, and 4 ranks have {counted}: take gloo"


def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pptrace_torch.worker import _device

    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)

    assert _device("nccl", 3) == torch.device("cuda", 3)
    assert _device("gloo", 2) == torch.device("cpu")
    assert chosen == [3]


class Clock:
    """A GPU whose clock has 1.5 cycles per nanosecond."""

    def __init__(self) -> None:
        self.cycles = 0

    def spin(self, cycles: int) -> None:
        self.cycles += cycles

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    """An event of that GPU."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.cycles = clock, 0

    def record(self) -> None:
        self.cycles = self.clock.cycles

    def elapsed_time(self, end: Event) -> float:
        return (end.cycles - self.cycles) / 1.5 / 1e6


def test_a_stage_on_a_gpu_occupies_it_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pptrace_torch import worker

    clock = Clock()
    monkeypatch.setattr(torch.cuda, "_sleep", clock.spin)
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    worker.cycles_per_ns.cache_clear()
    device = torch.device("cuda", 0)

    worker.occupy(0, device)  # measures the clock
    before = clock.cycles
    worker.occupy(10_000_000, device)

    assert clock.cycles - before == 15_000_000
    worker.cycles_per_ns.cache_clear()


def test_kernels_are_recorded_where_stages_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.profiler import ProfilerActivity

    from pptrace_torch import runtime

    seen: list[Any] = []

    @contextmanager
    def profile(*, activities: list[Any], **_: Any) -> Iterator[None]:
        seen.append(activities)
        yield

    monkeypatch.setattr(runtime, "profile", profile)
    for name in ("cpu", "cuda"):
        with runtime.record_steps(tmp_path / "rank0.json", warmup=1, steps=1, device=torch.device(name)):
            pass

    assert seen == [[ProfilerActivity.CPU], [ProfilerActivity.CPU, ProfilerActivity.CUDA]]


_SPAWNED = """
import multiprocessing, sys
from pptrace_torch.command import command

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    multiprocessing.get_context = lambda _: spawn
    command.main(sys.argv[1:], standalone_mode=False)
"""


def test_spawned_ranks_run_as_forked_ones_do(tmp_path: Path, torch_python: ForkedPython) -> None:
    """Ranks with GPUs are spawned; the same path runs here with gloo."""
    (tmp_path / "spawned.py").write_text(_SPAWNED, encoding="utf-8")
    sizes = ["--set", "parallel.pp=1", "--set", "batch.microbatches=2"]
    words = ["run", "1f1b", *sizes, "--steps", "1", "--timeout", "200s", "-o", "run"]

    ran = torch_python.run(tmp_path, *words, program=tmp_path / "spawned.py")

    assert ran.returncode == 0, ran.stderr
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["rank0.json.gz", "run.manifest.json"]
