"""Presets of software stacks: what releases of frameworks do to the time and memory of a step.

A rule cites a file or flag of the framework at the release's tag, or says ``fitted to`` and names the rows of
``pptrace accuracy`` that its value is fitted to. MB is NVIDIA-NeMo/Megatron-Bridge, MC NVIDIA/Megatron-LM, NM
NVIDIA/NeMo, NL NVIDIA/NeMo-Framework-Launcher, MK kwai/Megatron-Kwai, TT pytorch/torchtitan, PT pytorch/pytorch,
NT huggingface/nanotron, DS deepspeedai/DeepSpeed, MD bigscience-workshop/Megatron-DeepSpeed, BS
bigscience-workshop/bigscience, DR the DeepSeek-V3 Technical Report (arXiv 2412.19437).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.plugin import StackOffer, StackRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXPERTS: dict[str, Any] = {"model.num_experts": {"min": 1}}
_OF_MEGATRON = ("1f1b", "interleaved-1f1b", "combined-1f1b")
"""Schedules that Megatron-LM runs."""
_OF_TORCH = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe-v")
"""Schedules that ``torch.distributed.pipelining`` has a class for."""
_X86 = ["a100*", "a800*", "h100*", "h800*", "h200*", "b200", "b300"]
"""Devices whose systems have x86 hosts."""
_GRACE = ["gb200", "gb300"]
"""Devices on boards with a Grace host."""
_RECENT = ["h100*", "h200*", "h800*", "b200", "b300", "gb200", "gb300"]
"""Devices with performance recipes of NeMo and Megatron-Bridge."""
_PAIRED = ["combined-1f1b", "dualpipe*", "stp*"]
"""Schedules with overlapped pairs, whose tensor-parallel collectives overlap with the other direction."""
_NARROW = {"model.precision": ["fp8", "mxfp8", "nvfp4"]}
"""Precisions whose products cast their factors."""
_SEGMENTED = {"costs.segments": True}
"""Costs in segments, which exclude ``overlap_tp`` and separate accumulation."""


def _rule(source: str, values: Mapping[str, Any], **conditions: Mapping[str, Any]) -> StackRule:
    return StackRule(source=source, set=values, **conditions)


def _messages(source: str, policy: str, schedules: Sequence[str], **options: Any) -> tuple[StackRule, StackRule]:
    """Return the rules of messages: a framework's policy for its schedules, in order for all others."""
    values = {"p2p.policy": policy, **{f"p2p.options.{name}": value for name, value in options.items()}}
    return (
        _rule("no source: the framework does not run this schedule", {"p2p.policy": "ordered"}),
        _rule(source, values, when={"schedule.name": list(schedules)}),
    )


_DEVICES = (
    _rule(
        "fitted to 183 products measured on an A100 PCIe (SimuMax); attention and norms by kernel",
        {"costs.kernels": "shapes"},
    ),
    _rule("fitted to the slowdown of dgxc-benchmarking 25.04 by scale", {"costs.spread": 0.015}),
    _rule("NCCL 2: rings between nodes use every NIC of a group", {"costs.every_nic": True}),
    _rule(
        "fitted to 8 steps of Llama 3 70B with FSDP in FP8 (Megatron-Bridge 26.02 to 26.04): speed of computation "
        "beside NCCL's kernels; mixtures without a pipeline do not need it",
        {"contention.compute": 0.7},
        when={"parallel.pp": 1, "costs.zero": {"min": 2}, "model.num_experts": 0},
    ),
)
"""Rules of all stacks on GPUs with NCCL."""

_MEGATRON = (
    *_DEVICES,
    *_messages("MC megatron/core/pipeline_parallel/schedules.py", "megatron", _OF_MEGATRON),
    _rule("MC --use-distributed-optimizer", {"costs.zero": 1}),
    _rule("MC --overlap-grad-reduce, --overlap-param-gather", {"data_parallel.overlap": True}),
    _rule(
        "TE transformer_engine/pytorch/module/linear.py is_first_microbatch: microbatches share the cast weights",
        {"costs.kept_casts": True}, when=_NARROW, unless={"costs.zero": 3},
    ),
    _rule(
        "MC megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: groups reduce after the last "
        "microbatch",
        {"data_parallel.reduce_groups": "last"}, when={"data_parallel.shard": {"min": 1}},
    ),
    _rule(
        "MC --sequence-parallel, which tensor-parallel recipes switch on",
        {"parallel.sequence_parallel": True}, when={"parallel.tp": {"min": 2}},
    ),
    _rule(
        "MC --tp-comm-overlap, which MB v0.2.0 scripts/performance/configs switches on, except in NVFP4",
        {"costs.overlap_tp": True},
        when={"parallel.tp": {"min": 2}, "model.num_experts": 0, "device.preset": _RECENT},
        unless={**_SEGMENTED, "schedule.name": _PAIRED, "model.precision": "nvfp4"},
    ),
    _rule(
        "MC combined 1F1B (--overlap-moe-expert-parallel-comm): exchanges overlap the other direction's layers",
        _SEGMENTED, when={"schedule.name": "combined-1f1b"},
    ),
)  # fmt: skip

