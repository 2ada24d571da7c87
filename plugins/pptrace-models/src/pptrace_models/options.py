"""Options of the roofline cost model: how training state is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from pptrace.plugin import Duration, Size  # noqa: TC001 - pydantic reads them
from pptrace_models.transformer import Parameters

if TYPE_CHECKING:
    from pptrace_models.stages import Stage

__all__ = ["RooflineOptions", "gradient_bytes", "optimizer_bytes", "stage_host_ns"]

Moment = Literal["fp32", "fp16", "bf16", "fp8"]

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "remainder": 2}


class RooflineOptions(Parameters):
    """How gradients and optimizer state are kept, and what memory is set aside."""

    zero: Literal[0, 1, 2, 3] = 0
    """What the ranks that hold the same weights shard: 1 the optimizer's state (Megatron-LM's distributed
    optimizer), 2 gradients, too, 3 weights, too (FSDP), which are gathered as ``data_parallel.reshard`` says."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of gradient buffers and of their reduction (``--main-grads-dtype``)."""
    main_params: Literal["fp32", "fp16", "remainder"] | None = None
    """What the optimizer keeps of weights besides: a copy in fp32 or fp16 (``--main-params-dtype``), or the 16
    bits of an fp32 copy that bf16 weights lack (``store_param_remainders``); fp32 unless given."""
    exp_avg: Moment | None = None
    """Precision of Adam's first moment (``--exp-avg-dtype``); fp32 unless given."""
    exp_avg_sq: Moment | None = None
    """Precision of its second moment (``--exp-avg-sq-dtype``); fp32 unless given."""
    reserved: Annotated[Size, Field(ge=0)] = 2 * 2**30
    """Set aside per rank for context, workspace and fragmentation; 2 GiB."""
    fragmentation: Annotated[float, Field(ge=0, le=1)] | None = None
    """What PyTorch's allocator holds beyond what is allocated at the peak, as a share of that: what
    ``torch.cuda.max_memory_reserved`` has over ``max_memory_allocated``; none unless given."""
    kernels: Literal["groups", "shapes"] = "groups"
    """How long kernels take: groups of them at constant shares of the peaks, or each by its shape."""
    kernel_table: str | None = None
    """A file of measured products, which go before what their shapes say; none unless given."""
    accumulation: Literal["fused", "separate"] = "fused"
    """How a microbatch's weight gradients are added up: by the product itself (Megatron-LM), or written in the
    model's precision and added by kernels of their own (DeepSpeed's BF16 optimizer, nanotron). To buffers in FP32
    that happens behind the backward, so all of a stage's gradients are there once more at its end."""
    dummy_gradients: bool = False
    """Whether fused accumulation hands autograd a tensor in place of each gradient, kept once for each shape of a
    layer's matrices (Transformer Engine's ``get_dummy_wgrad``)."""
    scatter_gather: bool = False
    """Whether each tensor-parallel device sends its share of a message; the next stage gathers it."""
    spread: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Standard deviation of devices' speeds, as a share: all computation takes as long as on the slowest device of
    the job, in expectation."""
    skew: Annotated[Duration, Field(ge=0)] = 0
    """Standard deviation of when the devices of a tensor-parallel group reach a collective, which waits for the
    last, in expectation."""
    dispatcher: Literal["all-to-all", "deduplicated"] = "all-to-all"
    """How tokens get to their experts: once for each expert, or once to each device and node, which pass them on
    to several of their experts (DeepEP, HybridEP)."""
    every_nic: bool = False
    """Whether rings between replicas go through the NICs of all devices of the group that are in a node, as NCCL's
    do, and no faster than the node's links; else each goes through one."""
    overlap_tp: bool = False
    """Whether tensor-parallel collectives of attention and MLP run beside products: with those that they feed or
    sum in as many pieces as there are devices, in the backward also whole beside others
    (``--tp-comm-overlap``)."""
    host: Annotated[Duration, Field(ge=0)] = 0
    """Time in which the host issues the kernels of a layer with experts in the forward; twice that in the
    backward. No layer is faster; none with CUDA graphs."""
    host_action: Annotated[Duration, Field(ge=0)] = 0
    """Time in which it issues what a forward of a stage with such layers has beside them: messages, buffers, the
    schedule itself; twice that in the backward. Needs ``host``."""
    segments: bool | None = None
    """Whether actions consist of segments, which overlapped pairs run beside each other; unless given, where the
    schedule has such pairs, a group communicates inside actions, and ``host``, ``overlap_tp`` and ``accumulation``
    have their defaults."""
    alone: Literal["in-order", "overlapped"] = "in-order"
    """What segments of an action outside pairs do: follow one another, or compute what does not need the action's
    communication beside that, as Megatron-LM's backward does with tensor-parallel collectives; exchanges of
    experts it leaves exposed."""
    delay_wgrad: bool = True
    """Whether expert parallelism's exchanges leave before their half's weight gradients, as with Megatron-LM's
    ``--delay-wgrad-compute``, or behind them."""

    @field_validator("zero", mode="before")
    @classmethod
    def _is_no_switch(cls, value: object) -> object:
        """Refuse true and false, which Python takes for 1 and 0."""
        if isinstance(value, bool):
            raise ValueError(f"must be one of 0, 1, 2, 3, not {str(value).lower()}")  # noqa: TRY004 - pydantic's
        return value


def optimizer_bytes(options: RooflineOptions, *, master: bool) -> int:
    """Return the bytes of optimizer state of a parameter: both moments and, with ``master``, a copy of it."""
    moments = _BYTES[options.exp_avg or "fp32"] + _BYTES[options.exp_avg_sq or "fp32"]
    return moments + (_BYTES[options.main_params or "fp32"] if master else 0)


def stage_host_ns(options: RooflineOptions, stage: Stage) -> int:
    """Return what the host takes to issue a forward of a stage; 0 where it has no layer with experts."""
    layers = sum(kind.experts for kind in stage.layers)
    return layers * options.host + options.host_action if layers and options.host else 0


def gradient_bytes(options: RooflineOptions) -> int:
    """Return the bytes of a gradient."""
    return 4 if options.gradients == "fp32" else 2
