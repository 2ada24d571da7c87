"""Offers of this distribution: message policies, software stacks and recipes; light to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import MessagePolicyOffer, StackOffer


@hookimpl
def pptrace_message_policies() -> Iterable[MessagePolicyOffer]:
    """Offer the message policies of the frameworks."""
    from pptrace.plugin import MessagePolicyOffer

    yield MessagePolicyOffer(
        name="megatron",
        summary="Megatron-LM: computation waits for each batch of messages; with vp, messages overlap it.",
        build=deferred("pptrace_frameworks.megatron:build"),
        options=lambda: import_module("pptrace_frameworks.megatron").MegatronOptions,
        source="https://github.com/NVIDIA/Megatron-LM",
    )
    yield MessagePolicyOffer(
        name="torch",
        summary="PyTorch's pipelining: Schedule1F1B's and ScheduleGPipe's calls, its runtime's for all others.",
        build=deferred("pptrace_frameworks.torch:build"),
        options=lambda: import_module("pptrace_frameworks.torch").TorchOptions,
        source="https://github.com/pytorch/pytorch",
    )
    yield MessagePolicyOffer(
        name="deepspeed",
        summary="DeepSpeed's pipeline engine: computation waits for each send and receive.",
        build=deferred("pptrace_frameworks.deepspeed:build"),
        source="https://github.com/deepspeedai/DeepSpeed",
    )


@hookimpl
def pptrace_stacks() -> Iterable[StackOffer]:
    """Offer the stacks of the frameworks' releases."""
    from pptrace_frameworks.stacks import STACKS

    yield from STACKS


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Offer ``pptrace recipe``."""
    yield CommandOffer(
        name="recipe", summary="Print the configuration that simulates a recipe of a framework.",
        load=lambda: import_module("pptrace_frameworks.recipes").command,
    )  # fmt: skip
