"""An encoder in front of a decoder: layers of their own shape, a projector, and stages of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.model.workload import Workload

VISION = {"layers": 6, "hidden": 512, "heads": 8, "ffn": 2048, "tokens": 256, "items": 2, "merge": 4}
ITEM = 2 * 256
"""Its tokens of a microbatch."""
PROJECTED = ITEM // 4
PROJECTOR = 4 * 512 * 1024 + 1024 * 1024
DECODER = {"flash_attention": True, "dropout": False}


def seen(costs: Callable[..., Workload], *, stages: int = 4, **sizes: Any) -> Workload:
    own = {key: sizes.pop(key) for key in [*sizes] if key in VISION or key in {"stages_of_its_own", "recompute"}}
    own["stages"] = own.pop("stages_of_its_own", 0)
    return costs({**DECODER, "encoder": {**VISION, **own}}, stages=stages, ranks=stages, **sizes)


@pytest.fixture
def layers(costs: Callable[..., Workload]) -> Workload:
    """Return costs whose second of three stages has the encoder's six layers, as those of a decoder."""
    model = {**DECODER, "layers": 18, "hidden": 512, "heads": 8, "ffn": 2048, "causal": False, "bias": True}
    return costs(model, stages=3, ranks=3, sequence=256, micro=2)


def test_its_layers_cost_and_keep_what_such_layers_do(costs: Callable[..., Workload], layers: Workload) -> None:
    plain, both = costs(DECODER), seen(costs)
    inputs = 2 * PROJECTED * (4 * 512 + 1024)

    assert (both.f_ns[1:] == plain.f_ns[1:]).all()
    assert both.activation_bytes[0] - plain.activation_bytes[0] == layers.activation_bytes[1] + inputs
    assert both.weights_bytes[0] - plain.weights_bytes[0] == layers.weights_bytes[1] + 2 * PROJECTOR
    for name in ("f_ns", "i_ns", "w_ns"):
        projector = getattr(both, name)[0] - getattr(plain, name)[0] - getattr(layers, name)[1]
        assert 0 < projector < getattr(layers, name)[1]


def test_stages_of_its_own_pass_on_its_tokens_and_the_last_the_projected_ones(
    costs: Callable[..., Workload], layers: Workload
) -> None:
    apart = seen(costs, stages=6, stages_of_its_own=2)

    assert apart.boundary_bytes.tolist() == [2 * ITEM * 512, 2 * PROJECTED * 1024, *[2 * 2048 * 1024] * 3]
    assert 2 * apart.f_ns[0] == layers.f_ns[1]
    assert 2 * apart.weights_bytes[0] == layers.weights_bytes[1]
    decoder = costs(DECODER)
    assert (apart.f_ns[2:] == decoder.f_ns).all()
    assert (apart.activation_bytes[2:] == decoder.activation_bytes).all()


def test_model_flops_count_its_layers_and_its_projector(costs: Callable[..., Workload]) -> None:
    tokens, sequences = 8 * ITEM, 8
    layer = 2 * tokens * (4 * 512 * 512 + 2 * 512 * 2048) + 4 * tokens * 256 * 512
    projector = 2 * sequences * PROJECTED * PROJECTOR

    assert seen(costs).model_flops - costs(DECODER).model_flops == 3 * (6 * layer + projector)


def test_it_is_split_as_the_decoder_is(costs: Callable[..., Workload]) -> None:
    whole, split = seen(costs, stages=5, stages_of_its_own=1), seen(costs, stages=5, stages_of_its_own=1, tp=2)
    everywhere = 2 * 6 * 6 * 512  # two norms and the biases of two row-parallel matrices of each layer

    assert 2 * (split.weights_bytes[0] - everywhere) == whole.weights_bytes[0] - everywhere
    assert split.f_collective_ns[0] > 0


def test_its_layers_are_computed_again_where_it_says_so(costs: Callable[..., Workload]) -> None:
    none, full = (seen(costs, stages=6, stages_of_its_own=2, recompute=again) for again in ("none", "full"))

    assert full.activation_bytes[0] == 3 * 2 * ITEM * 512
    assert full.i_ns[0] - none.i_ns[0] == none.f_ns[0]


@pytest.mark.parametrize(("own", "sizes", "said"), [
    ({"heads": 7}, {}, "model.encoder.heads: 7 do not divide hidden (512)"),
    ({"merge": 3}, {}, "model.encoder.merge: 3 does not divide tokens x items (512)"),
    ({"stages_of_its_own": 7}, {}, "model.encoder.stages: 7 are more than layers (6)"),
    ({"stages_of_its_own": 4}, {}, "model.encoder.stages: 4 of 4 stages leave none for the decoder"),
    ({"heads": 4}, {"tp": 8}, "parallel.tp: 8 does not divide model.encoder.heads (4)"),
    ({}, {"options": {"segments": True}}, "costs.segments: an encoder has no segments: take segments away"),
    ({"layers": 0}, {}, "model.encoder.layers: input should be greater than or equal to 1"),
])  # fmt: skip
def test_a_wrong_encoder_is_one_line(
    costs: Callable[..., Workload], own: dict[str, Any], sizes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PptraceError) as refused:
        seen(costs, **own, **sizes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
