"""Costs as segments, and lengths of microbatches, mean what plain costs would, and are refused at their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import simulate
from pptrace.errors import ConfigError
from pptrace.plugins.requests import CostRequest
from pptrace.plugins.table_costs import TableOptions, table
from pptrace.steps.kinds import Kind, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.steps.workload import Workload

REDUCE = {"name": "all-reduce", "time": "2 ns", "stream": "tensor-parallel"}
FORWARD = [{"name": "attention", "time": "3 ns"}, REDUCE, {"name": "mlp", "time": "5 ns"}]
BACKWARD: list[dict[str, Any]] = [
    {"name": "input", "time": "8 ns", "size": "7 B"},
    {**REDUCE, "result": True},
    {"name": "weight", "time": "4 ns", "needs": [0], "frees": "6 B"},
]
STEP = """\
schedule: {name: pairs.csv, interleave: {F+B: [0, 1]}}
costs:
  name: table
  lengths: [1, 1]
  segments:
    F: [{name: attention, time: 3 ms}]
    B:
      - {name: input, time: 3 ms}
      - {name: all-reduce, time: 2 ms, stream: tensor-parallel}
"""


def costs(stages: int = 2, **values: Any) -> Workload:
    options = TableOptions.model_validate(values).model_dump()
    return table(CostRequest(ranks=2, stages=stages, microbatches=4, options=options))


def names(workload: Workload, kind: Kind, stage: int = 0) -> list[str]:
    return [item.name for item in workload.segments[kind][stage]]


def test_times_of_actions_are_the_sums_of_their_segments() -> None:
    workload = costs(segments={"F": FORWARD, "B": BACKWARD})

    assert (workload.f_ns.tolist(), workload.f_collective_ns.tolist()) == ([10, 10], [2, 2])
    assert (workload.b_ns.tolist(), workload.b_collective_ns.tolist()) == ([14, 14], [2, 2])
    assert (workload.i_ns.tolist(), workload.w_ns.tolist()) == ([7, 7], [7, 7])
    assert workload.recompute_ns.tolist() == [10, 10]
    assert [item.stream for item in workload.segments[Kind.F][1]] == [
        Stream.COMPUTE, Stream.TENSOR_PARALLEL, Stream.COMPUTE,
    ]  # fmt: skip
    assert [item.activation_bytes for item in workload.segments[Kind.B][0]] == [None, None, -6]


def test_each_stage_may_have_segments_of_its_own() -> None:
    workload = costs(forward=["1 ns", "2 ns"], segments={"B": [BACKWARD, BACKWARD[:1]]})

    assert (workload.f_ns.tolist(), workload.b_ns.tolist()) == ([1, 2], [14, 8])


def test_a_stage_of_two_slices_has_both_slices_segments_the_last_slice_s_backward_first() -> None:
    other = [{**item, "name": f"second-{item['name']}"} for item in BACKWARD]
    workload = costs(1, slices=2, segments={"F": FORWARD, "B": [BACKWARD, other]})
    backward = workload.segments[Kind.B][0]

    assert (workload.f_ns.tolist(), workload.b_ns.tolist()) == ([20], [28])
    assert [item.name for item in backward] == [
        *(item["name"] for item in other),
        *(item["name"] for item in BACKWARD),
    ]
    assert [item.needs_of(place) for place, item in enumerate(backward)] == [(), (0,), (0,), (1,), (3,), (3,)]
    assert [item.result for item in backward] == [False, False, False, False, True, False]


def test_stages_that_share_a_slice_have_a_part_of_each_segment() -> None:
    workload = costs(2, slices=1, segments={"F": FORWARD, "B": BACKWARD}, overhead="10 ns")

    assert [item.duration_ns for item in workload.segments[Kind.F][0]] == [1 + 10, 1, 2]
    assert workload.f_ns.tolist() == [14, 14]


def test_a_microbatch_takes_as_much_longer_as_it_is() -> None:
    workload = costs(
        lengths=[1, 2.5, 0.1, 2.5], segments={"F": FORWARD, "B": BACKWARD}, boundary="3 B", weights="9 B",
        overhead="1 ns",
    )  # fmt: skip

    assert workload.microbatch_class.tolist() == [0, 1, 2, 1]
    assert [costs.f_ns[0] for costs in (workload, *workload.classes)] == [11, 25, 1]
    assert workload.classes[0].boundary_bytes.tolist() == [7]
    assert workload.classes[0].weights_bytes.tolist() == [9, 9]


def test_a_microbatch_cut_into_parts_keeps_its_length() -> None:
    workload = costs(lengths=[1, 2, 2, 1], forward="8 ns", backward="8 ns").divided(2)

    assert workload.microbatch_class.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert [costs.f_ns[0] for costs in (workload, *workload.classes)] == [4, 8]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lengths": [1, 2]}, "costs.lengths: 2 values for 4 microbatches: write one each"),
        ({"lengths": [1, 1, 1, 1e6], "forward": "100000000 s"}, "costs.lengths: a microbatch would pass"),
        ({"segments": {"F": FORWARD}}, "costs.forward: costs.segments.F defines its time: remove the key"),
        ({"segments": {"B": [BACKWARD] * 3}, "backward": None}, "costs.segments.B: 3 lists for 2 stages"),
        ({"segments": {"W": [REDUCE]}}, "costs.segments.W: none of its segments computes"),
        ({"segments": {"W": [BACKWARD[:1], BACKWARD[2:]]}}, r"costs.segments.W\[1\]\[0\]: segment weight needs"),
        ({"segments": {"W": [{"name": "a", "link": "nvlink"}]}}, "segment a goes over nvlink and has no size"),
        ({"segments": {"W": [{"name": "a", "takes": "1 B", "frees": "1 B"}]}}, "a both takes and frees"),
        ({"forward": None}, "costs.forward: missing: write the forward's time, or its segments"),
    ],
)  # fmt: skip
def test_what_no_step_can_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        costs(**{"forward": "8 ns", "backward": "16 ns", **values})


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("[1, 1]", "[1]", "step.yaml:4:3: costs.lengths: 1 values for 2 microbatches"),
        ("tensor-parallel", "tensor", "step.yaml:9:40: costs.segments.B[1].stream: unknown value 'tensor'"),
        (
            "2 ms,",
            "2 ms, needs: [1],",
            "step.yaml:9:9: costs.segments.B[1]: segment all-reduce needs segments [1]",
        ),
        ("2 ms,", "2,", "step.yaml:9:28: costs.segments.B[1].time: 2 has no unit"),
        ("F+B: [0, 1]", "B+F: [0, 1]", "schedule.interleave.B+F: the table has no such pair; it has F+B"),
        ("F+B: [0, 1]", "F+X: [0, 1]", "schedule.interleave.F+X: the table has no such pair; it has F+B"),
        ("F+B: [0, 1]", "F+B: [0, 2]", "schedule.interleave.F+B[1]: member 2 of a pair of 2: they count from 0"),
        ("F+B: [0, 1]", "F+B: []", "schedule.interleave.F+B: must be at least one value, not an empty list"),
    ],
)
def test_what_is_wrong_in_a_file_is_reported_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, right: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")
    (tmp_path / "step.yaml").write_text(STEP.replace(wrong, right))

    with pytest.raises(ConfigError) as error:
        simulate("step.yaml")

    assert message in str(error.value)


def test_an_order_in_the_file_is_the_table_s_and_provenance_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")
    (tmp_path / "step.yaml").write_text(STEP)

    run = simulate("step.yaml")
    again = simulate(run.provenance["configuration"])

    assert run.prepared.schedule.interleave == {(Kind.F, Kind.B): (0, 1)}
    assert again.timeline.difference(run.timeline) == ""
