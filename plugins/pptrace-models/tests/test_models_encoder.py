"""An encoder in front of a decoder: layers of their own shape, a projector, and stages of their own."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.config.resolution import load
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import prepare
from pptrace.run.run import Run
from pptrace.search.plan import plan
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.steps.text_forms import write_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.steps.workload import Workload

VISION = {"layers": 6, "hidden": 512, "heads": 8, "ffn": 2048, "tokens": 256, "items": 2, "merge": 4}
ITEM = 2 * 256
"""Its tokens of a microbatch."""
PROJECTED = ITEM // 4
PROJECTOR = 4 * 512 * 1024 + 1024 * 1024
REGISTRY = Registry.load()
OWN = ("stages_of_its_own", "recompute", "frozen", "frozen_projector")
DECODER = {"flash_attention": True, "dropout": False}


def seen(costs: Callable[..., Workload], *, stages: int = 4, **sizes: Any) -> Workload:
    own = {key: sizes.pop(key) for key in [*sizes] if key in {*VISION, *OWN}}
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


FROZEN = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("frozen", "projector"), FROZEN)
@pytest.mark.parametrize("sizes", [
    {}, {"tp": 2, "recompute": "full"}, {"tp": 4, "sequence_parallel": True, "stages_of_its_own": 2, "stages": 6},
])  # fmt: skip
def test_its_segments_take_what_its_actions_do(
    costs: Callable[..., Workload], *, frozen: bool, projector: bool, sizes: dict[str, Any]
) -> None:
    plain, parts = (
        seen(costs, frozen=frozen, frozen_projector=projector, options={"segments": segments}, **sizes)
        for segments in (False, True)
    )

    for name in ("f", "b", "i", "w", "recompute"):
        assert (getattr(plain, f"{name}_ns") == getattr(parts, f"{name}_ns")).all(), name
    for name in ("f_collective_ns", "b_collective_ns", "i_collective_ns"):
        assert (getattr(plain, name) == getattr(parts, name)).all(), name
    result = [item.name for item in parts.segments[Kind.F][0]]
    assert (
        result.count("encoder-attention") == result.count("encoder-mlp") == 6 // sizes.get("stages_of_its_own", 1)
    )
    assert result.count("all-reduce") == (2 * 6 + 1 + 2 * 2 + 1) * (sizes.get("tp") == 2)


GRID = {"encoder": VISION, "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
NETWORKS: list[dict[str, Any]] = [
    {"cluster": {"preset": "dgx-h100"}},
    {"cluster": None, "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"}},
]


def on_grid(encoder: dict[str, Any], parallel: dict[str, Any], **sections: Any) -> Run:
    """Return the step of four microbatches of a decoder with 1024 projected bytes of width per token."""
    return Run.of(prepare(load({
        "model": {**DECODER, **GRID, "encoder": {**VISION, **encoder}}, "parallel": parallel, "schedule": "1f1b",
        "batch": {"microbatches": 4, "sequence": 2048, "micro": 4}, "device": "h100-sxm",
        **NETWORKS[0], **sections,
    }), REGISTRY), REGISTRY)  # fmt: skip


@settings(max_examples=8)
@given(
    st.fixed_dictionaries({name: st.sampled_from([1, 2, 4]) for name in ("tp", "cp", "dp")}),
    st.sampled_from([(3, 1), (3, 2), (4, 2)]), st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    st.fixed_dictionaries({"segments": st.booleans(), "zero": st.sampled_from([0, 1, 3])}),
    st.sampled_from(NETWORKS), st.sampled_from([{}, {"frozen": True}]),
)  # fmt: skip
def test_equal_grids_are_the_step_without_grids_to_the_nanosecond(
    sizes: dict[str, int], ranks: tuple[int, int], schedule: str, costs: dict[str, Any],
    network: dict[str, Any], frozen: dict[str, Any],
) -> None:  # fmt: skip
    parallel = {"pp": ranks[0], **sizes}
    one, two = (
        on_grid(encoder, parallel | grid, schedule=schedule, costs={"name": "roofline", **costs}, **network)
        for encoder, grid in (
            ({"stages": ranks[1], **frozen}, {}), (frozen, {"encoder": {"pp": ranks[1], **sizes}})
        )
    )  # fmt: skip

    assert (one.timeline.start_ns == two.timeline.start_ns).all()
    assert (one.timeline.end_ns == two.timeline.end_ns).all()
    assert (one.timeline.size_bytes == two.timeline.size_bytes).all()
    assert (one.metrics.memory.peak_bytes == two.metrics.memory.peak_bytes).all()
    assert one.metrics.mfu == two.metrics.mfu


def test_each_module_has_the_costs_of_its_grid() -> None:
    apart = on_grid({}, {"pp": 3, "tp": 4, "dp": 2, "encoder": {"pp": 1, "tp": 2, "dp": 4}})
    encoder = on_grid(
        {"stages": 1}, {"pp": 3, "tp": 2, "dp": 4}, batch={"microbatches": 4, "sequence": 2048, "micro": 2}
    )
    decoder = on_grid({"stages": 1}, {"pp": 3, "tp": 4, "dp": 2})

    work = apart.prepared.workload
    for stages, alone in ((slice(0, 1), encoder.prepared.workload), (slice(1, 3), decoder.prepared.workload)):
        for name in ("f_ns", "b_ns", "activation_bytes", "weights_bytes", "optimizer_bytes", "optimizer_ns"):
            assert (getattr(work, name)[stages] == getattr(alone, name)[stages]).all(), name
    peaks = [run.metrics.memory.peak_bytes.tolist() for run in (apart, encoder, decoder)]
    assert peaks[0] == [peaks[1][0], *peaks[2][1:]]
    assert work.model_flops == decoder.prepared.workload.model_flops
    assert work.peak_flops == decoder.prepared.workload.peak_flops  # both grids have eight devices per rank
    # Two sequences of 128 projected tokens: four flows reach both copies forward, and halves go back.
    whole = 2 * PROJECTED * 1024 * 2
    assert work.edge_bytes[:, 0].tolist() == [whole, whole // 2]


def test_a_trace_names_the_ranks_of_the_encoder_and_has_the_messages_between_the_grids(tmp_path: Path) -> None:
    run = on_grid({}, {"pp": 3, "tp": 4, "dp": 2, "encoder": {"pp": 1, "tp": 2, "dp": 4}})

    run.save(tmp_path / "step.json", tmp_path / "step.pftrace")

    events = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names >= {"rank 0 (encoder)", "rank 1", "rank 2"}
    assert b"rank 0 (encoder)" in (tmp_path / "step.pftrace").read_bytes()
    sent = {
        (event["args"]["rank"], event["args"]["peer"], event["args"]["bytes"])
        for event in events if event["name"].startswith("SEND") and "bytes" in event.get("args", {})
    }  # fmt: skip
    whole = 2 * PROJECTED * 1024 * 2
    assert {message for message in sent if 0 in message[:2]} == {(0, 1, whole), (1, 0, whole // 2)}


@pytest.mark.parametrize(("replicas", "pairs"), [(1, [(1, 2), (1, 6)]), (2, [(1, 4), (3, 8)])])
def test_leaders_exchange_messages_and_broadcast_them(replicas: int, pairs: list[tuple[int, int]]) -> None:
    pieces, leaders = (
        on_grid({}, {"pp": 3, "tp": 4, "dp": 2, "encoder": {"pp": 1, "tp": 2, "dp": replicas, "bridge": bridge}})
        for bridge in ("pieces", "leaders")
    )

    job, work, plain = leaders.prepared.job, leaders.prepared.workload, pieces.prepared.workload
    assert job is not None
    first, second = (np.full(1, rank, dtype=np.int32) for rank in (0, 1))
    ends = job._flows(first, second)[:2]  # noqa: SLF001 - paths do not name GPUs
    assert list(zip(*(side.tolist() for side in ends), strict=True)) == pairs
    # A decoder's replica has four sequences, and its leader gets all of their projected tokens at once.
    assert work.edge_bytes[:, 0].tolist() == [4 * PROJECTED * 1024 * 2] * 2
    added = work.f_ns - plain.f_ns, work.b_ns - plain.b_ns
    assert [list(times > 0) for times in added] == [[False, True, False], [True, False, False]]
    assert added[0][1] == work.f_collective_ns[1] - plain.f_collective_ns[1]


def test_plans_compare_the_encoders_sizes_on_the_decoders_gpus() -> None:
    config = {
        "model": {**DECODER, **GRID}, "cluster": {"preset": "dgx-h100", "gpus": 8, "nodes": 1},
        "batch": {"micro": 1, "sequence": 2048}, "parallel": {"encoder": {}},
    }  # fmt: skip
    vary = ["parallel.encoder.tp=1,2", "pp=1", "tp=2", "zero=1", "micro=1", "schedule=1f1b", "recompute=none"]
    found = plan(config, gpus=8, sets=["batch.global=8"], vary=vary, framework="any", robust=False, workers=1)

    sizes = {row["settings"]["parallel.encoder.tp"] for row in found.to_dict()["places"]}
    assert sizes == {1, 2}


@pytest.mark.parametrize(("grid", "kind"), [({"tp": 1, "dp": 8}, Kind.F), ({"tp": 8, "dp": 1}, Kind.B)])
def test_an_encoder_on_the_decoders_devices_gathers_what_its_replicas_divide(
    grid: dict[str, int], kind: Kind
) -> None:
    costs = {"name": "roofline", "segments": True}
    run = on_grid({}, {"pp": 2, "tp": 4, "dp": 2, "encoder": grid}, costs=costs)
    same = on_grid({}, {"pp": 2, "tp": 4, "dp": 2, "encoder": {"tp": 4}}, costs=costs)

    work, plain = run.prepared.workload, same.prepared.workload
    gathers = {
        name: [part for part in work.segments[name][0] if part.name == "reshard"] for name in (Kind.F, Kind.B)
    }
    assert {name: len(parts) for name, parts in gathers.items()} == {Kind.F: 0, Kind.B: 0} | {kind: 1}
    assert gathers[kind][0].duration_ns > 0
    assert (work.f_ns[1:] == plain.f_ns[1:]).all()
    assert (work.boundary_bytes == plain.boundary_bytes).all()
    assert run.metrics.ranks == 2
    # Without tensor parallelism, a device has all weights of the encoder, and Adam's state of an eighth.
    shares = (work.weights_bytes[0] - plain.weights_bytes[0], plain.weights_bytes[0])
    assert shares[0] > 0 if grid["tp"] == 1 else shares[0] < 0


@pytest.mark.parametrize(("parallel", "said"), [
    ({"encoder": {"pp": 3}}, "pp: parallel.pp has 3 ranks with those of the encoder, and 3 leave"),
    ({"encoder": {"pp": 1, "dp": 3}}, "parallel.encoder.dp: 3 does not divide the items of a microbatch"),
    ({"encoder": {"pp": 1, "tp": 16}}, "parallel.encoder.tp: 16 does not divide model.encoder.heads (8)"),
    ({"encoder": {"tp": 2, "dp": 2}}, "dp 2 x cp 1 x tp 2 need 4 GPUs, and the decoder's first stage has 8"),
    ({"encoder": {"bridge": "leaders"}}, "parallel.encoder.bridge: an encoder on the decoder's GPUs sends no"),
    ({"encoder": {"pp": 1, "dp": 3, "bridge": "leaders"}}, "neither dp 2 nor the encoder's dp 3 divides the"),
    ({"encoder": {"pp": 1, "cp": 2, "bridge": "leaders"}}, "leaders send whole sequences, and cp is 1 (encoder"),
    ({"encoder": {"tp": 2, "cp": 2}}, "parallel.encoder.cp: 2, and the GPUs that it shares have parallel.cp 1"),
    ({"encoder": {"pp": 2, "dp": 0}}, "parallel.encoder.dp: must be at least 1, not 0"),
    ({"pp": 2, "vp": 2, "encoder": {"pp": 1}}, "has stage 2 on rank 0, and the first 1 ranks have"),
    ({"nodes": 3, "encoder": {"pp": 1, "dp": 8}}, "need 48 GPUs, and 3 nodes of 8 GPUs are 24"),
])  # fmt: skip
def test_a_grid_that_does_not_fit_is_one_line(parallel: dict[str, Any], said: str) -> None:
    cluster = {"preset": "dgx-h100"} | {key: parallel[key] for key in ("nodes",) if key in parallel}
    sizes = {"pp": 3, "tp": 4, "dp": 2} | {key: value for key, value in parallel.items() if key != "nodes"}
    schedule = "interleaved-1f1b" if "vp" in sizes else "1f1b"
    with pytest.raises(PptraceError) as refused:
        on_grid({}, sizes, cluster=cluster, schedule=schedule)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


AUDIO = {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "tokens": 128, "items": 4, "merge": 2}
BOTH = {"vision": VISION, "audio": AUDIO}
SEPARATE = {"vision": {"pp": 2, "tp": 2, "dp": 4}, "audio": {"pp": 1, "tp": 1, "dp": 2}}


def several(encoders: dict[str, Any], parallel: dict[str, Any], **sections: Any) -> Run:
    """Return the step of :func:`on_grid` with encoders by name."""
    model = {**DECODER, **GRID, "encoder": None, "encoders": encoders}
    return on_grid({}, {"tp": 4, "dp": 2, **parallel}, **{"model": model, **sections})


@pytest.mark.parametrize("grid", [{"pp": 1, "tp": 2, "dp": 4}, {"tp": 1}, {"pp": 1, "dp": 2, "bridge": "leaders"}])
def test_an_encoder_with_a_name_has_the_step_of_one_without(grid: dict[str, Any]) -> None:
    plain = on_grid({}, {"pp": 3, "tp": 4, "dp": 2, "encoder": grid})
    named = several({"vision": VISION}, {"pp": 3, "encoders": {"vision": grid}})

    assert (plain.timeline.start_ns == named.timeline.start_ns).all()
    assert (plain.timeline.end_ns == named.timeline.end_ns).all()
    assert (plain.metrics.memory.peak_bytes == named.metrics.memory.peak_bytes).all()
    assert plain.metrics.mfu == named.metrics.mfu


ALIKE = {"name": "roofline", "spread": 0}
"""Costs that do not depend on the number of GPUs of a job."""
COSTS = (
    "f_ns", "b_ns", "i_ns", "w_ns", "activation_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes",
    "optimizer_ns", "checkpoint_bytes",
)  # fmt: skip


@pytest.mark.parametrize("frozen", [{}, {"frozen": True, "frozen_projector": True}])
def test_each_of_several_encoders_has_the_costs_and_messages_that_it_has_alone(frozen: dict[str, bool]) -> None:
    encoders, network = {"vision": VISION, "audio": {**AUDIO, **frozen}}, {**NETWORKS[1], "costs": ALIKE}
    both = several(encoders, {"pp": 5, "encoders": SEPARATE}, **network).prepared.workload
    parallel = [{"pp": 2 + grid["pp"], "encoders": {name: grid}} for name, grid in SEPARATE.items()]
    vision, audio, decoder = (
        several(named, sizes, **network).prepared.workload
        for named, sizes in zip(
            [*({name: encoders[name]} for name in SEPARATE), {}], [*parallel, {"pp": 2}], strict=True
        )
    )

    for name in COSTS:
        parts = getattr(vision, name)[:2], getattr(audio, name)[:1], getattr(vision, name)[2:]
        assert (getattr(both, name)[:3] == np.concatenate(parts)[:3]).all(), name
        assert (getattr(both, name)[4:] == np.concatenate(parts)[4:]).all(), name
    assert both.model_flops + decoder.model_flops == vision.model_flops + audio.model_flops
    sent = vision.edge_bytes[:, :2], audio.edge_bytes[:, :1], vision.edge_bytes[:, 2:]
    assert (both.edge_bytes == np.concatenate(sent, axis=1)).all()


def test_encoders_side_by_side_start_together_and_the_decoder_waits_for_the_slowest() -> None:
    sections = {"p2p": "async", "costs": ALIKE, **NETWORKS[1]}
    both = several(BOTH, {"pp": 5, "encoders": SEPARATE}, **sections)
    vision = several({"vision": VISION}, {"pp": 4, "encoders": {"vision": SEPARATE["vision"]}}, **sections)
    slow = several(
        {"vision": VISION, "audio": {**AUDIO, "layers": 400}}, {"pp": 5, "encoders": SEPARATE}, **sections
    )

    assert both.prepared.schedule.placement.edges.tolist() == [[0, 1], [1, 3], [2, 3], [3, 4]]
    first, second = (both.prepared.schedule.rows()[rank] for rank in (0, 2))
    assert [text.replace("0", "2", 1) for text in first] == second
    assert first[:4] == ["0F0", "0F1", "0F2", "0F3"]  # four ranks on the longest path, as for the vision encoder
    assert both.metrics.step_ns == vision.metrics.step_ns  # the audio encoder is faster
    work, timeline = slow.prepared.workload, slow.timeline
    assert slow.metrics.step_ns >= 4 * (work.f_ns[2] + work.b_ns[2])
    rows = [np.flatnonzero((timeline.kind == Kind.F) & (timeline.stage == stage))[0] for stage in range(5)]
    assert timeline.start_ns[rows[0]] == timeline.start_ns[rows[2]] == 0
    assert timeline.start_ns[rows[3]] > timeline.end_ns[rows[2]] > timeline.end_ns[rows[1]]


def test_encoders_without_separate_grids_follow_each_other() -> None:
    stages = {"vision": {**VISION, "stages": 2}, "audio": {**AUDIO, "stages": 1}}
    chain, common, first = (
        several(encoders, parallel, costs=ALIKE).prepared.workload
        for encoders, parallel in (
            (stages, {"pp": 5}), (BOTH, {"pp": 4, "encoder": {"pp": 2}}), (BOTH, {"pp": 2})
        )
    )  # fmt: skip

    vision, audio = 2 * PROJECTED * 1024 * 4, 2 * 4 * 64 * 1024 * 4
    assert chain.edge_bytes[0, 1:3].tolist() == [vision, vision + audio]
    assert common.edge_bytes[0].tolist()[1] == vision + audio
    assert common.edge_bytes[0, 0] == chain.edge_bytes[0, 0] + 2 * 4 * 4 * 128 * 256 // 4
    for name in ("f_ns", "activation_bytes", "weights_bytes"):
        chained, shared = getattr(chain, name), getattr(common, name)
        assert shared[:2].sum() == chained[:3].sum(), name
        assert (shared[2:] == chained[3:]).all(), name
        assert getattr(first, name)[0] == shared[:3].sum(), name
    assert chain.model_flops == common.model_flops == first.model_flops


def test_layers_per_stage_divide_an_encoder() -> None:
    def costs(split: list[int] | None) -> Workload:
        encoders = {**BOTH, "vision": {**VISION, "layers_per_stage": split}}
        return several(encoders, {"pp": 5, "encoders": SEPARATE}).prepared.workload

    even, uneven = costs(None), costs([1, 5])

    layer_ns = even.f_ns[0] // 3
    assert even.f_ns[0] - uneven.f_ns[0] == uneven.f_ns[1] - even.f_ns[1] == 2 * layer_ns
    assert (costs([3, 3]).f_ns == even.f_ns).all()
    for name in ("f_ns", "weights_bytes", "activation_bytes"):
        assert (getattr(even, name)[2:] == getattr(uneven, name)[2:]).all()
        assert getattr(even, name).sum() == getattr(uneven, name).sum()


def test_a_table_file_has_the_rows_of_encoders_side_by_side(tmp_path: Path) -> None:
    run = several(BOTH, {"pp": 5, "encoders": SEPARATE}, p2p="async")
    placement = Placement.looped(5, 4)  # files have chains of stages
    write_table(replace(run.prepared.schedule, placement=placement), tmp_path / "table.csv")

    again = several(BOTH, {"pp": 5, "encoders": SEPARATE}, schedule=str(tmp_path / "table.csv"), p2p="async")

    assert (run.timeline.start_ns == again.timeline.start_ns).all()


def test_traces_and_lists_have_the_names_of_encoders(tmp_path: Path) -> None:
    run = several(BOTH, {"pp": 5, "encoders": SEPARATE}, costs={"name": "roofline", "segments": True})

    run.save(tmp_path / "step.json", tmp_path / "step.pftrace")

    events = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names >= {"rank 0 (vision)", "rank 1 (vision)", "rank 2 (audio)", "rank 3"}
    assert b"rank 2 (audio)" in (tmp_path / "step.pftrace").read_bytes()
    work = run.prepared.workload
    segments = [{part.name for part in parts} for parts in work.segments[Kind.F]]
    assert segments[0] >= {"vision-attention", "vision-mlp"}
    assert segments[2] >= {"audio-attention", "audio-projector"}
    listed = {(row.stage, row.part) for row in (work.kernels() if work.kernels else ())}
    assert listed >= {(0, "vision"), (1, "vision-projector"), (2, "audio"), (2, "audio-projector")}
    assert "encoder vision pp 2 tp 2 dp 4, encoder audio pp 1 dp 2" in str(run)


@pytest.mark.parametrize(("encoders", "parallel", "message"), [
    (BOTH, {"encoders": {"vide": {"pp": 1}}}, "parallel.encoders.vide: the model has no encoder of this name"),
    (BOTH, {"encoders": {"v o": {"pp": 1}}}, "parallel.encoders.v o"),
    (BOTH, {"encoders": {"tp": 1}}, "parallel.encoders.tp: must be a mapping, not 1"),
    (BOTH, {"encoder": {}, "encoders": {"audio": {}}}, "parallel.encoders: parallel.encoder has the sizes of all"),
    (BOTH, {"pp": 3, "encoders": SEPARATE}, "parallel.pp has 3 ranks with those of encoders, and 3 leave none"),
    (BOTH, {"encoders": {"vision": {"pp": 1, "tp": 16}}}, "16 does not divide model.encoders.vision.heads (8)"),
    (BOTH, {"pp": 4, "vp": 2, "encoders": {name: {"pp": 1} for name in BOTH}}, "choose a schedule such as 1f1b"),
    ({**BOTH, "audio": {**AUDIO, "stages": 1}}, {"pp": 4, "encoders": {"vision": {"pp": 1}}},
     "model.encoders.audio.stages: 1, and parallel.encoders.audio.pp is 0"),
    ({**BOTH, "audio": {**AUDIO, "layers_per_stage": [2]}}, {"encoders": {"audio": {"pp": 1}}},
     f"model.encoders.audio.layers_per_stage: sums to 2, not to model.encoders.audio.layers ({AUDIO['layers']})"),
    ({**BOTH, "audio": {**AUDIO, "layers_per_stage": [2]}}, {},
     "model.encoders.audio.layers_per_stage: 1 entries for 0 stages; give one per stage"),
    ({**BOTH, "audio": {**AUDIO, "heads": 3}}, {}, "model.encoders.audio.heads: 3 do not divide hidden (256)"),
])  # fmt: skip
def test_a_wrong_encoder_among_several_is_one_line(
    encoders: dict[str, Any], parallel: dict[str, Any], message: str
) -> None:
    with pytest.raises(PptraceError) as refused:
        several(encoders, {"pp": 5, **parallel}, schedule="interleaved-1f1b" if "vp" in parallel else "1f1b")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@settings(max_examples=2)
@given(
    st.sampled_from([3, 4]), st.sampled_from(["1f1b", "gpipe", "zb-h1"]), st.integers(1, 9),
    st.sampled_from([[1], [0, 1], [1, 2]]), st.sampled_from([{}, {"audio": AUDIO}]),
)  # fmt: skip
def test_a_plan_divides_the_gpus_between_encoders_and_decoder_as_an_exhaustive_search(
    gpus: int, schedule: str, layers: int, encoder_ranks: list[int], audio: dict[str, Any]
) -> None:
    """All sizes of encoder and decoder whose processes are the GPUs are simulated one by one."""
    section = "parallel.encoders.vision" if audio else "parallel.encoder"
    vision = {**VISION, "layers": 2 * layers, "items": 12}
    encoders = {"encoders": {"vision": vision, **audio}} if audio else {"encoder": vision}
    separate = {"encoders": {"audio": {"pp": 1, "tp": 1, "cp": 1, "dp": 1}}} if audio else {}
    config = {
        "model": {**DECODER, **GRID, "encoder": None, **encoders}, "parallel": separate, **NETWORKS[1],
        "device": "h100-sxm", "batch": {"sequence": 2048, "micro": 1, "global": 12}, "p2p": "async",
        "costs": {"name": "roofline", "zero": 1}, "schedule": schedule,
    }  # fmt: skip
    vary = [f"{section}.pp={','.join(map(str, encoder_ranks))}", f"schedule={schedule}", "micro=1", "zero=1",
            "recompute=none", "layers=even", "vp=1"]  # fmt: skip
    found = plan(config, gpus=gpus, vary=vary, framework="any", robust=False, workers=1, top=3)

    steps = []
    sizes = range(1, gpus + 1)
    for pp, tp, dp, ranks in product(sizes, sizes, sizes, encoder_ranks):
        for grid in product(sizes, [1, 2, 4]) if ranks else [(None, None)]:
            sections = {"pp": ranks, "tp": grid[0], "dp": grid[1]}
            sets = [f"{section}.{name}={size}" for name, size in sections.items() if size is not None]
            parallel = {"pp": pp, "tp": tp, "dp": dp, "sequence_parallel": tp > 1}
            try:
                resolved = load({**config, "parallel": {**separate, **parallel}}, sets)
                if resolved.experiment.parallel.processes == gpus:
                    steps.append(Run.of(prepare(resolved, REGISTRY), REGISTRY).metrics.step_ns)
            except PptraceError:
                continue
    places = sorted({row["step_ns"] for row in found.to_dict()["places"]})
    assert places == sorted({*steps})[: len(places)]
    assert len(places) > 0


def ran(encoder: dict[str, Any], schedule: str, **sections: Any) -> Run:
    model = {**DECODER, "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
    chunks = 1 if schedule in {"1f1b", "gpipe", "zb-h1"} else 2
    return Run.of(prepare(load({
        "model": {**model, "encoder": {**VISION, **encoder}}, "parallel": {"pp": 2, "vp": chunks, "tp": 2},
        "batch": {"microbatches": 8, "sequence": 2048}, "schedule": schedule, "device": "h100-sxm", **sections,
    }), REGISTRY), REGISTRY)  # fmt: skip


def test_pairs_hide_its_collectives() -> None:
    parts, whole = (
        ran({"stages": 2}, "dualpipe-v", costs={"name": "roofline", "segments": segments})
        for segments in (None, False)
    )
    hidden = {group.stream: int(group.hidden_ns.sum()) for group in parts.metrics.groups}

    assert hidden[Stream.TENSOR_PARALLEL] > 0
    assert parts.metrics.step_ns < whole.metrics.step_ns


@pytest.mark.parametrize("options", [{}, {"zero": 1, "kernels": "shapes"}])
def test_frozen_layers_have_weights_and_a_forward_alone(
    costs: Callable[..., Workload], options: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = {"stages": 6, "stages_of_its_own": 2, "dp": 2, "tp": 2, "options": options}
    trained, frozen = seen(costs, **sizes), seen(costs, frozen=True, **sizes)

    for name in ("f_ns", "weights_bytes", "boundary_bytes"):
        assert (getattr(trained, name) == getattr(frozen, name)).all(), name
    for name in ("b_ns", "i_ns", "w_ns", "activation_bytes", "weight_activation_bytes", "gradients_bytes",
                 "optimizer_bytes", "reduce_ns", "optimizer_ns", "recompute_ns", "checkpoint_bytes"):  # fmt: skip
        assert getattr(frozen, name)[0] == 0 <= getattr(trained, name)[0], name
        assert (getattr(frozen, name)[2:] == getattr(trained, name)[2:]).all(), name
    assert frozen.boundary_gradient_bytes.tolist() == [0, *trained.boundary_bytes[1:]]
    assert frozen.gradients_bytes[1] == 4 * PROJECTOR // 2
    assert frozen.activation_bytes[1] == 2 * PROJECTED * (4 * 512 + 1024 // 2)
    assert 0 < frozen.i_ns[1] < frozen.w_ns[1] < trained.w_ns[1]
    listed = frozen.kernels() if frozen.kernels else ()
    backward = {(item.kind, item.part) for item in listed if item.stage < 2 and item.kind is not Kind.F}
    assert {item for item in backward if item[1] != "all"} == {(Kind.I, "projector"), (Kind.W, "projector")}


def test_a_frozen_projector_passes_gradients_to_layers_that_are_trained(costs: Callable[..., Workload]) -> None:
    sizes = {"stages": 6, "stages_of_its_own": 2}
    trained, passing = seen(costs, **sizes), seen(costs, frozen_projector=True, **sizes)

    assert (passing.i_ns == trained.i_ns).all()
    assert trained.gradients_bytes[1] - passing.gradients_bytes[1] == 4 * PROJECTOR
    assert trained.activation_bytes[1] - passing.activation_bytes[1] == 2 * PROJECTED * 4 * 512
    assert passing.weight_activation_bytes[1] == trained.weight_activation_bytes[0]
    assert passing.boundary_gradient_bytes.size == 0
    both = seen(costs, frozen=True, frozen_projector=True, **sizes)
    assert both.b_ns[:2].tolist() == both.activation_bytes[:2].tolist() == [0, 0]
    assert both.boundary_gradient_bytes[:2].tolist() == [0, 0]


@pytest.mark.parametrize(("frozen", "projector"), FROZEN)
def test_model_flops_are_those_of_what_is_needed(
    costs: Callable[..., Workload], *, frozen: bool, projector: bool
) -> None:
    tokens, sequences = 8 * ITEM, 8
    layers = 6 * (2 * tokens * (4 * 512 * 512 + 2 * 512 * 2048) + 4 * tokens * 256 * 512)
    first, second = (2 * sequences * PROJECTED * 1024 * inputs for inputs in (4 * 512, 1024))
    back = first + second if not frozen else second * (not projector)
    weight = (first + second) * (not projector)

    found = seen(costs, frozen=frozen, frozen_projector=projector).model_flops - costs(DECODER).model_flops
    assert found == layers * (1 if frozen else 3) + first + second + back + weight


def test_frozen_weights_are_sharded_and_gathered_as_others_are(costs: Callable[..., Workload]) -> None:
    sizes: dict[str, Any] = {"stages": 6, "stages_of_its_own": 2, "dp": 4, "options": {"zero": 3}}
    network = {"rate_kbps": 25_000_000, "latency_ns": 5_000}
    trained, frozen = (seen(costs, frozen=own, data_parallel=network, **sizes) for own in (False, True))

    for name in ("weights_bytes", "gathered_bytes", "unshard_ns"):
        assert getattr(frozen, name)[0] == getattr(trained, name)[0] > 0, name
    assert (frozen.unreduced_bytes[0], frozen.reduce_ns[0]) == (0, 0)
    assert frozen.unshard_ns[1] == trained.unshard_ns[1]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_every_schedule_runs_stages_without_a_backward(schedule: str) -> None:
    run = ran({"stages": 1, "frozen": True, "frozen_projector": True}, schedule)
    work, step = run.prepared.workload, run.metrics.step_ns

    assert work.b_ns[0] == work.activation_bytes[0] == 0
    if schedule == "1f1b":
        assert step == work.f_ns[0] + 8 * (work.f_ns[1] + work.b_ns[1]) + work.optimizer_ns[1]
        assert run.metrics.memory.peak_activation_bytes[0] == 0


@pytest.mark.parametrize(("own", "sizes", "said"), [
    ({"heads": 7}, {}, "model.encoder.heads: 7 do not divide hidden (512)"),
    ({"merge": 3}, {}, "model.encoder.merge: 3 does not divide tokens x items (512)"),
    ({"stages_of_its_own": 7}, {}, "model.encoder.stages: 7 are more than layers (6)"),
    ({"stages_of_its_own": 4}, {}, "model.encoder.stages: 4 of 4 stages leave none for the decoder"),
    ({"heads": 4}, {"tp": 8}, "parallel.tp: 8 does not divide model.encoder.heads (4)"),
    ({"frozen": 2}, {}, "model.encoder.frozen: must be true or false, not 2"),
    ({"layers": 0}, {}, "model.encoder.layers: must be at least 1, not 0"),
])  # fmt: skip
def test_a_wrong_encoder_is_one_line(
    costs: Callable[..., Workload], own: dict[str, Any], sizes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PptraceError) as refused:
        seen(costs, **own, **sizes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
