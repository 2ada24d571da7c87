"""What this distribution offers: the messages of three frameworks; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.plugin import MessagePolicyOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

    from pptrace.plugin import Policy, Schedule

__all__ = ["pptrace_message_policies"]


@hookimpl
def pptrace_message_policies() -> Iterable[MessagePolicyOffer]:
    """Offer the frameworks' ways to issue messages."""
    yield MessagePolicyOffer(
        name="megatron",
        summary="Megatron-LM: batches that are waited for at once, or with vp messages beside computation.",
        build=_megatron,
        options=_megatron_options,
        source="https://github.com/NVIDIA/Megatron-LM",
    )
    yield MessagePolicyOffer(
        name="torch",
        summary="PyTorch's pipelining: Schedule1F1B's and ScheduleGPipe's calls, its runtime's for all others.",
        build=_torch,
        options=_torch_options,
        source="https://github.com/pytorch/pytorch",
    )
    yield MessagePolicyOffer(
        name="deepspeed",
        summary="DeepSpeed's pipeline engine: every send and receive waited for at once.",
        build=_deepspeed,
        source="https://github.com/deepspeedai/DeepSpeed",
    )


def _megatron(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    from pptrace_frameworks.megatron import build

    return build(schedule, options)


def _megatron_options() -> type[BaseModel]:
    from pptrace_frameworks.megatron import MegatronOptions

    return MegatronOptions


def _torch(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    from pptrace_frameworks.torch import build

    return build(schedule, options)


def _torch_options() -> type[BaseModel]:
    from pptrace_frameworks.torch import TorchOptions

    return TorchOptions


def _deepspeed(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    from pptrace_frameworks.deepspeed import build

    return build(schedule, options)
