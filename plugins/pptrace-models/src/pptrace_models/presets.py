"""Presets of models and devices, with the sources of their numbers."""

from __future__ import annotations

from typing import Any

from pptrace.plugin import DeviceOffer, ModelOffer

_LLAMA3 = "Grattafiori et al., The Llama 3 Herd of Models (2024), table 3; the published config.json"
_LLAMA2 = "Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models (2023); the published config.json"
_QWEN3 = "Qwen Team, Qwen3 Technical Report (2025), table 2; the published config.json"
_STP = (
    "Qi et al., Synergistic Tensor and Pipeline Parallelism (NeurIPS 2025): layers, heads, width and vocabulary; "
    "the FFN width is not printed there, and Qwen2-7B's 18944 with untied embeddings gives both totals"
)
_GPT: dict[str, Any] = {"gated": False, "tied_embeddings": True, "bias": True, "dropout": True}
_MEGATRON: dict[str, Any] = {**_GPT, "vocabulary": 51200, "learned_positions": 2048}
_LATENT: dict[str, Any] = {"head_dim": 128, "rope_dim": 64, "value_dim": 128, "query_rank": 1536, "kv_rank": 512}
_DELTA: dict[str, Any] = {"key_heads": 16, "key_dim": 128, "value_dim": 128}
_MIXED: dict[str, Any] = {
    "mixers": ["delta", "delta", "delta", "attention"], "gated_attention": True, "head_norms": True,
}  # fmt: skip
_KIMI_DELTA: dict[str, Any] = {"key_dim": 128, "value_dim": 128, "decay_rank": 128}
_HYBRID: dict[str, Any] = {"gated": False, "head_dim": 128, "vocabulary": 131072}
_PATTERN_8B = "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"
_PATTERN_47B = "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
_PATTERN_56B = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
_PATTERN_NANO = "MEMEM*E" + "MEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME"
_PATTERN_SUPER = "MEMEMEM*E" * 3 + "MEMEMEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME"
_PATTERN_ULTRA = (
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
)
_NEMOTRON_H = "NVIDIA, Nemotron-H (2025); NeMo's NemotronHConfig (gpt/model/ssm.py)"
_NEMOTRON_3 = "NVIDIA, Nemotron 3 (2025); the published config.json"
_QWEN35 = "the published config.json of Qwen3.5"
_SC21 = "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (SC 2021), table 1"
_KORTHIKANTI = "Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), table 3"
_WIDTHS = (
    ("1.7b", 24, 2304, 24, _SC21),
    ("3.6b", 30, 3072, 32, _SC21),
    ("7.5b", 36, 4096, 32, _SC21),
    ("18b", 40, 6144, 48, _SC21),
    ("22b", 48, 6144, 64, _KORTHIKANTI),
    ("39b", 48, 8192, 64, _SC21),
    ("76b", 60, 10240, 80, _SC21),
    ("145b", 80, 12288, 96, _SC21),
    ("175b", 96, 12288, 96, _KORTHIKANTI),
    ("310b", 96, 16384, 128, _SC21),
    ("530b", 105, 20480, 128, _KORTHIKANTI),
    ("1t", 128, 25600, 160, _KORTHIKANTI),
)
"""Size, layers, width and heads of Megatron-LM's GPTs; both papers have 51200 tokens."""


def _model(name: str, source: str, note: str, *, title: str = "", **values: Any) -> ModelOffer:
    words = name.replace("-", " ")
    title = title or f"{words[:1].upper()}{words[1:]}"
    summary = f"{title}: {values['layers']} layers of width {values['hidden']}, {note}."
    return ModelOffer(name=name, summary=summary, source=source, values=values)


def _megatron(size: str, layers: int, hidden: int, heads: int, source: str) -> ModelOffer:
    return _model(
        f"megatron-gpt-{size}", source, "dense attention, GELU",
        layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, **_MEGATRON,
    )  # fmt: skip


