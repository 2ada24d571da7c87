"""A plan's bounds are below every simulated step, and its first places are those of simulating everything."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from segment_costs import mixed, segments_of, steady

import pptrace
from pptrace.config.resolution import load
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.preparation import build_costs
from pptrace.search import plan_search
from pptrace.search.bounds import TableSummary, bound_of, sharded_step_ns, work_bound
from pptrace.search.candidates import Outcome
from pptrace.search.plan import differences_ns
from pptrace.search.plan_axes import LAYERS
from pptrace.search.space_bounds import SpaceBounds, _digest, _GroupCosts, balanced_partition
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pathlib import Path

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


kept = plan_search.Prefetch.take
ELSEWHERE = {"executor": "processes", "workers": 2, "registry": None}


def failing(*_: Any) -> Any:
    raise RuntimeError


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


ENCODER = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "tokens": 256}
GRIDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"encoder": ENCODER}, {"parallel.encoder.pp": [0, 1], "parallel.encoder.tp": [1]}),
    (
        {"encoders": {"vision": ENCODER, "audio": ENCODER | {"layers": 2, "frozen": True}}},
        {f"parallel.encoders.{name}.{size}": [1] for name in ("vision", "audio") for size in ("pp", "tp", "dp")},
    ),
]
"""Encoders of a model, and sizes of their grids."""


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    encoders, grids = draw(st.sampled_from(GRIDS))
    model = (
        MODEL
        | encoders
        | {
            "layers": draw(st.sampled_from([4, 6])),
            "vocabulary": draw(st.sampled_from([1000, 128_000])),
            "recompute": draw(st.sampled_from(["none", "full"])),
        }
    )
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
            "tp": [1, 2], "vp": [1, 2], "zero": [draw(st.sampled_from([0, 1, 3]))],
            "schedule": draw(st.lists(
                st.sampled_from(SCHEDULES[:5] if grids else SCHEDULES), min_size=2, max_size=2, unique=True
            )),
            **grids,
        },
    }  # fmt: skip


def find_plan(registry: Registry, problem: dict[str, Any], **changed: Any) -> Any:
    try:
        return planned(registry, **problem, **changed)
    except pptrace.PptraceError:
        return None


@given(
    changed=st.fixed_dictionaries(
        {"bandwidth": st.sampled_from(["1 GB/s", "20 GB/s", "100 GB/s"])},
        optional={
            "reshard": st.sampled_from(["always", "never", "forward", 2]), "prefetch": st.integers(0, 2),
            "overlap": st.booleans(), "shard": st.just(2),
        },
    ),
    recompute=st.sampled_from(["none", "full"]), schedule=st.sampled_from(["1f1b", "combined-1f1b"]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_the_bound_of_sharded_weights_on_one_rank_holds(
    changed: dict[str, Any], recompute: str, schedule: str
) -> None:
    config = {
        "model": MODEL | {"recompute": recompute}, "device": "a100-sxm", "parallel": {"pp": 1, "dp": 4},
        "batch": {"global": 16, "micro": 1, "sequence": 1024}, "stack": "ideal", "costs": {"zero": 3},
        "data_parallel": changed, "schedule": schedule,
    }  # fmt: skip
    run = pptrace.simulate(config)
    table, workload = run.prepared.schedule, run.prepared.workload

    gathers = (table.kind == Kind.UNSHARD) | (table.kind == Kind.UNSHARD_SUBGROUP)
    bound_ns = sharded_step_ns(table, workload)
    assert gathers.any()
    assert workload.unshard_ns.sum() <= bound_ns <= run.metrics.step_ns


@given(
    depths=st.lists(st.integers(1, 2), min_size=2, max_size=3), decoder=st.integers(1, 3),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1"]), sequences=st.sampled_from([1, 2, 8]),
    frozen=st.booleans(),
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_bounds_with_encoders_side_by_side_have_fill_and_drain(
    depths: list[int], decoder: int, schedule: str, sequences: int, *, frozen: bool
) -> None:
    encoders = {f"e{index}": ENCODER | {"tokens": 1024 * (index + 1)} for index in range(len(depths))}
    encoders["e0"]["frozen"] = frozen
    grids = {f"e{index}": {"pp": depth, "tp": 1, "dp": 1} for index, depth in enumerate(depths)}
    config = {
        "model": MODEL | {"encoders": encoders}, "device": "a100-sxm", "stack": "ideal", "schedule": schedule,
        "parallel": {"pp": decoder + sum(depths), "dp": 1, "encoders": grids},
        "batch": {"global": sequences, "micro": 1, "sequence": 1024},
    }  # fmt: skip
    run = pptrace.simulate(config)
    prepared, provided = run.prepared, Registry.load().schedules[schedule]
    table, workload, experiment = prepared.stage_table, prepared.workload, prepared.resolved.experiment

    bound_ns = bound_of(table, prepared.request, workload, experiment, provided).step_ns
    outline_ns = TableSummary.of(table).bound(workload, experiment).step_ns
    assert outline_ns <= bound_ns <= run.metrics.step_ns
    if sequences == 1 and schedule != "zb-h1":
        assert bound_ns == run.metrics.step_ns  # the longest path through encoders and decoder, and back


def test_bounds_of_plans_have_the_gathers_of_one_rank(registry: Registry) -> None:
    config = {
        "model": MODEL, "device": "a100-sxm", "stack": "ideal", "data_parallel": {"bandwidth": "1 GB/s"},
        "network": {"name": "hockney", "bandwidth": "25 GB/s"},
    }  # fmt: skip
    vary = {"schedule": ["1f1b"], "zero": [3], "micro": [1, 2], "recompute": ["none"], "pp": [1], "tp": [1, 2]}
    plan = planned(registry, config=config, vary=vary, top=4, exhaustive=True)

    shares = [candidate.bound.step_ns / candidate.row["step_ns"] for candidate in plan.ranked if candidate.bound]
    assert len(shares) > 1
    assert all(0.6 < share <= 1 for share in shares)  # at most 0.07 without gathers


@pytest.mark.parametrize("words", [1_000, 128_000])
def test_bounds_hold_for_shares_of_the_vocabulary(registry: Registry, words: int) -> None:
    config = {
        "model": MODEL | {"vocabulary": words}, "device": "a100-sxm", "parallel": {"pp": 4}, "stack": "ideal",
        "network": {"name": "hockney", "bandwidth": "25 GB/s"},
    }  # fmt: skip
    vary = {"schedule": ["1f1b", "vocab-1f1b"], "zero": [0], "micro": [1], "recompute": ["none", "full"]}
    plan = planned(registry, config=config, vary=vary, top=4, exhaustive=True)

    assert {candidate.schedule for candidate in plan.ranked} == {"1f1b", "vocab-1f1b"}
    groups = plan.search.groups.values()
    ranked = [(group, one) for group in groups for one in group.candidates if one in plan.ranked]
    assert len(ranked) == len(plan.ranked)
    for group, candidate in ranked:
        work = group.bounds.of(has_pairs=False)
        assert max(work.step_ns, candidate.bound.step_ns) <= candidate.row["step_ns"]
        assert max(work.peak_bytes, candidate.bound.peak_bytes) <= candidate.row["peak_memory_bytes"]


@settings(max_examples=6, deadline=None, derandomize=True)
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
    for group in everything.search.groups.values():
        for member, candidate in zip(group.members, group.candidates, strict=True):
            if candidate in ran:
                entry = everything.search.space.entries[member.entry]
                work = group.bounds.of(has_pairs=everything.search.space_bounds.has_pairs(entry))
                assert work.step_ns <= candidate.row["step_ns"]
                assert work.peak_bytes <= candidate.row["peak_memory_bytes"]
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


@settings(max_examples=4, deadline=None, derandomize=True)
@given(vary=axes_of_some_schedules())
def test_a_plan_has_every_row_that_simulating_each_combination_has(
    registry: Registry, vary: dict[str, Any]
) -> None:
    """A schedule that takes none of the chunks has its default; one without the option runs once."""
    config = {"model": MODEL, "device": "a100-sxm", "network": "ideal", "stack": "ideal"}
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


@settings(max_examples=8, deadline=None, derandomize=True)
@given(problem=problems())
def test_the_bound_of_an_outline_is_at_most_that_of_its_table(registry: Registry, problem: dict[str, Any]) -> None:
    plan_result = find_plan(registry, problem)
    for group in plan_result.search.groups.values() if plan_result else ():
        for member in group.members:
            if member.reason or member.is_covered:
                continue
            space_bounds = plan_result.search.space_bounds
            outline = space_bounds.outline_bound(group.group, member)
            table = space_bounds.table_bound(group.group, member)
            if outline.bound and table.bound:
                assert outline.bound.step_ns <= table.bound.step_ns
                assert outline.bound.peak_bytes <= table.bound.peak_bytes
                assert outline.bound.fits >= table.bound.fits
            assert outline.bound is None or table.bound or table.reason


@pytest.mark.parametrize(
    "name", ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "hanayo", "dualpipe"]
)
def test_the_outline_of_a_table_bounds_even_stages_as_the_whole_table(registry: Registry, name: str) -> None:
    provided = registry.schedules[name]
    chunks = {"interleaved-1f1b": 2, "zb-v": 2, "hanayo": 2, "dualpipe": 1}.get(name, 1)
    request = ScheduleRequest(ranks=4, microbatches=8, chunks=chunks, options=checked_options(provided, {}, ""))
    table = build_schedule(provided, request)
    workload = Workload.uniform(
        table.stages, f_ns=100, i_ns=100, w_ns=100, activation_bytes=7, weights_bytes=5, optimizer_ns=9
    )
    experiment = load(None, flags={"schedule": name, "pp": 4, "microbatches": 8}).experiment

    outline, whole = (
        TableSummary.of(table).bound(workload, experiment),
        bound_of(table, request, workload, experiment, provided),
    )

    assert outline.step_ns <= whole.step_ns
    assert outline.peak_bytes == whole.peak_bytes
    if name in {"1f1b", "gpipe", "interleaved-1f1b"}:
        assert outline.step_ns == whole.step_ns


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


@pytest.mark.parametrize("memory", [None, "3.4GiB"])
def test_early_simulations_are_of_what_fits_and_change_no_place(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, memory: str | None
) -> None:
    """The first looks take place while groups are bounded; the best bounds are over the memory there."""
    asked = {"memory": memory, "vary": {"schedule": ["1f1b"], "zero": [1], "micro": [1]}, "top": 4}
    late = planned(registry, **asked)
    said: list[str] = []
    monkeypatch.setattr(plan_search, "_LOOKS", (3, 9))
    monkeypatch.setattr(plan_search, "_PEEKS", (1, 2, 3))
    monkeypatch.setattr(plan_search, "_EXPANDED", 1)

    early = planned(registry, **asked, progress=said.append)

    first = next(text for text in said if "best so far" in text)
    assert int(first.split(" ")[0].replace(",", "")) < early.counts()["considered"]
    assert [_summary(candidate) for candidate in early.ranked] == [
        _summary(candidate) for candidate in late.ranked
    ]
    numbers = [candidate.number for candidate in early.candidates]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == early.counts()["considered"]
    assert len(late.ranked) > 1
    assert [candidate.name for candidate in early.candidates] == [candidate.name for candidate in late.candidates]


STACK = """\
rules:
  - {set: {costs.overlap_tp: true}, source: measured, when: {costs.zero: 1, parallel.tp: 2}}
  - {set: {data_parallel.overlap: true}, source: measured, unless: {batch.micro: 2}}
