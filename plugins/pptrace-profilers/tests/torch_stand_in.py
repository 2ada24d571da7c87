"""A stand-in for torch: a profiler that notes names, and messages that go nowhere; and a printed module on it."""

# ruff: noqa: ARG001 - stand-ins take what the real ones take

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pptrace_profilers.annotation import module_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

__all__ = ["Tensor", "loaded", "stand_in"]


class Tensor:
    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def is_floating_point(self) -> bool:
        return not self.whole


def stand_in(log: list[str], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for torch; what is marked and posted goes to the log."""

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
    modules["torch.profiler"].record_function = record_function
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