_REDUCED_IN_BF16 = _rule(
    "MC --grad-reduce-in-bf16, which recipes in FP8, MXFP8 and NVFP4 switch on",
    {"costs.gradients": "bf16"}, when=_NARROW,
)  # fmt: skip
_HOSTS = (
    _rule(
        "fitted to Megatron-Bridge's mixtures on x86 hosts, 25.09 to 26.04: time to issue an operation",
        {"costs.host_launch": "17 us"}, when={**_EXPERTS, "device.preset": _X86},
    ),
    _rule(
        "fitted to Megatron-Bridge's Qwen3 30B on Grace hosts, 25.11 to 26.04: time to issue an operation",
        {"costs.host_launch": "27 us"}, when={**_EXPERTS, "device.preset": _GRACE},
    ),
)  # fmt: skip
_GRAPHS = {"costs.cuda_graphs": ["attn", "mamba", "moe_router", "moe_preprocess"]}
"""CUDA graphs of a layer's parts whose sizes do not depend on the router."""
_GRACE_GRAPHS = _rule(
    "MC 0.15 --cuda-graph-scope, MB v0.2.0 scripts/performance/configs: graphs on GB200 and GB300",
    _GRAPHS, when={**_EXPERTS, "device.preset": _GRACE},
)  # fmt: skip

_FREED_OUTPUTS = _rule(
    "MC 0.18 megatron/core/pipeline_parallel/schedules.py waits for a send before it frees the output "
    "(deallocate_pipeline_outputs: MC megatron/training/argument_utils.py, MB models/gpt_provider.py)",
    {"p2p.options.deallocate_pipeline_outputs": True}, when={"schedule.name": list(_OF_MEGATRON)},
)  # fmt: skip
_HOST_OF_KERNELS = _rule(
    "fitted to GPT-3 in FP8 of dgxc-benchmarking 25.04: time to issue a kernel of a dense layer",
    {"costs.host_kernel": "0.115 ms"},
)
_HOST_OF_X86 = _rule(
    "fitted to GPT-3 in FP8 of dgxc-benchmarking 25.04; recipes on Grace and Vera hosts have CUDA graphs",
    {"costs.host_kernel": "0.115 ms"}, unless={"device.preset": [*_GRACE, "vr200"]},
)  # fmt: skip
_HOST_OF_GRACE = _rule(
    "not fitted: 0.115 ms, times 27 us over 17 us (costs.host_launch of mixtures on Grace and on x86 hosts)",
    {"costs.host_kernel": "0.183 ms"}, when={"device.preset": _GRACE},
)  # fmt: skip
_WHOLE_EXPERTS = _rule(
    "MC megatron/core/transformer/moe/README.md --expert-tensor-parallel-size 1, as in MB's recipes",
    {"parallel.etp": 1}, when=_EXPERTS,
)  # fmt: skip
_FLEX = _rule(
    "MC --moe-token-dispatcher-type flex: DeepEP (0.15 --moe-enable-deepep), and from 0.16 HybridEP",
    {"costs.dispatcher": "deduplicated"},
    when=_EXPERTS,
)
_COPIED_ROWS = _rule(
    "MC 0.14 megatron/core/transformer/moe/experts.py Fp8Padding: DeepEP does not align the rows of experts",
    {"costs.aligned_dispatch": False}, when=_EXPERTS,
)  # fmt: skip
_ALIGNED_ROWS = _rule(
    "MC 0.16 megatron/core/transformer/moe/token_dispatcher.py pad_multiple: HybridEP aligns the rows of experts",
    {"costs.aligned_dispatch": True}, when=_EXPERTS,
)  # fmt: skip

_BRIDGE = (
    _HOST_OF_KERNELS,
    _rule(
        "MB v0.1.0rc3 scripts/performance/configs, v0.2.0 scripts/performance/utils/helpers.py, from 0.6 "
        "perf_recipes/_common.py: cross_entropy_fusion_impl te",
        {"costs.fused_loss": True},
    ),
    _rule(
        "MB scripts/performance/configs: grad_reduce_in_fp32 = False; from 0.6 perf_recipes/_common.py",
        {"costs.gradients": "bf16"},
    ),
    _rule(
        "MB docs/performance-summary-archive.md, src/megatron/bridge/training/mixed_precision.py: current scaling",
        {"costs.fp8_recipe": "tensorwise"}, when={"model.precision": "fp8"},
    ),
    _rule(
        "MB src/megatron/bridge/training/mixed_precision.py: fp8_param_gather in FP8 and MXFP8",
        {"costs.fp8_param_gather": True}, when={"model.precision": ["fp8", "mxfp8"]},
    ),
    _WHOLE_EXPERTS,
    _rule(
        "MB src/megatron/bridge/recipes/llama: tp_comm_overlap=True; not in NVFP4. Fitted to BF16 and FP8 of "
        "mixtures on Grace hosts",
        {"costs.overlap_tp": True}, when={**_EXPERTS, "device.preset": _GRACE, "parallel.tp": {"min": 2}},
        unless={**_SEGMENTED, "model.precision": ["mxfp8", "nvfp4"]},
    ),
)  # fmt: skip

