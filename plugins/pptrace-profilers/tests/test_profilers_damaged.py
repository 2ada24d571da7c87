"""Runs of which a file was cut, damaged or exported in part: the others are explained, what is lost is said."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.cli.explain import command
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers import plugin as importers
from pptrace_profilers.timeline_assembly import TimesAlone

if TYPE_CHECKING:
    from pathlib import Path


def explained(folder: Path) -> Any:
    return CliRunner().invoke(command, [str(folder)])


@pytest.mark.parametrize("cut", [0.6, 0.01], ids=["in the middle", "in its first bytes"])
def test_a_packed_file_that_was_cut_costs_that_rank_alone(pipeline: Any, cut: float, tmp_path: Path) -> None:
    """Cut so early that not even its first bytes can be unpacked, it is named all the same."""
    _, second = pipeline.kineto(tmp_path)
    raw = second.read_bytes()
    second.write_bytes(raw[: int(len(raw) * cut) + 2])

    explanation = explained(tmp_path)

    assert explanation.exit_code == 0
    assert "step" in explanation.stdout
    assert "rank1.json.gz" in explanation.stderr


def test_a_damaged_gzip_file_among_others_is_named_and_left_out(pipeline: Any, tmp_path: Path) -> None:
    _, second = pipeline.kineto(tmp_path)
    second.write_bytes(b"\x1f\x8bnothing of the sort")

    explanation = explained(tmp_path)

    assert explanation.exit_code == 0
    assert "note: no importer recognises rank1.json.gz: skipped" in explanation.stderr


def test_a_database_without_kernels_says_whose_time_its_actions_have(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.nsys(tmp_path / "run.sqlite", drop="CUPTI_ACTIVITY_KIND_KERNEL")

    notes = " ".join(importers.measure_nsys([path], ImportRequest()).notes)

    assert "has no CUPTI_ACTIVITY_KIND_KERNEL: actions last as long as their ranges on the host" in notes


def test_a_message_of_a_microbatch_that_nobody_computed_is_no_part_of_a_step(
    pipeline: Any, tmp_path: Path
) -> None:
    """Of the second rank alone, without the annotations of its second microbatch's computations."""
    path = pipeline.kineto(tmp_path)[1]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = [
        traceEvent for traceEvent in trace["traceEvents"] if traceEvent["name"] not in {"PP:1F1", "PP:1B1"}
    ]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))

    (step,) = importers.measure_kineto([path], ImportRequest()).steps

    assert {str(item.action) for item in step.timeline} == {"1F0", "1B0", "1RECV_F0", "1SEND_B0"}


@pytest.mark.parametrize("phase", [[], {}, None])
def test_an_event_of_no_phase_is_none(pipeline: Any, phase: Any, tmp_path: Path) -> None:
    path, rules = pipeline.chrome(tmp_path), pipeline.rules(tmp_path)
    whole = CliRunner().invoke(command, [str(path), "--rules", str(rules)])
    content = json.loads(path.read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    events.append({"ph": phase, "name": "x", "ts": 1})
    path.write_text(json.dumps(content))

    result = CliRunner().invoke(command, [str(path), "--rules", str(rules)])

    assert (result.exit_code, result.stdout) == (0, whole.stdout)


def test_an_action_of_absurd_length_ends_when_it_does() -> None:
    """Floats of that size are 256 apart."""
    length = 1_790_000_000_043_000_001

    spans = TimesAlone([], {}).spans([Action(kind=Kind.F, stage=0, microbatch=0)], 0, length, {})

    assert list(spans) == [(0, length)]
