"""Megatron-LM's spans: three ways in which OpenTelemetry writes them, ranks and steps, and what is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from otel_lines import MS, WAYS, spans, written

from pptrace.errors import TraceError
from pptrace.measured.replay import replay
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import is_chrome, is_inspector, is_kineto, is_otel, measure_otel

if TYPE_CHECKING:
    from pathlib import Path


def measured(folder: Path, *ranks: list[str], together: bool = False) -> Measurement:
    paths = []
    for rank, lines in enumerate([[line for item in ranks for line in item]] if together else ranks):
        paths.append(folder / f"spans-{rank}.jsonl")
        paths[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return measure_otel(paths, ImportRequest())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("together", [False, True])
def test_every_exporter_s_spans_are_the_pipeline(
    way: str, pipeline: Any, tmp_path: Path, *, together: bool
) -> None:
    result = measured(tmp_path, *(spans(pipeline, rank, way) for rank in (0, 1)), together=together)

    assert [step.label for step in result.steps] == ["step 40", "step 41"]
    for step in result.steps:
        acts = [step.timeline[row] for row in range(len(step.timeline)) if not step.timeline[row].stream]
        times = {str(item.action): (item.start_ns, item.end_ns) for item in acts}
        assert times == {item.text: (item.start, item.end) for item in pipeline.acts}
        assert replay(step.timeline).explained == pytest.approx(1, abs=0.01)


def test_the_program_s_own_lines_and_metrics_stand_between(pipeline: Any, tmp_path: Path) -> None:
    metrics = json.dumps({"resource_metrics": [{"resource": {"attributes": {}}, "scope_metrics": []}]})
    lines = [
        "loading data ...",
        metrics,
        *spans(pipeline, 0, "lens"),
        "[rank0] done",
        '{"iteration": 4, "loss": 1.0}',
    ]

    result = measured(tmp_path, lines, spans(pipeline, 1, "lens"))

    assert len(result.steps) == 2
    assert is_otel("\n".join(lines).encode()[:4096])


def test_numbers_of_microbatches_go_before_their_order(pipeline: Any, tmp_path: Path) -> None:
    counted = measured(tmp_path, *(spans(pipeline, rank, "lens") for rank in (0, 1)))
    numbered = measured(tmp_path, *(spans(pipeline, rank, "lens", numbered=True) for rank in (0, 1)))

    assert counted.steps[0].timeline.difference(numbered.steps[0].timeline) == ""


def test_messages_of_the_steady_state_may_be_missing(pipeline: Any, tmp_path: Path) -> None:
    result = measured(tmp_path, *(spans(pipeline, rank, "lens", every=False) for rank in (0, 1)))

    assert len(result.steps) == 2
    assert replay(result.steps[0].timeline).explained == pytest.approx(1, abs=0.05)


def test_the_last_rank_alone_is_said_to_be_what_is_written_by_default(pipeline: Any, tmp_path: Path) -> None:
    result = measured(tmp_path, spans(pipeline, 1, "lens"))

    (note,) = (item for item in result.notes if "MEGATRON_OTEL_RANK_STRATEGY=all_ranks" in item)
    assert note.startswith("spans of 1 of 2 ranks")


def test_the_last_of_two_replicas_ranks_alone_is_of_its_pipeline(pipeline: Any, tmp_path: Path) -> None:
    said = {"dl.world_size": 4, "dl.pipeline_parallel.size": 2, "dl.data_parallel.size": 2, "dl.rank": 3}
    records = [json.loads(line) for line in spans(pipeline, 1, "own")]
    lines = [json.dumps({**record, "resource": {"attributes": said}}) for record in records]

    result = measured(tmp_path, lines)

    assert (result.numbers, result.ranks) == ((1,), 2)
    assert {int(stage) for stage in result.steps[0].timeline.stage} == {1}


def test_a_rank_whose_spans_say_no_sizes_is_a_pipeline_of_its_own(pipeline: Any, tmp_path: Path) -> None:
    records = [json.loads(line) for line in spans(pipeline, 1, "own")]
    lines = [json.dumps({**record, "resource": {"attributes": {"dl.rank": 1}}}) for record in records]

    result = measured(tmp_path, lines)

    assert len(result.steps) == 2
    assert any("--layout pp=4" in note for note in result.notes)


def test_spans_without_a_time_are_counted_once(pipeline: Any, tmp_path: Path) -> None:
    lines = spans(pipeline, 0, "own")
    broken = [json.dumps({**json.loads(line), "end_time_unix_nano": 0}) for line in lines[:2]]

    result = measured(tmp_path, [*lines, *broken], spans(pipeline, 1, "own"))

    assert [note for note in result.notes if "no time" in note] == [
        "spans-0.jsonl: 2 spans have no time or an invalid one: skipped"
    ]


@pytest.mark.parametrize(
    ("kept", "message"),
    [("microbatch", "has no span of a step"), ("iteration", "has no span of a microbatch"), ("xx", "of a step")],
)
def test_groups_that_were_not_switched_on_are_named(
    kept: str, message: str, pipeline: Any, tmp_path: Path
) -> None:
    lines = [line for line in spans(pipeline, 0, "lens") if kept in line]
    with pytest.raises(TraceError, match=f"{message}.*MEGATRON_OTEL_SPAN_GROUPS=step,microbatch,communication"):
        measured(tmp_path, [*lines, written("lens", "megatron.x", (MS, 2 * MS), {}, {})])


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b'{"name": "' + b"x" * (17 << 20))
    with pytest.raises(TraceError, match="has a line, or an object, of more than 16 MiB"):
        measure_otel([path], ImportRequest())


@pytest.mark.parametrize("way", WAYS)
def test_spans_are_recognised_and_no_other_format_takes_them(way: str, pipeline: Any) -> None:
    head = "\n".join(spans(pipeline, 0, way)).encode()[:4096]

    assert is_otel(head)
    assert not any(other(head) for other in (is_kineto, is_chrome, is_inspector))
    assert not is_otel(b'{"schemaVersion": 1, "traceEvents": [{"name": "a", "ph": "X"}]}')
