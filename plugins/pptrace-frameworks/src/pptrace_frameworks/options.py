"""What users may say of a framework's messages, in the framework's own words."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MegatronOptions", "TorchOptions"]


class MegatronOptions(BaseModel):
    """Megatron-LM's switches of point-to-point communication."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overlap_p2p_comm: bool | None = Field(
        default=None,
        description="Run messages beside computation (--overlap-p2p-communication); with several chunks per rank "
        "unless given, as training has it; cannot be true with one.",
    )
    batch_p2p_comm: bool | None = Field(
        default=None,
        description="Send and receive in one batch on the pipeline's communicator; where messages do not overlap, "
        "unless given. False: each message is an operation of its own on its pair's communicator.",
    )
    overlap_p2p_comm_warmup_flush: bool = Field(
        default=False,
        description="Issue receives ahead in warm-up and at the end too "
        "(--overlap-p2p-communication-warmup-flush); needs overlap_p2p_comm.",
    )
    deallocate_pipeline_outputs: bool = Field(
        default=False,
        description="Wait for a forward's send at once, even with overlap_p2p_comm, so that its output can be "
        "freed: what core 0.18 (2026) and later do where training sets this; earlier ones freed without waiting.",
    )


class TorchOptions(BaseModel):
    """How PyTorch's pipelining places receives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    receive: Literal["asap", "deferred"] = Field(
        default="asap",
        description="Where the runtime of interleaved, zero-bubble and V schedules puts a receive: as soon as its "
        "send is issued, or right before its use (defer_pp_recv). Schedule1F1B and ScheduleGPipe have places of "
        "their own.",
    )
