"""Checked sizes of a transformer and its encoder."""

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from pptrace.memo import memoized
from pptrace.plugin import Parameters, divisors_near, validate_options

_Model = TypeVar("_Model", bound=BaseModel)
_PARAMETER_ROWS = 100
"""Rows of shared results that take as much memory as a set of parameters."""


def checked(model: type[_Model], values: Mapping[str, Any], key: str) -> _Model:
    """Return ``values`` as ``model``. None means the default; quantities can be plain integers.

    Raises:
        ConfigError: the first key that is unknown, missing or wrong, as ``key.name``.
    """
    given = {name: value for name, value in values.items() if value is not None}

    def validate() -> _Model:
        try:
            return model.model_validate(given, context={"integers": True})
        except ValidationError:
            return validate_options(model, given, key)  # which has the message, and takes longer

    return memoized(validate, ("checked", repr(given)), model, rows=_PARAMETER_ROWS)


Count = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]


class Encoder(Parameters):
    """An encoder: layers with full attention within each item, and a projector to the decoder's width."""

    layers: Count
    """Number of layers."""
    hidden: Width
    """Width of the residual stream."""
    heads: Count
    """Attention heads."""
    ffn: Width
    """Inner width of the MLP."""
    gated: bool = False
    """Whether the MLP has three matrices or two."""
    tokens: Width
    """Tokens of an item, such as the patches of an image; they attend to each other."""
    items: Count = 1
    """Items per sequence of the decoder."""
    merge: Count = 1
    """Number of neighbouring tokens that the projector merges into one."""
    recompute: Literal["none", "full"] = "none"
    """Whether the backward recomputes layers."""
    frozen: bool = False
    """Whether the layers are frozen: they have no backward, gradients or optimizer state, and keep no
    activations."""
    frozen_projector: bool = False
    """Whether the projector is frozen; it still passes gradients to trained layers."""
    stages: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of first stages that have only the encoder; with 0, it is on the decoder's first stage."""
    layers_per_stage: list[Annotated[int, Field(ge=0, le=100_000)]] | None = None
    """Number of layers of each of these stages, or of each rank on separate GPUs, in order; by default an even
    split, with the remainder on the first ones."""

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


def encoder_key(name: str) -> str:
    """Return the key of an encoder; that of ``model.encoder`` for an empty name."""
    return f"model.encoders.{name}" if name else "model.encoder"


Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]
Again = Literal[
    "core_attn", "full_attn", "mla_up_proj", "layernorm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts",
    "alternate_products", "mhc",
]  # fmt: skip
Offloaded = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp"
]
PRECISION_BYTES = {"bf16": 2, "fp16": 2, "fp8": 2, "mxfp8": 2, "nvfp4": 2, "fp32": 4}
"""Bytes of a weight or an activation; for narrow formats of products, the two bytes of the kept tensors."""

NARROW = frozenset({"fp8", "mxfp8", "nvfp4"})
"""Formats of products with layers' matrices only."""

