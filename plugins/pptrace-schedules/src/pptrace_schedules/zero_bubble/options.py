"""The options of all schedules of this family."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pptrace.plugin import Size

__all__ = ["ZeroBubbleOptions"]


class ZeroBubbleOptions(BaseModel):
    """Whether the table is made for the costs, for what, and in how much memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    order: Literal["generated", "fixed"] = Field(
        default="generated",
        description="generated: an order made for the costs, the messages' time and the memory, for equal times "
        "where no costs are known. fixed: the order for equal times as its paper prints it.",
    )
    shorten: Literal["rank", "step"] = Field(
        default="rank",
        description="What a generated order minimises. rank: the longest time from a rank's first action to "
        "its last, the pace of steps with data_parallel.validation=after. step: from the first start to the "
        "last end.",
    )
    merge: Literal[False, True] = Field(
        default=False,
        description="Runs an input gradient and the weight gradient right after it as one full backward, as "
        "PyTorch's _merge_bw does: weight gradients hide its collectives, and its gradient is sent later. "
        "Generated orders merge only where that makes them shorter.",
    )
    memory: Size | None = Field(
        default=None,
        description="Bytes for activations on each rank, for generated orders; by default what the device has "
        "left.",
    )

    @model_validator(mode="after")
    def _fixed_orders_know_no_memory(self) -> Self:
        if self.order == "fixed" and self.memory is not None:
            msg = "memory is for generated orders, and order is fixed: leave one of them out"
            raise ValueError(msg)
        return self
