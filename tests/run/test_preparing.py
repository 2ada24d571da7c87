"""Preparing a run: one workload, of the table's own stages, and chunks that only the file's schedule takes."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from small_schedules import small_registry

import pptrace
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, ConstraintError, DeadlockError
from pptrace.plugins.builtin_models import UnitOptions, unit
from pptrace.plugins.requests import CostRequest
from pptrace.run import costs
from pptrace.run.preparation import prepare

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.steps.workload import Workload

THREE_STAGES = "0F0,1F0,1B0,0B0\n2F0,2B0\n"
"""Two ranks and three stages."""

TIMES = {"name": "table", "forward": ["1 ms", "2 ms", "3 ms"], "backward": "6 ms"}

STEP = """\
schedule: chunky
parallel: {pp: 2, vp: 2}
batch: {microbatches: 4}
"""


def units(stages: int, **values: Any) -> Workload:
    options = UnitOptions.model_validate(values).model_dump()
    return unit(CostRequest(ranks=2, stages=stages, microbatches=4, options=options))


def test_a_table_of_any_number_of_stages_takes_costs_per_stage(tmp_path: Path) -> None:
    (tmp_path / "three.csv").write_text(THREE_STAGES)

    run = pptrace.simulate(schedule=str(tmp_path / "three.csv"), costs=TIMES)

    assert run.prepared.workload.f_ns.tolist() == [10**6, 2 * 10**6, 3 * 10**6]
    assert run.prepared.request.f_ns == (10**6, 2 * 10**6, 3 * 10**6)


def test_a_schedule_that_makes_chunks_of_its_own_takes_costs_per_stage() -> None:
    times = TIMES | {"forward": ["1 ms", "2 ms", "3 ms", "4 ms"]}

    run = pptrace.simulate(schedule="chunky", pp=2, microbatches=4, costs=times, registry=small_registry())

    assert run.prepared.workload.f_ns.tolist() == [10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6]


@pytest.mark.parametrize("name", ["eager", "chunky"])
def test_the_workload_is_built_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    real = costs.build_workload
    monkeypatch.setattr(
        costs, "build_workload", lambda offer, request: built.append(request.stages) or real(offer, request)
    )

    prepared = prepare(load(None, (), {"schedule": name, "pp": 2, "microbatches": 4}), small_registry())

    assert built == [prepared.schedule.stages]


def test_chunks_of_the_file_are_left_out_where_another_schedule_runs(tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(STEP)

    run = pptrace.simulate(tmp_path / "step.yaml", schedule="eager", registry=small_registry())

    note = f"vp 2 ({tmp_path}/step.yaml:2) is ignored: eager runs with 1"
    assert run.prepared.schedule.stages == 2
    assert run.prepared.notes == (note,)
    assert run.to_dict()["notes"] == [note]
    assert "note: vp 2" in run.summary()


def test_chunks_beside_the_schedule_that_cannot_take_them_are_refused(tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(STEP.replace("chunky", "eager"))

    with pytest.raises(ConstraintError, match=r"step.yaml:2:\d+: parallel.vp"):
        pptrace.simulate(tmp_path / "step.yaml", registry=small_registry())
    with pytest.raises(ConstraintError, match=r"^vp: parallel.vp"):
        pptrace.simulate(tmp_path / "step.yaml", schedule="eager", vp=2, registry=small_registry())


def test_a_sweep_gives_chunks_to_the_schedule_that_has_them_alone() -> None:
    over = {"schedule": ["chunky:vp=2", "eager"]}

    swept = pptrace.sweep(
        over=over, parallel={"pp": 2}, microbatches=4, executor="serial", registry=small_registry()
    )

    assert [(row["parallel.vp"], row.get("error")) for row in swept.rows] == [(2, None), (1, None)]


@pytest.mark.parametrize("stages", [2, 3, 4, 6, 14])
def test_units_are_those_of_a_ranks_part_of_the_model(stages: int) -> None:
    workload = units(stages, activation="5 B")
    share = Fraction(2, stages)

    for kind, forward in (("f_ns", 1), ("b_ns", 2), ("i_ns", 1), ("w_ns", 1)):
        assert {Fraction(time, workload.unit_time_ns) for time in getattr(workload, kind).tolist()} == {
            forward * share
        }
    assert 10**6 <= workload.unit_time_ns < 10**6 + stages
    assert set(workload.activation_bytes.tolist()) == {int(5 * share)}


def test_a_stage_is_a_ranks_whole_part_where_ranks_share_stages() -> None:
    assert units(1).f_ns.tolist() == [10**6]


def test_a_mapping_stands_for_a_file() -> None:
    run = pptrace.simulate({"schedule": "eager", "parallel": {"pp": 2}}, microbatches=4, registry=small_registry())

    assert run.prepared.schedule.ranks == 2
    assert run.prepared.resolved.origin("parallel.pp") == "config"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"schedule": "eager", "paralel": {}}, "config: paralel: unknown key"),
        ({"schedule": "eager", "parallel": {"pp": 0}}, "config: parallel.pp: must be at least 1"),
        ({"schedule": object()}, "config: a value of type object is not a number"),
        (3, "config: must be a file's name or a mapping, not 3"),
    ],
)
def test_what_is_no_configuration_is_one_line(config: Any, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pptrace.simulate(config)

    assert str(refused.value).startswith(line)


def test_a_tolerance_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "three.csv").write_text(THREE_STAGES)
    table = tmp_path / "three.csv"

    assert pptrace.diff(table, table, tolerance="2%").same
    with pytest.raises(ConfigError, match=r"tolerance: 'two' is not a share, such as 2% or 0\.02"):
        pptrace.diff(table, table, tolerance="two")


def test_a_table_with_a_row_too_many_is_refused_with_the_cell(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1F0,1B0\n1F0,1B0\n0F0,0B0\n")

    with pytest.raises(pptrace.PptraceError, match=r"row 2, column 1, cell '1F0'.*stage 1 is on rank 0"):
        pptrace.simulate(schedule=str(tmp_path / "table.csv"))


SEARCHER = """\
from pptrace.plugin import measure

