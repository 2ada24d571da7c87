"""Offers of this distribution: message policies, software stacks and recipes; light to import."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pptrace.plugin import CommandOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from click import Command
    from pydantic import BaseModel

    from pptrace.plugin import MessagePolicyOffer, Policy, Schedule, StackOffer


@hookimpl
def pptrace_message_policies() -> Iterable[MessagePolicyOffer]:
    """Offer the message policies of the frameworks."""
    from pptrace.plugin import MessagePolicyOffer

    yield MessagePolicyOffer(
        name="megatron",
        summary="Megatron-LM: computation waits for each batch of messages; with vp, messages overlap it.",
        build=partial(_build, "megatron"),
        options=partial(_options, "megatron", "MegatronOptions"),
        source="https://github.com/NVIDIA/Megatron-LM",
    )
    yield MessagePolicyOffer(
        name="torch",
        summary="PyTorch's pipelining: Schedule1F1B's and ScheduleGPipe's calls, its runtime's for all others.",
        build=partial(_build, "torch"),
        options=partial(_options, "torch", "TorchOptions"),
        source="https://github.com/pytorch/pytorch",
    )
    yield MessagePolicyOffer(
        name="deepspeed",
        summary="DeepSpeed's pipeline engine: computation waits for each send and receive.",
        build=partial(_build, "deepspeed"),
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
        name="recipe", summary="Print the configuration that simulates a recipe of a framework.", load=_recipe
    )


def _recipe() -> Command:
    from pptrace_frameworks.recipes import command

    return command


def _build(framework: str, schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    policy: Policy = import_module(f"pptrace_frameworks.{framework}").build(schedule, options)
    return policy


def _options(framework: str, name: str) -> type[BaseModel]:
    options: type[BaseModel] = getattr(import_module(f"pptrace_frameworks.{framework}"), name)
    return options
