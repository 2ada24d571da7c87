"""Options of schedules."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pptrace.plugin import Size


class ChimeraOptions(BaseModel):
    """How many pipelines there are, and what becomes of more microbatches than ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    pipelines: Annotated[int, Field(ge=2, le=4096)] = Field(
        default=2, description="Pipelines, half of them down and half up; each holds the whole model."
    )
    scale: Literal["merged", "concatenation", "forward-doubling", "backward-halving"] = Field(
        default="merged",
        description="More microbatches than ranks. merged: one bidirectional 1F1B. concatenation: one basic unit "
        "after another. forward-doubling: forwards of two microbatches at once. backward-halving: backwards of "
        "half a microbatch.",
    )


class HanayoOptions(BaseModel):
    """How often a microbatch runs down and up the ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    waves: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Waves, each of two chunks per rank; half of parallel.vp, or 2, by default."
    )


class SeqOptions(BaseModel):
    """The number of slices of a sequence, and the difference of their lengths."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    slices: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=2, description="Slices of each microbatch's sequence, of as many tokens each."
    )
    attention: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Share of a pass's time in the core of causal attention, which grows with the slice; by "
        "default that of the model's costs, or 0 where they have none. With 0 all slices take the same time.",
    )


class UpdateOptions(BaseModel):
    """How many updates the table of a pipeline without flushes has."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    updates: Annotated[int, Field(ge=3, le=64)] = Field(
        default=4,
        description="Optimizer updates from an empty pipeline to the next. The simulated step is the time between "
        "the third to last and the second to last. More updates reach the steady state of slow networks.",
    )


class HelixPipeOptions(BaseModel):
    """How many microbatches follow one another through the same ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    folds: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=2,
        description="Microbatches per rank in one repetition. Messages of one overlap the computation of another.",
    )


_Parts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class RoundPipeOptions(BaseModel):
    """The number of stages, and which of them run together in a pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    stages: Annotated[int, Field(ge=2, le=2**16)] | None = Field(
        default=None,
        description="Stages, the smallest parts of a pass; by default parallel.pp times parallel.vp, or those of "
        "forward and backward.",
    )
    forward: _Parts | None = Field(
        default=None,
        description="Stages of each forward pass, from the first stage; all but those of the first backward pass. "
        "By default passes take equal times.",
    )
    backward: _Parts | None = Field(
        default=None,
        description="Stages of each backward pass, from the last stage. The first of these passes also has their "
        "forward. By default passes take equal times.",
    )

    @model_validator(mode="after")
    def _passes_have_the_same_stages(self) -> Self:
        if (self.forward is None) != (self.backward is None):
            msg = "forward and backward are for the same stages: write both, or none"
            raise ValueError(msg)
        if self.forward is not None and self.stages is not None:
            msg = "stages are those of forward and backward: leave the key out"
            raise ValueError(msg)
        if self.forward is not None and self.backward is not None:
            forward, backward = sum(self.forward), sum(self.backward[1:])
            if forward != backward:
                msg = f"forward has {forward} stages, and backward has {backward} after its first pass"
                raise ValueError(msg)
        return self


class VocabularyOptions(BaseModel):
    """The algorithm of the passes of the vocabulary."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    barriers: Literal[1, 2] = Field(
        default=1,
        description="Communication barriers per microbatch between all shares of the vocabulary. 1: the first "
        "pass of a share also computes input gradients (Vocab-2). 2: its second pass does (Vocab-1).",
    )


class OptimusOptions(BaseModel):
    """How the encoder is divided over the ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    encoder_ranks: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1,
        description="Consecutive ranks that share a copy of the encoder: at most its stages, a divisor of pp.",
    )


class CombinedOptions(BaseModel):
    """How many microbatches run through a chunk before the next."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    round: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None,
        description="Microbatches that run through a chunk before the next one's turn; by default as many as "
        "ranks, and never fewer.",
    )


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
