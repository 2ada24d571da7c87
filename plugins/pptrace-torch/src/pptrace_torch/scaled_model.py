"""The model of a configuration, scaled down to what a machine can compute in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct

from pptrace.plugin import ConfigError

if TYPE_CHECKING:
    from pptrace.plugin import StepInputs
    from pptrace_models.transformer import Transformer

MOST_FLOPS = 1 << 33
"""The most floating-point operations of a scaled step."""
_NO_MODEL = (
    "--real builds the model of a configuration, and {source} has none: write one, such as --set "
    "model.preset=llama3-8b --set device.preset=h100-sxm --set batch.sequence=4096"
)


class StageItems(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one stage consists of, in this order."""

    embedding: bool
    """Whether it begins with the embedding."""
    mlp_widths: tuple[int, ...]
    """Inner width of the MLP of each layer."""
    head: bool
    """Whether it ends with the LM head."""

    @property
    def is_empty(self) -> bool:
        """Whether the stage has nothing."""
        return not (self.embedding or self.mlp_widths or self.head)


class ScaledModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder whose widths, vocabulary and sequence are those of a configuration over a common divisor.

    The divisor is the smallest power of two for which a step has at most :data:`MOST_FLOPS` operations: three
    times those of its forwards, which are two per weight of a matrix product and token, and four per element of
    the attention's output and token of the sequence. Layers, heads and microbatches are those of the
    configuration. The MLP of a layer with experts is as wide as the experts of one token.
    """

    divisor: int
    """Configured sizes over these."""
    hidden: int
    """Width between layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    gated: bool
    """Whether MLPs have three matrices in place of two."""
    causal: bool
    """Whether tokens attend to earlier ones only."""
    vocabulary: int
    """Tokens in the vocabulary."""
    sequence: int
    """Tokens in the sequence of a microbatch, or in a slice of it."""
    sequences: int
    """Sequences in a microbatch."""
    stages: tuple[StageItems, ...]
    """Shape (stages,)."""

    @classmethod
    def of(cls, prepared: StepInputs, source: str) -> Self:
        """Return the model of a configuration.

        Args:
            prepared: the configuration and its table.
            source: its name, for errors.

        Raises:
            ConfigError: it has no model, or one with parts that are not built here.
        """
        section = prepared.resolved.experiment.model
        if section is None:
            raise ConfigError(_NO_MODEL.format(source=source))
        from pptrace_models.transformer import Transformer, checked

        model = checked(Transformer, section.values, "model")
        absent = {"encoder": model.encoder, "multi-token prediction": model.mtp, "latent attention": model.kv_rank}
        for name, value in absent.items():
            if value:
                message = f"--real builds no {name}: take a model without it, or leave --real out"
                raise ConfigError(message, key="model")
        divisor = 1
        while True:
            scaled = cls.over(divisor, model, prepared)
            sizes = (scaled.hidden, scaled.head_dim, scaled.vocabulary, scaled.sequence)
            if scaled.flops(prepared.schedule.microbatches) <= MOST_FLOPS or max(sizes) == 1:
                return scaled
            divisor *= 2

    @classmethod
    def over(cls, divisor: int, model: Transformer, prepared: StepInputs) -> Self:
        """Return a model with its sizes over a divisor, at least 1.

        Raises:
            PptraceError: layers and stages that do not fit each other, or a stage with nothing.
        """
        from pptrace_models.stages import stages_of

        def scaled(size: float) -> int:
            return max(round(size / divisor), 1)

        batch = prepared.resolved.experiment.batch
        experts_width = model.top_k * model.expert_ffn + model.shared_ffn
        stages = tuple(
            StageItems(
                embedding=stage.embedding, head=stage.head,
                mlp_widths=tuple(scaled(experts_width if layer.experts else model.ffn) for layer in stage.layers),
            )
            for stage in stages_of(model, prepared.schedule.stages)
        )  # fmt: skip
        empty = next((index for index, stage in enumerate(stages) if stage.is_empty), None)
        if empty is not None:
            message = f"stage {empty} has no layers, embedding or LM head, and --real builds none like that"
            raise ConfigError(message, key="model")
        return cls(
            divisor=divisor, hidden=scaled(model.hidden), heads=model.heads, kv_heads=model.kv_heads,
            head_dim=scaled(model.head_dim), gated=model.gated, causal=model.causal,
            vocabulary=scaled(model.vocabulary), sequence=scaled((batch.sequence or 1) / prepared.slices),
            sequences=batch.micro, stages=stages,
        )  # fmt: skip

    def flops(self, microbatches: int) -> int:
        """Return the floating-point operations of a step."""
        tokens = microbatches * self.sequences * self.sequence
        width = self.heads * self.head_dim
        attention = self.hidden * 2 * (width + self.kv_heads * self.head_dim)
        mlp_widths = [mlp_width for stage in self.stages for mlp_width in stage.mlp_widths]
        weights = len(mlp_widths) * attention + self.hidden * (2 + self.gated) * sum(mlp_widths)
        weights += self.hidden * self.vocabulary * sum(stage.head for stage in self.stages)
        return 3 * tokens * (2 * weights + 4 * len(mlp_widths) * width * self.sequence)

    def __str__(self) -> str:
        """Return the sizes in words."""
        scale = f"configured sizes over {self.divisor}" if self.divisor > 1 else "configured sizes"
        return (
            f"{scale}: hidden {self.hidden}, {self.heads} heads of {self.head_dim}, sequence {self.sequence}, "
            f"vocabulary {self.vocabulary}"
        )
