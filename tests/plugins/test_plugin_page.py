"""The code on the page about plugins runs."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

import pptrace
from pptrace.errors import ConstraintError
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.registry import OFFER_KINDS, Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Stream
from pptrace.testing import assert_valid_network, assert_valid_schedule, grid
from pptrace.timeline.actions import actions_in_parts

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
ONE_FILE, OPTIONS, RULE, GAPS, PAIRS, LAYERS, PLUGIN, CHECKS, NETWORK, NETWORK_CHECKS = re.findall(
    r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("code", [ONE_FILE, OPTIONS, RULE, GAPS, PAIRS])
def test_the_files_of_the_page_make_valid_schedules(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)

    provided = Registry.load(entry_points=False).schedules[f"{tmp_path}/mine.py:make"]

    assert_valid_schedule(build_schedule(provided, ScheduleRequest(ranks=4, microbatches=8)))


def test_the_options_of_the_page_s_file_are_given_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waves.py").write_text(OPTIONS)
    (tmp_path / "step.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0])
    sizes = {"parallel": {"pp": 1}, "batch": {"microbatches": 4}}

    usual = pptrace.simulate(schedule="./waves.py:make", **sizes)
    set_ = pptrace.simulate(schedule="./waves.py:make", sets=["schedule.options.group=2"], **sizes)
    written = pptrace.simulate("step.yaml", **sizes)

    assert [run.prepared.schedule.rows()[0] for run in (usual, set_, written)] == [
        ["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3"],
        ["0F0", "0F1", "0B0", "0B1", "0F2", "0F3", "0B2", "0B3"],
        ["0F0", "0F1", "0B1", "0B0", "0F2", "0F3", "0B3", "0B2"],
    ]


def test_the_pairs_of_the_page_take_what_it_says() -> None:
    table, costs = module_of(PAIRS).make(ranks=1, microbatches=4), module_of(LAYERS).costs(1)

    timeline = simulate(table, costs)
    pairs = timeline.pair >= 0
    computed = pairs & (timeline.lane_stream[timeline.lane_of_row()] == Stream.COMPUTE)
    members = actions_in_parts(timeline)

    assert (costs.f_ns.tolist(), costs.b_ns.tolist()) == ([12_000], [20_000])
    for pair in set(timeline.pair[pairs].tolist()):
        rows = computed & (timeline.pair == pair)
        assert int(timeline.end_ns[rows].max() - timeline.start_ns[rows].min()) == 24_000
    assert not members.exposed_ns[members.pair >= 0].any()


def test_the_plugin_of_the_page_keeps_its_promises() -> None:
    module = module_of(PLUGIN)

    registry = Registry.load(entry_points=False, plugins={"page": module})

    assert not registry.failures
    assert registry.schedules["one-at-a-time"].offer.constraints == module.OFFER.constraints
    exec(CHECKS, module.__dict__)  # noqa: S102 - our own page


def test_the_schedule_of_the_page_takes_only_what_its_table_holds() -> None:
    offer = module_of(PLUGIN).OFFER

    for request in grid(ranks=(1, 3), microbatches=(1, 2), chunks=(1, 2)):
        if request.microbatches == request.chunks == 1:
            offer.check(request)
        else:
            with pytest.raises(ConstraintError):
                offer.check(request)


def test_the_network_of_the_page_keeps_its_promises() -> None:
    module = module_of(NETWORK)

    registry = Registry.load(entry_points=False, plugins={"page": module})

    assert not registry.failures
    assert_valid_network(registry.networks["bus"])
    exec(NETWORK_CHECKS, module.__dict__)  # noqa: S102 - our own page


def module_of(source: str) -> types.ModuleType:
    module = types.ModuleType("page")
    # Annotations of the page are what they are there, not text as here.
    exec(compile(source, "page", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - our own page
    return module


def test_every_offer_has_a_row_in_the_table_of_hooks() -> None:
    for kind in OFFER_KINDS:
        assert f"| `{kind.hook}` | `{kind.offer.__name__}` |" in PAGE
