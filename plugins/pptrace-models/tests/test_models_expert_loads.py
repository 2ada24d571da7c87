"""Tokens of each expert: files, traces and distributions, their fullest devices, and balanced placements."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pptrace
from pptrace.plugin import ConfigError, ConstraintError
from pptrace.search.what_if import whatif
from pptrace.traces.perfetto.reader import read
from pptrace_models.expert_loads import _WORKLOADS, MOST_CLASSES, MOST_IN_PAIRS, _routings, balanced_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pptrace.steps.workload import Workload

MOE: dict[str, Any] = {"num_experts": 8, "top_k": 2, "expert_ffn": 512}
SIZES = {"dp": 4, "ep": 4}
COLUMNS = ("f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "activation_bytes", "weight_activation_bytes")
EVEN, DOUBLE = [10] * 8, [40, 0, 10, 10, 5, 5, 5, 5]
"""Tokens of experts; with two experts on each of four devices, the fullest has the mean and twice the mean."""

Rows = list[tuple[int, ...]]


def table(path: Path, head: str, rows: Rows) -> str:
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return str(path)


def by_microbatch(*loads: Sequence[int]) -> Rows:
    return [(number, *pair) for number, tokens in enumerate(loads) for pair in enumerate(tokens)]


def same(costs: Workload, other: Workload) -> bool:
    return all((getattr(costs, name) == getattr(other, name)).all() for name in COLUMNS)


def test_equal_loads_are_the_costs_without_loads(costs: Callable[..., Workload], tmp_path: Path) -> None:
    file = table(tmp_path / "loads.csv", "microbatch,expert,tokens", by_microbatch(EVEN, [7] * 8))
    plain = costs(MOE, **SIZES)
    for name in ("uniform", "W0", file):
        loaded = costs({**MOE, "expert_load": name}, **SIZES)
        assert same(loaded, plain)
        assert not loaded.classes


def test_microbatches_have_the_costs_of_their_fullest_device(
    costs: Callable[..., Workload], tmp_path: Path
) -> None:
    file = table(tmp_path / "loads.csv", "microbatch,expert,tokens", by_microbatch(EVEN, DOUBLE, DOUBLE))
    loaded = costs({**MOE, "expert_load": {"name": file}}, **SIZES)
    even, double = costs(MOE, **SIZES), costs({**MOE, "imbalance": 2.0}, **SIZES)
    for microbatch in range(8):  # a fourth microbatch repeats the first
        assert same(loaded.of_microbatch(microbatch), double if microbatch % 3 else even)
    assert (even.f_ns < loaded.f_ns).all()
    assert (loaded.f_ns < double.f_ns).all()
    assert loaded.tokens == even.tokens
    assert "2.00 (layer 0, microbatch 1)" in loaded.notes[-1]


def test_the_fullest_device_receives_more_tokens_than_it_sends(costs: Callable[..., Workload]) -> None:
    even, double = costs(MOE, **SIZES), costs({**MOE, "imbalance": 2.0}, **SIZES)
    assert (double.f_collective_ns > even.f_collective_ns).all()
    assert same(costs({**MOE, "imbalance": 1.0}, **SIZES), even)


def test_layers_and_sources_of_a_file_differ(costs: Callable[..., Workload], tmp_path: Path) -> None:
    rows = [(layer, *pair) for layer in range(8) for pair in enumerate(DOUBLE if layer > 1 else EVEN)]
    layered = costs({**MOE, "expert_load": table(tmp_path / "a.csv", "layer,expert,tokens", rows)}, **SIZES)
    even, double = costs(MOE, **SIZES), costs({**MOE, "imbalance": 2.0}, **SIZES)
    assert layered.f_ns[0] == even.f_ns[0]
    assert layered.f_ns[1:].tolist() == double.f_ns[1:].tolist()
    sources = [(source, expert, 25 if source == 3 else 5) for source in range(4) for expert in range(8)]
    ragged = costs({**MOE, "expert_load": table(tmp_path / "b.csv", "source,expert,tokens", sources)}, **SIZES)
    assert (ragged.f_collective_ns > even.f_collective_ns).all()
    assert ragged.activation_bytes.tolist() == even.activation_bytes.tolist()


def test_a_capacity_limits_loads_and_padding_makes_them_equal(
    costs: Callable[..., Workload], tmp_path: Path
) -> None:
    rows = [*enumerate([20, 20, 10, 10, 5, 5, 5, 5])]
    load = {"expert_load": table(tmp_path / "loads.csv", "expert,tokens", rows)}
    padded = costs({**MOE, **load, "capacity": 1.5}, **SIZES)
    assert same(padded, costs({**MOE, "capacity": 1.5}, **SIZES))
    limited = costs({**MOE, **load, "capacity": 1.5, "capacity_padding": False}, **SIZES)
    busy = costs({**MOE, "imbalance": 1.5}, **SIZES)
    assert limited.f_collective_ns.tolist() == busy.f_collective_ns.tolist()
    assert limited.activation_bytes.tolist() == busy.activation_bytes.tolist()
    assert (limited.f_ns < busy.f_ns).all()  # devices permute fewer tokens
    ample = costs({**MOE, "capacity": 2.0, "capacity_padding": False}, **SIZES)
    assert same(ample, costs(MOE, **SIZES))


@given(st.sampled_from(sorted(_WORKLOADS)), st.integers(1, 8), st.integers(0, 12))
def test_tokens_of_a_workload_have_different_experts(name: str, top_k: int, step: int) -> None:
    tokens, experts = 100, 8
    loads = _routings(np.random.default_rng(1), _WORKLOADS[name](experts, top_k, tokens, step), top_k, experts)
    counts = loads * tokens * top_k / experts
    assert np.allclose(counts.sum(axis=1), tokens * top_k)
    assert counts.max() <= tokens + 1e-6


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [("W1", 0, 3.25), ("W2", 0, 3.25), ("W3", 0, 1.75), ("W4", 0, 1.0), ("W5", 0, 2.0), ("W6", 4, 3.25),
     ("W7", 2, 1.0), ("W7", 3, 2.5)],
)  # fmt: skip
def test_workloads_have_the_loads_of_their_construction(name: str, step: int, expected: float) -> None:
    loads = _routings(np.random.default_rng(1), _WORKLOADS[name](8, 2, 10**6, step), 2, 8)
    assert loads.max() == pytest.approx(expected, abs=0.02)
    assert int(loads.mean(axis=0).argmax()) in (
        {2, 3} if name == "W6" else {4, 5, 6, 7} if name == "W5" else range(8)
    )


def test_random_loads_are_seeded_and_have_few_kinds(costs: Callable[..., Workload]) -> None:
    load = {"name": "lognormal", "drift": 0.5, "sigma": 1.0}
    first, again, other = (
        costs({**MOE, "expert_load": {**load, "seed": seed}}, microbatches=400, **SIZES) for seed in (1, 1, 2)
    )
    assert same(first, again)
    assert not same(first, other)
    assert len(first.classes) == MOST_CLASSES
    paired = costs({**MOE, "expert_load": load}, microbatches=400, has_pairs=True, **SIZES)
    assert len(paired.classes) == MOST_IN_PAIRS
    steady = costs({**MOE, "expert_load": {"name": "zipf", "exponent": 2.0}}, **SIZES)
    assert not steady.classes
    assert (steady.f_ns > costs(MOE, **SIZES).f_ns).all()


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(0, 4))
def test_replicas_go_to_the_fullest_experts(tokens: list[int], redundant: int) -> None:
    loads, slots = np.array(tokens, dtype=float), 4 + redundant
    shares = balanced_placement(loads, 1, slots)
    assert shares[0].tolist() == pytest.approx([1.0] * 4)
    placed = balanced_placement(loads, slots, slots)  # a slot on each device
    assert ((placed > 0).sum(axis=1) == 1).all()
    choices = combinations_with_replacement(range(4), redundant)
    best = min((loads / (1 + np.bincount(extra, minlength=4))).max() for extra in map(list, choices))
    assert (placed @ loads).max() == pytest.approx(best)


def test_a_balanced_placement_is_planned_for_the_step_before(
    costs: Callable[..., Workload], tmp_path: Path
) -> None:
    halves = [[30, 30, 1, 1, 1, 1, 8, 8], [30, 1, 1, 1, 30, 1, 8, 8]]
    rows = [(step, *pair) for step, tokens in enumerate(halves) for pair in enumerate(tokens)]
    name = table(tmp_path / "loads.csv", "step,expert,tokens", rows)
    load = {"name": name, "placement": "balanced"}
    own, stale = (costs({**MOE, "expert_load": {**load, "step": step}}, **SIZES) for step in (0, 1))
    blocks = costs({**MOE, "expert_load": {"name": name}}, **SIZES)
    assert (own.f_ns < stale.f_ns).all()
    assert (own.f_ns < blocks.f_ns).all()
    assert own.weights_bytes.tolist() == blocks.weights_bytes.tolist()
    assert "upper bound" in own.notes[-1]
    assert "planned for those of step 0" in stale.notes[-1]


def test_replicas_of_experts_take_memory_of_weights(costs: Callable[..., Workload]) -> None:
    load = {"name": "W1", "placement": "balanced"}
    without, doubled = (costs({**MOE, "expert_load": {**load, "redundant": count}}, **SIZES) for count in (0, 8))
    expert = 2 * 1024 * 512 * 2  # two matrices, two bytes
    assert (doubled.weights_bytes - without.weights_bytes).tolist() == [2 * 2 * expert] * 4
    assert doubled.optimizer_bytes.tolist() == without.optimizer_bytes.tolist()
    assert (doubled.f_ns < without.f_ns).all()


def tensor_file(values: np.ndarray[Any, Any], storage: str = "LongStorage") -> bytes:
    """Return a file as ``torch.save`` writes it for a contiguous tensor."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def numbers(*items: int) -> bytes:
        return b"(" + b"".join(b"J" + item.to_bytes(4, "little") for item in items) + b"t"

    stored = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text("0") + text("cpu")
    stored += b"J" + values.size.to_bytes(4, "little") + b"tQ"
    pickled = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + stored + b"K\x00" + numbers(*values.shape)
    pickled += numbers(values.shape[1], 1) + b"\x89ccollections\nOrderedDict\n)RtR."
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("expert_ids/data.pkl", pickled)
        archive.writestr("expert_ids/data/0", values.tobytes())
        archive.writestr("expert_ids/byteorder", "little")
    return written.getvalue()


