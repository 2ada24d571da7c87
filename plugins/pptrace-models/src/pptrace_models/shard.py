"""A rank's share of a layer: tokens and widths after the tensor, context and expert parallel splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, ConstraintError
from pptrace_models.checked import divisors_near

if TYPE_CHECKING:
    from pptrace.plugin import CostRequest
    from pptrace_models.transformer import Transformer

__all__ = ["Shard", "partition", "shard"]

_ENDS = 2
"""Ends of a pipeline that may hold no layer: the embedding's and the LM head's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Sizes on one device of a rank's group."""

    tokens: int
    """Tokens of one microbatch on this device: its share of the sequences."""
    split_tokens: int
    """Tokens between tensor-parallel regions: fewer with sequence parallelism."""
    sequence: int
    """Tokens of a whole sequence."""
    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    replicas: int
    """Devices with the same dense weights: data times context parallel."""
    heads: int
    """Query heads."""
    query: int
    """Width of the query heads."""
    kv: int
    """Width of the key heads, and of the value heads."""
    ffn: int
    """Inner width of the MLP."""
    expert_ffn: int
    """Inner width of an expert."""
    experts: int
    """Experts held."""
    vocabulary: int
    """Rows of the embedding and of the LM head, rounded up."""


def shard(model: Transformer, request: CostRequest) -> Shard:
    """Split a layer over a rank's group.

    Raises:
        ConfigError: a size that is missing or below 1.
        ConstraintError: sizes that do not divide, with the nearest that do.
    """
    _check_sizes(request)
    _check_divisions(model, request)
    tokens = request.micro * request.sequence // request.cp
    kv_share = min(request.tp, model.kv_heads)
    return Shard(
        tokens=tokens,
        split_tokens=tokens // request.tp if request.sequence_parallel else tokens,
        sequence=request.sequence,
        tp=request.tp,
        cp=request.cp,
        ep=request.ep,
        replicas=request.dp * request.cp,
        heads=model.heads // request.tp,
        query=model.query_width // request.tp,
        kv=model.kv_width // kv_share,
        ffn=model.ffn // request.tp,
        expert_ffn=model.expert_ffn // request.tp,
        experts=model.num_experts // request.ep,
        vocabulary=-(-model.vocabulary // request.tp),
    )


def partition(model: Transformer, stages: int) -> list[int]:
    """Return the layers of each stage: those given, or an even split.

    The remainder goes to the middle stages, later ones first: the last stage has the LM head, the first the
    embedding, and earlier stages hold more microbatches. One or two stages more than layers leave the last without
    a layer, then the first: head and embedding take a slot each, as Megatron-LM's accounting for them in the
    pipeline's split has it.

    Raises:
        ConfigError: a given split of another length or sum.
        ConstraintError: more stages than layers.
    """
    given = model.layers_per_stage
    if given is not None:
        key = "model.layers_per_stage"
        if len(given) != stages:
            raise ConfigError(f"{len(given)} entries for {stages} stages; give one per stage", key=key)
        if sum(given) != model.layers:
            message = f"sums to {sum(given)}, not to model.layers ({model.layers}); "
            away = model.layers - sum(given)
            raise ConfigError(f"{message}{'add' if away > 0 else 'take away'} {abs(away)}", key=key)
        return list(given)
    ends = stages - model.layers
    if 0 < ends <= min(_ENDS, stages - 1):
        return [int(ends < _ENDS), *[1] * (stages - 2), 0]
    if stages > model.layers:
        message = f"{stages} stages are more than model.layers ({model.layers})"
        raise ConstraintError(message, nearest=f"{model.layers} stages", key="parallel")
    base, remainder = divmod(model.layers, stages)
    favoured = [*range(stages - 2, 0, -1), 0, stages - 1][:remainder]
    return [base + (stage in favoured) for stage in range(stages)]


def _check_sizes(request: CostRequest) -> None:
    sizes = {
        "parallel.tp": request.tp,
        "parallel.cp": request.cp,
        "parallel.dp": request.dp,
        "parallel.ep": request.ep,
        "parallel.pp": request.ranks,
        "batch.micro": request.micro,
        "batch.sequence": request.sequence,
    }
    for key, size in sizes.items():
        if size < 1:
            raise ConfigError(f"must be at least 1, not {size}", key=key)
    if request.stages < 1 or request.microbatches < 1:
        raise ConfigError("roofline needs at least one stage and one microbatch", key="costs")


def _check_divisions(model: Transformer, request: CostRequest) -> None:
    tp, kv = request.tp, model.kv_heads
    wide = {"heads": model.heads, "ffn": model.ffn}
    if model.num_experts:
        wide["expert_ffn"] = model.expert_ffn
    for name, size in wide.items():
        _divide("parallel.tp", tp, f"model.{name}", size, divisors_near(tp, *wide.values()))
    if kv % tp and tp % kv:
        message = f"{tp} neither divides model.kv_heads ({kv}) nor is a multiple of it"
        raise ConstraintError(message, nearest=divisors_near(tp, *wide.values(), kv), key="parallel.tp")
    if (model.query_width % tp) or model.kv_width % min(tp, kv):
        message = f"{tp} does not split heads of {model.head_dim:g} into whole widths"
        near = divisors_near(tp, model.query_width, model.kv_width, model.heads)
        raise ConstraintError(message, nearest=near, key="parallel.tp")
    _divide("parallel.cp", request.cp, "batch.sequence", request.sequence)
    if request.sequence_parallel:
        share = request.sequence // request.cp
        _divide("parallel.tp", tp, "the tokens that sequence parallelism splits", request.micro * share)
    _check_experts(model, request)


def _check_experts(model: Transformer, request: CostRequest) -> None:
    if request.ep == 1:
        return
    if not model.num_experts:
        message = f"{request.ep} splits experts, and the model has none (model.num_experts)"
        raise ConstraintError(message, nearest="1", key="parallel.ep")
    near = divisors_near(request.ep, model.num_experts, request.dp * request.cp)
    _divide("parallel.ep", request.ep, "model.num_experts", model.num_experts, near)
    _divide("parallel.ep", request.ep, "parallel.dp x parallel.cp", request.dp * request.cp, near)


def _divide(key: str, size: int, name: str, whole: int, near: str = "") -> None:
    if whole % size:
        message = f"{size} does not divide {name} ({whole})"
        raise ConstraintError(message, nearest=near or divisors_near(size, whole), key=key)
