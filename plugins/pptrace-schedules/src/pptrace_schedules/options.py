"""Options of schedules."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pptrace.plugin import Parameters, Size


class ChimeraOptions(Parameters):
    """How many pipelines there are, and what becomes of more microbatches than ranks."""

    pipelines: Annotated[int, Field(ge=2, le=4096)] = 2
    """Pipelines, half of them down and half up; each holds the whole model."""
    scale: Literal["merged", "concatenation", "forward-doubling", "backward-halving"] = "merged"
    """More microbatches than ranks. merged: one bidirectional 1F1B. concatenation: one basic unit after another.
    forward-doubling: forwards of two microbatches at once. backward-halving: backwards of half a microbatch."""


class HanayoOptions(Parameters):
    """How often a microbatch runs down and up the ranks."""

    waves: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Waves, each of two chunks per rank; half of parallel.vp, or 2, by default."""


class SeqOptions(Parameters):
    """The number of slices of a sequence, and the difference of their lengths."""

    slices: Annotated[int, Field(ge=1, le=4096)] = 2
    """Slices of each microbatch's sequence, of as many tokens each."""
    attention: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of a pass's time in the core of causal attention, which grows with the slice; by default that of the
    model's costs, or 0 where they have none. With 0 all slices take the same time."""


class UpdateOptions(Parameters):
    """How many updates the table of a pipeline without flushes has."""

    updates: Annotated[int, Field(ge=3, le=64)] = 4
    """Optimizer updates from an empty pipeline to the next. The simulated step is the time between the third to
    last and the second to last. More updates reach the steady state of slow networks."""


class HelixPipeOptions(Parameters):
    """How many microbatches follow one another through the same ranks."""

    folds: Annotated[int, Field(ge=1, le=4096)] = 2
    """Microbatches per rank in one repetition. Messages of one overlap the computation of another."""


_Parts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class RoundPipeOptions(Parameters):
    """The number of stages, and which of them run together in a pass."""

    stages: Annotated[int, Field(ge=2, le=2**16)] | None = None
    """Stages, the smallest parts of a pass; by default parallel.pp times parallel.vp, or those of forward and
    backward."""
    forward: _Parts | None = None
    """Stages of each forward pass, from the first stage; all but those of the first backward pass. By default
    passes take equal times."""
    backward: _Parts | None = None
    """Stages of each backward pass, from the last stage. The first of these passes also has their forward. By
    default passes take equal times."""

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


class VocabularyOptions(Parameters):
    """The algorithm of the passes of the vocabulary."""

    barriers: Literal[1, 2] = 1
    """Communication barriers per microbatch between all shares of the vocabulary. 1: the first pass of a share
    also computes input gradients (Vocab-2). 2: its second pass does (Vocab-1)."""


class OptimusOptions(Parameters):
    """How the encoder is divided over the ranks."""

    encoder_ranks: Annotated[int, Field(ge=1, le=4096)] = 1
    """Consecutive ranks that share a copy of the encoder: at most its stages, a divisor of pp."""


class CombinedOptions(Parameters):
    """How many microbatches run through a chunk before the next."""

    round: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Microbatches that run through a chunk before the next one's turn; by default as many as ranks, and never
    fewer."""


class ZeroBubbleOptions(Parameters):
    """Whether the table is made for the costs, for what, and in how much memory."""

    order: Literal["generated", "fixed"] = "generated"
    """generated: an order made for the costs, the messages' time and the memory, for equal times where no costs
    are known. fixed: the order for equal times as its paper prints it."""
    shorten: Literal["rank", "step"] = "rank"
    """What a generated order minimises. rank: the longest time from a rank's first action to its last, the pace of
    steps with data_parallel.validation=after. step: from the first start to the last end."""
    merge: Literal[False, True] = False
    """Runs an input gradient and the weight gradient right after it as one full backward, as PyTorch's _merge_bw
    does: weight gradients hide its collectives, and its gradient is sent later. Generated orders merge only where
    that makes them shorter."""
    memory: Size | None = None
    """Bytes for activations on each rank, for generated orders; by default what the device has left."""

    @model_validator(mode="after")
    def _fixed_orders_know_no_memory(self) -> Self:
        if self.order == "fixed" and self.memory is not None:
            msg = "memory is for generated orders, and order is fixed: leave one of them out"
            raise ValueError(msg)
        return self
