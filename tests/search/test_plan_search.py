"""A plan's bounds are below every simulated step, and its first places are those of simulating everything."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pptrace
from pptrace.config.resolution import load
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.search import candidates
from pptrace.search.candidates import Outcome
from pptrace.search.plan import differences_ns
from pptrace.search.pricing import _digest, bound_of
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.search.candidates import Candidate

pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 32000}
SCHEDULES = [
    "1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "hanayo", "seq-1f1b",
    "dualpipe", "dualpipe-v", "combined-1f1b",
]  # fmt: skip


def planned(own: Registry, **changed: Any) -> Any:
    given_ = {
        "config": {"model": MODEL, "device": "a100-sxm", "network": {"name": "hockney", "bandwidth": "25 GB/s"}},
        "vary": {"schedule": ["1f1b", "interleaved-1f1b"], "zero": [1]}, "gpus": 4, "global": 16,
        "sequence": 2048, "framework": "any", "executor": "serial", "registry": own, "robust": False,
    }  # fmt: skip
    return pptrace.plan(**{**given_, **changed})


kept = candidates.BoundPrefetch.of
ELSEWHERE = {"executor": "processes", "workers": 2, "registry": None}


def failing(*_: Any) -> Any:
    raise RuntimeError


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    model = MODEL | {
        "layers": draw(st.sampled_from([4, 6])),
        "vocabulary": draw(st.sampled_from([1000, 128_000])),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }
    config = {
        "model": model, "device": draw(st.sampled_from(["a100-sxm", "h100-sxm"])),
        "network": {
            "name": "hockney", "bandwidth": draw(st.sampled_from(["1 GB/s", "100 GB/s"])), "latency": "5 us"
        },
        "p2p": draw(st.sampled_from(["async", "ordered"])),
        "costs": {"name": "roofline", "segments": draw(st.sampled_from([None, True, False]))},
        "data_parallel": {"overlap": draw(st.booleans())},
    }  # fmt: skip
    return {
        "config": config, "gpus": draw(st.sampled_from([2, 4])), "global": draw(st.sampled_from([4, 8])),
        "memory": draw(st.sampled_from([None, "2.8GiB", "3.6GiB"])), "top": draw(st.integers(1, 3)),
        "objective": draw(st.sampled_from(["tokens", "step", "mfu", "gpus"])),
        "vary": {
            "micro": [1], "recompute": [model["recompute"]],
            "tp": [1, 2], "vp": [1, 2], "zero": [draw(st.integers(0, 1))],
            "schedule": draw(st.lists(st.sampled_from(SCHEDULES), min_size=2, max_size=2, unique=True)),
        },
    }  # fmt: skip


def find_plan(registry: Registry, problem: dict[str, Any], **changed: Any) -> Any:
    try:
        return planned(registry, **problem, **changed)
    except pptrace.PptraceError:
        return None


@settings(max_examples=12, deadline=None, derandomize=True)
@given(problem=problems())
def test_bounds_hold_and_the_first_places_are_those_of_simulating_everything(
    registry: Registry, problem: dict[str, Any]
) -> None:
    bounded, everything = find_plan(registry, problem), find_plan(registry, problem, exhaustive=True)

    assert (bounded is None) == (everything is None)
    if bounded is None or everything is None:
        return
    ran = [candidate for candidate in everything.candidates if candidate.outcome is Outcome.SIMULATED]
    assert [item.name for item in ran if item.bound.step_ns > item.row["step_ns"]] == []
    assert [item.name for item in ran if item.bound.peak_bytes > item.row["peak_memory_bytes"]] == []
    assert [_summary(candidate) for candidate in bounded.ranked] == [
        _summary(candidate) for candidate in everything.ranked
    ]
    assert bounded.counts()["considered"] == everything.counts()["considered"]


@st.composite
def axes_of_some_schedules(draw: st.DrawFn) -> dict[str, Any]:
    """Draw axes that only some of the schedules take."""
    names = ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v"]
    schedules = draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True))
    has_option = any(name.startswith("zb") for name in schedules) and draw(st.booleans())
    return {
        "pp": draw(st.sampled_from([[2], [4], [2, 4]])), "tp": [1], "micro": [1], "zero": [0],
        "recompute": ["none"], "layers": ["even"], "schedule": schedules,
        "vp": draw(st.sampled_from([[1, 2], [2], [2, 4], [4]])),
        **({"schedule.options.shorten": ["rank", "step"]} if has_option else {}),
    }  # fmt: skip


@settings(max_examples=6, deadline=None, derandomize=True)
@given(vary=axes_of_some_schedules())
def test_a_plan_has_every_row_that_simulating_each_combination_has(
    registry: Registry, vary: dict[str, Any]
) -> None:
    """A schedule that takes none of the chunks has its default; one without the option runs once."""
    config = {"model": MODEL, "device": "a100-sxm", "stack": "ideal"}
    expected: dict[tuple[Any, ...], int] = {}
    for name, pp in product(vary["schedule"], vary["pp"]):
        words = vary.get("schedule.options.shorten", [None]) if name.startswith("zb") else [None]
        options = [{"name": name, "options": {"shorten": word} if word else {}} for word in words]
        for schedule in options:
            sizes = {"pp": pp, "dp": 4 // pp, "global": 16, "sequence": 2048}
            steps = {chunks: _step_of(config, registry, schedule, sizes, chunks) for chunks in vary["vp"]}
            if not any(steps.values()):
                steps = {0: _step_of(config, registry, schedule, sizes, None)}
            for step in filter(None, steps.values()):
                expected[pp, name, str(schedule["options"].get("shorten", "")), step[0]] = step[1]

    plan = planned(registry, config=config, vary=vary, exhaustive=True, top=100)
    first = planned(registry, config=config, vary=vary, top=1)

    rows = {
        (item.layout.pp, item.schedule.partition(":")[0], item.schedule.partition("=")[2], item.chunks):
        item.row["step_ns"]
        for item in plan.candidates if item.outcome is Outcome.SIMULATED
    }  # fmt: skip
    equal = {item.chunks for item in plan.candidates if item.outcome is Outcome.EQUAL}
    assert rows.items() <= expected.items()
    assert equal or rows == expected
    assert set(rows.values()) == set(expected.values())
    assert first.best.row["step_ns"] == min(expected.values())


def _step_of(
    config: dict[str, Any], registry: Registry, schedule: Any, sizes: dict[str, int], chunks: int | None
) -> tuple[int, int] | None:
    """Return chunks and step of a simulation; None if the schedule does not take these chunks."""
    more = {} if chunks is None else {"vp": chunks}
    try:
        run = pptrace.simulate(config, registry=registry, schedule=schedule, **sizes, **more)
    except pptrace.PptraceError:
        return None
    table = run.prepared.schedule
    return table.stages // table.ranks, run.step_ns


def _summary(candidate: Candidate) -> Any:
    return candidate.number, candidate.score, [equivalent.number for equivalent in candidate.equivalents]


def test_settings_that_leave_the_step_equal_share_a_place(registry: Registry) -> None:
    """Inside one node the order of the axes has no effect."""
    config = {"model": MODEL, "cluster": {"preset": "dgx-h100", "nodes": 1}}
    vary = {"schedule": ["1f1b", "gpipe"], "zero": [1], "micro": [1], "recompute": ["none"]}

    bounded, everything = (
        planned(registry, config=config, gpus=8, vary=vary, top=4, exhaustive=whole) for whole in (False, True)
    )

    assert [_summary(entry) for entry in bounded.ranked] == [
        _summary(candidate) for candidate in everything.ranked
    ]
    assert all(
        candidate.number < min(equivalent.number for equivalent in candidate.equivalents)
        for candidate in bounded.ranked
    )
    keys = [
        (candidate.layout, candidate.schedule, candidate.row["step_ns"], candidate.row["peak_memory_bytes"])
        for candidate in bounded.ranked
    ]
    assert len(set(keys)) == 4
    for candidate in bounded.ranked:
        for equivalent in candidate.equivalents:
            assert {key for key in candidate.settings if candidate.settings[key] != equivalent.settings[key]} == {
                "parallel.order"
            }
            assert equivalent.row["step_ns"] == candidate.row["step_ns"]
    assert "same step and memory: #1, #2, #3, #4 with order tp-cp-ep-pp-dp" in str(bounded)
    places = bounded.to_dict()["places"]
    assert [item["twins"][0]["settings"]["parallel.order"] for item in places] == ["tp-cp-ep-pp-dp"] * 4


def test_an_early_answer_is_of_what_fits_and_changes_no_place(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The early attempt takes place in the middle of weighing; what is likeliest is over the memory there."""
    asked = {"memory": "3.4GiB", "vary": {"schedule": ["1f1b"], "zero": [1], "micro": [1]}, "top": 4}
    late, said = planned(registry, **asked), []
    monkeypatch.setattr(candidates, "_EARLY", (9,))
    monkeypatch.setattr(candidates, "_PEEKS", (24, 96, 1))

    early = planned(registry, **asked, progress=said.append)

    first = next(text for text in said if "best so far" in text)
    assert int(first.split(" ")[0].replace(",", "")) < early.counts()["considered"]
    assert [_summary(candidate) for candidate in early.ranked] == [
        _summary(candidate) for candidate in late.ranked
    ]
    assert [candidate.number for candidate in early.candidates] == list(range(early.counts()["considered"]))
    assert len(late.ranked) > 1
    assert [candidate.name for candidate in early.candidates] == [candidate.name for candidate in late.candidates]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 12, 224])
