"""Layouts as Megatron-LM writes them, and what lies on each stage by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.plugin import ConfigError, ConstraintError, Kind
from pptrace_models.presets import MODELS
from pptrace_models.stages import parse_layout, partition, stages_of
from pptrace_models.transformer import Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

PRESETS = {offer.name: offer.values for offer in MODELS}


def model(name: str, **values: Any) -> Transformer:
    return checked(Transformer, {**PRESETS[name], **values}, "model")


def test_the_layouts_of_public_recipes_are_read() -> None:
    first = stages_of(model("deepseek-v3", layout="Et*3|(tt|)*29,m|L"), 32)
    assert [len(stage.layers) for stage in first] == [3, *[2] * 29, 0, 0]
    assert [len(stage.predictions) for stage in first] == [*[0] * 30, 1, 0]
    assert (first[0].embedding, first[-1].head) == (True, True)
    assert [layer.experts for layer in first[0].layers + first[1].layers] == [False] * 3 + [True] * 2

    proxy = stages_of(model("deepseek-v3", layers=14, layout="Et*2|(tt|)*5t|tmL"), 8)
    assert [len(stage.layers) for stage in proxy] == [2, 2, 2, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("stages", "split"),
    [(4, [21, 20, 20, 19]), (16, [6, *[5] * 13, 6, 3]), (1, [80]), (2, [41, 39])],
)
def test_stages_end_by_what_they_multiply(stages: int, split: list[int]) -> None:
    llama = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "vocabulary": 131072}
    assert partition(checked(Transformer, llama | {"balance": "products"}, "model"), stages) == split


@given(layers=st.integers(1, 40), stages=st.integers(1, 40), words=st.integers(1, 4_000))
def test_a_stage_passes_its_share_with_its_last_layer_alone(*, layers: int, stages: int, words: int) -> None:
    values = {"layers": layers, "hidden": 64, "heads": 4, "ffn": 128, "vocabulary": words, "balance": "products"}
    found = checked(Transformer, values, "model")
    layer, head = 64 * (4 * 64 + 3 * 128), 64 * words
    try:
        split = partition(found, stages)
    except ConstraintError as error:
        nearest = int(error.nearest.split()[0])
        assert nearest < stages
        assert len(partition(found, nearest)) == nearest
        if nearest + 1 < stages:
            with pytest.raises(ConstraintError):
                partition(found, nearest + 1)
        return
    assert sum(split) == layers
    share = (layers * layer + head) / stages
    for stage in range(stages - 1):
        done = sum(split[: stage + 1]) * layer
        assert done - layer <= share * (stage + 1) < done


def test_products_of_latent_attention_are_those_that_compress_and_expand() -> None:
    latent = {
        "layers": 60, "hidden": 5120, "heads": 128, "head_dim": 128, "ffn": 1536, "vocabulary": 102400,
        "kv_rank": 512, "query_rank": 1536, "rope_dim": 64, "balance": "products",
    }  # fmt: skip
    layer = 5120 * (1536 + 512 + 64 + 128 * 128 + 2 * 1536) + 1536 * 128 * (128 + 64) + 512 * 128 * (128 + 128)
    share = (60 * layer + 102400 * 5120) / 4

    split = partition(checked(Transformer, latent, "model"), 4)

    assert split == [16, 16, 16, 12]
    for stage in range(3):
        done = sum(split[: stage + 1]) * layer
        assert done - layer <= share * (stage + 1) < done


def test_what_an_even_split_counts_is_said_once() -> None:
    for other in ({"layout": "EttL"}, {"layers_per_stage": [2]}):
        with pytest.raises(ConfigError, match="balance: layout and layers_per_stage already define it"):
            model("llama2-7b", balance="products", **other)
    with pytest.raises(ConfigError, match="balance: products does not count mtp"):
        model("deepseek-v3", balance="products")


def test_llama_405b_has_its_layers_on_two_stages_fewer_than_there_are() -> None:
    by_layout = stages_of(model("llama3-405b", layout="E|(t|)*126L"), 128)
    assert by_layout == stages_of(model("llama3-405b"), 128)
    assert partition(model("llama3-405b"), 128) == [0, *[1] * 126, 0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Etx|L", "position 3: expected E, t, m, L, |, a group in parentheses"),
        ("E(tt|*3L", "position 2: this parenthesis is never closed"),
        ("Ett)|L", "position 4: no parenthesis is open here"),
        ("Et*|L", "position 4: write a count from 1 to 1000000"),
        ("Et*0|L", "position 4: write a count from 1"),
        ("E(t*9999)*9999L", "position 2: more than 1000000 items"),
    ],
)
def test_a_layout_that_cannot_be_read_names_the_position(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match="layout") as caught:
        parse_layout(text)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Et|L", "has 2 stages, and pp x vp is 4"),
        ("Ett|t|t|L", "has 4 t (layer), and 8 (model.layers) are needed"),
        ("t*8|||L", "has 0 E (embedding), and 1 are needed"),
        ("Et*8m|||L", "has 1 m (multi-token prediction), and 0 (model.mtp) are needed"),
        ("t*4E|t*4||L", "is out of order: E comes first"),
    ],
)
def test_a_layout_of_another_model_is_one_line(costs: Callable[..., Workload], text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        costs({"layout": text})
    assert line in str(caught.value)


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), grouped=st.booleans())
def test_a_layout_says_what_layers_per_stage_do(counts: list[int], *, grouped: bool) -> None:
    parts = [f"(t)*{count}" if grouped and count else "t" * count for count in counts]
    if not sum(counts):
        return
    text = "E" + "|".join(parts) + "L"
    sizes: dict[str, Any] = {"layers": sum(counts)}
    laid = stages_of(model("llama3-8b", **sizes, layout=text), len(counts))
    assert laid == stages_of(model("llama3-8b", **sizes, layers_per_stage=counts), len(counts))


def test_moving_the_head_to_a_stage_of_its_own_moves_its_time(costs: Callable[..., Workload]) -> None:
    together, apart = costs({"layout": "Etttt|tt|t|tL"}), costs({"layout": "Etttt|tt|tt|L"})
    assert int(together.f_ns.sum()) == int(apart.f_ns.sum())
    assert int(together.weights_bytes.sum()) == int(apart.weights_bytes.sum())
    assert apart.f_ns[3] < together.f_ns[3]


SHARED = tuple((min(stage, 3), stage + 1) for stage in range(7))
"""Edges of four stages of layers, of which the last feeds four shares of the vocabulary."""


@pytest.mark.parametrize("sizes", [{}, {"tp": 2, "sequence_parallel": True}, {"dp": 2, "options": {"zero": 1}}])
def test_shares_of_the_vocabulary_divide_embedding_and_head(
    costs: Callable[..., Workload], sizes: dict[str, Any]
) -> None:
    values = {"layers": 8, "vocabulary": 32768, "dropout": False, "bias": False}
    whole, shared = costs(values, **sizes), costs(values, stages=8, edges=SHARED, **sizes)
    tp, hidden, tokens = sizes.get("tp", 1), 1024, 2048
    matrix = hidden * 32768 // tp

    assert shared.weights_bytes[:4].tolist() == [whole.weights_bytes[1]] * 4
    assert (shared.weights_bytes[4:] == 2 * (2 * matrix // 4 + hidden)).all()
    assert whole.weights_bytes.sum() - shared.weights_bytes.sum() == -3 * 2 * hidden
    logits = 4 * tokens * 32768 // tp
    assert (
        shared.activation_bytes[4] == whole.activation_bytes[3] - whole.activation_bytes[2] - logits + logits // 4
    )
    assert shared.boundary_bytes.tolist() == [whole.boundary_bytes[0]] * 7
    assert shared.model_flops == whole.model_flops


def test_statistics_of_shares_are_summed_over_the_pipeline_ranks(costs: Callable[..., Workload]) -> None:
    values = {"layers": 8, "vocabulary": 32768}
    whole, shared = costs(values), costs(values, stages=8, edges=SHARED)

    assert whole.f_collective_ns.sum() == 0
    assert (shared.f_collective_ns[:4] == 0).all()
    assert (shared.f_collective_ns[4:] > 0).all()
    segments = costs(values, stages=8, edges=SHARED, options={"segments": True}).segments[Kind.F][4]
    assert [segment.name for segment in segments if segment.duration_ns] == ["embedding", "head", "loss"]


def test_shares_of_the_vocabulary_have_no_multi_token_prediction() -> None:
    with pytest.raises(ConfigError, match="no multi-token prediction"):
        stages_of(model("deepseek-v3"), 8, vocabulary_shares=4)
