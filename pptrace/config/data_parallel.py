"""What an experiment may say about its data-parallel replicas."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.choices import Reshard, Validation
from pptrace.config.quantity import Duration, Rate

__all__ = ["DataParallel"]


class DataParallel(BaseModel):
    """What data-parallel replicas do together: gradients are reduced, sharded weights gathered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overlap: bool = Field(
        default=False,
        description="Reduce a stage's gradients as soon as they are whole, while the pipeline drains; else when "
        "every rank has finished.",
    )
    bandwidth: Rate | None = Field(
        default=None, description="Rate per direction between replicas; as the pipeline's network unless given."
    )
    latency: Duration = Field(
        default=0,
        description="Latency of one message between replicas; as the pipeline's network where that gives the "
        "bandwidth.",
    )
    validation: Validation = Field(
        default=Validation.BEFORE,
        description=f"When a step learns the norm of all gradients. {Validation.told()}.",
    )
    stage_replicas: bool = Field(
        default=True,
        description="Reduce gradients also between the ranks of one pipeline that hold the same stage, as "
        "Chimera's do; by all-reduce over the pipeline's network or cluster. With false they are not exchanged.",
    )

    reduce_each: bool | None = Field(
        default=None,
        description="Reduce a stage's gradients behind each microbatch's backward, as Megatron-FSDP does where "
        "they are sharded; once, behind the last, unless given. Needs overlap.",
    )
    reshard: Reshard | None = Field(
        default=None,
        description="When a rank frees a stage's weights that it gathered, where costs shard them "
        f"(costs.zero: 3); never unless given. {Reshard.told()}",
    )
    active_stages: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None,
        description="Under reshard: never, stages of a rank whose sharded weights are gathered at once: those "
        "that compute next; 3 unless given, as in PyTorch's pipeline runtime.",
    )

    speeds: dict[str, Annotated[float, Field(ge=0.001, le=1)]] | None = Field(
        default=None,
        min_length=1,
        description="Speeds of slower devices (stragglers) in forwards and backwards, as a share: by replica, "
        "range of replicas, or rank of a pipeline (3/2 is rank 2 of replica 3). All others have 1; a rank is as "
        "fast as its slowest GPU, and reductions wait for the slowest replica.",
        examples=[{"3": 0.5, "8-11": 0.9, "0/2": 0.7}],
    )
    spread: Annotated[float, Field(ge=0, le=0.5)] | None = Field(
        default=None,
        description="Standard deviation of what GPUs take for the same forwards and backwards, as a share: each "
        "GPU of the job has one that is drawn around 1. It stands for what a cost model may add to all times for "
        "the slowest GPU, such as costs.spread: give one of them.",
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="What spread is drawn from, 1 unless given; the same seed gives the same GPUs."
    )

    @property
    def overlaps(self) -> bool:
        """Whether a stage's gradients are reduced as soon as they are whole."""
        return self.overlap or self.validation is not Validation.BEFORE