def test_layouts_are_weighed_once_each_and_scattered(count: int) -> None:
    order = candidates.spread_indices(count)

    assert sorted(order) == list(range(count))
    early = sorted(order[: count // 4])
    assert max((right - left for left, right in pairwise([0, *early, count - 1])), default=0) <= 8 or count < 12


def test_bounds_made_on_other_processes_give_the_same_plan(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_PREFETCH_FROM", 1)
    monkeypatch.setattr(candidates, "_PEEKS", (2,))
    monkeypatch.setattr(candidates, "_CHUNK", 3)
    asked = {
        "vary": {"schedule": ["1f1b", "interleaved-1f1b", "zb-h1"], "micro": [1], "zero": [0, 1]}, "top": 3,
    }  # fmt: skip
    alone = planned(registry, **asked)
    bounded = []
    monkeypatch.setattr(
        candidates.BoundPrefetch, "of", lambda self, candidate: bounded.append(candidate) or kept(self, candidate)
    )

    several = planned(registry, **asked, **ELSEWHERE)

    assert several.table() == alone.table()
    assert len(bounded) > 10


def test_bounds_whose_worker_dies_are_made_here(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_PREFETCH_FROM", 1)
    monkeypatch.setattr(candidates, "_PEEKS", (2,))
    monkeypatch.setattr(candidates, "_price_all", failing)
    asked = {"vary": {"schedule": ["1f1b", "zb-h1"], "micro": [1], "tp": [1], "recompute": ["none"]}}

    plan_result = planned(registry, **asked, **ELSEWHERE)

    assert plan_result.table() == planned(registry, **asked).table()


def test_the_bound_of_a_chain_is_its_step_where_messages_take_no_time(registry: Registry) -> None:
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1)):
        provided = registry.schedules[name]
        request = ScheduleRequest(
            ranks=4, microbatches=8, chunks=chunks, options=checked_options(provided, {}, "")
        )
        table = build_schedule(provided, request)
        workload = Workload.uniform(
            table.stages, f_ns=100, i_ns=100, w_ns=100, activation_bytes=7, weights_bytes=5
        )
        experiment = load(None, flags={"schedule": name, "pp": 4, "microbatches": 8}).experiment

        bound = bound_of(table, request, workload, experiment, provided)

        metrics = measure(simulate(table, workload), workload)
        assert (bound.step_ns, bound.peak_bytes) == (metrics.step_ns, metrics.memory.peak_bytes.max()), name


def test_the_parts_of_the_reasons_sum_to_the_difference(registry: Registry) -> None:
    first, *others = planned(registry, top=5).ranked

    for other in others:
        longer = other.row["step_ns"] - first.row["step_ns"]
        assert sum(differences_ns(first, other).values()) == pytest.approx(longer, abs=5)


def test_the_best_configuration_simulates_as_it_stands(registry: Registry, tmp_path: Any) -> None:
    plan_result = planned(registry, outputs=[tmp_path / "best.yaml", tmp_path / "all.csv"], memory="4GiB")

    run = pptrace.simulate(tmp_path / "best.yaml", registry=registry)
    assert run.metrics.step_ns == plan_result.best.row["step_ns"]
    assert run.metrics.memory.over_capacity is None
    rows = (tmp_path / "all.csv").read_text().splitlines()
    assert len(rows) == 1 + plan_result.counts()["considered"]
    assert {path.name for path in tmp_path.iterdir()} == {"best.yaml", "all.csv"}


def test_as_few_gpus_as_fit_come_first(registry: Registry) -> None:
    plan_result = planned(registry, objective="gpus", memory="4GiB", gpus=8)

    fewer = planned(registry, gpus=plan_result.best.layout.gpus, memory="4GiB")
    assert fewer.best.row["step_ns"] == plan_result.best.row["step_ns"]
    if plan_result.best.layout.gpus > 1:
        with pytest.raises(pptrace.PptraceError, match="is enough"):
            planned(registry, gpus=plan_result.best.layout.gpus // 2, memory="4GiB")


def with_another_value(workload: Workload, name: str) -> Workload:
    if name == "segments":
        return workload.segmented({Kind.F: [(Segment(name="a", duration_ns=1),)] * workload.stages})
    value: Any = getattr(workload, name)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int) or value.size:
        value = value + 1
    else:
        size = workload.boundary_bytes.size if name == "boundary_gradient_bytes" else workload.stages
        value = np.zeros(size, dtype=value.dtype)
    changed: dict[str, Any] = {name: value}
    return replace(workload, **changed)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Workload) if field.name not in {"classes", "notes", "kernels"}]
)
def test_configurations_that_differ_in_any_cost_are_no_duplicates(name: str) -> None:
    workload = Workload.uniform(2, f_ns=1, b_ns=2, boundary_bytes=3)
    changed = with_another_value(workload, name)
    classes = replace(workload, classes=(workload,)), replace(workload, classes=(changed,))

    assert _digest(workload) != _digest(changed)
    assert _digest(classes[0]) != _digest(classes[1])
