"""Memory of weights, optimizer states and activations.

A layer of width h with equal numbers of query and KV heads, an MLP of two matrices of 4h, dropout and score
matrices keeps 34sbh + 5as^2b bytes in bf16 (Korthikanti et al., Reducing Activation Recomputation, 2022). W keeps
the inputs and output gradients of its linear layers, 32sbh (Zero Bubble). Tensor parallelism divides all of this
except 10sbh of norms, column-parallel inputs and dropouts, which sequence parallelism divides. Matrices with
frozen weights keep no inputs.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pptrace_models.accelerator import duration_ns, reached
from pptrace_models.kernel_times import Shaped
from pptrace_models.layer import FP32_BYTES, Cast, linears
from pptrace_models.options import GRADIENTS, WEIGHTS, gradient_bytes, optimizer_bytes
from pptrace_models.transformer import NARROW, Delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_models.accelerator import Accelerator, Groups
    from pptrace_models.layer import Linear, Part, Shard
    from pptrace_models.layer_times import Costing
    from pptrace_models.muon import Matrices
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import Layer, Mamba, Transformer


BUFFERED = 2
"""Layers with copied tensors or gathered weights in device memory at once: the current and the next layer."""
_ROW_PARALLEL = 2
"""Row-parallel products of a layer: the last ones of attention and MLP."""
_QUEUED_LAYERS = 18
"""Layers whose forwards fill the device's queue of 1,024 kernels and events; fitted to nanotron's steps with 16
stages, about 55 per layer."""


class ActivationBytes(Struct, frozen=True, kw_only=True):
    """Bytes that a layer, an embedding or a head keeps of one microbatch."""

    activation: int = 0
    """Bytes kept from forward to backward."""
    weight_part: int = 0
    """Bytes kept from the input-gradient backward to the weight-gradient backward."""
    transient: int = 0
    """Bytes beyond ``activation`` while the layer is computed or recomputed."""
    copied: int = 0
    """Bytes that host memory keeps from forward to backward."""

    def __add__(self, other: ActivationBytes) -> ActivationBytes:
        return ActivationBytes(
            activation=self.activation + other.activation,
            weight_part=self.weight_part + other.weight_part,
            transient=max(self.transient, other.transient),
            copied=self.copied + other.copied,
        )


def layer_activations(model: Transformer, shard: Shard, kind: Layer) -> ActivationBytes:
    """Return the bytes that a layer keeps."""
    model, shard = model.with_precision_of(kind), shard.loaded(kind)
    all_bytes = sum(part(model, shard, kind) for part in (_boundary_bytes, _mixing, _mlp, _scores))
    weight_part = 0 if model.frozen else min(_weight_part(model, shard, kind), all_bytes)
    kept_bytes = all_bytes - _freed_bytes(model, shard, kind, all_bytes)
    if model.recompute == "full" and kind.is_recomputed:
        kept_bytes = stream_bytes(model, shard)
    copied = kept_bytes if kind.offloaded else _copied_bytes(model, shard, kind)
    return ActivationBytes(
        activation=kept_bytes - copied,
        weight_part=0 if kind.offloaded else weight_part,
        transient=all_bytes - kept_bytes + BUFFERED * copied,
        copied=copied,
    )


def grouped(layers: Sequence[ActivationBytes], size: int) -> list[ActivationBytes]:
    """Return the bytes kept by layers of which ``size`` are recomputed together: the first keeps the group's."""
    groups = []
    for first in range(0, len(layers), size):
        group = layers[first : first + size]
        all_bytes = sum(layer.activation + layer.transient for layer in group)
        kept = group[0].activation
        weight_part = sum(layer.weight_part for layer in group)
        groups.append(ActivationBytes(activation=kept, weight_part=weight_part, transient=all_bytes - kept))
        groups += [ActivationBytes()] * (len(group) - 1)
    return groups


def prediction_activations(model: Transformer, shard: Shard) -> ActivationBytes:
    """Return the bytes kept by multi-token prediction without its layer: inputs of norms and projection."""
    row = shard.split_tokens * model.hidden * model.element_bytes
    return ActivationBytes(activation=4 * row, weight_part=3 * row)


def embedding_activations(model: Transformer, shard: Shard) -> ActivationBytes:
    """Return the bytes that the embedding keeps: a dropout mask, if dropout is on."""
    return ActivationBytes(activation=shard.split_tokens * model.hidden * model.dropout)