_SMALL_NEMOTRON_3 = {"model.preset": ["nemotron-3-nano", "nemotron-3.5-lightning", "nemotron-3-super"]}
_NEMOTRON_3 = (
    _rule(
        "MB v0.3.0 to v0.6.0 src/megatron/bridge/recipes/nemotronh: no --moe-router-fusion, which Ultra has",
        {"costs.fused_routing": ["permutation"]}, when=_SMALL_NEMOTRON_3,
    ),
    _rule(
        "MB v0.3.1 scripts/performance/configs/nemotronh/nemotron_3_nano_workload_base_configs.py: graphs on "
        "Blackwell",
        _GRAPHS, when={"model.preset": "nemotron-3-nano", "device.preset": ["b200", "b300"]},
    ),
    _rule(
        "MB v0.3.1 nemotron_3_nano_workload_base_configs.py: on H100, graphs of Mamba alone",
        {"costs.cuda_graphs": ["mamba"]},
        when={"model.preset": "nemotron-3-nano", "device.preset": "h100*", "model.precision": "fp8"},
    ),
    _rule(
        "MB v0.4.0 scripts/performance/configs/nemotronh/nemotron_3_workload_base_configs.py: graphs on B300",
        _GRAPHS, when={"model.preset": "nemotron-3-super", "device.preset": "b300"},
    ),
    _rule(
        "MB v0.4.0 nemotron_3_workload_base_configs.py: on B200, graphs in NVFP4 alone", _GRAPHS,
        when={"model.preset": "nemotron-3-super", "device.preset": "b200", "model.precision": "nvfp4"},
    ),
    _rule(
        "MB v0.4.0 scripts/performance/configs/nemotronh/te_quant.cfg, src/megatron/bridge/training/"
        "mixed_precision.py nemotron_3_super_bf16_with_nvfp4_mixed: num_layers_at_end_in_bf16 = 14",
        {
            "model.product_precisions.attention": "bf16", "model.product_precisions.latent": "bf16",
            "model.product_precisions.mamba_output": "mxfp8", "model.product_precisions.mtp": "bf16",
            "model.last_bf16_layers": 14,
        },
        when={"model.preset": "nemotron-3-super", "model.precision": "nvfp4"},
    ),
)  # fmt: skip
_KIMI_K2 = _rule(
    "MB v0.3.1 scripts/performance/configs/kimi/kimi_llm_pretrain.py: optimizer_type = muon; v0.6.0 muon_tp_mode",
    {"costs.optimizer": "muon", "costs.muon_tp": "blockwise"}, when={"model.preset": "kimi-k2"},
)  # fmt: skip
_GRACE_FLEX = _rule(
    "MB v0.2.0 scripts/performance/configs: HybridEP on NVLink domains of 72 (moe_flex_dispatcher_backend)",
    {"costs.dispatcher": "deduplicated", "costs.aligned_dispatch": True},
    when={**_EXPERTS, "device.preset": _GRACE},
)  # fmt: skip
_X86_FLEX = _rule(
    "MB v0.3.0 src/megatron/bridge/training/flex_dispatcher_backend.py: HybridEP also on x86 hosts",
    {"costs.dispatcher": "deduplicated"}, when=_EXPERTS,
)  # fmt: skip
_FULL_ITERATION = (
    _rule(
        "MB v0.5.0 scripts/performance/configs: cutedsl_fused_grouped_mlp, cuda_graph_impl full_iteration, "
        "fp8_dot_product_attention of MXFP8 recipes",
        {"model.fused_experts": True, "costs.cuda_graphs": True, "model.fp8_attention": True},
        when={**_EXPERTS, "device.preset": _GRACE, "model.precision": "mxfp8"}, unless=_SMALL_NEMOTRON_3,
    ),
    _rule(
        "MB v0.5.0 scripts/performance/configs: DeepSeek-V3 has no fp8_dot_product_attention on GB200",
        {"model.fp8_attention": False}, when={"model.kv_rank": {"min": 1}, "device.preset": "gb200"},
    ),
)  # fmt: skip

_GRACE_ITERATION = _rule(
    "MC 0.18 --cuda-graph-impl full_iteration; --moe-paged-stash allows any number of tokens",
    {"costs.cuda_graphs": True}, when={**_EXPERTS, "device.preset": _GRACE},
)  # fmt: skip

