"""A grid is every combination of its axes' values, told apart, and checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pptrace.config.overrides import parse_value
from pptrace.errors import ConfigError
from pptrace.search.grid import Grid, grid_of, parse_axes, replicas_of

STEP = """\
schedule: eager
parallel: {pp: 4}
batch: {global: 8}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("step.yaml").write_text(STEP)
    Path("mine.py").write_text("def make(ranks, microbatches): ...\n")
    return tmp_path


def grid(*over: str, sets: tuple[str, ...] = (), file: str | None = "step.yaml", **flags: Any) -> Grid:
    return grid_of(Path(file) if file else None, sets, flags, parse_axes(over))


def test_the_first_axis_changes_most_slowly() -> None:
    made = grid("pp=2,4", "microbatches=8,16", "schedule=a,b")

    cells = [tuple(value.cell for value in point.values) for point in made.points]

    assert made.keys == ("pp", "microbatches", "schedule")
    assert cells == [(pp, microbatches, name) for pp in (2, 4) for microbatches in (8, 16) for name in "ab"]
    assert len({point.identity for point in made.points}) == len(made.points)


def test_points_say_about_how_many_actions_they_have() -> None:
    assert [point.actions for point in grid("pp=2,4", "vp=1,2", "microbatches=8").points] == [32, 64, 64, 128]
    assert [point.actions for point in grid("dp=1,2").points] == [64, 32]


def test_more_values_leave_configuration_and_points_as_they_are() -> None:
    some, more = grid("microbatches=8,16", "schedule=a"), grid("microbatches=4,8,16,32", "schedule=a,b:vp=2")

    assert some.configuration == more.configuration
    assert {point.identity for point in some.points} < {point.identity for point in more.points}


@pytest.mark.parametrize(
    "other",
    [
        {"sets": ("network.latency=6 us",)},
        {"vp": "2"},
        {"over": ["microbatches=8", "pp=4"]},
        {"file": None, "schedule": "eager", "pp": "4"},
    ],
)
def test_another_base_or_other_keys_make_another_configuration(other: dict[str, Any]) -> None:
    over = other.pop("over", ["microbatches=8"])

    assert grid(*over, **other).configuration != grid("microbatches=8").configuration


def test_what_an_axis_replaces_is_no_part_of_the_configuration() -> None:
    assert grid("schedule=a,b").configuration == grid("schedule=a,b", file="step.yaml", sets=()).configuration
    Path("step.yaml").write_text(STEP.replace("eager", "other"))
    changed = grid("schedule=a,b")
    Path("step.yaml").write_text(STEP)

    assert changed.configuration == grid("schedule=a,b").configuration
    assert grid("network=ideal", "microbatches=8").points[0].identity != grid("microbatches=8").points[0].identity


def test_a_schedule_s_file_is_a_part_of_its_points() -> None:
    before = grid("schedule=./mine.py:make,eager").points
    Path("mine.py").write_text("def make(ranks, microbatches): return []\n")
    after = grid("schedule=./mine.py:make,eager").points

    assert [one.identity == other.identity for one, other in zip(before, after, strict=True)] == [False, True]


def test_the_file_is_read_once() -> None:
    made = grid("microbatches=8")
    Path("step.yaml").write_text("broken: [")

    assert made.base.document.value["parallel"] == {"pp": 4}


def test_a_parent_before_its_child_means_something() -> None:
    made = grid("network={name: hockney, bandwidth: 1 GB/s}", "network.latency=1 us,2 us")

    (axis,) = {point.entry.varied[0].path for point in made.points}
    assert axis == ("network",)
    assert len(made.points) == 2


REFUSED = [
    ([], {}, "--over: missing"),
    (["pp=2", "pp=4"], {}, "--over pp: --over pp also sets it"),
    (["microbatches=8", "batch.microbatches=4"], {}, "--over batch.microbatches: --over microbatches also"),
    (["network=a", "network.name=b"], {}, "--over network.name: --over network also sets it"),
    (["vp=1,2", "schedule=a,b:vp=2"], {}, "--over schedule: --over vp also sets it (parallel.vp)"),
    (["microbatches=8", "global=64"], {}, "--over global: it follows from microbatches, which is also an axis"),
    (
        ["network.latency=1 us", "network={name: hockney}"],
        {},
        "write --over network before --over network.latency",
    ),
    (["pp=2,4"], {"pp": "8"}, "--pp: --over pp sets it too"),
    (["pp=2,4"], {"sets": ("parallel.pp=8",)}, "--set parallel.pp=8: --over pp sets it too"),
    (["microbatches=8"], {"global": "64"}, "--global: --over microbatches sets it too"),
    (["network={name: hockney}"], {"sets": ("network.latency=1 us",)}, "--over network sets it too"),
    (["pp=2,4"], {"schedule": "t.csv"}, "--over pp: t.csv is a table with fixed sizes"),
    (["schedule=t.csv,eager", "microbatches=8"], {}, "--over microbatches: t.csv is a table"),
    (["pp=2,0"], {}, "--over pp=0: parallel.pp: "),
    (["contention=none,telepathy"], {}, "--over contention=telepathy: contention.links: "),
    (["costs.forward=1 ms", "pp=x"], {}, "--over pp=x: parallel.pp: "),
    (["parallel.qq=1"], {}, "--over parallel.qq=1: parallel.qq: "),
    (["parallel.pp.deep=1"], {}, "it has no key 'deep'"),
    (["microbatches=8"], {"file": None}, "missing: write a schedule"),
    (["microbatches=8"], {"file": None, "schedule": "eager"}, "parallel.pp: missing"),
    (["dp=3,5"], {}, "batch.global: 8 is not a multiple"),
    (["microbatches=8"], {"file": "gone.yaml"}, "gone.yaml: no such file"),
    (["pp=1..1000+1", "microbatches=1..1001+1"], {}, "--over: 1,001,000 points; the maximum is 1,000,000"),
]


