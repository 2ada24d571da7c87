"""Presets of models, each with where its numbers come from."""

from __future__ import annotations

from pptrace.plugin import ModelOffer

__all__ = ["MODELS"]

_LLAMA3 = "Grattafiori et al., The Llama 3 Herd of Models (2024), table 3; the published config.json"
_STP = (
    "Qi et al., Synergistic Tensor and Pipeline Parallelism (NeurIPS 2025): layers, heads, width and vocabulary; "
    "the FFN width is not printed there, and Qwen2-7B's 18944 with untied embeddings gives both totals"
)

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
)
"""Every preset, in the order in which they are listed."""