_UNFUSED_ROUTING = _rule(
    "NM v2.2.0, v2.3.0 nemo/collections/llm/recipes: no --moe-router-fusion, which MC has from 0.14 on",
    {"costs.fused_routing": False}, when=_EXPERTS,
)  # fmt: skip
_FLASH_2 = _rule("NL 24.07 launcher_scripts/conf/config.yaml NVTE_FUSED_ATTN: 0", {"costs.attention": "flash-2"})
_CUDNN = _rule(
    "NL 24.09 launcher_scripts/conf/config.yaml: without NVTE_FUSED_ATTN, cuDNN's attention",
    {"costs.attention": "fused"},
)
_FP8_GRADIENTS = _rule(
    "NL 24.07 examples/training/*/h100/*_fp8.sh: grad_sync_dtype=bf16",
    {"costs.gradients": "bf16"}, when={"model.precision": "fp8"},
)  # fmt: skip
_USER_BUFFERS = _rule(
    "NL 24.07 ub_tp_comm_overlap and NM v2.2.0 tp_comm_overlap=True: mixtures overlap collectives in BF16",
    {"costs.overlap_tp": True},
    when={**_EXPERTS, "parallel.tp": {"min": 2}, "model.precision": ["bf16", "fp16"]},
    unless=_SEGMENTED,
)  # fmt: skip
_NARROW_GRADIENTS = _rule(
    "NM v2.2.0 nemo/collections/llm/recipes, performance mode: grad_reduce_in_fp32 = False",
    {"costs.gradients": "bf16"},
)
_GRACE_DENSE_GRAPHS = _rule(
    "NM v2.3.0 scripts/performance/recommended_model_configs/model_configs_gb200.csv: CUDA graphs",
    {"costs.cuda_graphs": True},
    when={"device.preset": _GRACE, "model.preset": ["gpt3-175b", "nemotron4-340b"]},
)  # fmt: skip
_FP8_WEIGHTS = _rule(
    "NM v2.1.0 nemo/collections/llm/recipes/precision/mixed_precision.py: fp8_params, delayed scaling",
    {"costs.fp8_param_gather": True}, when={"model.precision": "fp8"},
)  # fmt: skip
_OF_2021 = (
    *_DEVICES,
    *_messages(
        "MC v2.5 megatron/p2p_communication.py: waits for each batch before it continues",
        "megatron",
        _OF_MEGATRON[:2],
        overlap_p2p_comm=False,
    ),
    _rule("MC v2.5: neither a distributed optimizer nor overlapped reduction", {"costs.zero": 0}),
    _rule(
        "MC v2.5 megatron/p2p_communication.py: messages are split over the tensor-parallel group",
        {"costs.scatter_gather": True},
    ),
    _rule("MC v2.5 megatron/model/transformer.py: no flash attention", {"model.flash_attention": False}),
)
_OF_2022 = (
    *_DEVICES,
    *_messages(
        "MC 2755bcb87b megatron/p2p_communication.py: waits for each batch before it continues",
        "megatron", _OF_MEGATRON[:2], overlap_p2p_comm=False,
    ),
    _rule(
        "MC 2755bcb87b --sequence-parallel", {"parallel.sequence_parallel": True}, when={"parallel.tp": {"min": 2}}
    ),
    _rule(
        "MC 2755bcb87b megatron/p2p_communication.py: without sequence parallelism, messages are split",
        {"costs.scatter_gather": True},
        when={"parallel.tp": {"min": 2}, "parallel.sequence_parallel": False},
    ),
    _rule("MC 2755bcb87b megatron/model/transformer.py: no flash attention", {"model.flash_attention": False}),
)  # fmt: skip
_KWAI = (
    _rule(
        "MK examples/atc24/pretrain_llama.sh --overlap-sp-ag --overlap-sp-rs; "
        "megatron/core/tensor_parallel/layers.py: a forward's reduce-scatter follows its product",
        {"costs.overlap_tp": "gathers"},
        when={"parallel.tp": {"min": 2}}, unless=_SEGMENTED,
    ),
    _rule("MK examples/atc24/pretrain_llama.sh: no --overlap-grad-reduce", {"data_parallel.overlap": False}),
    _rule(
        "MK megatron/core/context_parallel/dispatch_flash_attn.py: the package flash_attn",
        {"costs.attention": "flash-2"},
    ),
    _rule("MK megatron/model/transformer.py: F.silu(x[0]) * x[1]", {"model.fused_activation": False}),
    _rule(
        "MK megatron/core/tensor_parallel/cross_entropy.py: separate kernels over one fp32 tensor",
        {"costs.eager_loss": "in-place"}, unless={"costs.fused_loss": True},
    ),
)  # fmt: skip
_ADDED_GRADIENTS = _rule(
    "DS deepspeed/runtime/bf16_optimizer.py update_hp_grads: gradients are added by separate kernels",
    {"costs.accumulation": "separate"}, unless=_SEGMENTED,
)  # fmt: skip
_REDUCED = _rule(
    "DS deepspeed/runtime/pipe/engine.py _bf16_reduce_grads: all-reduces of buckets; FP16 has ZeRO 1's reductions",
    {"costs.all_reduce": True}, when={"costs.zero": 1, "model.precision": "bf16"},
)  # fmt: skip
_HALF_GRADIENTS = _rule(
    "DS deepspeed/runtime/engine.py communication_data_type: gradients in FP16 are reduced in FP16",
    {"costs.gradients": "fp16"}, when={"model.precision": "fp16"},
)  # fmt: skip
_PARTITIONED = _rule(
    "DS deepspeed/runtime/pipe/engine.py is_pipe_partitioned: messages are split over the tensor-parallel group",
    {"costs.scatter_gather": True},
)
_BIGSCIENCE = (
    *_DEVICES,
    *_messages("DS v0.6.5 deepspeed/runtime/pipe/p2p.py: waits for each send and receive", "deepspeed", ["1f1b"]),
    _rule("DS v0.6.5 deepspeed/runtime/bf16_optimizer.py: ZeRO 1", {"costs.zero": 1}),
    _rule("MD megatron/model/fused_softmax.py: no flash attention", {"model.flash_attention": False}),
    _ADDED_GRADIENTS,
    _REDUCED,
    _HALF_GRADIENTS,
    _PARTITIONED,
    _HOST_OF_KERNELS,
    _rule(
        "BS train/tr11-176B-ml/chronicles-prequel.md: CUDA_LAUNCH_BLOCKING=1", {"costs.blocking_launches": True}
    ),
    _rule("fitted to the memory of BLOOM's prequel", {"costs.fragmentation": 0.33}),
)
_DEEPSPEED = (
    *_DEVICES,
    *_messages(
        "DS v0.19.5 deepspeed/runtime/pipe/p2p.py: waits for each send and receive", "deepspeed", ["1f1b"]
    ),
    _rule(
        "DS v0.19.5 deepspeed/runtime/pipe/engine.py: ZeRO 1 at most, gradients reduced after the last backward",
        {"costs.zero": 1, "data_parallel.overlap": False},
    ),
    _ADDED_GRADIENTS,
    _REDUCED,
    _HALF_GRADIENTS,
    _PARTITIONED,
)  # fmt: skip
_PIPELINING = (
    *_DEVICES,
    *_messages("PT v2.13 torch/distributed/pipelining/schedules.py", "torch", _OF_TORCH),
    _rule(
        "PT v2.13 torch/distributed/pipelining/stage.py args_recv_info, grad_recv_info: a buffer per microbatch; "
        "step returns the outputs of the last stage",
        {"costs.message_buffers": "microbatches", "costs.returned_outputs": True},
        when={"schedule.name": list(_OF_TORCH)},
    ),
    _rule(
        "PT v2.13 torch/utils/checkpoint.py: early_stop, with torch.compile without dead code",
        {"costs.early_stop": True}, when={"model.recompute": "full"}, unless=_SEGMENTED,
    ),
)  # fmt: skip
_AUTOGRAD = (
    _rule(
        "PT v2.13 torch/csrc/autograd/functions/accumulate_grad.h: gradients are added by separate kernels",
        {"costs.accumulation": "separate"},
        unless=_SEGMENTED,
    ),
    _rule("PT v2.13: without torch.compile, SwiGLU is not fused", {"model.fused_activation": False}),
)
_TORCHTITAN = (
    *_PIPELINING,
    _rule(
        "PT v2.9 torch/distributed/pipelining/_backward.py stage_backward: inputs keep their gradients",
        {"costs.message_buffers": "all"}, when={"schedule.name": list(_OF_TORCH)},
    ),
    _rule(
        "TT torchtitan/models/llama3, models/common/feed_forward.py: F.silu(w1(x)) * w3(x), compile.enable off",
        {"model.fused_activation": False},
    ),
    _rule(
        "TT fully_shard: FSDP2, reduced in FP32 (mixed_precision_reduce) during the last backward; "
        "PT torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py copies shards",
        {"costs.zero": 3, "costs.gradients": "fp32", "costs.copied_shards": True, "data_parallel.overlap": True},
    ),
    _rule(
        "PT torch/distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs: shards are in FP32 alone",
        {"costs.main_params": "remainder"}, when={"costs.zero": 3},
        unless={"model.precision": ["fp16", "fp32"]},
    ),
    _rule(
        "fitted to the memory of 1,082 steps in nanotron's Ultra-Scale Playbook: PyTorch's allocator",
        {"costs.fragmentation": 0.06},
    ),
    _rule(
        "TT fsdp_reshard_after_forward default: weights are not freed in a pipeline",
        {"data_parallel.reshard": "never"}, when={"parallel.pp": {"min": 2}},
    ),
    _rule(
        "PT v2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param.py to_accumulated_grad_if_needed",
        {"costs.accumulation": "separate"}, unless=_SEGMENTED,
    ),
    _rule(
        "TT v0.1.0 torchtitan/models/attention.py: FlashAttention-2 before Blackwell",
        {"costs.attention": "flash-2"},
    ),
    _rule(
        "TT torchtitan/models/llama3: view_as_complex, which PT torch/_inductor/lowering.py does not compile; "
        "separate wq, wk and wv, w1 and w3",
        {"model.fused_rotary": False, "model.fused_projections": False},
    ),
    _rule(
        "TT v0.1.0 torchtitan/models/llama3 nn.RMSNorm: operations in fp32, compile.enable off",
        {"model.fused_norms": False},
    ),
    _rule(
        "TT torchtitan/models/llama3 Shard(1): the batch is the first dimension",
        {"costs.sequence_first": False},
    ),
    _rule(
        "TT torchtitan/components/quantization/float8.py: torchao scales by current values; by row as by tensor",
        {"costs.fp8_recipe": "tensorwise"}, when={"model.precision": "fp8"},
    ),
    _rule(
        "TT torchtitan/distributed/activation_checkpoint.py: selective_ac_option op of its configurations",
        {"model.recompute_modules": ["alternate_products"]}, when={"model.recompute": "selective"},
    ),
    _rule(
        "TT torchtitan/components/loss.py: F.cross_entropy(pred.float()), compile.enable off",
        {"costs.eager_loss": True}, unless={"costs.fused_loss": [True, "compiled"]},
    ),
    _rule(
        "TT SequenceParallel() of norms", {"parallel.sequence_parallel": True}, when={"parallel.tp": {"min": 2}}
    ),
    _rule("TT enable_async_tensor_parallel: False", {"costs.overlap_tp": False}),
    _rule(
        "PT torch/distributed/_functional_collectives.py: an output before reduce-scatter, and its copy along the "
        "sequence; async tensor parallelism (torch/distributed/_symmetric_memory) has no copy",
        {"costs.sequence_buffers": 2}, unless={"costs.overlap_tp": True},
    ),
    _rule(
        "TT v0.2.2 expert_tensor_parallel_degree: 1, expert_parallel_comm_backend: standard",
        {"parallel.etp": 1, "costs.dispatcher": "all-to-all"}, when=_EXPERTS,
    ),
)  # fmt: skip
_PIPELINED = {"min": 2}
_NANOTRON_HOSTS: dict[str, tuple[tuple[Any, Any, Any, int], ...]] = {
    "without a pipeline": ((1, {"max": 8}, None, 75), (1, 16, None, 135), (1, 32, None, 270)),
    "with messages between nodes": (
        (_PIPELINED, 1, None, 100), (_PIPELINED, 2, None, 140), (_PIPELINED, 4, None, 215),
        (_PIPELINED, 8, None, 350), (_PIPELINED, 16, None, 780), (_PIPELINED, 32, None, 1500),
    ),
    "on one node": ((2, 2, {"max": 2}, 75), (2, 4, 1, 75), (4, 2, 1, 75)),
}  # fmt: skip
"""Time to issue a kernel in us, by pipeline, tensor and data parallel size."""
_NANOTRON = (
    *_DEVICES,
    _rule(
        "NT v0.5 src/nanotron/parallel/pipeline_parallel/p2p.py: waits for each message before it continues",
        {"p2p.policy": "ordered"},
    ),
    _rule("NT src/nanotron/optim/gradient_accumulator.py: FP32 buffers, added to by separate kernels",
          {"costs.accumulation": "separate"}, unless=_SEGMENTED),
    _rule("NT src/nanotron/models/llama.py: SwiGLU is not fused", {"model.fused_activation": False}),
    _rule("NT v0.5 src/nanotron/models/llama.py flash_attn_varlen_func: FlashAttention-2",
          {"costs.attention": "flash-2"}),
    _rule("NT src/nanotron/models/base.py: stages by the sizes of their products", {"model.balance": "products"},
          unless=_EXPERTS),
    _rule(
        "NT v0.5 src/nanotron/trainer.py: DistributedDataParallel without gradient_as_bucket_view, "
        "whose buckets PT torch/csrc/distributed/c10d/reducer.cpp allocates; reduced during the last backward",
        {"data_parallel.overlap": True, "costs.gradient_buckets": True}, when={"costs.zero": 0},
    ),
    _rule(
        "NT v0.5 src/nanotron/distributed.py all_gather_coalesced: a flat copy of all weights; PT "
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp allgather flattens it again",
        {"costs.copied_shards": True}, when={"costs.zero": 1},
    ),
    _rule("NT v0.5 src/nanotron/trainer.py sync_gradients_across_dp with reduce_scatter=False, clip_grad_norm",
          {"costs.all_reduce": True}),
    _rule(
        "NT v0.5 src/nanotron/models/llama.py: torch.cat of keys and values; flash-attention "
        "flash_attn/layers/rotary.py rotates queries in place",
        {"model.copied_kv": True},
    ),
    _rule("NT v0.5 src/nanotron/parallel/tensor_parallel/functional.py _ShardedCrossEntropy",
          {"costs.eager_loss": "in-place"}, unless={"costs.fused_loss": [True, "compiled"]}),
    _rule("NT tensor_parallel_mode REDUCE_SCATTER", {"parallel.sequence_parallel": True},
          when={"parallel.tp": {"min": 2}}),
    _rule(
        "NT 67c5ebb src/nanotron/parallel/tensor_parallel/functional.py: buffers allgather and allgather2, an "
        "input gradient before reduce-scatter",
        {"costs.sequence_buffers": 3},
    ),
    _rule(
        "NT v0.5 src/nanotron/parallel/pipeline_parallel/p2p.py: kernels wait for each send; PT "
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp recordStream",
        {"costs.deferred_frees": True}, when={"schedule.name": "1f1b"},
    ),
    *(
        _rule(
            f"fitted to tokens per second of nanotron's Ultra-Scale Playbook, {nodes}",
            {"costs.host_kernel": f"{us} us"},
            when={"parallel.pp": pp, "parallel.tp": tp} | ({"parallel.dp": dp} if dp else {}),
        )
        for nodes, sizes in _NANOTRON_HOSTS.items()
        for pp, tp, dp, us in sizes
    ),
    _rule(
        "fitted to the memory of 1,082 steps in nanotron's Ultra-Scale Playbook", {"costs.fragmentation": 0.06}
    ),
)  # fmt: skip