def trace(folder: Path, ids: list[list[int]], storage: str = "LongStorage", **places: int) -> None:
    (folder / "tensors").mkdir(parents=True)
    places = {"logical_layer_id": 0, "microbatch_id": 0, "step_id": 0, "num_experts": 8, **places}
    manifest = {**places, "tensors": {"expert_ids": {"file": "tensors/expert_ids.pt"}}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "tensors/expert_ids.pt").write_bytes(tensor_file(np.array(ids, dtype=np.int64), storage))


def test_traces_of_megatron_lm_are_read_without_pytorch(costs: Callable[..., Workload], tmp_path: Path) -> None:
    pairs = [[0, 2], [0, 3], [0, 4], [0, 5]]
    trace(tmp_path / "all/first", [[0, 1], [2, 3], [4, 5], [6, 7]])
    trace(tmp_path / "all/second", pairs, microbatch_id=1)
    loaded = costs({**MOE, "expert_load": str(tmp_path / "all")}, **SIZES)
    double = costs({**MOE, "imbalance": 2.0}, **SIZES)
    assert same(loaded.of_microbatch(0), costs(MOE, **SIZES))
    assert same(loaded.of_microbatch(1), double)
    assert same(costs({**MOE, "expert_load": str(tmp_path / "all/second")}, **SIZES), double)
    trace(tmp_path / "all/third", pairs, microbatch_id=1)
    trace(tmp_path / "evil", pairs, storage="system")
    for folder, reason in (("all", "are both of layer 0, microbatch 1 and step 0"), ("evil", "is not part of")):
        with pytest.raises(ConfigError, match=reason):
            costs({**MOE, "expert_load": str(tmp_path / folder)}, **SIZES)