def head_activations(model: Transformer, shard: Shard, options: RooflineOptions) -> ActivationBytes:
    """Return the bytes kept after the last layer: inputs of final norm and LM head, and logits.

    A fused or compiled loss keeps the logits; otherwise these are kept in fp32, or the result of ``log_softmax``
    is. Only Megatron-LM gathers the LM head's input again. With chunks, the gradient of that input is kept.
    """
    row = shard.split_tokens * model.hidden * model.element_bytes
    gathered = shard.tokens * model.hidden * model.element_bytes
    if options.loss_chunks > 1:
        return ActivationBytes(activation=row + gathered)
    factor = row if options.sequence_first else gathered
    of_loss = _kept_loss_bytes(model, shard, options)
    if model.frozen:
        return ActivationBytes(activation=row + of_loss)
    return ActivationBytes(activation=row + factor + of_loss, weight_part=factor + logits_bytes(model, shard))


def _kept_loss_bytes(model: Transformer, shard: Shard, options: RooflineOptions) -> int:
    return (model.element_bytes if options.fused_loss else FP32_BYTES) * shard.tokens * shard.vocabulary


def loss_bytes(model: Transformer, shard: Shard, options: RooflineOptions) -> int:
    """Return the additional bytes during the backward of the loss, which runs for one microbatch at a time.

    With chunks, these are all bytes of a chunk's logits, and the gradient of the LM head's input in fp32. The
    program also holds the logits that an eager loss copies: with PyTorch 2.13, 14 bytes per logit in BF16.

    This is the logits' gradient. Before, the logits have its place: Megatron-Core's
    ``tensor_parallel/cross_entropy.py`` copies them to fp32, and its gradient is cast back. A fused loss writes
    its gradient over the logits. The backward of PyTorch's loss holds two tensors in fp32 beside the result of
    ``log_softmax``: its gradient, and that of the logits. With logits that are split over devices, it also holds
    the exponentials of the result (``torch/distributed/tensor/parallel/loss.py``).
    """
    size_bytes = logits_bytes(model, shard)
    if options.fused_loss is True:
        size_bytes = 0
    elif options.eager_loss is True:
        size_bytes = (3 if shard.tp > 1 else 2) * FP32_BYTES * shard.tokens * shard.vocabulary
    if options.loss_chunks == 1:
        return size_bytes
    held = 0 if options.fused_loss else logits_bytes(model, shard)
    kept = held + _kept_loss_bytes(model, shard, options)
    return (kept + size_bytes) // options.loss_chunks + FP32_BYTES * shard.tokens * model.hidden


def score_gradient_bytes(model: Transformer, shard: Shard, layers: Iterable[Layer]) -> int:
    """Return the bytes of two gradients in the backward of separate attention kernels: of scores and softmax."""
    return 2 * model.element_bytes * max((_score_count(model, shard, kind) for kind in layers), default=0)


def logits_bytes(model: Transformer, shard: Shard) -> int:
    """Return the bytes of a microbatch's logits."""
    return shard.tokens * shard.vocabulary * model.element_bytes


def stream_bytes(model: Transformer, shard: Shard) -> int:
    """Return the bytes of a layer's input: all residual streams of a microbatch."""
    return shard.split_tokens * model.hidden * model.residual_streams * model.element_bytes


def _boundary_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes between tensor-parallel regions: inputs of norms and of matrices, and dropout masks.

    With residual streams, these are the streams, their sum that is a half's input, and the half's output.
    """
    widths = model.residual_streams + 2 * (model.residual_streams > 1)
    row_bytes = widths * model.element_bytes + model.dropout
    inputs = kind.halves * shard.split_tokens * model.hidden * row_bytes
    return inputs + _normed_bytes(model, shard, kind) + _unfused_norm_bytes(model, shard, kind)


def _normed_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of norms' outputs, as each matrix keeps its input; a router keeps it uncast."""
    row = shard.split_tokens * model.hidden
    is_cast, is_latent = model.precision in NARROW, model.kv_rank > 0 and kind.mixer == "attention"
    factor = _factor_bytes(model, row)
    first = factor * (1 + (is_cast and is_latent)) * (kind.mixer != "none" and kind.has("projections"))
    if not kind.experts:
        return first + factor * (kind.feed_forward == "mlp")
    routed = 0 if model.frozen else row * model.element_bytes
    return first + routed + factor * (is_cast and shard.shared_ffn > 0)


def _unfused_norm_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes that norms without a fused kernel also keep: input in fp32, and unscaled output."""
    if model.fused_norms:
        return 0
    return kind.halves * shard.split_tokens * model.hidden * (FP32_BYTES + model.element_bytes)


def _factor_bytes(model: Transformer, count: int) -> int:
    """Return the bytes of a matrix's input of ``count`` elements, which only weight gradients need.

    In narrow formats a matrix keeps the cast input, without a copy in two bytes (Transformer Engine's
    ``pytorch/module/linear.py``).
    """
    return 0 if model.frozen else model.operand_bytes(count)


def _mixing(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of a layer's token mixing."""
    recurrence = model.recurrence(kind)
    if recurrence:
        return _recurrence(model, shard, recurrence.split(shard.tp))
    if kind.mixer != "attention":
        return 0
    return _compressed_attention(model, shard, kind) if model.compressed else _attention(model, shard, kind)