def make(simulator):
    tables = {name: table for name, table, _ in simulator.others()}
    prepared = {name: simulator.prepared(table) for name, table in tables.items()}
    measured = {name: measure(one.simulate().timeline, one.workload) for name, one in prepared.items()}
    assert {name: metrics.step_ns for name, metrics in measured.items()} == %s
    assert measured["eager"].memory.peak_bytes.tolist() == [5 * 2**20, 5 * 2**20]
    assert measured["eager"].memory.device_bytes.tolist() == [9 * 2**20, 9 * 2**20]
    return tables["eager"]
"""


def test_a_schedule_may_ask_what_others_take_in_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    sizes = {"pp": 2, "microbatches": 4, "registry": small_registry(), "costs": {
        "name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 MiB", "capacity": "9 MiB",
        "weights": "1 MiB",
    }}  # fmt: skip
    names = ("chunky", "eager", "even", "lumped", "quiet")
    steps = {name: pptrace.simulate(schedule=name, **sizes).metrics.step_ns for name in names}
    file.write_text(SEARCHER % steps)

    run = pptrace.simulate(schedule=f"{file}:make", **sizes)

    assert run.metrics.step_ns == steps["eager"] == 15_000_000


@pytest.mark.parametrize(
    ("p2p", "said"),
    [
        ("{policy: async, stream: pair}", "step.yaml:4:22: p2p.stream: async does not take it: only ordered can"),
        ("{stream: rank}", "step.yaml:4:7: p2p.stream: async does not take it: only ordered can"),
        (
            "{policy: batched, eager: 1 KiB}",
            "step.yaml:4:24: p2p.eager: batched does not take it: only ord",
        ),
        (
            "{policy: sender-blocking, receive: asap}",
            "step.yaml:4:32: p2p.receive: sender-blocking does not take it: only blocking, ordered, batched can",
        ),
    ],
)
@pytest.mark.needs_plugins
def test_a_setting_that_a_policy_does_not_take_is_one_line(p2p: str, said: str, tmp_path: Path) -> None:
    step = tmp_path / "step.yaml"
    step.write_text(f"schedule: 1f1b\nparallel: {{pp: 2}}\nbatch: {{microbatches: 4}}\np2p: {p2p}\n")

    with pytest.raises(ConfigError, match=said):
        pptrace.simulate(step)


@pytest.mark.needs_plugins
def test_a_policy_named_over_a_file_leaves_what_it_does_not_take(tmp_path: Path) -> None:
    step = tmp_path / "step.yaml"
    p2p = "p2p: {policy: ordered, stream: pair, receive: deferred}\n"
    step.write_text(f"schedule: 1f1b\nparallel: {{pp: 2}}\nbatch: {{microbatches: 4}}\n{p2p}")

    resolved = pptrace.simulate(step, p2p="async").prepared.resolved.to_dict()

    assert resolved["p2p"] == {"policy": "async", "options": {}, "stream": "direction", "eager": "0 B"}
    assert pptrace.simulate(resolved).prepared.resolved.to_dict() == resolved


@pytest.mark.parametrize("policy", [(), ("p2p.policy=async",)], ids=["in-a-file", "beside-it"])
@pytest.mark.needs_plugins
def test_a_setting_on_the_command_line_that_the_policy_does_not_take_is_one_line(
    policy: tuple[str, ...], tmp_path: Path
) -> None:
    step = tmp_path / "step.yaml"
    step.write_text("schedule: 1f1b\nparallel: {pp: 2}\nbatch: {microbatches: 4}\np2p: blocking\n")

    with pytest.raises(ConfigError, match=r"^sets p2p.stream=pair: .* does not take it: only ordered"):
        pptrace.simulate(step, sets=[*policy, "p2p.stream=pair"])


@pytest.mark.needs_plugins
def test_a_deadlock_under_a_plugins_policy_proposes_no_eager_size() -> None:
    pytest.importorskip("pptrace_frameworks")
    sizes = {"pp": 4, "vp": 2, "microbatches": 8, "sets": ["p2p.options.receive=deferred"]}

    with pytest.raises(DeadlockError, match=r"policy torch: .*, or try p2p async$"):
        pptrace.simulate(schedule="interleaved-1f1b", p2p="torch", **sizes)


@pytest.mark.needs_plugins
def test_a_summary_of_many_ranks_has_every_section_and_selected_ranks() -> None:
    costs = {"name": "table", "forward": "10 us", "backward": "20 us", "boundary": "10 KB", "reduction": "1 ms"}
    network = {"name": "hockney", "bandwidth": "1 GB/s"}
    run = pptrace.simulate(schedule="1f1b", pp=32, dp=2, microbatches=64, costs=costs, network=network)
    sections = ("idle by cause", "critical path", "data parallel", "bottleneck")

    summary, full = run.summary(), run.summary(full=True)

    for text in (summary, full):
        assert [section for section in sections if f"\n{section}" not in text] == []
    numbers = [line.split()[0] for line in summary.splitlines() if re.match(r" +\d+ ", line)]
    assert numbers[0] == "0"
    assert numbers[-1] == "31"
    assert 2 <= len(numbers) <= 4
    assert "of 32 ranks; --full has all" in summary
    assert len([line for line in full.splitlines() if re.match(r" +\d+ ", line)]) == 32
