"""A decoder that is not trained behind an encoder that is: gradients pass, and none are of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config.resolution import load
from pptrace.plugin import ConfigError
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import prepare
from pptrace.run.run import Run
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

VISION = {"layers": 6, "hidden": 512, "heads": 8, "ffn": 2048, "tokens": 256, "items": 2, "merge": 4}
PROJECTOR = 4 * 512 * 1024 + 1024 * 1024
DENSE = {"flash_attention": True, "dropout": False, "gated": True}
MIXTURE = DENSE | {"num_experts": 8, "top_k": 2, "expert_ffn": 512, "moe_every": 2, "shared_ffn": 512}
LATENT = DENSE | {"kv_rank": 256, "query_rank": 512, "rope_dim": 32}
NOTHING = "model.frozen: nothing is trained then; give an encoder whose layers or projector are"
OPTIONS: list[dict[str, Any]] = [
    {}, {"kernels": "shapes"}, {"zero": 1, "kernels": "shapes", "overlap_tp": True}, {"host": "30 ms"},
]  # fmt: skip


def both(
    costs: Callable[..., Workload], model: dict[str, Any], encoder: dict[str, Any] | None = None, **sizes: Any
) -> tuple[Workload, Workload]:
    """Return the costs of a model that is trained, and of one whose decoder is frozen, on five stages."""
    tower = {**VISION, "stages": 1, **(encoder or {})}
    made = [
        costs({**model, "encoder": tower, "frozen": frozen}, stages=5, ranks=5, **sizes)
        for frozen in (False, True)
    ]
    return made[0], made[1]


@pytest.mark.parametrize("model", [DENSE, MIXTURE, LATENT])
@pytest.mark.parametrize("options", OPTIONS)
def test_its_backward_passes_gradients_on_and_has_none_of_weights(
    costs: Callable[..., Workload], model: dict[str, Any], options: dict[str, Any]
) -> None:
    trained, frozen = both(costs, model, dp=2, tp=2, sequence_parallel=True, options=options)

    assert (frozen.f_ns == trained.f_ns).all()
    assert (frozen.boundary_bytes == trained.boundary_bytes).all()
    assert frozen.boundary_gradient_bytes.size == 0  # as long as what went forward
    assert (frozen.weights_bytes == trained.weights_bytes).all()
    for name in ("w_ns", "weight_activation_bytes", "gradients_bytes", "optimizer_bytes", "optimizer_ns"):
        column = getattr(frozen, name)
        assert (column[1:] == 0).all(), name
        assert column[0] == getattr(trained, name)[0] > 0, name
    assert (frozen.reduce_ns[1:] == 0).all()
    assert (frozen.b_ns == frozen.i_ns + frozen.w_ns).all()
    if not {"host", "overlap_tp"} & options.keys():
        assert (frozen.i_ns[2:] == trained.i_ns[2:]).all()
        assert frozen.i_ns[1] < trained.i_ns[1]  # rows of the embedding are not added to
    assert (frozen.b_ns[1:] < trained.b_ns[1:]).all()


def test_a_layer_keeps_what_its_input_gradients_read(costs: Callable[..., Workload]) -> None:
    tokens, h = 2048, 1024
    trained, frozen = both(costs, DENSE)
    # Inputs of two norms; queries, keys, values and attention's output; gate and up.
    assert frozen.activation_bytes[2] == 2 * 2 * tokens * (2 * h + 4 * h + 2 * 4096)
    assert trained.activation_bytes[2] - frozen.activation_bytes[2] == 2 * 2 * tokens * (2 * h + 4096)
    # The last: the final norm's input, and logits in fp32.
    assert frozen.activation_bytes[4] - frozen.activation_bytes[2] == tokens * (2 * h + 4 * 32000)
    assert frozen.activation_bytes[0] == trained.activation_bytes[0]

    plain = DENSE | {"gated": False, "flash_attention": False}
    _, scores = both(costs, plain)
    core = 2 * 16 * tokens * tokens
    assert scores.activation_bytes[2] == 2 * (2 * tokens * (2 * h + 3 * h + 4096) + core)

    _, mixed = both(costs, MIXTURE)
    dense = 2 * tokens * (6 * h + 2 * 4096)
    visited = 2 * 2 * tokens * 2 * 512  # gate and up of two experts
    routed = 2 * tokens * (6 * h + 2 * 512) + visited + 4 * tokens * 8  # with the shared expert and scores
    assert mixed.activation_bytes[2] == dense + routed


@pytest.mark.parametrize("modules", [["layernorm", "mlp_act"], ["mlp"], ["core_attn"], ["moe", "moe_act"]])
def test_what_is_computed_again_frees_no_more_than_is_kept(
    costs: Callable[..., Workload], modules: list[str]
) -> None:
    again = {"recompute": "selective", "recompute_modules": modules}
    for model in (DENSE, MIXTURE):
        _, kept = both(costs, model)
        _, freed = both(costs, model | again)
        assert (freed.activation_bytes <= kept.activation_bytes).all()
        assert (freed.activation_bytes > 0).all()
    trained, frozen = both(costs, DENSE | {"recompute": "full"})
    assert (trained.activation_bytes[1:4] == frozen.activation_bytes[1:4]).all()


def test_model_flops_are_forward_and_what_is_needed_of_the_backward(costs: Callable[..., Workload]) -> None:
    trained, frozen = both(costs, DENSE)
    tokens = 8 * 2048
    layer = 2 * tokens * (4 * 1024 * 1024 + 3 * 1024 * 4096)
    head = 2 * tokens * 1024 * 32000

    assert trained.model_flops - frozen.model_flops == 8 * layer + head


@pytest.mark.parametrize("sizes", [
    {}, {"tp": 2, "sequence_parallel": True}, {"options": {"host": "30 ms", "host_action": "10 ms"}},
])  # fmt: skip
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_its_segments_and_listed_kernels_take_what_its_actions_do(
    costs: Callable[..., Workload], model: dict[str, Any], sizes: dict[str, Any]
) -> None:
    plain, parts = (
        both(costs, model, **{**sizes, "options": {**sizes.get("options", {}), "segments": segments}})[1]
        for segments in (False, True)
    )
    for name in ("f_ns", "b_ns", "i_ns", "w_ns", "b_collective_ns"):
        assert (getattr(plain, name) == getattr(parts, name)).all(), name
    assert (parts.w_ns[1:] == 0).all()
    listed = plain.kernels() if plain.kernels else ()
    for kind in (Kind.F, Kind.I, Kind.W):
        for stage in range(5):
            took = sum(row.duration_ns for row in listed if (row.stage, row.kind) == (stage, kind))
            assert took == getattr(plain, f"{kind.name.lower()}_ns")[stage]


def test_frozen_experts_are_sharded_over_their_own_replicas(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 25_000_000, "latency_ns": 5_000}
    sizes: dict[str, Any] = {"dp": 8, "ep": 4, "data_parallel": network, "options": {"zero": 3}}
    trained, frozen = both(costs, MIXTURE, **sizes)

    for name in ("weights_bytes", "gathered_bytes", "unshard_ns"):
        assert (getattr(frozen, name) == getattr(trained, name)).all(), name
    assert (frozen.reduce_ns[1:] == 0).all()
    assert (frozen.unreduced_bytes[1:] == 0).all()


def test_on_the_decoders_first_stage_the_encoder_alone_is_trained(costs: Callable[..., Workload]) -> None:
    model = {**DENSE, "encoder": VISION | {"frozen": True}, "frozen": True}
    result = costs(model)

    assert result.gradients_bytes.tolist() == [4 * PROJECTOR, 0, 0, 0]
    assert result.optimizer_bytes.tolist() == [12 * PROJECTOR, 0, 0, 0]
    assert result.w_ns[0] > 0 == result.w_ns[1:].sum()
    assert (result.i_ns > 0).all()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_schedules_run_stages_without_weight_gradients(schedule: str) -> None:
    registry = Registry.load()
    chunks = 1 if schedule in {"1f1b", "zb-h1"} else 2
    model = {**DENSE, "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
    steps = [
        Run.of(prepare(load({
            "model": {**model, "encoder": VISION, "frozen": frozen},
            "parallel": {"pp": 2, "vp": chunks, "tp": 2, "dp": 2}, "batch": {"microbatches": 8, "sequence": 2048},
            "schedule": schedule, "device": "h100-sxm", "costs": {"name": "roofline", "zero": 1},
        }), registry), registry).metrics
        for frozen in (False, True)
    ]  # fmt: skip
    assert steps[1].step_ns < steps[0].step_ns
    assert steps[1].memory.peak_bytes.max() < steps[0].memory.peak_bytes.max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoder": None},
            "model.frozen: nothing is trained then; give an encoder whose layers or projector are",
        ),
        ({"encoder": VISION | {"frozen": True, "frozen_projector": True}}, NOTHING),
        ({"mtp": 1}, "model.mtp: multi-token prediction trains a decoder; write mtp: 0 for a frozen one"),
    ],
)
def test_what_trains_nothing_is_refused_in_one_line(
    costs: Callable[..., Workload], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        costs({**DENSE, "encoder": VISION, "frozen": True, **changes})
    assert str(error.value) == message