@pytest.mark.parametrize(("over", "given", "complaint"), REFUSED, ids=lambda value: str(value)[:50])
def test_axes_that_contradict_are_refused_in_one_line(
    over: list[str], given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        grid(*over, **given)

    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_point_that_can_run_is_enough() -> None:
    assert len(grid("dp=2,3").points) == 2


def test_replicas_follow_from_a_number_of_gpus() -> None:
    made = grid_of(
        Path("step.yaml"), (), {}, parse_axes(["layout={pp: 2, tp: 2},{pp: 4},{pp: 3}", "schedule=a,b"]), gpus=8
    )

    said = [{one.path[-1]: one.value for one in point.entry.varied} for point in made.points[::2]]
    assert [(sizes["pp"], sizes["dp"]) for sizes in said] == [(2, 2), (4, 2), (3, 1)]
    assert [bool(point.refused) for point in made.points] == [False] * 4 + [True] * 2
    assert made.configuration != grid("layout={pp: 2, tp: 2},{pp: 4},{pp: 3}", "schedule=a,b").configuration


@pytest.mark.parametrize(
    ("encoder", "gpus", "replicas"),
    [("{pp: 1, tp: 1}", 10, 2), ("{pp: 1, tp: 1, dp: 2}", 10, 2), ("{tp: 1}", 12, 2), ("{pp: 6, tp: 1}", 12, 1)],
)
def test_replicas_count_the_gpus_of_encoders(encoder: str, gpus: int, replicas: int) -> None:
    """A replica has two decoder ranks of two GPUs beside the encoder's, except for an encoder on the decoder's."""
    tree = {"parallel": {"pp": 3, "tp": 2, "encoder": parse_value(encoder, "")}}

    assert replicas_of(tree, gpus) == (replicas, "")


def test_replicas_that_do_not_fill_the_gpus_beside_encoders_are_refused() -> None:
    tree = {"parallel": {"pp": 3, "tp": 2, "encoder": {"pp": 1, "tp": 1, "dp": 2}}}

    replicas, reason = replicas_of(tree, 12)

    assert replicas == 1
    assert reason.startswith("pp 3 x tp 2 x cp 1 with its encoders is a replica of 4 GPUs")
    assert reason.endswith("which do not divide 10 (12 without 2 of encoders)")


def test_replicas_are_not_said_beside_a_number_of_gpus() -> None:
    with pytest.raises(ConfigError, match="--over dp: it follows from --gpus"):
        grid_of(Path("step.yaml"), (), {}, parse_axes(["dp=1,2"]), gpus=8)
    with pytest.raises(ConfigError, match="do not divide 8"):
        grid_of(Path("step.yaml"), (), {}, parse_axes(["pp=3,5"]), gpus=8)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["a={pp: 4},{pp: 4}"], "--over a: {pp: 4} and {pp: 4} make the same step"),
        (["a={pp: 8},{pp: 4},{pp: 4, microbatches: 8}"], None),
        (["b={tp: 2},{tp: 4}", "a={pp: 4},{global: 8}"], "--over a: {pp: 4} and {global: 8} make the same step"),
        (["network={name: ideal, x: 1},{x: 1, name: ideal}"], "--over network: {name: ideal, x: 1} and {x: 1,"),
        (["machine=one.yaml,two.yaml"], "--over machine: one and two make the same step: remove one of the two"),
    ],
)
def test_values_that_make_the_same_step_are_refused(over: list[str], message: str | None) -> None:
    Path("one.yaml").write_text("parallel: {tp: 2}\n")
    Path("two.yaml").write_text("parallel: {tp: 2}\n")
    if message is None:
        points = grid(*over).points
        assert len({point.identity for point in points}) == len(points)
        return

    with pytest.raises(ConfigError) as caught:
        grid(*over)

    assert str(caught.value).startswith(message)
