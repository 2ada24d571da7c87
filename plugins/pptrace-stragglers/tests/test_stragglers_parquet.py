"""Parquet of a job's operations: what waits for what, one replica's steps, what stragglers cost, wrong input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from straggler_parquet import RANKS, operations, write_job

from pptrace.cli.explain import command
from pptrace.errors import ConfigError, TraceError
from pptrace.measured.replay import replay
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_stragglers.measurement import measure_job
from pptrace_stragglers.simulation import Job, JobSimulation
from pptrace_stragglers.what_if import Stragglers, find_stragglers

PUBLISHED = Path(os.environ.get("PPTRACE_TRACES", "/nonexistent")) / "straggler-osdi25"
COMPUTE = ("forward-compute", "backward-compute")


def even(_replica: int, _step: int, way: str, _rank: int, _microbatch: int) -> float:
    return 0.01 if way == "forward" else 0.02


def slow_worker(replica: int, step: int, way: str, rank: int, microbatch: int) -> float:
    return even(replica, step, way, rank, microbatch) * (1.7 if (replica, rank) == (4, 1) else 1)


def long_last(replica: int, step: int, way: str, rank: int, microbatch: int) -> float:
    return even(replica, step, way, rank, microbatch) * (2 if rank == RANKS - 1 else 1)


def lengths(replica: int, step: int, way: str, rank: int, microbatch: int) -> float:
    drawn = np.random.default_rng([replica, step, microbatch]).uniform(0.5, 2)
    return even(replica, step, way, rank, microbatch) * float(drawn)


def measured(path: Path, **request: Any) -> Measurement:
    return measure_job([path], ImportRequest(**request))


def stragglers(path: Path) -> Stragglers:
    job = measured(path).job
    assert isinstance(job, Job)
    return find_stragglers(job)


def test_a_step_in_which_nothing_else_waits_is_simulated_as_it_was(tmp_path: Path) -> None:
    job = measured(write_job(tmp_path / "job.parquet", operations(lengths, replicas=4))).job
    assert isinstance(job, Job)
    model = JobSimulation(job)

    _, end = model.run(model.measured_ns())

    assert end == pytest.approx(job.end_ns, abs=100)


@pytest.mark.parametrize(
    ("takes", "cause"),
    [(even, "none"), (slow_worker, "workers"), (long_last, "last-stage"), (lengths, "lengths")],
)
def test_the_cause_that_was_put_in_is_found(takes: Any, cause: str, tmp_path: Path) -> None:
    report = stragglers(write_job(tmp_path / "job.parquet", operations(takes, replicas=6)))

    assert report.cause == cause
    if cause == "workers":
        assert [(straggler.replica, straggler.rank, straggler.worker) for straggler in report.slowest] == [
            ("dp=4", 1, 4 * RANKS + 1)
        ]


def test_the_steps_of_a_replica_are_a_pipeline_and_replay_as_they_were(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", operations(slow_worker, replicas=5))

    first, slowest = measured(path), measured(path, replica="slowest")

    assert [step.label for step in first.steps] == ["step 7", "step 9"]
    assert "replica dp=4 of 5" in slowest.notes
    assert replay(slowest.steps[0].timeline).replayed_ns > replay(first.steps[0].timeline).replayed_ns
    for step in first.steps:
        assert replay(step.timeline).explained == pytest.approx(1, abs=0.01)


def test_steps_that_lack_operations_are_left_out_and_named(tmp_path: Path) -> None:
    rows = [row for row in operations(even, steps=(1, 2, 3)) if row[3:5] != (2, "gc") or row[1]]

    read = measured(write_job(tmp_path / "job.parquet", rows))

    assert [step.label for step in read.steps] == ["step 1", "step 3"]
    assert "steps 2 do not hold the same operations of every replica: skipped" in read.notes


def test_explain_says_who_is_slow_in_json_on_a_page_and_in_a_picture(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", operations(slow_worker, replicas=6))
    files = [tmp_path / name for name in ("page.html", "heat.svg", "ideal.json")]

    result = CliRunner().invoke(command, [str(path), "--json", *(f"-o{file}" for file in files)])

    values = json.loads(result.stdout)["stragglers"]
    assert (values["cause"], values["slowest"][0]["worker"]) == ("workers", 4 * RANKS + 1)
    assert np.array(values["heat"]).shape == (6, RANKS)
    page = files[0].read_text()
    assert "few workers are slow" in page
    assert "dp=4, rank 1" in page
    assert files[1].read_text().startswith("<?xml")
    assert len(json.loads(files[2].read_text())["traceEvents"]) > 2 * RANKS * 4


def test_a_replica_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are dp=0 to dp=1, slowest and median"):
        measured(write_job(tmp_path / "job.parquet", operations(even)), replica="dp=2")


ROWS = operations(even, steps=(1,))
COUNT = len(ROWS)
WRONG = {
    "no durations": (("duration", "mb_id"), {}, "lacks the columns mb_id, duration of a job's operations"),
    "words": ((), {"stage": ["one"] * COUNT}, "column stage holds string and no whole numbers"),
    "negative": ((), {"duration": [-1.0] * COUNT}, "column duration holds invalid times"),
    "not a number": ((), {"start_ts": [float("nan")] * COUNT}, "column start_ts holds invalid times"),
    "no stage 0": ((), {"stage": [2] * COUNT}, "has no row of stage 0"),
    "far too many stages": ((), {"stage": [2**30] * COUNT}, "column stage holds invalid numbers"),
    "one type": ((), {"optype": ["gc"] * COUNT, "seq_id": range(COUNT)}, "holds no step in which all replicas"),
    "no microbatches": ((), {"mb_id": [-1] * COUNT}, r"forward-compute 0 of stage 0 has no microbatch \(mb_id\)"),
    "each type once more": ((), {"seq_id": [0] * COUNT}, "counts operations of one type twice: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_columns_are_one_line(name: str, tmp_path: Path) -> None:
    without, columns, message = WRONG[name]
    with pytest.raises(TraceError, match=message):
        measured(write_job(tmp_path / "job.parquet", ROWS, *without, **columns))


@pytest.mark.parametrize("name", ["start_ts", "stage", "optype"])
def test_a_column_that_is_there_twice_is_named(name: str, tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", ROWS)
    table = parquet.read_table(path)
    parquet.write_table(table.append_column(name, table.column(name)), path)

    with pytest.raises(TraceError, match=f"job.parquet: has the column {name} twice: keep one"):
        measured(path)


def test_messages_that_are_missing_are_one_line(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row[4] != "forward-send" or row[7] < 2]
    with pytest.raises(TraceError, match="stage 0 has 2 forward-send for 4 forward-compute"):
        measured(write_job(tmp_path / "job.parquet", rows))


def test_a_file_that_is_cut_is_one_line(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceError, match="is not a readable Parquet file of operations"):
        measured(path)


def test_more_rows_than_may_be_held_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(tmp_path / "job.parquet", ROWS)
    monkeypatch.setenv("PPTRACE_MOST_EVENTS", "100")

    with pytest.raises(TraceError, match="holds more than 100 events"):
        measured(path)


def test_types_that_are_whole_books_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", ROWS[:1], optype=["x" * (9 << 20)])

    with pytest.raises(TraceError, match="column optype holds 9 MiB of text: those are not operation types"):
        measured(path)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="PPTRACE_TRACES has no straggler-osdi25")
@pytest.mark.parametrize("name", ["ST", "SE"])
def test_published_jobs_lose_what_their_authors_found(name: str) -> None:
    report = stragglers(PUBLISHED / f"trace-{name}.parquet")
    result = json.loads((PUBLISHED / f"result-{name}.json").read_text())

    assert report.slowdown == pytest.approx(result["blocking_slowdown"], abs=1e-5)
    by_type = {one: effect.slowdown for one, effect in report.by_type.items()}
    by_replica = {one.removeprefix("dp="): effect.slowdown for one, effect in report.by_replica.items()}
    assert by_type == pytest.approx(result["blocking_decompose_by_optype"], abs=1e-5)
    assert by_replica == pytest.approx(result["blocking_decompose_by_dp_rank"], abs=1e-5)
    for metric, mine in (("mw", report.slowest_workers), ("ms", report.last_stage)):
        document = json.loads((PUBLISHED / f"{metric}-{name}.json").read_text())
        assert (mine.removed, mine.added) == pytest.approx((document["rem"], document["add"]), abs=1e-4)


def spans(model: JobSimulation, times: np.ndarray) -> np.ndarray:
    """Return from the first computation to the last of each replica and step, where nothing else takes time."""
    computing = [at for at, operation in enumerate(model.job.operations) if operation.type in COMPUTE]
    alone = np.zeros_like(times)
    alone[computing] = times[computing]
    start, end = model.run(alone)
    found: np.ndarray = end[computing].max(axis=0) - start[computing].min(axis=0)
    return found


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="PPTRACE_TRACES has no straggler-osdi25")
@pytest.mark.parametrize(("name", "replayed", "alike"), [("ST", -0.0025, -0.0015), ("SE", -0.0104, -0.124)])
def test_the_spread_of_lengths_costs_what_it_does(name: str, replayed: float, alike: float) -> None:
    """Each pipeline alone, with free messages: as it was, and with its stage and pass's median over the job."""
    job = measured(PUBLISHED / f"trace-{name}.parquet").job
    assert isinstance(job, Job)
    model = JobSimulation(job)
    computing = [at for at, operation in enumerate(job.operations) if operation.type in COMPUTE]
    took = (job.end_ns - job.start_ns).astype(np.float64)
    span = job.end_ns[computing].max(axis=0) - job.start_ns[computing].min(axis=0)
    medians = took.copy()
    for key in {(job.operations[at].type, job.operations[at].rank) for at in computing}:
        members = [at for at in computing if (job.operations[at].type, job.operations[at].rank) == key]
        medians[members] = np.median(took[members])

    assert (spans(model, took) / span - 1).mean() == pytest.approx(replayed, abs=0.001)
    assert np.median(spans(model, medians) / span - 1) == pytest.approx(alike, abs=0.002)