def _qwen25(size: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> ModelOffer:
    return _model(
        f"qwen2.5-{size}", "Qwen Team, Qwen2.5 Technical Report (2024), table 1; the published config.json",
        f"{kv_heads} KV heads, SwiGLU, without its biases",
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=152064,
    )  # fmt: skip


MODELS = (
    _model(
        "gpt3-175b", "Brown et al., Language Models are Few-Shot Learners (2020), table 2.1; GPT-2's 50257 tokens",
        "dense attention, GELU", title="GPT-3 175B",
        layers=96, hidden=12288, heads=96, ffn=49152, gated=False, vocabulary=50257, tied_embeddings=True,
        learned_positions=2048, bias=True, dropout=True,
    ),
    _model(
        "llama3-8b", _LLAMA3, "8 KV heads, SwiGLU", title="Llama-3 8B",
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256,
    ),
    _model(
        "llama3-70b", _LLAMA3, "8 KV heads, SwiGLU", title="Llama-3 70B",
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocabulary=128256,
    ),
    _model(
        "llama3-405b", _LLAMA3, "8 KV heads, SwiGLU", title="Llama-3 405B",
        layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocabulary=128256,
    ),
    _model(
        "qwen2-12.1b", _STP, "8 KV heads, SwiGLU", title="Qwen2-class 12.1B",
        layers=30, hidden=5120, heads=40, kv_heads=8, ffn=18944, vocabulary=152064,
    ),
    _model(
        "qwen2-26.3b", _STP, "8 KV heads, SwiGLU", title="Qwen2-class 26.3B",
        layers=46, hidden=7168, heads=56, kv_heads=8, ffn=18944, vocabulary=152064,
    ),
    ModelOffer(
        name="tab-128",
        summary="The tabular abstraction paper's model: 128 blocks of width 4096, GELU.",
        source="Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of "
        "Pipeline-Parallel LLM Training (2026): 128 blocks, width 4096, 80 heads, GELU; heads of 51.2 keep "
        "the attention's width at 4096; not printed there: "
        "FFN width (4 x 4096) and vocabulary (51200, as Megatron pads GPT-2's)",
        values={
            "layers": 128, "hidden": 4096, "heads": 80, "head_dim": 51.2, "ffn": 16384, "gated": False,
            "vocabulary": 51200, "tied_embeddings": True, "learned_positions": 4096, "bias": True, "dropout": True,
        },
    ),
    _model(
        "llama2-7b", _LLAMA2, "SwiGLU", layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000,
    ),
    _model(
        "llama2-13b", _LLAMA2, "SwiGLU", layers=40, hidden=5120, heads=40, ffn=13824, vocabulary=32000,
    ),
    _model(
        "llama2-70b", _LLAMA2, "8 KV heads, SwiGLU",
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocabulary=32000,
    ),
    _model(
        "llama4-maverick",
        "the published config.json of Llama-4-Maverick-17B-128E; chunks of 8192 but in each fourth layer",
        "in every second 128 experts of which one is chosen, and a shared one",
        layers=48, hidden=5120, heads=40, kv_heads=8, head_dim=128, ffn=16384, vocabulary=202048,
        num_experts=128, top_k=1, expert_ffn=8192, shared_ffn=8192, moe_every=2,
        window=8192, window_chunks=True, full_attention_every=4,
    ),
    _model(
        "mistral-7b", "the published config.json of Mistral-7B-v0.3", "8 KV heads, SwiGLU",
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=32768,
    ),
    _qwen25("7b", 28, 3584, 28, 4, 18944),
    _qwen25("14b", 48, 5120, 40, 8, 13824),
    _qwen25("32b", 64, 5120, 40, 8, 27648),
    _qwen25("72b", 80, 8192, 64, 8, 29568),
    _model(
        "mixtral-8x7b", "Jiang et al., Mixtral of Experts (2024), table 1", "8 experts of which 2 are chosen",
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=32000, num_experts=8, top_k=2,
    ),
    _model(
        "mixtral-8x22b", "the published config.json of Mixtral-8x22B-v0.1", "8 experts of which 2 are chosen",
        layers=56, hidden=6144, heads=48, kv_heads=8, ffn=16384, vocabulary=32000, num_experts=8, top_k=2,
    ),
    _model(
        "deepseek-v2-lite", "DeepSeek-AI, DeepSeek-V2 (2024), appendix B.1; the published config.json",
        "latent attention, 64 experts of which 6 are chosen, and two shared ones",
        layers=27, hidden=2048, heads=16, ffn=10944, vocabulary=102400, **_LATENT | {"query_rank": 0},
        num_experts=64, top_k=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1,
    ),
    _model(
        "deepseek-v2", "DeepSeek-AI, DeepSeek-V2 (2024), section 3.1.2; the published config.json",
        "latent attention, 160 experts of which 6 are chosen, and two shared ones",
        layers=60, hidden=5120, heads=128, ffn=12288, vocabulary=102400, **_LATENT,
        num_experts=160, top_k=6, expert_groups=8, top_groups=3, expert_ffn=1536, shared_ffn=3072,
        dense_layers=1,
    ),
    _model(
        "deepseek-v3", "DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 4.2; the published config.json",
        "latent attention, 256 experts of which 8 are chosen, a shared one, and multi-token prediction",
        layers=61, hidden=7168, heads=128, ffn=18432, vocabulary=129280, **_LATENT, mtp=1,
        num_experts=256, top_k=8, expert_groups=8, top_groups=4, expert_ffn=2048, shared_ffn=2048,
        dense_layers=3,
    ),
    _model(
        "kimi-k2", "Kimi Team, Kimi K2: Open Agentic Intelligence (2025), table 2; the published config.json",
        "latent attention, 384 experts of which 8 are chosen, and a shared one",
        layers=61, hidden=7168, heads=64, ffn=18432, vocabulary=163840, **_LATENT,
        num_experts=384, top_k=8, expert_ffn=2048, shared_ffn=2048, dense_layers=1,
    ),
    _model(
        "qwen3-30b-a3b", _QWEN3, "128 experts of which 8 are chosen",
        layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, ffn=6144, vocabulary=151936,
        num_experts=128, top_k=8, expert_ffn=768, head_norms=True,
    ),
    _model(
        "qwen3-235b-a22b", _QWEN3, "128 experts of which 8 are chosen",
        layers=94, hidden=4096, heads=64, kv_heads=4, head_dim=128, ffn=12288, vocabulary=151936,
        num_experts=128, top_k=8, expert_ffn=1536, head_norms=True,
    ),
    _model(
        "gpt-oss-120b", "OpenAI, gpt-oss-120b & gpt-oss-20b Model Card (2025); the published config.json",
        "128 experts of which 4 are chosen, every second layer with a window of 128",
        layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocabulary=201088, bias=True,
        num_experts=128, top_k=4, window=128, full_attention_every=2, clamped_experts=True,
    ),
    _model(
        "gpt-oss-20b", "OpenAI, gpt-oss-120b & gpt-oss-20b Model Card (2025); the published config.json",
        "32 experts of which 4 are chosen, every second layer with a window of 128",
        layers=24, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocabulary=201088, bias=True,
        num_experts=32, top_k=4, window=128, full_attention_every=2, clamped_experts=True,
    ),
    _model(
        "llama4-scout",
        "the published config.json of Llama-4-Scout-17B-16E; chunks of 8192 but in each fourth layer",
        "16 experts of which one is chosen, and a shared one",
        layers=48, hidden=5120, heads=40, kv_heads=8, head_dim=128, ffn=16384, vocabulary=202048,
        num_experts=16, top_k=1, expert_ffn=8192, shared_ffn=8192,
        window=8192, window_chunks=True, full_attention_every=4,
    ),
    *(
        _model(
            f"qwen3-{size}", _QWEN3, "8 KV heads, SwiGLU", title=f"Qwen3 {size.upper()}",
            layers=layers, hidden=hidden, heads=heads, kv_heads=8, head_dim=128, ffn=ffn, vocabulary=151936,
            head_norms=True,
        )
        for size, layers, hidden, heads, ffn in (
            ("8b", 36, 4096, 32, 12288), ("14b", 40, 5120, 40, 17408), ("32b", 64, 5120, 64, 25600),
        )
    ),
    _model(
        "qwen3-next-80b-a3b", "the published config.json of Qwen3-Next-80B-A3B",
        "gated DeltaNet in three of four layers, 512 experts of which 10 are chosen, and a shared one",
        layers=48, hidden=2048, heads=16, kv_heads=2, head_dim=256, ffn=5120, vocabulary=151936, **_MIXED,
        delta={"heads": 32, **_DELTA}, num_experts=512, top_k=10, expert_ffn=512, shared_ffn=512,
    ),
    *(
        _model(
            f"qwen3.5-{size}", _QWEN35,
            "gated DeltaNet in three of four layers, many experts, and a shared one",
            layers=layers, hidden=hidden, heads=heads, kv_heads=2, head_dim=256, ffn=4 * hidden,
            vocabulary=248320, mtp=1, **_MIXED, delta={"heads": delta_heads, **_DELTA},
            num_experts=experts, top_k=top_k, expert_ffn=expert_ffn, shared_ffn=expert_ffn,
        )
        for size, layers, hidden, heads, delta_heads, experts, top_k, expert_ffn in (
            ("397b-a17b", 60, 4096, 32, 64, 512, 10, 1024), ("122b-a10b", 48, 3072, 32, 64, 256, 8, 1024),
            ("35b-a3b", 40, 2048, 16, 32, 256, 8, 512),
        )
    ),
    _model(
        "qwen3.5-27b", _QWEN35, "gated DeltaNet in three of four layers, SwiGLU",
        layers=64, hidden=5120, heads=24, kv_heads=4, head_dim=256, ffn=17408, vocabulary=248320, mtp=1,
        **_MIXED, delta={"heads": 48, **_DELTA},
    ),
    _model(
        "deepseek-v3.2", "DeepSeek-AI, DeepSeek-V3.2 (2025); the published config.json",
        "latent attention to 2048 chosen keys, experts as DeepSeek-V3's",
        layers=61, hidden=7168, heads=128, ffn=18432, vocabulary=129280, **_LATENT, mtp=1,
        indexer={"heads": 64, "dim": 128, "top_k": 2048},
        num_experts=256, top_k=8, expert_groups=8, top_groups=4, expert_ffn=2048, shared_ffn=2048,
        dense_layers=3,
    ),
    *(
        _model(
            f"deepseek-v4-{size}", "DeepSeek-AI, DeepSeek-V4 (2026); the published config.json",
            "a window of 128 and compressed keys, four residual streams, and many experts",
            title=f"DeepSeek-V4 {size.capitalize()}", layers=len(ratios), hidden=hidden, heads=heads, kv_heads=1,
            head_dim=512, ffn=ffn, vocabulary=129280, mtp=1, query_rank=query_rank, window=128, residual_streams=4,
            compressed={"ratios": ratios, "output_groups": groups, "output_rank": 1024},
            indexer={"heads": 64, "dim": 128, "top_k": top_k},
            num_experts=experts, top_k=6, expert_ffn=ffn, shared_ffn=ffn,
        )
        for size, ratios, hidden, heads, query_rank, groups, top_k, experts, ffn in (
            ("flash", [0, 0, *[4, 128] * 20, 4], 4096, 64, 1024, 8, 512, 256, 2048),
            ("pro", [128, 128, *[4, 128] * 29, 4], 7168, 128, 1536, 16, 1024, 384, 3072),
        )
    ),
    _model(
        "glm-4.5", "Z.ai, GLM-4.5 (2025); the published config.json",
        "160 experts of which 8 are chosen, and a shared one", title="GLM-4.5",
        layers=92, hidden=5120, heads=96, kv_heads=8, head_dim=128, ffn=12288, vocabulary=151552, mtp=1,
        head_norms=True,
        num_experts=160, top_k=8, expert_ffn=1536, shared_ffn=1536, dense_layers=3,
    ),
    _model(
        "glm-4.5-air", "Z.ai, GLM-4.5 (2025); the published config.json",
        "128 experts of which 8 are chosen, and a shared one", title="GLM-4.5 Air",
        layers=46, hidden=4096, heads=96, kv_heads=8, head_dim=128, ffn=10944, vocabulary=151552, mtp=1,
        num_experts=128, top_k=8, expert_ffn=1408, shared_ffn=1408, dense_layers=1,
    ),
    _model(
        "glm-5", "Z.ai, GLM-5 (2026); the published config.json",
        "latent attention to 2048 chosen keys, 256 experts of which 8 are chosen, and a shared one", title="GLM-5",
        layers=78, hidden=6144, heads=64, ffn=12288, vocabulary=154880, mtp=1,
        query_rank=2048, kv_rank=512, head_dim=192, rope_dim=64, value_dim=256,
        indexer={"heads": 32, "dim": 128, "top_k": 2048},
        num_experts=256, top_k=8, expert_ffn=2048, shared_ffn=2048, dense_layers=3,
    ),
    _model(
        "minimax-m1", "MiniMax, MiniMax-M1 (arXiv:2506.13585); the published config.json",
        "lightning attention in 7 of 8 layers, 32 experts of which 2 are chosen",
        title="MiniMax-M1",
        layers=80, hidden=6144, heads=64, kv_heads=8, head_dim=128, ffn=9216, vocabulary=200064,
        # Linear attention with a decay per head: a state-space layer whose heads have their own input and output
        # maps, which are keys and queries, and no convolution beyond the token itself.
        mixers=[*["mamba"] * 7, "attention"],
        mamba={"heads": 64, "head_dim": 128, "state": 128, "groups": 64, "conv": 1},
        num_experts=32, top_k=2, expert_ffn=9216,
    ),
    _model(
        "minimax-m2", "the published config.json of MiniMax-M2", "256 experts of which 8 are chosen",
        title="MiniMax-M2",
        layers=62, hidden=3072, heads=48, kv_heads=8, head_dim=128, ffn=1536, vocabulary=200064,
        num_experts=256, top_k=8, expert_ffn=1536, head_norms=True,
    ),
    _model(
        "kimi-linear-48b-a3b", "Kimi Team, Kimi Linear (2025); the published config.json",
        "Kimi delta attention in 20 layers, latent attention in 7, 256 experts of which 8 are chosen",
        layers=27, hidden=2304, heads=32, ffn=9216, vocabulary=163840,
        kv_rank=512, head_dim=128, rope_dim=64, value_dim=128,
        mixers=["delta", "delta", "delta", "attention"] * 6 + ["delta", "delta", "attention"],
        delta={"heads": 32, **_KIMI_DELTA, "gate_rank": 128},
        num_experts=256, top_k=8, expert_ffn=1024, shared_ffn=1024, dense_layers=1,
    ),
    _model(
        "kimi-k3", "Moonshot AI, Kimi K3 (2026); the published config.json",
        "Kimi delta attention in 69 layers, latent attention in 24, 896 experts of which 16 are chosen",
        layers=93, hidden=7168, heads=96, ffn=33792, vocabulary=163840, **_LATENT, gated_attention=True,
        mixers=["delta", "delta", "delta", "attention"] * 23 + ["attention"],
        delta={"heads": 96, **_KIMI_DELTA}, residual_block=12,
        num_experts=896, top_k=16, expert_ffn=3072, expert_latent=3584, shared_ffn=6144, dense_layers=1,
    ),
    *(
        _model(
            f"nemotron-h-{size}", _NEMOTRON_H, "Mamba-2, attention and MLPs as layers, squared ReLU",
            title=f"Nemotron-H {size.upper()}", layers=len(pattern), hidden=hidden, heads=heads, kv_heads=8,
            ffn=ffn, **_HYBRID, hybrid_pattern=pattern, mamba={"heads": mamba_heads, "state": state},
        )
        for size, pattern, hidden, heads, ffn, mamba_heads, state in (
            ("8b", _PATTERN_8B, 4096, 32, 21504, 128, 128), ("47b", _PATTERN_47B, 8192, 64, 30720, 256, 256),
            ("56b", _PATTERN_56B, 8192, 64, 32768, 256, 256),
        )
    ),
    *(
        _model(
            name, _NEMOTRON_3, "Mamba-2, attention and experts as layers, squared ReLU",
            title=title, layers=52, hidden=2688, heads=32, kv_heads=2, ffn=1856, **_HYBRID, **mtp,
            hybrid_pattern=_PATTERN_NANO, mamba={"heads": 64}, num_experts=128, top_k=6, expert_ffn=1856,
            shared_ffn=3712,
        )
        for name, title, mtp in (
            ("nemotron-3-nano", "Nemotron 3 Nano", {}),
            ("nemotron-3.5-lightning", "Nemotron 3.5 Lightning", {"mtp": 1}),
        )
    ),
    _model(
        "nemotron-3-super", _NEMOTRON_3, "Mamba-2, attention and experts of width 1024 as layers",
        title="Nemotron 3 Super", layers=88, hidden=4096, heads=32, kv_heads=2, ffn=2688, **_HYBRID, mtp=1,
        hybrid_pattern=_PATTERN_SUPER, mamba={"heads": 128}, num_experts=512, top_k=22, expert_ffn=2688,
        shared_ffn=5376, expert_latent=1024,
    ),
    _model(
        "nemotron-3-ultra", _NEMOTRON_3, "Mamba-2, attention and experts of width 2048 as layers",
        title="Nemotron 3 Ultra", layers=108, hidden=8192, heads=64, kv_heads=2, ffn=5120, **_HYBRID, mtp=1,
        hybrid_pattern=_PATTERN_ULTRA, mamba={"heads": 256}, num_experts=512, top_k=22, expert_ffn=5120,
        shared_ffn=10240, expert_latent=2048,
    ),
    _model(
        "grok-1", "xAI, the published model.py and run.py of Grok-1 (2024)", "8 experts of which 2 are chosen",
        layers=64, hidden=6144, heads=48, kv_heads=8, head_dim=128, ffn=32768, vocabulary=131072,
        tied_embeddings=True, num_experts=8, top_k=2,
    ),
    _model(
        "nemotron4-15b", "NVIDIA, Nemotron-4 15B Technical Report (2024), table 1", "8 KV heads, squared ReLU",
        layers=32, hidden=6144, heads=48, kv_heads=8, ffn=24576, gated=False, vocabulary=256000,
    ),
    _model(
        "nemotron4-340b", "NVIDIA, Nemotron-4 340B Technical Report (2024), table 1", "8 KV heads, squared ReLU",
        layers=96, hidden=18432, heads=96, kv_heads=8, head_dim=192, ffn=73728, gated=False, vocabulary=256000,
    ),
    _model(
        "bloom-176b", "BigScience, BLOOM (2022), table 3; the published config.json", "ALiBi, GELU",
        layers=70, hidden=14336, heads=112, ffn=57344, gated=False, vocabulary=250880,
        tied_embeddings=True, bias=True,
    ),
    *(_megatron(*row) for row in _WIDTHS),
)  # fmt: skip
"""All model presets, in the order of their list."""

_TERA = 10**12
_GIGA = 10**9
_MIB = 2**20

_A100 = "NVIDIA A100 80GB SXM datasheet (2021): 312 TFLOP/s BF16 and FP16, 19.5 FP32, 2039 GB/s"
_H100 = (
    "NVIDIA H100 SXM datasheet (2023): 1979 TFLOP/s BF16 and FP16 and 3958 FP8 with sparsity, halved for dense; "
    "67 TFLOP/s FP32"
)
_NO_FP8 = "the architecture has no FP8"
_SHAPES = (
    "what products attain: between the A100 PCIe's measured ones (SimuMax) and published steps; "
    "attention as measured there"
)
_SHAPES_HOPPER = (
    "what products and attention attain: measured on two H100 and an H200 at their power limit, with all kernels "
    "of a layer in turn (benchmarks/measure_gpu.py, PyTorch 2.11, CUDA 13.0, cuDNN 9.19)"
)
_SHAPES_BLACKWELL = (
    "what products attain: BF16 fitted to published steps (SimuMax 1.2), 5 % under its measured large products; "
    "assumptions: FP8 as measured in BF16, MXFP8 as much slower as a published step of Llama 3.1 405B is "
    "(Megatron-Bridge 25.11), NVFP4; attention and rings as SimuMax measured them; "
    "exchanges between NCCL's (SimuMax) and HybridEP's (DeepEP, README_Hybrid-EP)"
)
_SHAPES_SUPERCHIP = (
    "what products attain: fitted to published steps (Megatron-Bridge, dgxc-benchmarking); attention: cuDNN's "
    "training benchmarks (cudnn-frontend v1.19 and v1.23), causal sequences of 4096 and 8192; exchanges: "
    "HybridEP's kernels on 8 to 36 GB200 (DeepEP, README_Hybrid-EP); rings as on B200"
)
_SHAPES_AMD = (
    "what BF16 products attain: the best one that mamf-finder found (ml-engineering), {} TFLOP/s; "
    "assumptions: the same share in FP8, which is not measured there, and attention's"
)
_NVLINK5 = "NVLink 5: 1800 GB/s both ways, 900 per direction"
_DRIVER = "memory and power limit as the driver reports them (nvidia-smi, rocm-smi)"
_PUBLISHED_AMPERE = "fastest published step: MPT-7B on 8 A100, 200 TFLOP/s with all of attention (llm-foundry)"
_PUBLISHED_HOPPER = (
    "fastest published steps on H100: Llama 3.1 405B in BF16 (dgxc-benchmarking 25.04), and GPT-3 175B in FP8, "
    "932 TFLOP/s with all of attention (NeMo 25.02, performance summary)"
)
_PUBLISHED_BLACKWELL = (
    "fastest published steps: Llama 3 70B in BF16 (SimuMax 1.2), GPT-3 175B in FP8, 1722 TFLOP/s with all of "
    "attention (NeMo 25.02), and Llama 3.1 405B in MXFP8 (Megatron-Bridge 25.11)"
)
_PUBLISHED_SUPERCHIP = (
    "fastest published steps: Llama 3.1 405B, in BF16 dgxc-benchmarking 25.05, in FP8, MXFP8 and NVFP4 "
    "Megatron-Bridge 26.02 to 26.06"
)


def _device(name: str, summary: str, *sources: str, **values: Any) -> DeviceOffer:
    """Return a device; a value of None removes one that the device shares with others."""
    known = {key: value for key, value in values.items() if value is not None}
    return DeviceOffer(name=name, summary=summary, source="; ".join((*sources, _DRIVER)), values=known)


_AMPERE: dict[str, Any] = {
    "power": 400,
    "published_bf16": 193 * _TERA,
    "multiprocessors": 108,
    "attainable_bf16": 0.80,
    "attention_attainable": 0.72,
    "attention_backward": 0.65,
    "peak_bf16": 312 * _TERA,
    "peak_fp16": 312 * _TERA,
    "peak_fp32": 19_500 * _GIGA,
    "memory": 81_920 * _MIB,
    "memory_bandwidth": 2_039 * _GIGA,
}
_HOPPER: dict[str, Any] = {
    "power": 700,
    "published_bf16": 522 * _TERA,
    "published_fp8": 920 * _TERA,
    "multiprocessors": 132,
    "attainable_bf16": 0.725,
    "attainable_fp8": 0.67,
    "attention_attainable": 0.52,
    "attention_backward": 0.70,
    "attention_flash_2": 0.30,
    "peak_bf16": 989_500 * _GIGA,
    "peak_fp16": 989_500 * _GIGA,
    "peak_fp8": 1_979 * _TERA,
    "peak_fp32": 67 * _TERA,
    "memory": 81_559 * _MIB,
    "memory_bandwidth": 3_350 * _GIGA,
}

_BLACKWELL: dict[str, Any] = {
    "power": 1000,
    "published_bf16": 848 * _TERA,
    "published_fp8": 1_699 * _TERA,
    "published_mxfp8": 1_576 * _TERA,
    "multiprocessors": 148,
    "attainable_bf16": 0.47,
    "attainable_fp8": 0.49,
    "attainable_mxfp8": 0.46,
    "attainable_nvfp4": 0.40,
    "attention_attainable": 0.54,
    "attention_backward": 0.69,
    "recurrence_flops": 260 * _GIGA,
    "peak_bf16": 2_250 * _TERA,
    "peak_fp16": 2_250 * _TERA,
    "peak_fp8": 4_500 * _TERA,
    "peak_fp4": 9_000 * _TERA,
    "peak_fp32": 80 * _TERA,
    "memory": 183_359 * _MIB,
    "memory_bandwidth": 7_700 * _GIGA,
    "scale_up_bandwidth": 900 * _GIGA,
    "network_efficiency": 0.69,
    "exchange_efficiency": 0.64,
}
_SUPERCHIP: dict[str, Any] = {
    "power": 1200,
    "published_bf16": 1_087 * _TERA,
    "published_fp8": 2_180 * _TERA,
    "published_mxfp8": 2_020 * _TERA,
    "published_nvfp4": 2_942 * _TERA,
    "multiprocessors": 152,
    "peak_bf16": 2_500 * _TERA,
    "peak_fp16": 2_500 * _TERA,
    "peak_fp8": 5_000 * _TERA,
    "memory_bandwidth": 8_000 * _GIGA,
    "scale_up_size": 72,
    "attainable_bf16": 0.54,
    "attainable_fp8": 0.53,
    "attainable_mxfp8": 0.51,
    "attainable_nvfp4": 0.47,
    "attention_attainable": 0.71,
    "attention_backward": 0.63,
    "exchange_efficiency": 0.67,
}
"""Values of a Blackwell device on a Grace board: a higher power limit, and 72 devices in an NVLink domain."""
_ULTRA: dict[str, Any] = {
    "attainable_bf16": 0.70,
    "attainable_fp8": 0.70,
    "attainable_mxfp8": 0.62,
    "attainable_nvfp4": 0.46,
    "attention_attainable": 0.84,
    "attention_backward": 0.57,
}
"""Values of Blackwell Ultra: twice the rate of exponentials, which bound attention's forward, and more power."""

_RUBIN: dict[str, Any] = {
    **{
        name: value
        for name, value in (_BLACKWELL | _SUPERCHIP | _ULTRA).items()
        if not name.startswith(("published", "power"))
    },
    "multiprocessors": 224,
    "peak_bf16": 4_000 * _TERA,
    "peak_fp16": 4_000 * _TERA,
    "peak_fp8": 17_500 * _TERA,
    "peak_fp4": 35_000 * _TERA,
    "peak_fp32": 130 * _TERA,
    "memory": 288 * _GIGA,
    "memory_bandwidth": 22_000 * _GIGA,
    "scale_up_bandwidth": 1_800 * _GIGA,
}
"""Announced values of Rubin; what is attained is assumed to be the shares of Blackwell Ultra."""
_RUBIN_SOURCE = (
    "NVIDIA Vera Rubin NVL72 specifications (2026, before release), per GPU: 4 PFLOP/s BF16 and FP16, 17.5 FP8, "
    "35 NVFP4, all dense, and 130 TFLOP/s FP32; 288 GB of HBM4, 22 TB/s; NVLink 6: 3600 GB/s both ways, 1800 per "
    "direction; 224 multiprocessors (NVIDIA's announcement); domains of 72 (Megatron-Bridge 26.08, "
    "scripts/performance); assumptions: all of the announced memory, and shares of the peaks as on GB300"
)
_ULTRA_AIR: dict[str, Any] = {
    name: round(_BLACKWELL[name] * share / _SUPERCHIP[name], 2) for name, share in _ULTRA.items()
}
"""Values of Blackwell Ultra on boards of eight: B200's shares times the ratio of GB300's to GB200's."""

DEVICES = (
    _device(
        "a100-sxm", "NVIDIA A100 SXM4 80 GB.", _A100, _SHAPES, _NO_FP8, _PUBLISHED_AMPERE,
        "NVLink 3: 600 GB/s both ways, 300 per direction",
        **_AMPERE, scale_up_bandwidth=300 * _GIGA,
    ),
    _device(
        "a800-sxm", "NVIDIA A800 SXM4 80 GB: an A100 with fewer NVLinks.",
        "NVIDIA A800 80GB SXM datasheet (2022): compute and memory of the A100", _A100, _SHAPES, _NO_FP8,
        _PUBLISHED_AMPERE, "NVLink 3: 400 GB/s both ways, 200 per direction",
        **_AMPERE, scale_up_bandwidth=200 * _GIGA,
    ),
    _device(
        "h100-sxm", "NVIDIA H100 SXM5 80 GB.", _H100, _SHAPES_HOPPER, _PUBLISHED_HOPPER, "3.35 TB/s",
        "NVLink 4: 900 GB/s both ways, 450 per direction",
        **_HOPPER, scale_up_bandwidth=450 * _GIGA,
    ),
    _device(
        "h800-sxm", "NVIDIA H800 SXM5 80 GB: an H100 with fewer NVLinks.",
        "NVIDIA H800 SXM datasheet (2023): tensor peaks and memory of the H100", _H100, _SHAPES_HOPPER,
        _PUBLISHED_HOPPER,
        "3.35 TB/s", "NVLink 4: 400 GB/s both ways, 200 per direction",
        **_HOPPER, scale_up_bandwidth=200 * _GIGA,
    ),
    _device(
        "h200-sxm", "NVIDIA H200 SXM 141 GB.",
        "NVIDIA H200 SXM datasheet (2024): tensor peaks of the H100, 141 GB, 4.8 TB/s",
        _SHAPES_HOPPER, "NVLink 4: 900 GB/s both ways, 450 per direction",
        **{
            **_HOPPER, "memory": 143_771 * _MIB, "memory_bandwidth": 4_800 * _GIGA,
            "published_bf16": None, "published_fp8": None,
        }, scale_up_bandwidth=450 * _GIGA,
    ),
    _device(
        "h20", "NVIDIA H20 SXM 96 GB.",
        "NVIDIA H20 product brief (2023), as reprinted, no public datasheet: 148 TFLOP/s BF16 and FP16, "
        "296 FP8 (all dense), 44 FP32, 96 GB, 4.0 TB/s",
        "efficiencies after Qi et al., Synergistic Tensor and Pipeline Parallelism (2025): 85 to 92 % MFU on H20, "
        "which counts attention four times, so they are too high",
        "NVLink 4: 900 GB/s both ways, 450 per direction",
        peak_bf16=148 * _TERA, peak_fp16=148 * _TERA, peak_fp8=296 * _TERA, peak_fp32=44 * _TERA,
        memory=97_871 * _MIB, memory_bandwidth=4_000 * _GIGA, multiprocessors=78, attainable_bf16=0.95,
        attainable_fp8=0.9, attention_attainable=0.95, compute_efficiency=0.9, attention_efficiency=0.8,
        scale_up_bandwidth=450 * _GIGA, power=500,
    ),
    _device(
        "b200", "NVIDIA B200 180 GB, as in HGX B200.",
        "NVIDIA Blackwell architecture brief (2024), HGX B200: 4.5 PFLOP/s BF16 and FP16 and 9 FP8 with sparsity, "
        "halved for dense; 80 TFLOP/s FP32",
        "Blackwell datasheet, HGX B200, as reprinted: 180 GB, 7.7 TB/s (DGX B200's has 64 TB/s for eight)",
        _SHAPES_BLACKWELL, "72 PFLOP/s FP4 dense for eight", _PUBLISHED_BLACKWELL, _NVLINK5,
        **_BLACKWELL,
    ),
    _device(
        "b300", "NVIDIA B300 288 GB, as in HGX B300.",
        "NVIDIA Blackwell Ultra datasheet (2025), HGX B300, as reprinted: 4.5 PFLOP/s BF16 and FP16, 9 FP8 with "
        "sparsity, halved for dense; 14 FP4 dense; 270 GB; for eight 62 TB/s and 600 TFLOP/s FP32; "
        "multiprocessors as B200's, not printed",
        "what products and attention attain: B200's shares times GB300's over GB200's, not fitted",
        _NVLINK5,
        **{
            **_BLACKWELL, **_ULTRA_AIR, "peak_fp4": 14_000 * _TERA, "peak_fp32": 75 * _TERA,
            "memory": 275_040 * _MIB, "memory_bandwidth": 7_750 * _GIGA, "power": 1100,
            "published_bf16": None, "published_fp8": None, "published_mxfp8": None,
        },
    ),
    _device(
        "gb200", "NVIDIA B200 186 GB of a GB200 NVL72.",
        "NVIDIA GB200 NVL72 datasheet (2024), for 72: 360 PFLOP/s BF16 and FP16, 720 FP8 and 1440 FP4 with "
        "sparsity, halved for dense; 5.76 PFLOP/s FP32; 13.4 TB of memory, 576 TB/s",
        "152 multiprocessors, as the driver reports", _SHAPES_SUPERCHIP, _PUBLISHED_SUPERCHIP,
        _NVLINK5 + " to 72 devices",
        **{**_BLACKWELL, **_SUPERCHIP, "peak_fp4": 10_000 * _TERA, "memory": 189_471 * _MIB},
    ),
    _device(
        "gb300", "NVIDIA B300 279 GB of a GB300 NVL72.",
        "NVIDIA GB300 NVL72 datasheet (2025), for 72: 360 PFLOP/s BF16 and FP16 and 720 FP8 with sparsity, halved "
        "for dense; 1080 FP4 dense; 20 TB of memory, 576 TB/s", "152 multiprocessors, as the driver reports",
        _SHAPES_SUPERCHIP, _PUBLISHED_SUPERCHIP,
        _NVLINK5 + " to 72 devices",
        **{
            **_BLACKWELL, **_SUPERCHIP, **_ULTRA, "peak_fp4": 15_000 * _TERA, "memory": 284_208 * _MIB,
            "power": 1400, "published_bf16": None, "published_fp8": 2_645 * _TERA,
            "published_mxfp8": 2_442 * _TERA, "published_nvfp4": 3_427 * _TERA,
        },
    ),
    DeviceOffer(
        name="vr200", summary="NVIDIA Rubin 288 GB of a Vera Rubin NVL72, as announced.",
        source=f"{_RUBIN_SOURCE}; four a node", values=_RUBIN,
    ),
    DeviceOffer(
        name="r100", summary="NVIDIA Rubin 288 GB, one a node, as announced.",
        source=f"{_RUBIN_SOURCE}; one a node", values=_RUBIN,
    ),
    _device(
        "a100-pcie", "NVIDIA A100 PCIe 80 GB.",
        "NVIDIA A100 80GB PCIe datasheet (2021): peaks of the SXM4 module, 1935 GB/s; PCIe 4.0 x16",
        "what products attain: fitted to 183 measured ones (SimuMax)", _NO_FP8,
        **{
            **_AMPERE, "memory_bandwidth": 1_935 * _GIGA, "attainable_bf16": 0.78, "power": 300,
            "published_bf16": None,
        },
        scale_up_bandwidth=31_500 * 10**6,
    ),
    _device(
        "mi300x", "AMD Instinct MI300X 192 GB.",
        "AMD Instinct MI300X data sheet (2023): 1307.4 TFLOP/s BF16 and FP16, 2614.9 FP8, 163.4 FP32, 192 GB, "
        "5.3 TB/s, 304 compute units",
        _SHAPES_AMD.format(668.4),
        "Infinity Fabric: seven links of 64 GB/s per direction",
        multiprocessors=304, attainable_bf16=0.51, attainable_fp8=0.51, attention_attainable=0.40,
        peak_bf16=1_307_400 * _GIGA, peak_fp16=1_307_400 * _GIGA, peak_fp8=2_614_900 * _GIGA,
        peak_fp32=163_400 * _GIGA, memory=206_141_652_992, memory_bandwidth=5_300 * _GIGA,
        scale_up_bandwidth=448 * _GIGA, power=750,
    ),
    _device(
        "mi355x", "AMD Instinct MI355X 288 GB.",
        "AMD Instinct MI355X specifications (2025): 2.5 PFLOP/s BF16 and FP16, 5 FP8, 10.1 FP4; 2400 MHz and "
        "1024 matrix cores make 2516.6 TFLOP/s, 5033.2 and 10066.3; 157.3 FP32, 288 GB, 8 TB/s, 256 compute units",
        _SHAPES_AMD.format(1565),
        "Infinity Fabric: seven links of 76.8 GB/s per direction",
        multiprocessors=256, attainable_bf16=0.62, attainable_fp8=0.62, attainable_mxfp8=0.62,
        attention_attainable=0.40, peak_bf16=2_516_600 * _GIGA, peak_fp16=2_516_600 * _GIGA,
        peak_fp8=5_033_200 * _GIGA, peak_fp4=10_066_300 * _GIGA, peak_fp32=157_300 * _GIGA, memory=309_220_868_096,
        memory_bandwidth=8_000 * _GIGA, scale_up_bandwidth=537_600 * 10**6, power=1400,
    ),
)  # fmt: skip
"""All device presets, in the order of their list."""
