"""Options of the roofline cost model: how training state is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pptrace.plugin import Size  # noqa: TC001 - pydantic reads it
from pptrace_models.checked import Parameters

__all__ = ["RooflineOptions"]


class RooflineOptions(Parameters):
    """How gradients and optimizer state are kept, and what memory is set aside."""

    zero: Literal[0, 1] = 0
    """ZeRO stage: 1 shards the optimizer's state over the ranks that hold the same weights."""
    gradients: Literal["fp32", "bf16"] = "fp32"
    """Precision of gradient buffers and of their reduction."""
    reserved: Annotated[Size, Field(ge=0)] = 2 * 2**30
    """Set aside per rank for context, workspace and fragmentation; 2 GiB."""
    segments: bool = False
    """Whether actions consist of segments, which overlapped pairs run beside each other."""
    alone: Literal["in-order", "overlapped"] = "in-order"
    """What segments of an action outside pairs do: follow one another, or compute what does not need the action's
    communication beside that, as Megatron-LM's backward does."""
    delay_wgrad: bool = True
    """Whether expert parallelism's exchanges leave before their half's weight gradients, as with Megatron-LM's
    ``--delay-wgrad-compute``, or behind them."""