def test_parquet_is_read_as_csv(costs: Callable[..., Workload], tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = by_microbatch(EVEN, DOUBLE)
    names = ["microbatch", "expert", "tokens"]
    pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), tmp_path / "loads.parquet")
    files = [table(tmp_path / "loads.csv", ",".join(names), rows), str(tmp_path / "loads.parquet")]
    from_csv, from_parquet = (costs({**MOE, "expert_load": file}, **SIZES) for file in files)
    assert same(from_csv.of_microbatch(1), from_parquet.of_microbatch(1))


@pytest.mark.parametrize(
    ("load", "content", "line"),
    [
        (
            "zipff",
            "",
            "zipff cannot be read (No such file or directory), and is not a distribution (did you mean 'zipf'?",
        ),
        ({"name": "FILE", "step": 3}, "step,expert,tokens\n0,0,1\n", "has no step 3, but 0"),
        ("FILE", "expert,tokens\n8,1\n", "loads.csv: row 2: expert 8: there are 8, 0 to 7 (model.num_experts)"),
        ("FILE", "layer,expert,tokens\n0,0,1\n", "has no layer 1, which has experts; it has 0"),
        ("FILE", "microbatch,expert,tokens\n0,0,1\n1,0,0\n", "has no tokens in layer 0 of microbatch 1"),
        ("FILE", "source,expert,tokens\n0,0,1\n", "has 1 sources, and parallel.ep is 4"),
        ("FILE", "expert,count\n0,1\n", "has no column tokens; its columns are expert, count"),
        ("FILE", "expert,tokens\n", "has no rows"),
        ("FILE", "expert,tokens\n0,1\n\n0,-1\n", "loads.csv: row 4: tokens is -1: write a whole number from 0"),
        ("FILE", "expert,tokens\n0,many\n", "is not a table of whole numbers"),
        ({"name": "zipf", "redundant": 4}, "", "write placement: balanced beside it"),
        (
            {"name": "zipf", "placement": "balanced", "redundant": 3},
            "",
            "3 replicas do not fill the 4 devices",
        ),
    ],
)
def test_loads_that_cannot_be_read_are_one_line(
    costs: Callable[..., Workload], tmp_path: Path, load: Any, content: str, line: str
) -> None:
    file = tmp_path / "loads.csv"
    file.write_text(content, encoding="utf-8")
    named = json.loads(json.dumps(load).replace("FILE", str(file)))
    with pytest.raises((ConfigError, ConstraintError)) as caught:
        costs({**MOE, "expert_load": named}, **SIZES)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loads_contradict_a_constant_imbalance_and_dense_models(costs: Callable[..., Workload]) -> None:
    for values, line in (
        ({**MOE, "expert_load": "W1", "imbalance": 2.0}, "defines the same as imbalance"),
        ({"expert_load": "W1"}, "belongs to experts"),
        ({**MOE, "capacity_padding": False}, "give capacity, too"),
    ):
        with pytest.raises(ConfigError, match=line):
            costs(values)


