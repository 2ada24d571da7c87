"""Schedule tables in PyTorch: run them, load them into a program, and record its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace_torch.megatron import megatron_schedule
    from pptrace_torch.runtime import capture, load

__all__ = ["capture", "load", "megatron_schedule"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch at its first use."""
    from importlib import import_module

    from pptrace_torch.manifest import require_torch

    modules = {
        "capture": "pptrace_torch.runtime", "load": "pptrace_torch.runtime",
        "megatron_schedule": "pptrace_torch.megatron",
    }  # fmt: skip
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_torch()
    return getattr(import_module(modules[name]), name)
