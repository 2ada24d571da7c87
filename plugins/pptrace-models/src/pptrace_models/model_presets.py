"""Presets of models, each with where its numbers come from."""

from __future__ import annotations

from typing import Any

from pptrace.plugin import ModelOffer

__all__ = ["MODELS"]

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


def _model(name: str, source: str, note: str, *, layers: int, hidden: int, **values: Any) -> ModelOffer:
    words = name.replace("-", " ")
    return ModelOffer(
        name=name,
        summary=f"{words[:1].upper()}{words[1:]}: {layers} layers of width {hidden}, {note}.",
        source=source,
        values={"layers": layers, "hidden": hidden, **values},
    )


def _megatron(size: str, layers: int, hidden: int, heads: int, source: str) -> ModelOffer:
    return _model(
        f"megatron-gpt-{size}", source, "dense attention, GELU",
        layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, **_MEGATRON,
    )  # fmt: skip


MODELS = (
    ModelOffer(
        name="gpt3-175b",
        summary="GPT-3 175B: 96 layers of width 12288, dense attention, GELU.",
        source="Brown et al., Language Models are Few-Shot Learners (2020), table 2.1; GPT-2's 50257 tokens",
        values={
            "layers": 96,
            "hidden": 12288,
            "heads": 96,
            "ffn": 49152,
            "gated": False,
            "vocabulary": 50257,
            "tied_embeddings": True,
            "learned_positions": 2048,
            "bias": True,
            "dropout": True,
        },
    ),
    ModelOffer(
        name="llama3-8b",
        summary="Llama-3 8B: 32 layers of width 4096, 8 KV heads, SwiGLU.",
        source=_LLAMA3,
        values={
            "layers": 32,
            "hidden": 4096,
            "heads": 32,
            "kv_heads": 8,
            "ffn": 14336,
            "vocabulary": 128256,
        },
    ),
    ModelOffer(
        name="llama3-70b",
        summary="Llama-3 70B: 80 layers of width 8192, 8 KV heads, SwiGLU.",
        source=_LLAMA3,
        values={
            "layers": 80,
            "hidden": 8192,
            "heads": 64,
            "kv_heads": 8,
            "ffn": 28672,
            "vocabulary": 128256,
        },
    ),
    ModelOffer(
        name="llama3-405b",
        summary="Llama-3 405B: 126 layers of width 16384, 8 KV heads, SwiGLU.",
        source=_LLAMA3,
        values={
            "layers": 126,
            "hidden": 16384,
            "heads": 128,
            "kv_heads": 8,
            "ffn": 53248,
            "vocabulary": 128256,
        },
    ),
    ModelOffer(
        name="qwen2-12.1b",
        summary="Qwen2-class 12.1B: 30 layers of width 5120, 8 KV heads, SwiGLU.",
        source=_STP,
        values={
            "layers": 30,
            "hidden": 5120,
            "heads": 40,
            "kv_heads": 8,
            "ffn": 18944,
            "vocabulary": 152064,
        },
    ),
    ModelOffer(
        name="qwen2-26.3b",
        summary="Qwen2-class 26.3B: 46 layers of width 7168, 8 KV heads, SwiGLU.",
        source=_STP,
        values={
            "layers": 46,
            "hidden": 7168,
            "heads": 56,
            "kv_heads": 8,
            "ffn": 18944,
            "vocabulary": 152064,
        },
    ),
    ModelOffer(
        name="tab-128",
        summary="The tabular abstraction paper's model: 128 blocks of width 4096, GELU.",
        source=(
            "Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of "
            "Pipeline-Parallel LLM Training (2026): 128 blocks, width 4096, 80 heads, GELU; heads of 51.2 keep "
            "the attention's width at 4096; not printed there: "
            "FFN width (4 x 4096) and vocabulary (51200, as Megatron pads GPT-2's)"
        ),
        values={
            "layers": 128,
            "hidden": 4096,
            "heads": 80,
            "head_dim": 51.2,
            "ffn": 16384,
            "gated": False,
            "vocabulary": 51200,
            "tied_embeddings": True,
            "learned_positions": 4096,
            "bias": True,
            "dropout": True,
        },
    ),
    _model(
        "llama2-7b", _LLAMA2, "SwiGLU", layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000,
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
        "mixtral-8x7b", "Jiang et al., Mixtral of Experts (2024), table 1", "8 experts of which 2 are chosen",
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=32000, num_experts=8, top_k=2,
    ),
    _model(
        "mixtral-8x22b", "the published config.json of Mixtral-8x22B-v0.1", "8 experts of which 2 are chosen",
        layers=56, hidden=6144, heads=48, kv_heads=8, ffn=16384, vocabulary=32000, num_experts=8, top_k=2,
    ),
    _model(
        "deepseek-v2", "DeepSeek-AI, DeepSeek-V2 (2024), section 3.1.2; the published config.json",
        "latent attention, 160 experts of which 6 are chosen, and two shared ones",
        layers=60, hidden=5120, heads=128, ffn=12288, vocabulary=102400, **_LATENT,
        num_experts=160, top_k=6, expert_ffn=1536, shared_ffn=3072, dense_layers=1,
    ),
    _model(
        "deepseek-v3", "DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 4.2; the published config.json",
        "latent attention, 256 experts of which 8 are chosen, a shared one, and multi-token prediction",
        layers=61, hidden=7168, heads=128, ffn=18432, vocabulary=129280, **_LATENT, mtp=1,
        num_experts=256, top_k=8, expert_ffn=2048, shared_ffn=2048, dense_layers=3,
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
        num_experts=128, top_k=8, expert_ffn=768,
    ),
    _model(
        "qwen3-235b-a22b", _QWEN3, "128 experts of which 8 are chosen",
        layers=94, hidden=4096, heads=64, kv_heads=4, head_dim=128, ffn=12288, vocabulary=151936,
        num_experts=128, top_k=8, expert_ffn=1536,
    ),
    _model(
        "gpt-oss-120b", "OpenAI, gpt-oss-120b & gpt-oss-20b Model Card (2025); the published config.json",
        "128 experts of which 4 are chosen, every second layer with a window of 128",
        layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocabulary=201088, bias=True,
        num_experts=128, top_k=4, window=128, full_attention_every=2, clamped_experts=True,
    ),
    _model(
        "grok-1", "xAI, the published model.py and run.py of Grok-1 (2024)", "8 experts of which 2 are chosen",
        layers=64, hidden=6144, heads=48, kv_heads=8, head_dim=128, ffn=32768, vocabulary=131072,
        tied_embeddings=True, num_experts=8, top_k=2,
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
"""Every preset, in the order in which they are listed."""