def _compressed_attention(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of attention with compressed keys.

    These are queries before and after their expansion and after their norm, keys with what is compressed, the
    indexer's tensors, the output before and after its rotation, and its groups.
    """
    overlap = model.overlap(kind.ratio)
    replicated = model.query_rank + round(model.head_dim) * (1 + 2 * overlap)
    if overlap > 1 and model.indexer:
        replicated += model.indexer.heads * (model.indexer.dim + 1) + 2 * overlap * model.indexer.dim
    kept = shard.split_tokens * replicated + 2 * shard.tokens * (shard.query + shard.output)
    factors = shard.split_tokens * model.query_rank + _grouped_outputs(model, shard)
    return kept * model.element_bytes + _factor_bytes(model, factors)


def _grouped_outputs(model: Transformer, shard: Shard) -> int:
    """Return the elements between the two output matrices of attention with compressed keys."""
    width = model.compressed.output_groups * model.compressed.output_rank if model.compressed else 0
    return shard.tokens * width // shard.tp


def _recurrence(model: Transformer, shard: Shard, part: Delta | Mamba) -> int:
    """Return the bytes of a recurrence: projections, the core's output, and the input of the last matrix.

    A delta rule also keeps the convolution's output, which Mamba-2's fused kernel recomputes. Projections by two
    matrices keep the inner and the outer tensor.
    """
    convolved = part.channels * isinstance(part, Delta)
    expanded = sum(width for _, width in part.ranks)
    kept = shard.tokens * (part.projected + part.output_width + convolved + expanded)
    kept += shard.split_tokens * sum(rank for rank, _ in part.ranks)
    return kept * model.element_bytes + _factor_bytes(model, shard.tokens * part.output_width)


def _attention(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of queries, keys, values and output, and of compressed tensors before and after norms.

    Flash attention keeps its output, which the next matrix shares unless it casts its input or is on another
    device. A gate keeps its input and attention's output. Norms of heads keep their inputs. Copied keys and values
    are kept twice.
    """
    compressed = (model.query_rank + model.kv_rank) * shard.split_tokens
    output, kept = shard.tokens * shard.output, 0
    is_shared = not (model.frozen or model.precision in NARROW or model.gated_attention)
    if kind.has("projections"):
        normed = shard.tokens * (shard.query + shard.kv) * model.head_norms
        kept += (compressed + normed) * model.element_bytes + _factor_bytes(model, compressed)
    if kind.has("core"):
        copied = (shard.kv + shard.value) * (model.copied_kv and model.kv_heads == model.heads)
        has_own_output = model.flash_attention and not (is_shared and kind.has("output"))
        kept += shard.tokens * (_mixed_width(model, shard) + copied) * model.element_bytes
        kept += output * (has_own_output + model.gated_attention) * model.element_bytes
    return kept + _factor_bytes(model, output) * kind.has("output")


def _mixed_width(model: Transformer, shard: Shard) -> int:
    """Return the width of what attention's core reads on a device.

    Queries and outputs of sparse attention have the width of the compressed keys. The indexer reads its queries,
    key and weights.
    """
    if not model.indexer:
        return shard.query + shard.kv + shard.value
    heads, dim = model.indexer.heads, model.indexer.dim
    absorbed = shard.heads * (2 * model.kv_rank + model.rope_dim)
    return absorbed + ((heads + 1) * dim + heads) * shard.split_tokens // shard.tokens


def _freed_bytes(model: Transformer, shard: Shard, kind: Layer, all_bytes: int) -> int:
    """Return the part of a layer's ``all_bytes`` that recomputed modules do not keep."""
    mlp, experts = _mlp(model, shard, kind), kind.experts
    attends = kind.mixer == "attention" and kind.has("core")
    norms = _normed_bytes(model, shard, kind) + _unfused_norm_bytes(model, shard, kind)
    streams = model.residual_streams
    expanded = 2 * shard.query if model.compressed else _mixed_width(model, shard) if model.kv_rank else 0
    freed = {
        "core_attn": _scores(model, shard, kind),
        "full_attn": _mixing(model, shard, kind) + _scores(model, shard, kind) if attends else 0,
        "mla_up_proj": shard.tokens * expanded * model.element_bytes if attends else 0,
        "layernorm": norms,
        # A half keeps its output, and the first of a stage its streams.
        "mhc": norms + kind.halves * stream_bytes(model, shard) * (streams + 1) // streams,
        "mlp": 0 if experts else mlp,
        "mlp_act": 0
        if kind.feed_forward != "mlp"
        else mlp - shard.tokens * (model.matrices - 1) * shard.ffn * _input_bytes(model),
        "moe": mlp if experts else 0,
        "moe_act": _factor_bytes(model, shard.routed * shard.expert_ffn) if experts else 0,
        "shared_experts": _shared_activation_bytes(model, shard) if experts else 0,
        "alternate_products": 0 if experts else all_bytes - _alternate_bytes(model, shard, kind),
    }
    modules = model.recomputed_modules
    contained = {"moe_act", "shared_experts"} if "moe" in modules else set()
    contained |= {"mlp_act"} if "mlp" in modules else set()
    contained |= {"core_attn", "mla_up_proj"} if "full_attn" in modules else set()
    contained |= {"layernorm"} if "mhc" in modules else set()
    contained |= modules - {"alternate_products"} if "alternate_products" in modules else set()
    return sum(freed[name] for name in modules - contained)


def _copied_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of a layer's ``offload_modules``, without what recomputed modules do not keep.

    Each module copies the tensors that it keeps, which include its input (Megatron-Core's
    ``fine_grained_activation_offload.py``).
    """
    if not model.offload_modules:
        return 0
    recomputed = model.recomputed_modules
    row = stream_bytes(model, shard)
    sizes: dict[str, int] = {}
    if kind.mixer == "attention" and kind.has("core") and model.compressed:
        core = shard.tokens * (shard.output + shard.query * ("mla_up_proj" not in recomputed))
        sizes |= {
            "core_attn": core * model.element_bytes,
            "attn_proj": _factor_bytes(model, _grouped_outputs(model, shard)),
        }
    elif kind.mixer == "attention" and kind.has("core"):
        is_latent = model.kv_rank > 0
        projections = _attention(model, shard, kind._replace(attention="projections"))
        output = _factor_bytes(model, shard.tokens * shard.output)
        core = _attention(model, shard, kind) - projections - output
        if "mla_up_proj" in recomputed and is_latent:
            core -= shard.tokens * _mixed_width(model, shard) * model.element_bytes
        normed = _normed_bytes(model, shard, kind._replace(feed_forward="none"))
        sizes |= {
            "attn_norm": row * is_latent,
            "qkv_linear": projections + normed * ("layernorm" not in recomputed) + row * (not is_latent),
            "core_attn": core + _scores(model, shard, kind) * ("core_attn" not in recomputed),
            "attn_proj": output,
        }
    if kind.experts:
        first = _factor_bytes(model, shard.routed * model.token_width)
        inner = _inner_bytes(model, shard.routed * shard.expert_ffn)
        inner -= _factor_bytes(model, shard.routed * shard.expert_ffn) * ("moe_act" in recomputed)
        sizes |= {"mlp_norm": row, "expert_fc1": first, "moe_act": inner, "fused_group_mlp": first + inner}
    return sum(sizes.get(module, 0) for module in set(model.offload_modules))


def _alternate_bytes(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes that a layer keeps without every other product.

    These are its input, queries, values, attention's output, and one of a gated MLP's two first products. Without
    ``torch.compile``, they include the output of a gated MLP, which no backward needs.
    """
    rows, widths = shard.split_tokens * model.hidden, 0
    if kind.mixer == "attention":
        widths += shard.query + shard.value + shard.output
    if kind.feed_forward == "mlp":
        rows += rows * (model.gated and not model.fused_activation)
        widths += shard.ffn
    return (rows + shard.tokens * widths) * model.element_bytes


def _score_count(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the number of scores of a layer's attention; 0 for flash attention."""
    has_scores = kind.mixer == "attention" and kind.has("core") and not model.flash_attention
    return shard.heads * shard.tokens * shard.sequence * has_scores


def _scores(model: Transformer, shard: Shard, kind: Layer) -> int:
    per_score = model.element_bytes + (model.element_bytes + 1) * model.dropout
    return per_score * _score_count(model, shard, kind)


def _mlp(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of an MLP, or of experts.

    The activation function of experts multiplies by the router's probabilities, so the tokens that experts return
    are not kept (Megatron-Core 0.13 and newer).
    """
    if kind.feed_forward == "none":
        return 0
    if not kind.experts:
        return _inner_bytes(model, shard.tokens * shard.ffn, fused=model.fused_activation)
    routed = _inner_bytes(model, shard.routed * shard.expert_ffn) + _factor_bytes(
        model, shard.routed * model.token_width
    )
    latent = shard.split_tokens * model.expert_latent
    routed += latent * model.element_bytes + _factor_bytes(model, latent)
    return routed + _shared_activation_bytes(model, shard) + shard.split_tokens * model.num_experts * FP32_BYTES


def _inner_bytes(model: Transformer, count: int, *, fused: bool = True) -> int:
    """Return the bytes of the inputs and the output of an activation function, of ``count`` elements each."""
    inputs = model.matrices - 1 + (model.gated and not fused)
    return count * inputs * _input_bytes(model) + _factor_bytes(model, count)


def _input_bytes(model: Transformer) -> int:
    """Return the bytes of an element of an activation function's kept inputs."""
    return 1 if model.fp8_activation_inputs else model.element_bytes


def _shared_activation_bytes(model: Transformer, shard: Shard) -> int:
    return _inner_bytes(model, shard.tokens * shard.shared_ffn)


def _weight_part(model: Transformer, shard: Shard, kind: Layer) -> int:
    """Return the bytes of inputs and output gradients of a layer's matrices."""
    # Inputs of column-parallel and output gradients of row-parallel matrices are between tensor-parallel regions.
    projects, outputs = kind.has("projections"), kind.has("output")
    regions = (projects + outputs) * (kind.mixer != "none")
    regions += {"none": 0, "mlp": 2, "experts": 1}[kind.feed_forward]
    between = shard.split_tokens * model.hidden * regions
    mixing = inner = 0
    recurrence = model.recurrence(kind)
    if recurrence:
        part = recurrence.split(shard.tp)
        mixing = shard.tokens * (part.projected + part.output_width)
    elif kind.mixer == "attention":
        mixing = shard.tokens * (shard.query + shard.kv + shard.value) * projects
        mixing += shard.tokens * shard.output * (1 + model.gated_attention) * outputs
        mixing += 2 * (model.query_rank + model.kv_rank) * shard.split_tokens * projects
    if kind.feed_forward != "none":
        inner = shard.tokens * model.matrices * (shard.shared_ffn if kind.experts else shard.ffn)
    if kind.experts:
        inner += shard.routed * (model.matrices * shard.expert_ffn + 2 * model.token_width)
        inner += shard.split_tokens * (model.num_experts + 2 * model.expert_latent)
    return model.operand_bytes(between + mixing + inner)


class ParameterCounts(Struct, frozen=True, kw_only=True):
    """Numbers of parameters on one device."""

    dense: int = 0
    """Trained parameters with a replica on each data and context parallel device."""
    experts: int = 0
    """Trained parameters of experts, which have fewer replicas."""
    frozen: int = 0
    """Frozen parameters, with the replicas of dense ones and without gradients."""
    frozen_experts: int = 0
    """Frozen parameters of experts."""

    def __add__(self, other: ParameterCounts) -> ParameterCounts:
        return ParameterCounts(
            dense=self.dense + other.dense, experts=self.experts + other.experts,
            frozen=self.frozen + other.frozen, frozen_experts=self.frozen_experts + other.frozen_experts,
        )  # fmt: skip

    def __sub__(self, other: ParameterCounts) -> ParameterCounts:
        return ParameterCounts(
            dense=self.dense - other.dense, experts=self.experts - other.experts,
            frozen=self.frozen - other.frozen, frozen_experts=self.frozen_experts - other.frozen_experts,
        )  # fmt: skip

    def untrained(self) -> ParameterCounts:
        """Return the same parameters, all frozen."""
        return ParameterCounts(frozen=self.dense + self.frozen, frozen_experts=self.experts + self.frozen_experts)

    def all_trained(self) -> ParameterCounts:
        """Return the same parameters, all trained."""
        return ParameterCounts(dense=self.dense + self.frozen, experts=self.experts + self.frozen_experts)

    def trained(self) -> int:
        """Return the number of trained parameters."""
        return self.dense + self.experts

    def total(self) -> int:
        """Return the number of all parameters."""
        return self.trained() + self.frozen + self.frozen_experts


def layer_parameters(model: Transformer, shard: Shard, kind: Layer) -> ParameterCounts:
    """Return a layer's parameters; norms, routers and compressions are on every tensor-parallel device."""
    recurrence = model.recurrence(kind)
    dense = kind.halves * _norm(model)
    if recurrence:
        dense += recurrence.split(shard.tp).vectors
    elif kind.mixer == "attention" and kind.has("projections"):
        dense += model.query_rank + model.kv_rank + model.compressed_vectors(kind.ratio)
    parameters = ParameterCounts(dense=dense)
    for matrix in linears(model, shard, kind):
        parameters = parameters + matrix_parameters(model, shard, matrix)
    return parameters


def matrix_parameters(model: Transformer, shard: Shard, matrix: Linear) -> ParameterCounts:
    """Return the parameters of a matrix with its bias."""
    count = matrix.weights + (matrix.outputs * matrix.copies) * (model.bias and not matrix.whole)
    if matrix.group != "experts":
        return ParameterCounts(dense=count)
    copied = count * shard.replicated // shard.experts
    return ParameterCounts(experts=count - copied, frozen_experts=copied)


def prediction_parameters(model: Transformer, shard: Shard) -> ParameterCounts:
    """Return the parameters of a multi-token prediction module without its layer: a projection and three norms."""
    return ParameterCounts(dense=2 * model.hidden * model.hidden // shard.tp + 3 * _norm(model))


def embedding_parameters(model: Transformer, shard: Shard) -> ParameterCounts:
    """Return the embedding's parameters; position embeddings are on every tensor-parallel device."""
    return ParameterCounts(dense=model.hidden * (shard.vocabulary + model.learned_positions))


def head_parameters(model: Transformer, shard: Shard, *, with_embedding: bool) -> ParameterCounts:
    """Return the parameters of final norm and LM head, which shares a tied embedding on the same stage."""
    shared = model.tied_embeddings and with_embedding
    return ParameterCounts(dense=_norm(model) + model.hidden * (0 if shared else shard.vocabulary))


def state(
    costing: Costing,
    parameters: ParameterCounts,
    *,
    gathered: ParameterCounts,
    reduced: ParameterCounts | None,
    muon: Matrices,
) -> dict[str, int]:
    """Return a stage's training state on one device, in bytes, and the time of its update, in ns.

    The update has no iterations of Muon.

    Args:
        costing: the inputs of times.
        parameters: the stage's parameters.
        gathered: the most parameters with gathered weights at once, if weights are sharded.
        reduced: the most parameters with unreduced gradients at once; None if all are reduced together, and the
            device's share then replaces the unreduced gradients.
        muon: the matrices that Muon updates.
    """
    model, shard, options = costing.model, costing.shard, costing.options
    master = model.precision != "fp32"
    kept = optimizer_bytes(options, master=master)
    gradient, count = gradient_bytes(options), parameters.trained()
    owned = _owned(shard, parameters) if options.zero else count
    updated = _outer_owned(shard, parameters) if options.outer_sharding else owned
    by_muon = ParameterCounts(dense=muon.parameters(expert=False), experts=muon.parameters(expert=True))
    saved_moment = kept - optimizer_bytes(options, master=master, moments=1)
    saved = saved_moment * (_owned(shard, by_muon) if options.zero else by_muon.trained())
    shards_gradients, shards_weights = options.zero >= GRADIENTS, options.zero >= WEIGHTS
    # Read the gradient, read and write moments and main weights, write the model's weights. Read these as well if
    # main weights have only the remaining bits.
    passes = 2 if not master or options.main_params == "remainder" else 1
    touched = gradient + 2 * kept + passes * model.element_bytes
    frozen, unreduced_count = parameters.frozen + parameters.frozen_experts, 0
    if shards_weights:
        frozen = _owned(shard, ParameterCounts(dense=parameters.frozen, experts=parameters.frozen_experts))
    gathered_bytes = _shared_parameters(shard, gathered) * model.element_bytes if shards_weights else 0
    if shards_gradients:
        # With copied shards, a device has its share of the reduced gradients besides the unreduced ones.
        unreduced_count = count if options.copied_shards and count > owned else count - owned
        if reduced:
            unreduced_count = _shared_parameters(shard, replace(reduced, frozen=0, frozen_experts=0))
    has_gather_buffer = options.copied_shards and options.zero and not shards_weights and count > owned
    # Flat copies before and after an all-gather, and copies to the weights, each with a read and a write.
    copied_bytes = 3 * 2 * count * has_gather_buffer * model.element_bytes
    # With whole gradients on each device, all are read for their norm, scaled and cleared.
    copied_bytes += 4 * count * gradient * (options.all_reduce and not shards_gradients)
    return {
        "weights_bytes": ((owned if shards_weights else count) + frozen + count * has_gather_buffer)
        * model.element_bytes,
        "gradients_bytes": (owned if shards_gradients else count) * gradient + _bucket_bytes(costing, count),
        "optimizer_bytes": ceil(updated * kept - saved),
        "reduced_bytes": owned * gradient,
        "optimizer_ns": _update_ns(
            costing.device, ceil(updated * touched - 2 * saved) + _cast_bytes(costing, count) + copied_bytes
        ),
        "gathered_bytes": gathered_bytes,
        "subgroup_bytes": -(-gathered_bytes // shard.subgroup) if shard.subgroup else 0,
        "unreduced_bytes": unreduced_count * gradient,
    }


def replica_times(costing: Costing, parameters: ParameterCounts, *, separate_groups: bool) -> dict[str, int]:
    """Return the times of a stage's collectives between replicas, in ns: its reductions and its gathers.

    Args:
        costing: the inputs of times.
        parameters: the stage's parameters.
        separate_groups: whether the reduction between shard groups is a separate action, else it is part of each.
    """
    shard, options = costing.shard, costing.options
    unshard_ns = unshard_subgroup_ns = 0
    if options.zero >= GRADIENTS:
        gathered = parameters.all_trained() if options.zero >= WEIGHTS else parameters
        gather = [("all-gather", costing.model.element_bytes)]
        unshard_ns = _replicas_ns(costing.groups, gathered, gather, shard.sharing)
        if shard.subgroup:
            unshard_subgroup_ns = _replicas_ns(costing.groups, gathered, gather, "subgroup")
    reduce_ns, reduce_groups_ns = _reduce_ns(costing, parameters), _reduce_groups_ns(costing, parameters)
    if not separate_groups:
        reduce_ns, reduce_groups_ns = reduce_ns + reduce_groups_ns, 0
    return {
        "reduce_ns": reduce_ns,
        "reduce_groups_ns": reduce_groups_ns,
        "unshard_ns": unshard_ns,
        "unshard_subgroup_ns": unshard_subgroup_ns,
    }


def _bucket_bytes(costing: Costing, count: int) -> int:
    """Return the bytes of buckets in which gradients are reduced over several replicas."""
    has_buckets = costing.options.gradient_buckets and costing.shard.replicas > 1
    return count * costing.model.element_bytes * has_buckets


def _cast_bytes(costing: Costing, count: int) -> int:
    """Return the bytes of casting trained weights once per step: microbatches share the cast weights.

    Weights that replicas gather in FP8 are only transposed. Embeddings count as well. Only ``kernels: shapes`` has
    casts.
    """
    if not isinstance(costing.device, Shaped):
        return 0
    casting = costing.device.casting(costing.model.precision)
    if _gathers_in_fp8(costing):
        return 2 * count * casting.transposes
    return round(casting.work(Cast(elements=count))[0])


def cast_weights_bytes(costing: Costing, layers: Iterable[Layer]) -> int:
    """Return the bytes of cast weights that a device keeps for all microbatches, beyond the weights themselves.

    Transformer Engine keeps them (``is_first_microbatch`` in ``pytorch/module/linear.py``). Weights in FP8
    (``fp8_param_gather``) have no copy in two bytes. Only ``kernels: shapes`` has casts.
    """
    if not (costing.options.kept_casts and isinstance(costing.device, Shaped)):
        return 0
    total = 0.0
    for kind, count in Counter(layers).items():
        model = costing.model.with_precision_of(kind)
        for matrix in linears(model, costing.shard, kind):
            precision = matrix.precision or model.precision
            is_only_copy = costing.options.fp8_param_gather and precision in {"fp8", "mxfp8"}
            beside = costing.device.casting(precision).kept_bytes - model.element_bytes * is_only_copy
            total += count * matrix.weights * beside
    return round(total)


def _gathers_in_fp8(costing: Costing) -> bool:
    return costing.options.fp8_param_gather and costing.model.precision == "fp8"


def _owned(shard: Shard, parameters: ParameterCounts) -> int:
    """Return the parameters of one device's share."""
    return _share(shard, parameters).trained()


def _share(shard: Shard, parameters: ParameterCounts) -> ParameterCounts:
    """Return the trained parameters of a device's share in its group."""
    return ParameterCounts(
        dense=-(-parameters.dense // shard.shards), experts=-(-parameters.experts // shard.expert_shards)
    )


def _outer_owned(shard: Shard, parameters: ParameterCounts) -> int:
    """Return the parameters whose optimizer state a device has, if shard groups share this state."""
    share = _share(shard, parameters)
    groups, expert_groups = shard.members("replicate"), shard.members("replicate", experts=True)
    return -(-share.dense // groups) + -(-share.experts // expert_groups)


def _shared_parameters(shard: Shard, parameters: ParameterCounts) -> int:
    """Return the number of parameters whose state other devices share."""
    counts = parameters.all_trained()
    return counts.dense * (shard.shards > 1) + counts.experts * (shard.expert_shards > 1)


def accumulation_ns(costing: Costing, parameters: ParameterCounts) -> int:
    """Return the time to accumulate a microbatch's gradients in separate kernels, in ns; 0 if fused."""
    if costing.options.accumulation == "fused":
        return 0
    size = costing.model.element_bytes + 2 * gradient_bytes(costing.options)
    return _update_ns(costing.device, parameters.trained() * size)


def pending_bytes(model: Transformer, options: RooflineOptions, parameters: ParameterCounts) -> int:
    """Return the bytes of pending gradients of parameters before accumulation.

    PyTorch immediately accumulates gradients in the precision of the weights. Frameworks with FP32 buffers keep
    the gradients of all weights until the end of the backward, then accumulate and free them (nanotron's
    ``FP32GradientAccumulator.backward``, DeepSpeed's ``BF16_Optimizer.update_hp_grads``). FSDP2 does so after each
    layer (``FSDPParam.to_accumulated_grad_if_needed``).
    """
    if options.accumulation == "fused" or gradient_bytes(options) == model.element_bytes:
        return 0
    return parameters.trained() * model.element_bytes


def sequence_buffer_bytes(model: Transformer, shard: Shard, options: RooflineOptions) -> int:
    """Return the bytes of tensors of the whole sequence that collectives of sequence parallelism hold."""
    is_split = shard.split_tokens < shard.tokens
    return options.sequence_buffers * shard.tokens * model.hidden * model.element_bytes * is_split


def deferred_bytes(model: Transformer, shard: Shard, queued: float) -> int:
    """Return the bytes of outputs of products that stay reserved while kernels wait in the device's queue.

    These are two outputs of each layer, before and after their reduce-scatter.

    Args:
        model: the model.
        shard: the device's part of a microbatch.
        queued: layers whose forwards are in the queue.
    """
    rows = (shard.tokens + shard.split_tokens) * (shard.split_tokens < shard.tokens)
    return round(_ROW_PARALLEL * min(queued, _QUEUED_LAYERS) * rows * model.hidden * model.element_bytes)


def gather_buffer_bytes(model: Transformer, shard: Shard, items: Iterable[ParameterCounts]) -> int:
    """Return the bytes of gather buffers of two layers, from which copies fill the weights.

    PyTorch's allocator keeps them on a separate stream, so no other tensors use them.
    """
    largest = max(map(ParameterCounts.total, items), default=0)
    return BUFFERED * largest * model.element_bytes if shard.shards > 1 else 0


def dummy_bytes(model: Transformer, shard: Shard, layers: Iterable[Layer]) -> int:
    """Return the bytes of dummy gradients: one tensor for each shape of these layers' matrices.

    Routers and the LM head are not modules of Transformer Engine, so they have no dummy gradients.
    """
    shapes = {
        (matrix.inputs, matrix.outputs)
        for kind in {*layers}
        for matrix in linears(model, shard, kind)
        if matrix.group != "router"
    }
    return sum(inputs * outputs for inputs, outputs in shapes) * model.element_bytes


def _reduce_ns(costing: Costing, parameters: ParameterCounts) -> int:
    """Return the time to reduce gradients, in ns: an all-reduce, or with ZeRO a reduce-scatter.

    With ZeRO 1, an all-gather of the weights follows. Muon has an all-reduce there, and so have some frameworks.
    """
    options, gradient = costing.options, gradient_bytes(costing.options)
    if not options.zero:
        return _replicas_ns(costing.groups, parameters, [("all-reduce", gradient)])
    if (options.optimizer == "muon" or options.all_reduce) and options.zero < GRADIENTS:
        return _replicas_ns(
            costing.groups, parameters, [("all-reduce", gradient), ("all-gather", costing.model.element_bytes)]
        )
    weight = 1 if _gathers_in_fp8(costing) else costing.model.element_bytes
    gather = [("all-gather", weight)] if options.zero < GRADIENTS else []
    return _replicas_ns(costing.groups, parameters, [("reduce-scatter", gradient), *gather], costing.shard.sharing)


def _reduce_groups_ns(costing: Costing, parameters: ParameterCounts) -> int:
    """Return the time to reduce gradients between shard groups (HSDP), in ns: an all-reduce of a device's share.

    If the groups share the optimizer state, it is a reduce-scatter, and an all-gather of the weights follows.
    """
    options, gradient = costing.options, gradient_bytes(costing.options)
    if not options.zero or costing.shard.sharing == "all":
        return 0
    collectives = [("all-reduce", gradient)]
    if options.outer_sharding:
        collectives = [("reduce-scatter", gradient), ("all-gather", costing.model.element_bytes)]
    return _replicas_ns(costing.groups, _share(costing.shard, parameters), collectives, "replicate")


def _replicas_ns(
    groups: Groups, parameters: ParameterCounts, collectives: Sequence[tuple[str, int]], part: Part = "all"
) -> int:
    """Return the time of collectives, each with its bytes per parameter, of dense parameters and of experts."""
    if not parameters.trained():
        return 0
    return sum(
        groups.replicas_ns(collective, count, size_bytes, experts=experts, part=part)
        for count, experts in ((parameters.dense, False), (parameters.experts, True))
        if count or not experts
        for collective, size_bytes in collectives
    )


def _update_ns(device: Accelerator, size_bytes: int) -> int:
    rate = reached(device.memory_bandwidth, device.memory_efficiency)
    return duration_ns(size_bytes, rate) + device.memory_latency if size_bytes else 0


def _norm(model: Transformer) -> int:
    return model.hidden * (1 + model.bias)