OPERAND_BYTES = {**PRECISION_BYTES, "fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16}
"""Bytes per element of a factor of these products: MXFP8 has a scale byte per 32 elements, NVFP4 per 16."""

_ROUNDING = 1e-6


def kept_precision(precision: Precision) -> Precision:
    """Return the precision of kept tensors and of products outside the layers' matrices."""
    return "bf16" if precision in NARROW else precision


DELTA_CHUNK, STATE_CHUNK = 64, 128
"""Tokens that kernels of delta nets, and of Mamba-2, process at once (``fla``, ``mamba_ssm``)."""


class Delta(Parameters):
    """Linear attention by the delta rule: gated DeltaNet, or Kimi delta attention with ``decay_rank``."""

    heads: Count
    """Value heads."""
    key_heads: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Query and key heads; 0 for as many as value heads."""
    key_dim: Count = 128
    """Width of a query or key head."""
    value_dim: Count = 128
    """Width of a value head."""
    conv: Count = 4
    """Tokens of the short convolution over queries, keys and values."""
    decay_rank: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Inner width of the projection of a decay for each element of a key; 0 for a decay for each head."""
    gate_rank: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Inner width of the projection of the output gate; 0 for one matrix."""

    @property
    def key_width(self) -> int:
        """Width of all queries, and of all keys."""
        return (self.key_heads or self.heads) * self.key_dim

    @property
    def output_width(self) -> int:
        """Width of all values and outputs."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Width of the short convolution."""
        return 2 * self.key_width + self.output_width

    @property
    def projected(self) -> int:
        """Width of queries, keys, values, rates and, without their ranks, decays and gates."""
        gate = 0 if self.gate_rank else self.output_width
        return self.channels + gate + self.heads * (1 if self.decay_rank else 2)

    @property
    def ranks(self) -> tuple[tuple[int, int], ...]:
        """Inner and outer widths of projections by two matrices."""
        pairs = ((self.decay_rank, self.heads * self.key_dim), (self.gate_rank, self.output_width))
        return tuple(pair for pair in pairs if pair[0])

    @property
    def vectors(self) -> int:
        """Parameters outside matrices: the convolution, decays with their biases, and the norm of a head."""
        decays = self.heads * (1 + (self.key_dim if self.decay_rank else 1))
        return self.conv * self.channels + decays + self.value_dim

    @property
    def token_flops(self) -> int:
        """Forward FLOPs for a token outside matrices, in chunks (Kimi Linear, 2025, equations 13 and 14)."""
        chunk = DELTA_CHUNK
        products = 6 * self.key_dim * self.value_dim + 3 * chunk * self.key_dim
        return self.heads * (products + chunk * chunk)

    def split(self, tp: int) -> Self:
        """Return the share of one of ``tp`` devices."""
        return self.model_copy(update={"heads": self.heads // tp, "key_heads": self.key_heads // tp})


class Mamba(Parameters):
    """A Mamba-2 state-space layer."""

    heads: Count
    """Heads."""
    head_dim: Count = 64
    """Width of a head."""
    state: Count = 128
    """Elements of the state for each element of a head."""
    groups: Count = 8
    """Groups of heads with the same input and output maps."""
    conv: Count = 4
    """Tokens of the short convolution."""

    @property
    def output_width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Width of the short convolution."""
        return self.output_width + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the gate, the convolution's input and the step sizes."""
        return self.output_width + self.channels + self.heads

    @property
    def ranks(self) -> tuple[tuple[int, int], ...]:
        """No projections by two matrices."""
        return ()

    @property
    def vectors(self) -> int:
        """Parameters outside matrices: the convolution with biases, three vectors over heads, and a norm."""
        return (self.conv + 1) * self.channels + 3 * self.heads + self.output_width

    @property
    def token_flops(self) -> int:
        """Forward FLOPs for a token outside matrices, in chunks (Dao and Gu, Mamba-2, 2024, section 6)."""
        scores = 2 * STATE_CHUNK * (self.groups * self.state + self.output_width)
        return scores + 4 * self.output_width * self.state

    def split(self, tp: int) -> Self:
        """Return the share of one of ``tp`` devices."""
        return self.model_copy(update={"heads": self.heads // tp, "groups": self.groups // tp})


class Indexer(Parameters):
    """The indexer of sparse attention, which chooses the keys of each token (DeepSeek-V3.2)."""

    heads: Count
    """Heads."""
    dim: Count = 128
    """Width of a head, and of the key that all heads share."""
    top_k: Width = 2048
    """Keys that a token attends to."""


class Compressed(Parameters):
    """Attention to a window and to compressed keys, with one head of keys, which are also values (DeepSeek-V4)."""

    ratios: list[Annotated[int, Field(ge=0, le=100_000)]] = Field(min_length=1)
    """Tokens per compressed key in each layer, repeated over the layers; 0 for the window alone."""
    indexed_ratio: Annotated[int, Field(ge=0, le=100_000)] = 4
    """The ratio of layers whose windows of compression overlap, and whose indexer chooses keys; 0 for none."""
    output_groups: Count
    """Groups of heads that a first output matrix maps to ``output_rank`` each."""
    output_rank: Count
    """Width of a group between the two output matrices."""


LOAD_DISTRIBUTIONS = ("uniform", "zipf", "lognormal", *(f"W{number}" for number in range(8)))
"""Names of random loads of experts; ``W0`` to ``W7`` are the workloads of NVIDIA/Megatron-LM pull request 7488."""


class ExpertLoad(Parameters):
    """Tokens of each expert, from a file or a distribution."""

    name: Annotated[str, Field(min_length=1)]
    """``uniform``, ``zipf``, ``lognormal``, a workload ``W0`` to ``W7``, a ``.csv`` or ``.parquet`` file, or a
    folder of Megatron-LM's token-imbalance traces. A file has the columns ``expert`` and ``tokens``. Optional are
    ``layer``, ``microbatch``, ``step`` and ``source`` (a device of the group). All count from 0. Without a column,
    rows apply to all layers, microbatches or steps. Microbatches beyond those of the file repeat them."""
    exponent: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of ``zipf``: the n-th fullest expert has ``n ** -exponent`` times the tokens of the fullest."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 0.5
    """Standard deviation of the logarithms of ``lognormal`` loads."""
    drift: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the variance of ``zipf`` and ``lognormal`` loads that each microbatch draws anew. The remaining
    share is drawn once for each layer, for all steps."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 1
    """Seed of the random numbers."""
    step: Annotated[int, Field(ge=0, le=2**31)] = 0
    """The simulated step, of a file with several or of a workload that changes."""
    placement: Literal["blocks", "balanced"] = "blocks"
    """Experts of each device: consecutive ones, or as DeepSeek's EPLB balances the loads of the step before, or of
    step 0 itself."""
    redundant: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Replicas of full experts in a layer of an expert-parallel group, beyond one of each expert. Needs
    ``placement: balanced``. Their weights take memory. Copying weights and returning gradients takes no time."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _replicas_are_placed(self) -> Self:
        if self.redundant and self.placement != "balanced":
            raise ValueError("redundant: write placement: balanced beside it")
        return self


Mixer = Literal["attention", "delta", "mamba", "none"]
FeedForward = Literal["mlp", "experts", "none"]
AttentionPart = Literal["whole", "projections", "core", "output"]
_PATTERN: dict[str, tuple[Mixer, FeedForward]] = {
    "M": ("mamba", "none"), "G": ("delta", "none"), "*": ("attention", "none"), "-": ("none", "mlp"),
    "E": ("none", "experts"),
}  # fmt: skip
"""Layers by the letters of Megatron-LM's ``--hybrid-layer-pattern``."""


class Layer(NamedTuple):
    """Properties that differ between the layers of a model."""

    mixer: Mixer = "attention"
    """What mixes tokens in the layer's first half; ``none`` without this half."""
    feed_forward: FeedForward = "mlp"
    """The layer's second half; ``none`` without it."""
    window: int = 0
    """Window of the attention in tokens; 0 for all tokens."""
    ratio: int = 0
    """Tokens per compressed key that attention reads beside the window; 0 for none."""
    is_recomputed: bool = True
    """Whether full recomputation applies to the layer."""
    offloaded: bool = False
    """Whether host memory holds what the layer keeps for its backward."""
    precision: Precision | None = None
    """Precision of the layer's products, if it is not that of the model."""
    received: float = 1.0
    """Tokens of the experts of the fullest device, relative to an even share without dropped tokens."""
    sent: float = 1.0
    """Tokens that the device with the most tokens sends to experts, relative to the mean without drops."""
    attention: AttentionPart = "whole"
    """The part of attention that this part of a layer has."""

    @property
    def experts(self) -> bool:
        """Whether the layer has experts in place of the MLP."""
        return self.feed_forward == "experts"

    @property
    def halves(self) -> int:
        """Number of halves (mixer, feed-forward) whose norms this part of the layer has."""
        return (self.mixer != "none" and self.has("projections")) + (self.feed_forward != "none")

    def has(self, part: AttentionPart) -> bool:
        """Return whether the layer has a part of attention, or of what mixes tokens in its place."""
        return self.attention in {"whole", part}

    def parts(self) -> tuple[Self, Self, Self]:
        """Return the layer's part before core attention, core attention, and the part after it."""
        before = self._replace(feed_forward="none", attention="projections")
        return before, before._replace(attention="core"), self._replace(attention="output")


class Transformer(Parameters):
    """A decoder: an embedding, layers of attention and an MLP or experts, and an LM head."""

    layers: Count
    """Number of layers."""
    hidden: Width
    """Width of the residual stream."""
    heads: Count
    """Query heads."""
    kv_heads: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Key and value heads; 0 for as many as query heads."""
    head_dim: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    """Width of a head, which may be a fraction such as 51.2; 0 for hidden over heads."""
    ffn: Width
    """Inner width of the MLP."""
    gated: bool = True
    """Whether the MLP has three matrices (SwiGLU) or two (GELU)."""
    fused_activation: bool = True
    """Whether one kernel computes a dense gated MLP's activation function and its product with the gate. Otherwise
    separate kernels do, and the activation function's output is also kept, as in Megatron-LM
    before ``--bias-swiglu-fusion``."""
    fp8_activation_inputs: bool = False
    """Whether the inputs of activation functions are kept in FP8 (``activation_func_fp8_input_store``)."""
    fused_norms: bool = True
    """Whether one kernel computes a norm. Otherwise PyTorch's operations of a root-mean-square norm in fp32 do,
    without ``torch.compile``."""
    fused_projections: bool | Literal["attention"] = True
    """Whether one product computes queries, keys and values, and another one both inputs of a dense gated MLP's
    activation function. Otherwise each has a separate matrix, as in torchtitan 0.2. Each product then reads the
    input, and other kernels sum the products' input gradients (``kernels: shapes``). ``attention``: only the
    inputs of the activation function have separate matrices (torchtitan 0.3)."""
    fused_rotary: bool = True
    """Whether one kernel rotates queries, and another one keys. Otherwise separate kernels cast them to fp32,
    multiply complex numbers and cast them back, as in torchtitan: ``torch.compile`` does not fuse complex numbers
    (``kernels: shapes``)."""
    copied_kv: bool = False
    """Whether kernels copy queries, keys and values out of a product's output, then join keys and values and
    transpose them (nanotron, ``kernels: shapes``). With as many KV heads as query heads, memory then keeps keys
    and values twice."""
    vocabulary: Width
    """Tokens in the vocabulary; each rank's share is rounded up."""
    tied_embeddings: bool = False
    """Whether the LM head shares the embedding's weights; on different stages, each stage has a copy."""
    learned_positions: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Learned position embeddings; 0 for rotary or none."""
    bias: bool = False
    """Whether linear layers and norms have biases (GPT) or not (Llama)."""
    dropout: bool = False
    """Whether dropout masks are kept: a byte per element after attention and MLP, and per score without flash
    attention."""
    causal: bool = True
    """Whether a token attends to earlier tokens only."""
    flash_attention: bool = True
    """Whether attention keeps no score matrix and skips the masked half of causal scores."""
    precision: Precision = "bf16"
    """Precision of the products of linear layers. With fp8, mxfp8 and nvfp4, weights, activations, attention and
    LM head stay in bf16, and the factors of products are cast."""
    product_precisions: dict[Literal["attention", "latent", "mamba_output", "mtp", "head"], Precision] = Field(
        default={}
    )
    """Precisions of some products, in place of a narrow ``precision`` (``kernels: shapes``). ``attention`` has
    attention's matrices, ``latent`` the projections to and from ``expert_latent``, and ``mamba_output`` Mamba-2's
    output matrix. ``mtp`` is multi-token prediction, and ``head`` the LM head (``--fp8-output-proj``)."""
    first_bf16_layers: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of first layers whose products are in BF16, with a narrow ``precision``
    (``--num-layers-at-start-in-bf16``)."""
    last_bf16_layers: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of last layers whose products are in BF16, with a narrow ``precision``
    (``--num-layers-at-end-in-bf16``)."""
    fp8_attention: bool = False
    """Whether flash attention also multiplies in MXFP8, as with ``--fp8-dot-product-attention`` (``kernels:
    shapes``)."""
    fused_experts: bool = False
    """Whether products of experts apply the activation function and cast their results, as fused grouped products
    do (``kernels: shapes``)."""
    clamped_experts: bool = False
    """Whether separate kernels clamp both halves of the experts' first product before the activation function, as
    in Megatron-LM for gpt-oss (``kernels: shapes``)."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What the backward recomputes: nothing, the attention core, or each layer from its input."""
    recompute_modules: list[Again] = Field(default=[])
    """With ``recompute: selective``, the recomputed modules in place of the attention core, with the names of
    Megatron-LM's ``--recompute-modules``, or one of three others. ``full_attn`` is attention from its projections
    to its output (PaddleFleet). ``mlp_act`` is the activation function of an MLP (Kwai's
    ``--kaimm-recompute-mlp-activation-func``). ``alternate_products`` is a layer except the attention core and
    every other matrix product, which are kept (torchtitan's selective mode)."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With ``recompute: full``, Megatron-LM's ``--recompute-method``. ``uniform`` recomputes
    ``recompute_num_layers`` layers of a stage together, from the input of the first. ``block`` recomputes only the
    first ``recompute_num_layers`` layers of a stage. Unless given, each layer is recomputed from its input."""
    recompute_num_layers: Count | None = None
    """Number of layers for ``recompute_method``; 1 by default."""
    offloaded_layers: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of first layers of each stage whose activations are copied to host memory during the forward and back
    during the backward (``--cpu-offloading-num-layers``). A pass takes at least as long as its copies."""
    offload_modules: list[Offloaded] = Field(default=[])
    """Modules of each layer whose kept tensors are copied likewise, with the names of Megatron-LM's
    ``--offload-modules``. A norm has an effect where it is a module by itself: before latent attention and before
    experts. Compressed attention has ``core_attn`` and ``attn_proj``. Overlapped pairs hide copies."""
    layers_per_stage: list[Annotated[int, Field(ge=0, le=100_000)]] | None = None
    """Number of layers of each stage, in order; by default an even split, with the remainder on the middle stages,
    later ones first."""
    balance: Literal["layers", "products"] = "layers"
    """Quantity that an even split balances: the number of layers, or the weights of layers and LM head that
    multiply each token. In nanotron, ``build_model`` balances weights for dense layers."""
    layout: str | None = None
    """Items of each stage, in the syntax of Megatron-LM's ``--pipeline-model-parallel-layout``. ``E`` is the
    embedding, ``t`` a layer, ``m`` a module of multi-token prediction, and ``L`` the loss. Bars separate stages,
    and ``*`` repeats."""
    kv_rank: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Compressed width of keys and values (multi-head latent attention); 0 for none. ``head_dim`` is then the part
    of a head without positions."""
    query_rank: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Compressed width of queries; 0 for none. Needs ``kv_rank``."""
    rope_dim: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Width of a head's part with rotary positions, in addition to ``head_dim``. Needs ``kv_rank``."""
    value_dim: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Width of a head's values; 0 for ``head_dim``. Needs ``kv_rank``."""
    window: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Tokens in the window of sliding-window attention; 0 for all."""
    window_chunks: bool = False
    """Whether windows are chunks that do not overlap (Llama 4)."""
    full_attention_every: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Interval of layers with attention to all tokens in place of the window: layers n, 2n, ... counted from 1; 0
    for none."""
    head_norms: bool = False
    """Whether queries and keys are normalized per head (``--qk-layernorm``). Latent attention normalizes its
    compressed tensors instead, without this key."""
    gated_attention: bool = False
    """Whether a gate of the width of attention's output multiplies it."""
    residual_streams: Count = 1
    """Residual streams of hyper-connections: stages pass all of them."""
    residual_block: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Layers in a block of attention residuals: stages also pass a summary of each block before, and of the one
    that they continue; 0 for none."""
    mixers: list[Literal["attention", "delta", "mamba"]] = Field(default=[])
    """What mixes tokens in each layer, repeated over the layers: attention, the delta rule, or Mamba-2; attention
    by default."""
    hybrid_pattern: str | None = None
    """Layers that are each one half, in the letters of Megatron-LM's ``--hybrid-layer-pattern``: ``M`` Mamba-2,
    ``G`` gated DeltaNet, ``*`` attention, ``-`` MLP, ``E`` experts. ``layers`` is the number of letters."""
    delta: Delta | None = None
    """Layers with the delta rule; none by default."""
    mamba: Mamba | None = None
    """Layers with Mamba-2; none by default."""
    indexer: Indexer | None = None
    """Sparse attention: the indexer that chooses keys; all keys by default. Needs ``kv_rank`` or
    ``compressed``."""
    compressed: Compressed | None = None
    """Attention to a window and to compressed keys; none by default. Needs ``query_rank`` and ``window``."""
    mtp: Annotated[int, Field(ge=0, le=100)] = 0
    """Modules of multi-token prediction. Each has a projection of two widths, a layer like the last one, and one
    more pass through the LM head."""
    num_experts: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Experts in a mixture-of-experts layer; 0 for a dense model."""
    top_k: Count = 1
    """Experts per token."""
    expert_groups: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Groups of experts from which a token chooses ``top_groups``, and its experts in these
    (``--moe-router-num-groups``); 0 for none. Deduplicated exchanges then go to fewer nodes."""
    top_groups: Count = 1
    """Groups with the experts of a token (``--moe-router-group-topk``)."""
    expert_ffn: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Inner width of an expert; 0 for that of the MLP."""
    expert_latent: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Width of the tokens that experts receive and return, between two projections that all experts share; 0 for
    ``hidden``."""
    moe_every: Count = 1
    """Interval of layers with experts: layers n, 2n, ... counted from 1."""
    dense_layers: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Leading layers without experts."""
    shared_ffn: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Total inner width of the shared experts, which process every token; 0 for none."""
    capacity: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Tokens per expert, relative to an even share (``--moe-expert-capacity-factor``): further tokens are dropped,
    and missing ones are padded; 0 to drop none. The policy that chooses the dropped tokens does not change their
    number."""
    capacity_padding: bool | None = None
    """Whether experts with fewer tokens are padded to ``capacity`` (``--moe-pad-expert-input-to-capacity``); true
    by default."""
    encoder: Encoder | None = None
    """A vision or audio encoder before the decoder; none by default."""
    encoders: dict[str, Encoder] | None = None
    """Several encoders before the decoder, by name."""
    frozen: bool = False
    """Whether all weights except those of encoders and their projectors are frozen: backwards compute only the
    input gradients for these."""
    imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Tokens of the busiest device's experts, relative to an even share, in all layers and microbatches, if no
    tokens are dropped."""
    expert_load: ExpertLoad | None = None
    """Tokens of each expert by layer and microbatch, from a file or a distribution; equal numbers by default. The
    fullest device of an expert-parallel group determines the times of exchanges and experts."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self._fill()
        if self.heads % self.kv_heads:
            near = divisors_near(self.kv_heads, self.heads)
            raise ValueError(
                f"kv_heads: {self.kv_heads} do not divide heads ({self.heads}); nearest that do: {near}"
            )
        if abs(self.head_dim * self.kv_heads - round(self.head_dim * self.kv_heads)) > _ROUNDING:
            msg = f"head_dim: {self.kv_heads} heads of {self.head_dim:g} are not a whole width"
            raise ValueError(msg)
        for name in ("query_rank", "rope_dim", "value_dim"):
            if getattr(self, name) and not self.kv_rank and not (name == "query_rank" and self.compressed):
                raise ValueError(f"{name}: belongs to latent attention; give kv_rank, too")
        if self.kv_rank and self.kv_heads != self.heads:
            raise ValueError("kv_heads: latent attention has as many as heads; take kv_heads away")
        if self.encoder and self.encoders:
            raise ValueError("encoder: is another form of encoders; write one of the two keys")
        if self.layout is not None and self.layers_per_stage is not None:
            raise ValueError("layout: defines the same as layers_per_stage; give one of them")
        return self

    @model_validator(mode="after")
    def _routes_agree(self) -> Self:
        groups = max(self.expert_groups, 1)
        experts = self.num_experts * self.top_groups // groups
        if self.num_experts % groups:
            raise ValueError(f"expert_groups: {groups} do not divide num_experts ({self.num_experts})")
        if self.top_groups > groups:
            raise ValueError(f"top_groups: {self.top_groups} passes expert_groups ({groups})")
        if self.num_experts and self.top_k > experts:
            whole = "num_experts" if groups == 1 else "the experts of top_groups"
            raise ValueError(f"top_k: {self.top_k} passes {whole} ({experts})")
        return self

    @model_validator(mode="after")
    def _loads_agree(self) -> Self:
        if self.capacity and self.imbalance > 1:
            raise ValueError("imbalance: experts with a capacity have as many tokens each; give one of them")
        if self.capacity_padding is not None and not self.capacity:
            raise ValueError("capacity_padding: belongs to a capacity; give capacity, too")
        if self.expert_load and not self.num_experts:
            raise ValueError("expert_load: belongs to experts; give num_experts, too")
        if self.expert_load and self.imbalance > 1:
            raise ValueError("expert_load: defines the same as imbalance; give one of them")
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        balances_products = self.balance == "products"
        if balances_products and (self.layout is not None or self.layers_per_stage is not None):
            raise ValueError("balance: layout and layers_per_stage already define it; give one of them")
        if balances_products and self.mtp:
            raise ValueError("balance: products does not count mtp; give layers_per_stage or layout")
        if self.frozen and not any(encoder.passes_back for encoder in self.named_encoders.values()):
            raise ValueError("frozen: nothing is trained then; give an encoder whose layers or projector are")
        if self.frozen and self.mtp:
            raise ValueError("mtp: multi-token prediction trains a decoder; write mtp: 0 for a frozen one")
        return self

    @model_validator(mode="after")
    def _layers_agree(self) -> Self:
        if self.hybrid_pattern is not None:
            self._check_pattern(self.hybrid_pattern)
        kinds = {self.layer(index)[:2] for index in range(self.layers)}
        for mixer in ("delta", "mamba"):
            if any(kind[0] == mixer for kind in kinds) and getattr(self, mixer) is None:
                raise ValueError(f"{mixer}: missing; layers have it")
        if self.indexer and not self.kv_rank and not self.compressed:
            raise ValueError("indexer: sparse attention is latent or compressed; give kv_rank or compressed, too")
        if self.compressed and (self.kv_rank or self.kv_heads != 1 or not self.query_rank or not self.window):
            raise ValueError("compressed: give kv_heads: 1, query_rank and window, too, and no kv_rank")
        if self.expert_latent and not self.num_experts:
            raise ValueError("expert_latent: belongs to experts; give num_experts, too")
        return self

    @model_validator(mode="after")
    def _recomputation_agrees(self) -> Self:
        if self.recompute_modules and self.recompute != "selective":
            raise ValueError("recompute_modules: write recompute: selective beside them")
        if "mhc" in self.recompute_modules and self.residual_streams == 1:
            raise ValueError("recompute_modules: mhc belongs to residual streams; give residual_streams, too")
        if self.recompute_method and self.recompute != "full":
            raise ValueError("recompute_method: write recompute: full beside it")
        if self.recompute_num_layers and not self.recompute_method:
            raise ValueError("recompute_num_layers: write recompute_method: uniform or block beside it")
        if self.offloaded_layers and self.recompute != "none":
            raise ValueError("offloaded_layers: write recompute: none beside them")
        if self.offload_modules and (self.offloaded_layers or self.recompute == "full"):
            raise ValueError("offload_modules: write neither offloaded_layers nor recompute: full beside them")
        if self.offload_modules and self.recomputed_modules & {"full_attn", "moe", "alternate_products"}:
            raise ValueError("offload_modules: write recompute_modules inside attention and experts beside them")
        return self

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return round(self.heads * (self.head_dim + self.rope_dim))

    @property
    def kv_width(self) -> int:
        """Width of all key heads."""
        return round(self.kv_heads * (self.head_dim + self.rope_dim))

    @property
    def value_width(self) -> int:
        """Width of all value heads."""
        return round(self.kv_heads * (self.value_dim or self.head_dim))

    @property
    def output_width(self) -> int:
        """Width of the outputs of all heads."""
        return round(self.heads * (self.value_dim or self.head_dim))

    def compressed_vectors(self, ratio: int) -> int:
        """Return the parameters outside matrices of attention with compressed keys: norms, sinks and positions."""
        if not self.compressed:
            return 0
        dim, overlap = round(self.head_dim), self.overlap(ratio)
        pooled = dim + (self.indexer.dim if overlap > 1 and self.indexer else 0)
        return dim + self.heads + (pooled * (1 + overlap * ratio) if ratio else 0)

    def overlap(self, ratio: int) -> int:
        """Return the windows of compression that a token belongs to in a layer with a ratio; 0 without one."""
        if not self.compressed or not ratio:
            return 0
        return 2 if ratio == self.compressed.indexed_ratio else 1

    @property
    def token_width(self) -> int:
        """Width of the tokens that experts receive."""
        return self.expert_latent or self.hidden

    def boundary_width(self, first_layer: int) -> int:
        """Return the width that a stage receives for each token, given its first layer, from 0."""
        summaries = -(-first_layer // self.residual_block) if self.residual_block else 0
        return self.hidden * (self.residual_streams + summaries)

    def recurrence(self, kind: Layer) -> Delta | Mamba | None:
        """Return what mixes the tokens of a layer without attention."""
        return {"delta": self.delta, "mamba": self.mamba}.get(kind.mixer)

    @property
    def stream_maps(self) -> int:
        """Width of the maps between the residual streams and a half's input and output; 0 with one stream."""
        streams = self.residual_streams
        return streams * (streams + 2) if streams > 1 else 0

    @property
    def recomputed_modules(self) -> frozenset[str]:
        """Modules that the backward recomputes with selective recomputation; empty otherwise."""
        return frozenset(self.recompute_modules or ["core_attn"]) if self.recompute == "selective" else frozenset()

    @property
    def pads_experts(self) -> bool:
        """Whether all experts have ``capacity`` tokens, with padding."""
        return self.capacity > 0 and self.capacity_padding is not False

    @property
    def matrices(self) -> int:
        """Matrices of the MLP: the last maps back to the residual stream."""
        return 3 if self.gated else 2

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return PRECISION_BYTES[self.precision]

    def operand_bytes(self, count: int) -> int:
        """Return the bytes of ``count`` elements of a factor of the products of layers' matrices."""
        return ceil(count * OPERAND_BYTES[self.precision])

    def layer(self, index: int, place: int = 0) -> Layer:
        """Return the properties of a layer; indexes from ``layers`` on belong to multi-token prediction.

        Args:
            index: index of the layer in the model, from 0.
            place: index of the layer on its stage, from 0.
        """
        number = min(index, self.layers - 1) + 1
        experts = self.num_experts > 0 and number > self.dense_layers and number % self.moe_every == 0
        mixer: Mixer = self.mixers[(number - 1) % len(self.mixers)] if self.mixers else "attention"
        feed_forward: FeedForward = "experts" if experts else "mlp"
        if self.hybrid_pattern is not None and index < self.layers:
            mixer, feed_forward = _PATTERN[self.hybrid_pattern[index]]
        full = self.full_attention_every and number % self.full_attention_every == 0
        is_first = index < self.layers and place < (self.recompute_num_layers or 1)
        is_recomputed = self.recompute_method != "block" or is_first
        window = 0 if full or mixer != "attention" else self.window
        ratios = self.compressed.ratios if self.compressed and index < self.layers else [0]
        ratio = ratios[(number - 1) % len(ratios)] if mixer == "attention" else 0
        offloaded = index < self.layers and place < self.offloaded_layers
        received = sent = 1.0
        if feed_forward == "experts":
            kept = self.capacity if self.pads_experts else min(self.capacity, 1.0)
            received, sent = kept or self.imbalance, kept or 1.0
        return Layer(
            mixer=mixer, feed_forward=feed_forward, window=window, ratio=ratio,
            is_recomputed=is_recomputed, offloaded=offloaded, precision=self._precision_of_layer(index),
            received=received, sent=sent,
        )  # fmt: skip

    def _precision_of_layer(self, index: int) -> Precision | None:
        """Return the precision of a layer's products, if it is not that of the model; indexes as in ``layer``."""
        if self.precision not in NARROW:
            return None
        if index >= self.layers:
            return self.product_precisions.get("mtp")
        is_narrow = self.first_bf16_layers <= index < self.layers - self.last_bf16_layers
        return None if is_narrow else "bf16"

    def with_precision_of(self, kind: Layer) -> Self:
        """Return the model with all products in the precision of a layer's products."""
        if kind.precision is None:
            return self
        narrow = self.fp8_attention and kind.precision in NARROW
        values: dict[str, Any] = {"precision": kind.precision, "product_precisions": {}, "fp8_attention": narrow}
        return self.model_copy(update=values)

    @property
    def named_encoders(self) -> dict[str, Encoder]:
        """The encoders by name, in order; the name of a single one can be empty."""
        return {"": self.encoder} if self.encoder else self.encoders or {}

    def _fill(self) -> None:
        if not self.head_dim and self.hidden % self.heads:
            near = divisors_near(self.heads, self.hidden)
            msg = f"heads: {self.heads} do not divide hidden ({self.hidden}): write {near}, or give head_dim"
            raise ValueError(msg)
        defaults = {"kv_heads": self.heads, "head_dim": self.hidden / self.heads, "expert_ffn": self.ffn}
        for name, value in defaults.items():
            # The model is frozen to its users; these three defaults depend on other fields.
            object.__setattr__(self, name, getattr(self, name) or value)

    def _check_pattern(self, pattern: str) -> None:
        unknown = sorted({*pattern} - _PATTERN.keys())
        if unknown:
            raise ValueError(f"hybrid_pattern: unknown letter {unknown[0]!r}; letters are {', '.join(_PATTERN)}")
        if len(pattern) != self.layers:
            raise ValueError(f"hybrid_pattern: has {len(pattern)} letters, and layers is {self.layers}")
        if self.mixers:
            raise ValueError("hybrid_pattern: defines the same as mixers; give one of them")
        if "E" in pattern and not self.num_experts:
            raise ValueError("hybrid_pattern: E needs num_experts")