_HAI_LLM = (
    *_DEVICES,
    _rule("no source: tables in issue order", {"p2p.policy": "ordered"}),
    _rule("DR section 3.2: ZeRO 1", {"costs.zero": 1}),
    _rule(
        "DR section 3.3.3: moments in BF16", {"costs.exp_avg": "bf16", "costs.exp_avg_sq": "bf16"},
        unless={"costs.zero": 0},
    ),
    _rule(
        "DR section 3.2.3: selective recomputation; section 3.3.3: SwiGLU's inputs are kept in FP8",
        {"model.recompute": "selective", "model.fp8_activation_inputs": True},
    ),
    _rule(
        "DR sections 3.2.3 and 3.3.3: norms, up-projections of latent attention and SwiGLU",
        {"model.recompute_modules": ["layernorm", "mla_up_proj", "mlp_act", "moe_act"]},
        when={"model.recompute": "selective"},
    ),
    _rule(
        "DR section 3.2.2: a token goes to a node once, and 20 of 132 multiprocessors exchange tokens",
        {"costs.dispatcher": "deduplicated", "contention.compute": 0.85}, when=_EXPERTS,
    ),
    _rule(
        "DR section 3.3: scales per block; tokens go to experts in FP8, and return in BF16",
        {"costs.fp8_recipe": "blockwise", "costs.fp8_dispatch": True}, when={"model.precision": "fp8"},
    ),
)  # fmt: skip