def test_balanced_experts_are_between_their_blocks_and_even_numbers_of_tokens() -> None:
    model = {
        "layers": 4,
        "hidden": 1024,
        "heads": 8,
        "ffn": 4096,
        "vocabulary": 32000,
        "num_experts": 8,
        "top_k": 2,
    }
    sizes = {"device": "h100-sxm", "schedule": "1f1b", "stack": "ideal", "pp": 2, "dp": 4, "ep": 4}
    load = {"name": "lognormal", "sigma": 1.0, "drift": 0.2}

    def simulated(**values: Any) -> Any:
        return pptrace.simulate(model={**model, **values}, microbatches=4, sequence=4096, **sizes)

    rows = {row.name: row for row in whatif(simulated(expert_load={**load, "step": 1}), balance_experts=True).rows}
    assert rows["even experts"].step_ns == simulated().metrics.step_ns
    gains = [row.saved_ns for name, row in rows.items() if "experts" in name]
    assert len(gains) == 4
    assert all(0 < gain <= rows["even experts"].saved_ns for gain in gains)
    assert rows["balanced experts"].note.startswith("the placement is planned for the loads of step 0; peak")
    with pytest.raises(ConfigError, match="expert_load: missing"):
        whatif(simulated(), balance_experts=True)


def test_lengths_and_loads_of_microbatches_combine(tmp_path: Path) -> None:
    model = {**MOE, "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 32000}
    sizes: dict[str, Any] = {"device": "h100-sxm", "schedule": "1f1b", "stack": "ideal", "pp": 2, **SIZES}
    file = table(tmp_path / "loads.csv", "microbatch,expert,tokens", by_microbatch(EVEN, EVEN, DOUBLE))
    lengths = [1024, 2048, 2048, 1024, 1024, 2048]
    batch = {"microbatches": 3, "lengths": [*lengths, *lengths], "replica": 1}
    run = pptrace.simulate(model={**model, "expert_load": file}, batch=batch, **sizes)
    for microbatch, imbalance in enumerate((1.0, 1.0, 2.0)):
        alone = pptrace.simulate(
            model={**model, "imbalance": imbalance}, sequence=lengths[3 + microbatch], microbatches=3, **sizes
        )
        assert same(run.prepared.workload.of_microbatch(microbatch), alone.prepared.workload)


@pytest.mark.parametrize("schedule", ["1f1b", "combined-1f1b"])
def test_traces_name_the_file_and_the_load_of_each_slice_of_experts(tmp_path: Path, schedule: str) -> None:
    rows = [(0, 0, 0, 20), (0, 1, 1, 40), (1, 0, 0, 15), (1, 1, 1, 15)]
    file = table(tmp_path / "loads.csv", "microbatch,source,expert,tokens", rows)
    run = pptrace.simulate({
        "model": {
            "layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocabulary": 1000, "num_experts": 2, "top_k": 1,
            "expert_ffn": 256, "expert_load": file,
        },
        "device": "h100-sxm", "parallel": {"pp": 1, "dp": 2, "ep": 2}, "schedule": schedule,
        "batch": {"microbatches": 3, "sequence": 512},
    })  # fmt: skip
    paths = [tmp_path / f"step.{ending}" for ending in ("json", "pftrace")]
    for path in paths:
        run.save(path)

    loads = read([paths[1]]).provenance["expert_load"]
    assert loads["sha256"] == hashlib.sha256((tmp_path / "loads.csv").read_bytes()).hexdigest()
    assert {name: loads[name] for name in ("name", "step", "source_rank")} == {
        "name": "loads.csv", "step": 0, "source_rank": 1,
    }  # fmt: skip
    assert [loads["kinds"][kind]["received"] for kind in loads["microbatches"]] == [1.33, 1, 1.33]
    events = json.loads(paths[0].read_text())["traceEvents"]
    slices = [event["args"] for event in events if event.get("args", {}).get("load", -1) >= 0]
    assert all(args["load"] == loads["microbatches"][args["microbatch"]] for args in slices)
    names = {args.get("segment", "").partition("-")[0] for args in slices}
    assert names == ({"experts", "dispatch", "combine"} if schedule == "combined-1f1b" else {""})