"""


@pytest.mark.parametrize("reads", [False, True])
def test_groups_that_share_costs_have_the_bounds_of_their_own(
    registry: Registry, tmp_path: Path, *, reads: bool
) -> None:
    """Groups share configurations and plans of collectives; a stack can read what differs between them."""
    (tmp_path / "own.yaml").write_text(STACK)
    config = {
        "model": MODEL, "cluster": {"preset": "dgx-h100", "nodes": 2},
        "stack": str(tmp_path / "own.yaml") if reads else "megatron-core",
    }  # fmt: skip
    vary = {
        "schedule": ["1f1b", "combined-1f1b"],
        "tp": [1, 2],
        "pp": [2],
        "micro": [1, 2],
        "recompute": ["none", "full"],
        "order": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp"],
    }
    space = planned(registry, config=config, gpus=16, vary=vary, top=1).search.space
    shared = SpaceBounds(space)

    bounds = [shared.bounds_of(number) for number in range(space.groups)]

    assert bounds == [SpaceBounds(space).bounds_of(number) for number in range(space.groups)]
    assert len({bound.plain for bound in bounds}) > 1


def test_groups_that_recompute_have_no_lower_bounds_than_they_inherit(registry: Registry) -> None:
    config = {"model": MODEL, "cluster": {"preset": "dgx-h100", "nodes": 2}}
    vary = {"schedule": ["1f1b", "combined-1f1b"], "tp": [2], "pp": [1, 4], "micro": [1, 8]}
    space = planned(registry, config=config, gpus=16, vary=vary, top=1).search.space
    space_bounds = SpaceBounds(space)
    families = [space.variants_of(number) for number in range(space.groups)]
    compared = 0

    assert {family for family in families if len(family) > 1}
    for number, family in enumerate(families):
        assert number in family
        assert families[family[0]] == family
        inherited = space_bounds.bounds_of(family[0]).for_recomputation()
        own = space_bounds.bounds_of(number)
        for has_pairs in (False, True) if inherited is not None else ():
            low, high = inherited.of(has_pairs=has_pairs), own.of(has_pairs=has_pairs)
            assert (low is None) == (high is None)
            if low is not None and high is not None:
                compared += low.step_ns < high.step_ns
                assert (low.step_ns, low.peak_bytes) <= (high.step_ns, high.peak_bytes)
                assert low.peak_bytes <= high.peak_bytes
                assert low.fits or not high.fits
    assert compared


PLACES = {"vary": {"schedule": ["1f1b", "interleaved-1f1b"], "zero": [1], "micro": [1, 2]}, "top": 8}


@pytest.mark.parametrize(("ended", "has_all_bounds"), [("time", True), ("interrupt", False)])
def test_a_search_that_ends_early_has_the_best_so_far_and_what_it_did_not_exclude(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, ended: str, *, has_all_bounds: bool
) -> None:
    monkeypatch.setattr(plan_search, "_LOOKS", (3,))
    monkeypatch.setattr(plan_search, "_PAUSE_S", 0.0)
    complete, ends = planned(registry, **PLACES), []
    every = f"{complete.counts()['considered']:,} considered" if has_all_bounds else ""

    def watch(text: str) -> None:
        if "best so far" in text and text.startswith(every):
            ends.append(text)
            if ended == "interrupt":
                raise KeyboardInterrupt

    if ended == "time":
        monkeypatch.setattr(plan_search, "monotonic_ns", lambda: 10**12 * len(ends))
    result = planned(registry, **PLACES, progress=watch, time="1s" if ended == "time" else None)

    search = result.to_dict()["search"]
    assert search["ended"] == ended
    assert search["unproved"] > 0
    assert result.best.score >= complete.best.score
    assert (search["gain"] is not None) == (search["without_bound"] == 0) == has_all_bounds
    if has_all_bounds:
        assert float(complete.best.score[-1]) >= float(result.best.score[-1]) * (1 - search["gain"])
    assert f"{search['unproved']:,} configurations could be among the first 8" in " ".join(str(result).split())
    assert complete.to_dict()["search"] == {"ended": "complete", "unproved": 0, "without_bound": 0, "gain": 0.0}


def test_a_space_of_any_size_is_searched_until_the_time_ends(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(plan_search, "monotonic_ns", lambda: 10**12 * len(found))
    vary = {"schedule": ["1f1b"], "micro": range(1, 800), "global": range(1, 800)}

    result = planned(
        registry, vary=vary, time="1s",
        progress=lambda text: found.extend([text] * ("best so far" in text)), **{"global": None},
    )  # fmt: skip

    assert result.to_dict()["search"]["without_bound"] > 10**7
    assert result.best.fits


@pytest.mark.parametrize(("time", "message"), [("1", "time: "), ("0s", "time: "), ("soon", "time: ")])
def test_a_time_that_is_none_is_refused(registry: Registry, time: str, message: str) -> None:
    with pytest.raises(pptrace.PptraceError, match=message):
        planned(registry, time=time)


def test_a_time_in_which_nothing_is_found_is_an_error(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0, *[10**12] * 1000])
    monkeypatch.setattr(plan_search, "monotonic_ns", lambda: next(times))

    with pytest.raises(pptrace.PptraceError, match=r"time: no configuration that fits was found in 1s"):
        planned(registry, time="1s")


@pytest.mark.parametrize("count", [0, 1, 2, 7, 12, 224])
def test_layouts_are_weighed_once_each_and_scattered(count: int) -> None:
    order = [*plan_search.spread_indices(count)]

    assert sorted(order) == list(range(count))
    early = sorted(order[: count // 4])
    assert max((right - left for left, right in pairwise([0, *early, count - 1])), default=0) <= 8 or count < 12


def test_bounds_made_on_other_processes_give_the_same_plan(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_search, "_AHEAD_FROM", 1)
    monkeypatch.setattr(plan_search, "_LOOKS", (3,))
    monkeypatch.setattr(plan_search, "_PEEKS", (1,))
    asked = {
        "vary": {"schedule": ["1f1b", "interleaved-1f1b", "zb-h1"], "micro": [1], "zero": [0, 1]}, "top": 3,
    }  # fmt: skip
    alone = planned(registry, **asked)
    ahead: list[Any] = []

    def take(prefetch: Any, key: Any) -> Any:
        value = kept(prefetch, key)
        ahead.extend([key] * (value is not None))
        return value

    monkeypatch.setattr(plan_search.Prefetch, "take", take)

    several = planned(registry, **asked, **ELSEWHERE)

    assert several.table() == alone.table()
    assert {type(key) for key in ahead} == {int, tuple}


def test_bounds_whose_worker_dies_are_made_here(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_search, "_AHEAD_FROM", 1)
    monkeypatch.setattr(plan_search, "_LOOKS", (3,))
    monkeypatch.setattr(plan_search, "_PEEKS", (1,))
    asked = {"vary": {"schedule": ["1f1b", "zb-h1"], "micro": [1], "tp": [1], "recompute": ["none"]}}
    alone = planned(registry, **asked)
    monkeypatch.setattr(plan_search, "_call_space_bounds", failing)

    plan_result = planned(registry, **asked, **ELSEWHERE)

    assert plan_result.table() == alone.table()


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


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), overlapped=st.booleans())
def test_bounds_of_overlapped_pairs_are_at_most_the_step_and_its_memory(
    registry: Registry, seed: int, *, overlapped: bool
) -> None:
    random = Random(seed)  # noqa: S311 - draws costs
    ranks, microbatches = random.randint(1, 3), random.randint(1, 6)
    rows = mixed(random, ranks, microbatches) if random.random() < 0.5 else steady(ranks, microbatches)
    turns = tuple(random.choices((0, 1), k=random.randint(0, 4)))
    table = replace(Schedule.from_rows(rows), interleave={(Kind.F, Kind.B): turns} if turns else {})
    kinds = {kind: [segments_of(random, kind) for _ in range(ranks)] for kind in (Kind.F, Kind.B)}
    if random.random() < 0.5:
        kinds = {
            kind: [with_changes(random, segments, sign * _KEPT) for segments in stages]
            for (kind, stages), sign in zip(kinds.items(), (1, -1), strict=True)
        }
    uniform = Workload.uniform(ranks, optimizer_ns=random.randint(0, 9), activation_bytes=_KEPT)
    workload = uniform.segmented(kinds, overlapped=overlapped)
    flags = {"schedule": "combined-1f1b", "pp": ranks, "microbatches": microbatches}
    experiment, provided = load(None, flags=flags).experiment, registry.schedules["combined-1f1b"]
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=1)

    outline = TableSummary.of(table).bound(workload, experiment)
    whole = bound_of(table, request, workload, experiment, provided)
    work = work_bound(workload, ranks, microbatches, has_pairs=True)

    step = measure(simulate(table, workload), workload)
    assert max(outline.step_ns, work.step_ns) <= whole.step_ns <= step.step_ns
    assert outline.peak_bytes <= whole.peak_bytes <= step.memory.peak_bytes.max()


_KEPT = 9


def with_changes(random: Random, segments: tuple[Segment, ...], change: int) -> tuple[Segment, ...]:
    """Return segments of which one changes memory by a part of the bytes, and another one by the rest."""
    first, part = random.randrange(len(segments)), random.randint(0, abs(change)) * (1 if change > 0 else -1)
    changes = [0] * len(segments)
    changes[first] += part
    changes[random.randrange(len(segments))] += change - part
    return tuple(
        replace(segment, activation_bytes=size or None) for segment, size in zip(segments, changes, strict=True)
    )


def test_memory_between_overlapped_pairs_is_part_of_the_bound(registry: Registry) -> None:
    provided = registry.schedules["combined-1f1b"]
    request = ScheduleRequest(ranks=2, microbatches=8, chunks=2, options=checked_options(provided, {}, ""))
    table = build_schedule(provided, request)
    kinds = {kind: [(Segment(name="a", duration_ns=5),)] * 4 for kind in (Kind.F, Kind.B)}
    workload = Workload.uniform(4, activation_bytes=7).segmented(kinds)
    experiment = load(None, flags={"schedule": "combined-1f1b", "pp": 2, "microbatches": 8}).experiment

    outline = TableSummary.of(table).bound(workload, experiment)
    whole = bound_of(table, request, workload, experiment, provided)

    # The peak is inside of a pair, whose forward allocates before its backward frees.
    peak = measure(simulate(table, workload), workload).memory.peak_bytes.max()
    assert outline.peak_bytes == whole.peak_bytes == peak - 7


@pytest.mark.parametrize(("model", "ep"), [("llama3-8b", 1), ("qwen3-30b-a3b", 2)])
def test_bounds_have_the_costs_that_the_stack_gives_each_schedule(registry: Registry, model: str, ep: int) -> None:
    vary = {
        "schedule": ["1f1b", "combined-1f1b", "dualpipe-v", "stp"], "pp": [2], "tp": [2], "ep": [ep], "micro": [1],
        "zero": [1], "recompute": ["none"], "layers": ["even"], "vp": [1, 2],
    }  # fmt: skip
    config = {"model": {"preset": model, "layers": 4}, "device": "h100-sxm", "stack": "megatron-core-0.19"}
    everything = planned(registry, config=config, vary=vary, gpus=8, top=9, exhaustive=True, memory="999GiB")

    assert {item.schedule for item in everything.ranked} == {*vary["schedule"]}
    for item in everything.ranked:
        group = everything.search.groups[item.number >> 20]
        paired = group.bounds.of(has_pairs=item.schedule != "1f1b")
        assert max(paired.step_ns, item.bound.step_ns) <= item.row["step_ns"] <= 1.1 * item.bound.step_ns


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
    "name",
    [name for name in Workload.__struct_fields__ if name not in {"classes", "notes", "expert_load", "kernels"}],
)
def test_configurations_that_differ_in_any_cost_are_no_duplicates(name: str) -> None:
    workload = Workload.uniform(2, f_ns=1, b_ns=2, boundary_bytes=3)
    changed = with_another_value(workload, name)
    classes = replace(workload, classes=(workload,)), replace(workload, classes=(changed,))

    assert _digest(workload) != _digest(changed)
    assert _digest(classes[0]) != _digest(classes[1])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 7))
@settings(max_examples=50)
def test_a_balanced_partition_has_the_smallest_largest_sum(times: list[int], parts: int) -> None:
    parts = min(parts, len(times))
    sizes = balanced_partition(times, parts)

    def longest(ends: tuple[int, ...]) -> int:
        return max(sum(times[low:high]) for low, high in pairwise((0, *ends, len(times))))

    ends = [sum(sizes[: part + 1]) for part in range(parts - 1)]
    assert len(sizes) == parts
    assert min(sizes) > 0
    assert sum(sizes) == len(times)
    assert longest(tuple(ends)) == min(map(longest, combinations(range(1, len(times)), parts - 1)))


def test_a_balanced_split_weighs_unequal_layers() -> None:
    experts = {"num_experts": 16, "top_k": 4, "expert_ffn": 4096, "dense_layers": 4}
    registry = Registry.load()
    resolved = load({
        "model": {**MODEL, **experts, "layers": 12, "ffn": 1024}, "device": {"preset": "h100-sxm"},
        "parallel": {"pp": 4}, "batch": {"microbatches": 4, "sequence": 1024}, "schedule": "1f1b",
        "stack": "ideal",
    })  # fmt: skip
    split = _GroupCosts(build_costs(resolved, registry), ()).balanced_splits(4, ())[LAYERS]

    assert split[0] > 4  # the first stage has the layers without experts
    assert sum(split) == 12


def test_a_plan_splits_encoders_and_decoder_as_well_as_every_split_by_hand(registry: Registry) -> None:
    ranks, vision = {"vision": 2, "audio": 1}, ENCODER | {"layers": 8, "hidden": 256, "ffn": 1024, "items": 64}
    config = {
        "model": MODEL
        | {"hidden": 2048, "layers": 2, "encoders": {"vision": vision, "audio": ENCODER}},
        "device": "a100-sxm", "network": {"name": "hockney", "bandwidth": "100 GB/s"}, "schedule": "1f1b",
        "costs": {"host_kernel": "0 ms"},
    }  # fmt: skip
    encoders = {name: {"pp": pp, "tp": 1, "dp": 1} for name, pp in ranks.items()}
    vary = {"schedule": ["1f1b"], "pp": [5], "tp": [1], "zero": [0], "recompute": ["none"], "micro": [1]} | {
        f"parallel.encoders.{name}.{size}": [value] for name in ranks for size, value in encoders[name].items()
    }

    def step_ns(vision: tuple[int, int], decoder: tuple[int, int]) -> int:
        parallel, batch = {"pp": 5, "encoders": encoders}, {"microbatches": 8, "sequence": 2048, "micro": 1}
        splits = {"model.encoders.vision.layers_per_stage": vision, LAYERS: decoder}
        run = pptrace.simulate(
            config | {"parallel": parallel, "batch": batch},
            sets=[f"{key}={list(split)}" for key, split in splits.items()],
        )
        return run.metrics.step_ns

    best = planned(registry, config=config, gpus=5, vary=vary, **{"global": 8}).ranked[0]
    by_hand = {
        (first, decoder): step_ns((first, 8 - first), (decoder, 2 - decoder))
        for first in range(3, 7) for decoder in (1, 2)
    }  # fmt: skip

    assert best.row["step_ns"] == min(by_hand.values()) < by_hand[4, 1]