def _stacks() -> tuple[StackOffer, ...]:
    def core(version: str, inherits: str = "", *rules: StackRule) -> StackOffer:
        summary = f"Megatron-LM with Megatron-Core {version}."
        return StackOffer(
            name=f"megatron-core-{version}", summary=summary, inherits=inherits, rules=rules, framework="megatron"
        )

    def nemo(version: str, inherits: str, *rules: StackRule) -> StackOffer:
        summary = f"NeMo {version}."
        return StackOffer(
            name=f"nemo-{version}", summary=summary, inherits=inherits, rules=rules, framework="megatron"
        )

    def bridge(version: str, inherits: str, *rules: StackRule) -> StackOffer:
        summary = f"Megatron-Bridge {version}, as its performance recipes run."
        return StackOffer(name=f"megatron-bridge-{version}", summary=summary, inherits=inherits, rules=rules)

    return (
        StackOffer(
            name="megatron-lm-2021", summary="Megatron-LM v2.5 of August 2021.", rules=_OF_2021,
            framework="megatron",
        ),
        StackOffer(
            name="megatron-lm-2022", summary="Megatron-LM of June 2022.", rules=_OF_2022, framework="megatron"
        ),
        StackOffer(
            name="megatron-deepspeed-2022", summary="BigScience's Megatron-DeepSpeed of 2022.", rules=_BIGSCIENCE
        ),
        core("0.14", "", *_MEGATRON, _REDUCED_IN_BF16, *_HOSTS, _HOST_OF_X86, _COPIED_ROWS),
        StackOffer(
            name="megatron-kwai-2024", summary="Kwai's Megatron-LM of ATC 2024.", inherits="megatron-core-0.14",
            rules=_KWAI, framework="megatron",
        ),
        core("0.15", "megatron-core-0.14", _WHOLE_EXPERTS, _FLEX, _GRACE_GRAPHS),
        core("0.16", "megatron-core-0.15", _ALIGNED_ROWS),
        core("0.17", "megatron-core-0.16"),
        core("0.18", "megatron-core-0.17", _GRACE_ITERATION, _FREED_OUTPUTS),
        core("0.19", "megatron-core-0.18"),
        nemo(
            "24.07", "", *_MEGATRON, *_HOSTS, _HOST_OF_KERNELS, _HOST_OF_GRACE, _UNFUSED_ROUTING, _FLASH_2,
            _USER_BUFFERS, _FP8_GRADIENTS,
        ),
        nemo("24.09", "nemo-24.07", _CUDNN),
        nemo("24.12", "nemo-24.09", _FP8_WEIGHTS),
        nemo("25.02", "nemo-24.12", _NARROW_GRADIENTS),
        nemo("25.04", "nemo-25.02", _GRACE_DENSE_GRAPHS),
        bridge("25.09", "megatron-core-0.14", *_BRIDGE),
        bridge("25.11", "megatron-bridge-25.09", _GRACE_FLEX, _GRACE_GRAPHS),
        bridge("26.02", "megatron-bridge-25.11", _X86_FLEX, _ALIGNED_ROWS, _KIMI_K2, *_NEMOTRON_3),
        bridge("26.04", "megatron-bridge-26.02"),
        bridge("26.06", "megatron-bridge-26.04", *_FULL_ITERATION, _FREED_OUTPUTS),
        bridge("26.08", "megatron-bridge-26.06"),
        StackOffer(name="deepspeed-0.19", summary="DeepSpeed 0.19 with its pipeline engine.", rules=_DEEPSPEED),
        StackOffer(
            name="pytorch-2.13",
            summary="torch.distributed.pipelining of PyTorch 2.13 without torch.compile.",
            rules=(*_PIPELINING, *_AUTOGRAD), framework="pytorch",
        ),
        StackOffer(
            name="pytorch-2.15", summary="torch.distributed.pipelining of PyTorch 2.15.", inherits="pytorch-2.13",
            rules=(
                _rule(
                    "PT v2.15 torch/distributed/pipelining/schedules.py: waits for sends and reductions",
                    {"p2p.options.version": "2.15"}, when={"schedule.name": list(_OF_TORCH)},
                ),
            ),
        ),
        StackOffer(
            name="torchtitan-0.1", summary="torchtitan 0.1 with its defaults, and its programs of December 2024.",
            rules=_TORCHTITAN, framework="torchtitan",
        ),
        StackOffer(
            name="torchtitan-0.2", summary="torchtitan 0.2 with its defaults.", inherits="torchtitan-0.1",
            rules=(
                _rule(
                    "TT torchtitan/models/attention.py, models/common/attention.py: cuDNN's attention first",
                    {"costs.attention": "fused"},
                ),
                _rule(
                    "PT v2.9 aten/src/ATen/native/native_functions.yaml _fused_rms_norm",
                    {"model.fused_norms": True},
                ),
                _rule(
                    "PT pull request 164329 (October 2025): stage_backward releases the gradients of inputs",
                    {"costs.message_buffers": "microbatches"}, when={"schedule.name": list(_OF_TORCH)},
                ),
                _rule(
                    "TT v0.2.0 torchtitan/config/job_config.py: early_stop is off, compile.enable off",
                    {"costs.early_stop": False}, when={"model.recompute": "full"},
                ),
                _rule(
                    "TT v0.2.1 torchtitan/train.py: return_outputs=False",
                    {"costs.returned_outputs": False}, when={"schedule.name": list(_OF_TORCH)},
                ),
            ),
        ),
        StackOffer(
            name="torchtitan-0.3", summary="torchtitan 0.3 with its defaults, and the loss of its configurations.",
            inherits="torchtitan-0.2",
            rules=(
                _rule(
                    "TT v0.3.0 torchtitan/models/common/config_utils.py get_attention_config: FlexAttention, in "
                    "Triton; on H100, 1.06 times FlashAttention-2's rate (arXiv 2407.08608, figure 5)",
                    {"costs.attention": "flash-2"},
                ),
                _rule(
                    "TT v0.3.0 torchtitan/models/llama3/__init__.py fuse_qkv: one matrix for query, key and value",
                    {"model.fused_projections": "attention"},
                ),
                _rule(
                    "TT v0.3.0 torchtitan/models/*/config_registry.py ChunkedLossWrapper, num_chunks: 8",
                    {"costs.loss_chunks": 8}, when={"schedule.name": list(_OF_TORCH)},
                ),
            ),
        ),
        StackOffer(
            name="torchtitan-main", inherits="torchtitan-0.3",
            summary="torchtitan's main branch since 20 August 2026, which counts batches in tokens.",
        ),
        StackOffer(name="nanotron-0.5", summary="nanotron v0.5.", rules=_NANOTRON),
        StackOffer(name="hai-llm-2024", summary="HAI-LLM, which trained DeepSeek-V3.", rules=_HAI_LLM),
    )  # fmt: skip


STACKS = _stacks()
"""All presets of stacks."""
