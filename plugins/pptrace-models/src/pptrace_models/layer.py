"""The work of a layer on one rank."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import ConfigError, ConstraintError, CostRequest, divisors_near
from pptrace_models.transformer import NARROW, kept_precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_models.transformer import Layer, Precision, Transformer


FP32_BYTES = 4
"""Bytes of an element in fp32, such as a logit of the loss."""
Part: TypeAlias = Literal["all", "shard", "subgroup", "replicate"]
"""Groups of replicas: all, those that share state, or one replica of each group that shares state."""


class Shard(Struct, frozen=True):
    """Sizes on one device of a rank's group."""

    tokens: int
    """Tokens of one microbatch on this device."""
    split_tokens: int
    """Tokens between tensor-parallel regions, divided with sequence parallelism."""
    sequence: int
    """Tokens of a whole sequence, or with packed documents of a document, inside which attention is."""
    sequences: int
    """Sequences of one microbatch."""
    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    etp: int
    """Expert-tensor-parallel size: devices that share an expert's matrices."""
    replicas: int
    """Devices with the same dense weights: data times context parallel."""
    expert_replicas: int
    """Devices with the same experts."""
    shards: int
    """Devices that share the state of the same dense weights: a part of ``replicas``."""
    expert_shards: int
    """Devices that share the state of the same experts."""
    subgroup: int
    """Devices of a part of such a group, over which weights stay sharded from forward to backward; 0 for all."""
    heads: int
    """Query heads."""
    query: int
    """Width of the query heads."""
    kv: int
    """Width of the key heads."""
    value: int
    """Width of the value heads."""
    output: int
    """Width of the heads' outputs."""
    ffn: int
    """Inner width of the MLP."""
    expert_ffn: int
    """Inner width of an expert."""
    shared_ffn: int
    """Inner width of the shared experts."""
    top_k: int
    """Experts per token."""
    routed: int
    """Tokens of this device's experts; each token counts once per expert."""
    sent: int
    """Tokens that one device sends to experts; each token counts once per expert."""
    exchanged: int
    """Tokens that one device sends to experts or receives for them, the larger of both; counted as ``sent``."""
    experts: int
    """Experts on this device, with replicas."""
    replicated: int
    """Replicas of experts on this device."""
    vocabulary: int
    """Rows of the embedding and of the LM head, rounded up."""
    vocabulary_shares: int
    """Stages that share the embedding and the LM head, one on each pipeline rank."""

    def members(self, part: Part, *, experts: bool = False) -> int:
        """Return the devices of a group: all replicas, those that share state, a part of them, or one of each."""
        replicas = self.expert_replicas if experts else self.replicas
        shards = self.expert_shards if experts else self.shards
        sizes = {"all": replicas, "shard": shards, "subgroup": self.subgroup, "replicate": replicas // shards}
        return sizes[part]

    @property
    def sharing(self) -> Part:
        """The group of replicas that shares state."""
        is_whole = self.shards == self.replicas and self.expert_shards == self.expert_replicas
        return "all" if is_whole else "shard"

    @property
    def is_split(self) -> bool:
        """Whether activations between tensor-parallel regions are split over the sequence."""
        return self.split_tokens != self.tokens

    def loaded(self, kind: Layer) -> Shard:
        """Return the sizes on the fullest devices of an expert-parallel group, for a layer with its loads.

        Each device routes its share of tokens. The devices that share an expert gather its tokens.
        """
        if kind.received == kind.sent == 1:
            return self
        even = self.split_tokens * self.top_k
        return replace(
            self,
            routed=ceil(self.tokens * self.top_k * self.etp * kind.received / self.tp),
            sent=ceil(even * kind.sent),
            exchanged=ceil(even * max(kind.sent, kind.received)),
        )


def shard(model: Transformer, request: CostRequest) -> Shard:
    """Return the sizes of a layer on one device of a rank's group.

    Raises:
        ConfigError: a missing size or a size below 1.
        ConstraintError: sizes that do not divide, with the nearest possible ones.
    """
    _check_sizes(request)
    _check_divisions(model, request)
    tokens = request.micro * request.sequence // request.cp
    kv_share = min(request.tp, model.kv_heads)
    etp = request.etp or request.tp
    split = tokens // request.tp if request.sequence_parallel else tokens
    redundant = model.expert_load.redundant if model.expert_load else 0
    return Shard(
        tokens=tokens,
        split_tokens=split,
        # Without flash attention, scores of other documents are computed and masked.
        sequence=request.document if request.document and model.flash_attention else request.sequence,
        sequences=request.micro,
        tp=request.tp,
        cp=request.cp,
        ep=request.ep,
        etp=etp,
        replicas=request.dp * request.cp,
        expert_replicas=_expert_replicas(request, request.dp, etp),
        shards=(request.shard or request.dp) * request.cp,
        expert_shards=request.expert_shard or _expert_replicas(request, request.shard or request.dp, etp),
        subgroup=request.subgroup,
        heads=model.heads // request.tp,
        query=model.query_width // request.tp,
        kv=model.kv_width // kv_share,
        value=model.value_width // kv_share,
        output=model.output_width // request.tp,
        ffn=model.ffn // request.tp,
        expert_ffn=model.expert_ffn // etp,
        shared_ffn=model.shared_ffn // request.tp,
        top_k=model.top_k,
        routed=ceil(tokens * model.top_k * etp / request.tp),
        sent=split * model.top_k,
        exchanged=split * model.top_k,
        experts=(model.num_experts + redundant) // request.ep,
        replicated=redundant // request.ep,
        vocabulary=-(-model.vocabulary // (request.tp * request.vocabulary_shares)),
        vocabulary_shares=request.vocabulary_shares,
    )


def _expert_replicas(request: CostRequest, dp: int, etp: int) -> int:
    """Return the devices with the same experts in ``dp`` replicas."""
    return max(dp * request.cp * request.tp // (request.ep * etp), 1)


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
    widths = {"heads": model.heads, "ffn": model.ffn}
    widths |= {
        f"{name}.{key}": size
        for name in ("delta", "mamba", "compressed") if (section := getattr(model, name))
        for key in ("heads", "key_heads", "groups", "output_groups") if (size := getattr(section, key, 0))
    }  # fmt: skip
    if model.num_experts and not request.etp:
        widths["expert_ffn"] = model.expert_ffn
    if model.shared_ffn:
        widths["shared_ffn"] = model.shared_ffn
    for name, size in widths.items():
        _divide("parallel.tp", tp, f"model.{name}", size, *widths.values())
    if kv % tp and tp % kv:
        message = f"{tp} neither divides model.kv_heads ({kv}) nor is a multiple of it"
        raise ConstraintError(message, nearest=divisors_near(tp, *widths.values(), kv), key="parallel.tp")
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
    etp = request.etp or request.tp
    for key, size in (("ep", request.ep), ("etp", request.etp)):
        if size > 1 and not model.num_experts:
            message = f"{size} splits experts, and the model has none (model.num_experts)"
            raise ConstraintError(message, nearest="1", key=f"parallel.{key}")
    if request.etp:
        _divide("parallel.etp", etp, "model.expert_ffn", model.expert_ffn)
    if request.expert_shard:
        replicas = _expert_replicas(request, request.dp, etp)
        _divide("data_parallel.expert_shard", request.expert_shard, "the replicas of an expert", replicas)
    if request.subgroup and model.num_experts:
        shards = request.expert_shard or _expert_replicas(request, request.shard or request.dp, etp)
        _divide("data_parallel.reshard", request.subgroup, "the devices that share an expert's state", shards)
    if request.ep == 1 and etp == request.tp:
        return
    redundant = model.expert_load.redundant if model.expert_load else 0
    if redundant % request.ep:
        message = f"{redundant} replicas do not fill the {request.ep} devices of a group equally"
        nearest = str(-(-redundant // request.ep) * request.ep)
        raise ConstraintError(message, nearest=nearest, key="model.expert_load.redundant")
    devices, name = request.dp * request.cp, "parallel.dp x parallel.cp"
    if etp != request.tp:
        name = f"parallel.tp x {name}"
        _divide("parallel.etp", etp, name, devices * request.tp)
        devices = devices * request.tp // etp
    _divide("parallel.ep", request.ep, "model.num_experts", model.num_experts, devices)
    _divide("parallel.ep", request.ep, name, devices, model.num_experts)
    shared = request.shard * request.cp * request.tp
    if not request.expert_shard and shared % (request.ep * etp):
        message = f"{request.shard} x cp x tp = {shared} is not a multiple of ep x etp = {request.ep * etp}"
        raise ConstraintError(message, nearest=f"{request.dp}", key="data_parallel.shard")


def _divide(key: str, size: int, name: str, total: int, *others: int) -> None:
    """Check that a size divides a total; the error names sizes that also divide other totals."""
    if total % size:
        message = f"{size} does not divide {name} ({total})"
        raise ConstraintError(message, nearest=divisors_near(size, total, *others), key=key)


class Linear(Struct, frozen=True):
    """One matrix on one device."""

    group: str
    """Name of the matrix's operation."""
    inputs: int
    """Rows."""
    outputs: int
    """Columns."""
    tokens: int
    """Tokens, over all copies."""
    copies: int = 1
    """Number of experts on this device."""
    whole: bool = False
    """Whether every tensor-parallel device has the whole matrix."""
    normed: bool = False
    """Whether a norm directly precedes the matrix."""
    split_tokens: int = 0
    """With sequence parallelism, this device's tokens before the gather of a normed matrix's input, or of the
    gradient of another matrix's output; 0 without a gather."""
    uneven: bool = False
    """Whether the number of tokens is a mean over the copies."""
    fused: bool = False
    """Whether the preceding kernels, forward and backward, cast its inputs."""
    shared: bool = False
    """Whether the preceding matrix has the same input. Both cast it once, and their input gradients are added."""
    casts: int = 1
    """Tensors that its input consists of, which separate kernels cast: one per expert without fused experts."""
    precision: Precision | None = None
    """Precision of its products, if it is not that of the layer."""

    @property
    def weights(self) -> int:
        """Weights on this device."""
        return self.inputs * self.outputs * self.copies


def linears(model: Transformer, shard: Shard, kind: Layer) -> tuple[Linear, ...]:
    """Return a layer's matrices on one device."""
    matrices = _of_part(_linears(model, shard, kind), kind)
    if model.precision not in NARROW:
        return matrices
    return tuple(replace(matrix, precision=_precision_of(model, kind, matrix)) for matrix in matrices)


def active_weights(model: Transformer, kind: Layer) -> int:
    """Return the number of weights that multiply each token in a layer."""
    whole = shard(model, CostRequest(ranks=1, stages=1, microbatches=1, sequence=1))
    return sum(
        matrix.inputs * matrix.outputs * (model.top_k if matrix.group == "experts" else matrix.copies)
        for matrix in linears(model, whole, kind)
    )


def _precision_of(model: Transformer, kind: Layer, matrix: Linear) -> Precision | None:
    """Return the precision of a matrix's products, if it is not that of the layer.

    Routers, the maps of hyper-connections, and matrices of compressed keys and of groups of outputs are not
    quantized (``csa.py`` and ``deepseek_v4_hybrid_attention.py`` of Megatron-Core's ``dev``).
    """
    if matrix.group in {"router", "stream maps", "matrices of compressed keys", "output groups"}:
        return kept_precision(model.precision)
    name: Literal["attention", "latent", "mamba_output"] | None = None
    if matrix.group == "latent projections":
        name = "latent"
    elif matrix.group == "attention projections" and kind.mixer == "attention":
        name = "attention"
    elif matrix.group == "attention projections" and kind.mixer == "mamba" and not matrix.normed:
        name = "mamba_output"
    return model.product_precisions.get(name) if name else None


def _linears(model: Transformer, shard: Shard, kind: Layer) -> tuple[Linear, ...]:
    h, up_matrices = model.hidden, model.matrices - 1
    attention, parallel = (*_stream_maps(model, shard, kind), *_mixing(model, shard, kind)), _parallel(shard)
    if kind.feed_forward == "none":
        return attention
    if not kind.experts:
        up = Linear(group="mlp", inputs=h, outputs=up_matrices * shard.ffn, normed=True, **parallel)
        ups = (up,) if model.fused_projections is True else _apart(up, [shard.ffn] * up_matrices)
        return (*attention, *ups, Linear(group="mlp", inputs=shard.ffn, outputs=h, **parallel))
    width, copies, shared = shard.expert_ffn, shard.experts, shard.shared_ffn
    shared_experts = (
        Linear(group="shared experts", inputs=h, outputs=up_matrices * shared, normed=True, **parallel),
        Linear(group="shared experts", inputs=shared, outputs=h, **parallel),
    )
    routed: dict[str, Any] = {
        "group": "experts", "tokens": shard.routed, "copies": copies, "uneven": not model.pads_experts,
        "casts": 1 if model.fused_experts else copies,
    }  # fmt: skip
    latent, common = model.expert_latent, _replicated(shard)
    projections = (
        Linear(group="latent projections", inputs=h, outputs=latent, normed=True, **common),
        Linear(group="latent projections", inputs=latent, outputs=h, **common),
    )
    return (
        *attention,
        Linear(group="router", inputs=h, outputs=model.num_experts, **common),
        *(shared_experts if shared else ()),
        *(projections if latent else ()),
        Linear(inputs=model.token_width, outputs=up_matrices * width, **routed),
        Linear(inputs=width, outputs=model.token_width, fused=model.fused_experts, **routed),
    )


def _of_part(matrices: tuple[Linear, ...], kind: Layer) -> tuple[Linear, ...]:
    """Return the matrices of a part of a layer; the last one of its first half is that of attention's output."""
    if kind.attention == "whole":
        return matrices
    output = max(place for place, matrix in enumerate(matrices) if matrix.group in FIRST_HALF)
    return matrices[:output] * kind.has("projections") + matrices[output:] * kind.has("output")


def _apart(matrix: Linear, outputs: Sequence[int]) -> tuple[Linear, ...]:
    """Return matrices with the same input in place of one matrix, by their columns."""
    return tuple(
        replace(matrix, outputs=columns, shared=index > 0) for index, columns in enumerate(outputs) if columns
    )


def _stream_maps(model: Transformer, shard: Shard, kind: Layer) -> tuple[Linear, ...]:
    """Return the matrices that compute the maps of hyper-connections from all streams (mHC, 2025, section 4)."""
    if not model.stream_maps:
        return ()
    inputs = model.residual_streams * model.hidden
    return (
        Linear(group="stream maps", inputs=inputs, outputs=model.stream_maps, **_replicated(shard)),
    ) * kind.halves


def _replicated(shard: Shard) -> dict[str, Any]:
    """Return the tokens of matrices that every tensor-parallel device has."""
    return {"tokens": shard.split_tokens, "whole": True}


def _mixing(model: Transformer, shard: Shard, kind: Layer) -> tuple[Linear, ...]:
    """Return the matrices of a layer's first half."""
    recurrence = model.recurrence(kind)
    if recurrence is None:
        if kind.mixer != "attention":
            return ()
        return _compressed_attention(model, shard, kind) if model.compressed else _attention(model, shard)
    part, parallel = recurrence.split(shard.tp), _parallel(shard)
    group: dict[str, Any] = {"group": "attention projections", **parallel}
    return (
        Linear(inputs=model.hidden, outputs=part.projected, normed=True, **group),
        *(
            matrix
            for rank, width in part.ranks
            for matrix in (
                Linear(group="compression", inputs=model.hidden, outputs=rank, **_replicated(shard)),
                Linear(group="expansion", inputs=rank, outputs=width, **parallel),
            )
        ),
        Linear(inputs=part.output_width, outputs=model.hidden, **group),
    )


def _parallel(shard: Shard) -> dict[str, Any]:
    """Return the tokens of matrices that tensor parallelism splits."""
    return {"tokens": shard.tokens, "split_tokens": shard.split_tokens if shard.is_split else 0}


def _attention(model: Transformer, shard: Shard) -> tuple[Linear, ...]:
    """Return attention's matrices; every device has the whole compression matrices of latent attention."""
    h, parallel = model.hidden, _parallel(shard)
    output = Linear(group="attention projections", inputs=shard.output, outputs=h, **parallel)
    gate = shard.output * model.gated_attention
    if not model.kv_rank:
        widths = shard.query, shard.kv, shard.value, gate
        whole = Linear(group="attention projections", inputs=h, outputs=sum(widths), normed=True, **parallel)
        return (*((whole,) if model.fused_projections else _apart(whole, widths)), output)
    compression: dict[str, Any] = {"group": "compression", "inputs": h, **_replicated(shard)}
    expansion: dict[str, Any] = {"group": "expansion", "normed": True, **parallel}
    keys = shard.heads * round(model.head_dim)
    queries = Linear(group="attention projections", inputs=h, outputs=shard.query, normed=True, **parallel)
    if model.query_rank:
        queries = Linear(inputs=model.query_rank, outputs=shard.query, **expansion)
        compression["outputs"] = model.query_rank
    return (
        *((Linear(normed=True, **compression),) if model.query_rank else ()),
        Linear(**{**compression, "outputs": model.kv_rank + model.rope_dim}, normed=True),
        queries,
        Linear(inputs=model.kv_rank, outputs=keys + shard.value, **expansion),
        *((Linear(group="attention gate", inputs=h, outputs=gate, normed=True, **parallel),) if gate else ()),
        *_indexer(model, shard),
        output,
    )


def _indexer(model: Transformer, shard: Shard, keys: int = 1) -> tuple[Linear, ...]:
    """Return the matrices of the indexer, which every tensor-parallel device has: queries, keys and weights.

    Args:
        model: the model.
        shard: sizes on one device.
        keys: matrices of keys and of gates of compression.
    """
    if not model.indexer:
        return ()
    heads, dim = model.indexer.heads, model.indexer.dim
    common: dict[str, Any] = {"group": "indexer", **_replicated(shard)}
    return (
        Linear(inputs=model.query_rank or model.hidden, outputs=heads * dim, **common),
        Linear(inputs=model.hidden, outputs=keys * dim + heads, **common),
    )


def _compressed_attention(model: Transformer, shard: Shard, kind: Layer) -> tuple[Linear, ...]:
    """Return the matrices of attention with compressed keys; every device has those of keys and of compression."""
    if not model.compressed:
        return ()
    h, dim, parallel, overlap = model.hidden, round(model.head_dim), _parallel(shard), model.overlap(kind.ratio)
    groups, rank = model.compressed.output_groups // shard.tp, model.compressed.output_rank
    compression: dict[str, Any] = {"inputs": h, "normed": True, **_replicated(shard)}
    pooled = Linear(group="matrices of compressed keys", outputs=2 * overlap * dim, **compression)
    return (
        Linear(group="compression", outputs=model.query_rank, **compression),
        Linear(group="compression", outputs=dim, **compression),
        *((pooled,) if overlap else ()),
        Linear(group="expansion", inputs=model.query_rank, outputs=shard.query, normed=True, **parallel),
        *(_indexer(model, shard, keys=2 * overlap) if overlap > 1 else ()),
        Linear(
            group="output groups", inputs=shard.output // groups, outputs=rank, tokens=groups * shard.tokens,
            copies=groups,
        ),
        Linear(group="attention projections", inputs=groups * rank, outputs=h, **parallel),
    )  # fmt: skip


class Cast(Struct, frozen=True):
    """A cast of the left factor of a product in a narrow format."""

    elements: int
    """Elements that this device casts."""
    gathered: int = 0
    """Elements of the whole factor, if a gather over the tensor-parallel group completes it."""
    normed: bool = False
    """Whether the factor is the output of a norm."""
    tensors: int = 1
    """Number of tensors that the factor consists of."""


class Product(Struct, frozen=True):
    """A matrix product of m x k and k x n."""

    m: int
    """Rows of the result."""
    n: int
    """Columns of the result."""
    k: int
    """Depth: number of products per element of the result."""
    copies: int = 1
    """Number of equal products in one kernel: experts, or heads."""
    grouped: bool = False
    """Whether each copy has its weights, as experts do; loads and computation then do not fully overlap."""
    result_bytes: int = 2
    """Bytes moved per element of the result: written, or read and written with accumulation."""
    cast: Cast | None = None
    """What a product in a narrow format casts of its left factor."""
    uneven: bool = False
    """Whether the number of rows is a mean over copies with random numbers of rows."""
    uneven_depth: bool = False
    """Whether the depth is a mean over copies, as in weight gradients of experts. It counts as aligned: factors
    are contiguous along rows and columns, and experts in narrow formats have aligned rows."""
    precision: Precision | None = None
    """Precision of the factors, if it is not that of the layer."""

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.copies * self.m * self.n * self.k

    def moved_bytes(self, factor: float) -> float:
        """Return the bytes to and from memory; ``factor`` is the bytes of a factor's element."""
        m, n, k = self.m, self.n, self.k
        return self.copies * (factor * (m * k + k * n) + self.result_bytes * m * n)


class Core(Struct, frozen=True):
    """A flash attention kernel."""

    heads: int
    """Heads times sequences."""
    queries: int
    """Query tokens per head and sequence."""
    keys: int
    """Mean number of keys that a query attends to."""
    width: float
    """Width of a head."""
    backward: bool = False
    """Whether this is the backward kernel."""
    narrow: bool = False
    """Whether the kernel multiplies in FP8."""
    dropout: bool = False
    """Whether the kernel drops scores, with a random number per score."""


class Work(Struct, frozen=True):
    """Work of a group of kernels; no FLOPs and no bytes means no kernel."""

    flops: int = 0
    """Floating-point operations."""
    size_bytes: int = 0
    """Bytes to and from memory."""
    products: tuple[Product, ...] = ()
    """Matrix products of the group."""
    core: Core | None = None
    """Flash attention kernel of the group, if any."""
    beside_bytes: int = 0
    """With products, the part of ``size_bytes`` of the other kernels; without products, bytes of kernels that only
    ``kernels: shapes`` counts."""
    by_row: bool = False
    """Whether kernels gather, scatter or normalize single rows of a token or of a head."""
    kernels: int = 1
    """Number of kernels without a product."""


FIRST_HALF = frozenset({
    "attention projections", "attention core", "rotary embedding", "norms of heads", "compression", "expansion",
    "attention gate", "attention gate function", "indexer", "indexer scores", "compression of keys",
    "matrices of compressed keys", "output groups", "choice of keys", "recurrent core", "convolution",
    "gated norm", "norm",
})  # fmt: skip
"""Names of the operations of a layer's first half, without norms."""


class Operation(Struct, frozen=True):
    """A group of kernels in each of the three passes."""

    name: str
    """Name of the computation."""
    unit: str
    """Unit with the rate of its FLOPs: ``linear``, ``head``, ``attention``, ``recurrence`` or ``memory``."""
    forward: Work
    """The forward's work."""
    input_gradient: Work
    """The work of the backward for the input gradient."""
    weight_gradient: Work = Work()
    """The work of the backward for the weight gradient."""
