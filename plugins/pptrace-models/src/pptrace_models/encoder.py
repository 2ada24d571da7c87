"""An encoder's description: the vision or audio tower in front of a decoder."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pptrace_models.checked import Parameters, divisors_near

__all__ = ["Encoder"]

_Count = Annotated[int, Field(ge=1, le=100_000)]
_Width = Annotated[int, Field(ge=1, le=10_000_000)]


class Encoder(Parameters):
    """Layers without a causal mask, each item's tokens to themselves, and a projector to the decoder's width."""

    layers: _Count
    """Layers."""
    hidden: _Width
    """Their width."""
    heads: _Count
    """Their heads."""
    ffn: _Width
    """Inner width of their MLP."""
    gated: bool = False
    """Whether that has three matrices or two."""
    tokens: _Width
    """Tokens of an item, such as the patches of an image, which attend to each other."""
    items: _Count = 1
    """Items in each of the decoder's sequences."""
    merge: _Count = 1
    """Neighbouring tokens that the projector makes one of."""
    recompute: Literal["none", "full"] = "none"
    """Whether the backward computes layers again."""
    frozen: bool = False
    """Whether its layers are not trained: they have no backward, no gradients or optimizer state, and keep
    nothing."""
    frozen_projector: bool = False
    """Whether its projector is not trained; gradients pass it where the layers are."""
    stages: Annotated[int, Field(ge=0, le=100_000)] = 0
    """First stages that have the encoder and nothing else; with 0 it is on the decoder's first stage."""

    @property
    def passes_back(self) -> bool:
        """Whether the projector has a backward: something in it or before it is trained."""
        return not (self.frozen and self.frozen_projector)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.hidden % self.heads:
            near = divisors_near(self.heads, self.hidden)
            raise ValueError(f"heads: {self.heads} do not divide hidden ({self.hidden}); nearest that do: {near}")
        if self.tokens * self.items % self.merge:
            raise ValueError(f"merge: {self.merge} does not divide tokens x items ({self.tokens * self.items})")
        if self.stages > self.layers:
            raise ValueError(f"stages: {self.stages} are more than layers ({self.layers})")
        return self
