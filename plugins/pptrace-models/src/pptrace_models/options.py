"""Options of the roofline cost model."""

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pptrace.plugin import Duration, Parameters, Rate, Size
from pptrace_models.casts import ScalingRecipe

Moment = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8"]

_BYTES: dict[str, int | Fraction] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "mxfp8": Fraction(33, 32),
    "remainder": 2,
}
"""Bytes per element of optimizer state; MXFP8 has a scale byte per 32 elements (OCP Microscaling Formats 1.0)."""


GRADIENTS, WEIGHTS = 2, 3
"""ZeRO stages from which gradients, and weights, are sharded."""


class RooflineOptions(Parameters):
    """Precisions of gradients and optimizer state, reserved memory, and the model of kernels and collectives."""

    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage. 1 shards the optimizer state over ranks with the same weights (Megatron-LM's distributed
    optimizer). 2 also shards gradients. 3 also shards weights (FSDP); ``data_parallel.reshard`` sets when they are
    freed."""
    all_reduce: bool = False
    """Whether gradients are all-reduced also with ``zero: 1``, although each replica updates only its share. Each
    replica then scales all gradients by their norm and clears them (nanotron, DeepSpeed's BF16 optimizer)."""
    outer_sharding: bool = False
    """Whether all replicas share the optimizer state, not only those of a shard group (``data_parallel.shard``;
    Megatron-FSDP's ``outer_dp_sharding_strategy: optim``). Once per step, the groups then reduce-scatter gradients
    and gather weights. Needs ``zero: 3``."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of gradient buffers and of their reduction (``--main-grads-dtype``)."""
    optimizer: Literal["adam", "muon"] = "adam"
    """The optimizer. With ``muon``, matrices of layers have one moment, and each step orthogonalizes it.
    Embedding, LM head, norms and biases have Adam. With ``zero: 3``, devices exchange their parts of matrices."""
    muon_steps: Annotated[int, Field(ge=1, le=100)] = 5
    """Newton-Schulz iterations of Muon (``--muon-num-ns-steps``)."""
    muon_tp: Literal["duplicated", "blockwise"] = "duplicated"
    """Muon of matrices that tensor parallelism splits (``--muon-tp-mode``): each device gathers and orthogonalizes
    the whole matrix, or its own part."""
    overlap_muon: bool = True
    """Whether the exchange of matrices with ``zero: 3`` overlaps with iterations on other layers, as in
    torchtitan's ``DistMuon`` and in Dion."""
    main_params: Literal["fp32", "fp16", "remainder"] | None = None
    """Main weights of the optimizer: a copy in fp32 or fp16 (``--main-params-dtype``), or ``remainder``; fp32 by
    default. ``remainder`` has the 16 bits of an fp32 copy that bf16 weights lack (``store_param_remainders``).
    Both together are the fp32 weights that PyTorch's FSDP2 shards (``zero: 3``)."""
    exp_avg: Moment | None = None
    """Precision of Adam's first moment (``--exp-avg-dtype``), and of Muon's momentum; fp32 by default.
    The bytes of ``mxfp8`` are those of its specification; no known framework stores moments in it."""
    exp_avg_sq: Moment | None = None
    """Precision of Adam's second moment (``--exp-avg-sq-dtype``); fp32 by default."""
    reserved: Annotated[Size, Field(ge=0)] = 2 * 2**30
    """Memory per rank that every limit leaves free for driver, context and buffers; 2 GiB."""
    fragmentation: Annotated[float, Field(ge=0, le=1)] | None = None
    """Bytes that PyTorch's allocator reserves beyond the peak of allocated bytes, relative to this peak:
    ``torch.cuda.max_memory_reserved`` over ``max_memory_allocated``, minus 1; none by default."""
    copied_shards: bool = False
    """Whether kernels copy gathered weights and unreduced gradients between tensors and the buffers of
    collectives. With ``zero: 3`` (PyTorch's FSDP2), memory holds the gather buffers of two layers, and the reduced
    gradients in addition to the unreduced ones. The copies take time for each microbatch without a pipeline
    (``kernels: shapes``). With ``zero: 1`` (nanotron), memory holds all weights once more, in the buffer from
    which they are copied after the optimizer's step."""
    gradient_buckets: bool = False
    """Whether memory holds the gradients of all weights once more, in the model's precision, for their reduction
    over several replicas. PyTorch's ``DistributedDataParallel`` copies gradients into such buckets, unless they
    are views of them (``gradient_as_bucket_view``)."""
    kernels: Literal["groups", "shapes"] = "groups"
    """Times of kernels: groups of kernels at constant shares of the peaks, or each kernel by its shape."""
    kernel_table: str | None = None
    """A file of measured products, which replace times by shape; none by default."""
    fp8_recipe: ScalingRecipe = "delayed"
    """How products with ``model.precision: fp8`` scale their factors (``--fp8-recipe``), which sets the bytes of
    casts (``kernels: shapes``) and of gathers. ``delayed``: one scale per tensor, from earlier microbatches.
    ``tensorwise``: one scale per tensor, from its values (current scaling). ``blockwise``: one scale per block."""
    attention: Literal["fused", "flash-2"] = "fused"
    """Kernel of flash attention (``kernels: shapes``): ``fused`` attains the device's ``attention_attainable``,
    ``flash-2`` its ``attention_flash_2``."""
    fp8_param_gather: bool = False
    """Whether weights are in FP8 or MXFP8 alone, without a copy in two bytes (``--fp8-param-gather``). With ZeRO
    1, replicas then gather those of FP8 in FP8. Megatron-Core gathers those of MXFP8 in BF16."""
    accumulation: Literal["fused", "separate"] = "fused"
    """How weight gradients of microbatches are accumulated. ``fused``: by the matrix product (Megatron-LM).
    ``separate``: by additional kernels, from gradients in the model's precision (DeepSpeed's BF16 optimizer,
    nanotron). With FP32 buffers, separate kernels run after the backward, so memory holds all gradients of a stage
    once more at its end. With ``zero: 3`` (FSDP2), they run after each layer, so memory holds those of a layer."""
    dummy_gradients: bool = False
    """Whether fused accumulation returns a dummy tensor to autograd for each gradient. Memory holds one for each
    shape of a layer's matrices (Transformer Engine's ``get_dummy_wgrad``)."""
    scatter_gather: bool = False
    """Whether each tensor-parallel device sends its share of a message; the next stage gathers it."""
    spread: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Standard deviation of the devices' speeds, relative to the mean. All computation takes the expected time on
    the slowest device of the job."""
    dispatcher: Literal["all-to-all", "deduplicated"] = "all-to-all"
    """How tokens reach their experts. ``all-to-all``: a token is sent once per expert. ``deduplicated``: it is
    sent once per device and node, which forward it to several of their experts (DeepEP, HybridEP)."""
    fp8_dispatch: bool = False
    """Whether tokens, and gradients of their results, go to experts in FP8 with a scale per 128 elements. Results,
    and gradients of tokens, return in the model's precision (DeepSeek-V3; DeepEP's ``use_fp8_dispatch``)."""
    fused_routing: bool | tuple[Literal["router", "permutation"], ...] = True
    """Which parts of routing are fused kernels: ``true`` for both, or ``router`` (``--moe-router-fusion``) and
    ``permutation`` (``--moe-permute-fusion``). Otherwise the host issues more operations (``host_launch``). An
    unfused router also takes more time on the device (``kernels: shapes``)."""
    aligned_dispatch: bool = True
    """Whether ``dispatcher: deduplicated`` gathers the routing maps of all devices and aligns the rows of each
    expert for products in FP8 and FP4. HybridEP does, DeepEP does not. Without it, kernels copy the rows of
    experts to align them, before and after their products (Transformer Engine's ``Fp8Padding``)."""
    fused_loss: bool | Literal["compiled"] = False
    """Whether the loss writes its gradient over the logits (``--cross-entropy-fusion-impl te``). ``compiled``:
    beside them (``torch.compile``). Otherwise memory also holds the logits in fp32."""
    loss_chunks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of parts of a microbatch whose logits exist one after another (torchtitan's ``ChunkedLossWrapper``).
    With several, the forward of the last stage also has the backward of LM head and loss. Memory then keeps the
    gradient of the LM head's input in place of the logits."""
    kept_casts: bool = False
    """Whether memory holds the cast weights of FP8, MXFP8 and NVFP4 beside the weights (Transformer Engine)."""
    early_stop: bool = False
    """Whether the recomputation of a layer without experts ends before the MLP's last product and its collective,
    because no backward needs them (``torch.utils.checkpoint``). Only with ``model.recompute: full``."""
    message_buffers: Literal["pair", "microbatches", "all"] = "pair"
    """Buffers for messages from and to each neighbour. ``pair``: two. ``microbatches``: one receive buffer per
    microbatch, as in PyTorch's ``PipelineStage``. It receives into the input that a stage keeps, and keeps its
    output, which has as many bytes. ``all``: also the gradient of each microbatch's input, which PyTorch kept
    until the end of the step before October 2025."""
    returned_outputs: bool = False
    """Whether the last stage keeps the logits of all microbatches until the end of the step, which returns them
    (``return_outputs`` of PyTorch's ``step``)."""
    sequence_buffers: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of tensors of the whole sequence that sequence parallelism holds at once: gathered inputs, and
    outputs or input gradients before their reduction."""
    deferred_frees: bool = False
    """Whether PyTorch's allocator waits for reduce-scatters of tensor parallelism before it reuses their tensors
    (``record_stream``). Memory then holds these tensors of the layers whose kernels are in the device's queue, at
    most 18. The queue contains the third and later microbatches while a 1F1B pipeline fills. It also grows while
    the host issues kernels (``host_kernel``) faster than the device computes them."""
    eager_loss: bool | Literal["in-place"] = False
    """Whether the loss is PyTorch's ``cross_entropy`` in fp32 without ``torch.compile``, whose separate kernels
    keep several fp32 tensors of the size of the logits. ``in-place``: separate kernels that write exponentials,
    probabilities and gradient over one fp32 tensor (nanotron)."""
    every_nic: bool = False
    """Whether rings between nodes (of replicas, or tensor parallelism) use the NICs of all devices of the group in
    a node, as in NCCL. Their rate is at most that of the node's links. Otherwise each ring uses one NIC."""
    nic_rates: dict[Annotated[int, Field(ge=2)], Annotated[Rate, Field(ge=1)]] | None = None
    """Measured rates per NIC of rings between nodes, by the number of nodes that a group spans; by default
    ``data_parallel.bandwidth`` for any number. A number between two has the rate of the lower one. Needs
    ``every_nic``."""
    sequence_first: bool = True
    """Whether the first dimension of activations is the sequence, as in Megatron-LM. Otherwise, with several
    sequences in a microbatch, kernels copy whole tensors after each gather and before each reduce-scatter of
    sequence parallelism (PyTorch's ``_functional_collectives.py``; ``kernels: shapes``). Such programs also keep
    the LM head's gathered input."""
    overlap_tp: bool | Literal["gathers"] = False
    """Whether tensor-parallel collectives of attention and MLP overlap with matrix products
    (``--tp-comm-overlap``). They overlap with dependent products in one piece per device. In the backward, whole
    collectives also overlap with independent products. ``gathers``: likewise, except for the sums of a forward,
    which follow their products."""
    host_launch: Annotated[Duration, Field(ge=0)] = 0
    """Time in which the host issues one operation: a kernel, a cast or a collective. A layer takes at least as
    long as the host needs for its operations; a backward has twice as many."""
    host: Annotated[Duration, Field(ge=0)] = 0
    """Time in which the host issues the kernels of a forward of a layer with experts, in place of the time that
    follows from ``host_launch``; a backward takes twice as long."""
    host_kernel: Annotated[Duration, Field(ge=0)] = 0
    """Time in which the host issues one kernel of a forward of a layer without experts, including the framework's
    code. It applies if ``host_launch`` is 0. Casts and tensor-parallel collectives count as well. A backward takes
    twice as long. It is a lower bound of the layer's time."""
    blocking_launches: bool = False
    """Whether the host waits for each kernel of a layer before it issues the next (``CUDA_LAUNCH_BLOCKING``). The
    host's time is then added to that of the device."""
    host_action: Annotated[Duration, Field(ge=0)] = 0
    """Additional host time per forward of a stage with such layers, for messages, buffers and the schedule; a
    backward takes twice as long. By default, it follows from ``host_launch``."""
    cuda_graphs: bool | tuple[Literal["attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess"], ...] = False
    """Which parts of a layer CUDA graphs issue: ``true`` for all layers and actions, or parts with the names of
    Megatron-LM's ``--cuda-graph-scope``."""
    segments: bool | None = None
    """Whether actions consist of segments, which overlap in overlapped pairs. By default, they do if the schedule
    has such pairs, a group communicates within actions, and ``overlap_tp`` and ``accumulation`` have their
    defaults."""
    alone: Literal["in-order", "overlapped"] = "in-order"
    """Order of an action's segments outside pairs: one after another, or computation overlaps with communication
    that it does not need. Megatron-LM's backward overlaps tensor-parallel collectives in this manner. Exchanges of
    experts stay exposed."""
    delay_wgrad: bool = True
    """Whether exchanges of experts start before the weight gradients of the same half of a layer, as with
    Megatron-LM's ``--delay-wgrad-compute``, or after them."""

    def fuses(self, part: Literal["router", "permutation"]) -> bool:
        """Return whether a part of routing is a fused kernel."""
        return self.fused_routing if isinstance(self.fused_routing, bool) else part in self.fused_routing

    @property
    def is_hybrid_ep(self) -> bool:
        """Whether exchanges are those of HybridEP."""
        return self.dispatcher == "deduplicated" and self.aligned_dispatch

    @field_validator("zero", mode="before")
    @classmethod
    def _reject_boolean(cls, value: object) -> object:
        """Reject true and false, which equal 1 and 0 in Python."""
        if isinstance(value, bool):
            raise ValueError(f"must be one of 0, 1, 2, 3, not {str(value).lower()}")  # noqa: TRY004 - pydantic's
        return value

    @model_validator(mode="after")
    def _has_one_loss(self) -> Self:
        if self.fused_loss and self.eager_loss:
            raise ValueError("eager_loss: the loss is fused; remove one of the two keys")
        return self


def optimizer_bytes(options: RooflineOptions, *, master: bool, moments: int = 2) -> int | Fraction:
    """Return the bytes of optimizer state per parameter: the moments and, with ``master``, the main weight."""
    sizes = [_BYTES[options.exp_avg or "fp32"], _BYTES[options.exp_avg_sq or "fp32"]]
    return sum(sizes[:moments]) + (_BYTES[options.main_params or "fp32"] if master else 0)


def gradient_bytes(options: RooflineOptions) -> int:
    """Return the bytes of a gradient."""
    return 4 if options.gradients == "fp32" else 2
