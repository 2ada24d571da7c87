"""Chakra traces that pptrace wrote give back their timeline; wrong files are one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from drawn_parts import drawn_parts
from drawn_routes import cluster_counters, drawn_routes
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from simulated_steps import SimulatedStep, simulated_steps

import pptrace
from pptrace.cli.convert import command as convert
from pptrace.cli.diff import command as diff
from pptrace.errors import ConfigError, OutputError, TraceError
from pptrace.plugin import Counter
from pptrace.run.trace_files import save
from pptrace_chakra.plugin import is_linked, is_step, pptrace_exporters
from pptrace_chakra.step_files import message_types, read, write

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.plugin import Timeline

EXPORTERS = {offer.name: offer for offer in pptrace_exporters()}
JSON = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(), max_size=3)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw a simulated step with links, segments, counters and provenance of any kind."""
    simulated: SimulatedStep = draw(simulated_steps())
    timeline = simulated.timeline
    memory = Counter(
        rank=int(timeline.lane_rank[0]), name="memory", unit="bytes",
        at_ns=np.array([0, 7], dtype=np.int64), value=np.array([draw(st.integers(-(2**40), 2**62)), 0]),
    )  # fmt: skip
    return replace(
        timeline,
        counters=(*draw(cluster_counters()), memory),
        routes=draw(drawn_routes(len(timeline))),
        parts=timeline.parts or draw(drawn_parts(len(timeline))),
        provenance=draw(JSON),
    )


@given(timeline=timelines(), suffix=st.sampled_from([".et", ".et.gz"]))
def test_what_was_written_is_read_again(
    timeline: Timeline, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = save(timeline, [f"{tmp_path_factory.mktemp('step')}/step{suffix}"], EXPORTERS, {"color": "kind"})
    again = read(paths[::-1])
    assert not timeline.difference(again)
    assert timeline.provenance == again.provenance


def test_a_step_is_written_to_a_folder_and_compared_without_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = pptrace.simulate(schedule="zb-v", pp=2, microbatches=4, vp=2)
    run.save("step.pftrace")
    converted = CliRunner().invoke(convert, ["step.pftrace", "step.et/"], catch_exceptions=False)
    assert converted.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "step.et").iterdir()) == ["step.0.et", "step.1.et"]
    compared = CliRunner().invoke(diff, ["step.pftrace", "step.et", "--json"], catch_exceptions=False)
    assert compared.exit_code == 0
    back = CliRunner().invoke(convert, ["step.et", "again.pftrace"], catch_exceptions=False)
    assert back.exit_code == 0
    assert (tmp_path / "again.pftrace").read_bytes() == (tmp_path / "step.pftrace").read_bytes()


def test_the_same_step_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pptrace.simulate(schedule="1f1b", pp=2, microbatches=4).save(tmp_path / name / "{rank}.et")
    for rank in range(2):
        assert (tmp_path / "a" / f"{rank}.et").read_bytes() == (tmp_path / "b" / f"{rank}.et").read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the files of a step of two ranks."""
    return pptrace.simulate(schedule="1f1b", pp=2, microbatches=2).save(tmp_path / "step.et")


def test_files_are_recognised_by_their_first_message(files: list[Path], tmp_path: Path) -> None:
    head = files[0].read_bytes()[:4096]
    assert is_step(files[0], head)
    assert not is_linked(files[0], head)
    metadata = message_types()["GlobalMetadata"](version="0.0.4").SerializeToString()
    foreign = bytes([len(metadata)]) + metadata
    assert is_linked(tmp_path, foreign)
    assert not is_step(tmp_path, foreign)
    for other in (b"", b"{}", b'{"traceEvents": []}', b"\n\x05hello", b"\x1f\x8b\x08"):
        assert not is_step(tmp_path, other)
        assert not is_linked(tmp_path, other)


def test_a_cause_on_a_rank_without_a_file_is_unknown(files: list[Path]) -> None:
    whole, part = read(files), read(files[1:])
    rows = whole.rank_slices(1)[1]
    assert len(part) == rows.stop - rows.start
    assert not ((part.cause >= 0) & (part.cause >= len(part))).any()


def truncated(raw: bytes) -> bytes:
    return raw[:-3]


def newer(raw: bytes) -> bytes:
    key = b"pptrace.format"
    return raw.replace(key + b"\x48\x01", key + b"\x48\x09")


def other_columns(raw: bytes) -> bytes:
    return raw.replace(b'"enter_ns"', b'"enter_xs"')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (truncated, "is truncated after"),
        (newer, "has format 9; this pptrace reads 1"),
        (other_columns, "is damaged"),
        (lambda raw: raw[:1] + b"\xff" * 5 + raw[6:], "is truncated|is not a Chakra trace|is damaged"),
    ],
)
def test_a_damaged_file_is_one_line(files: list[Path], change: Any, message: str) -> None:
    files[0].write_bytes(change(files[0].read_bytes()))
    with pytest.raises(TraceError, match=message) as raised:
        read(files)
    assert "\n" not in str(raised.value)


@given(data=st.data())
def test_changed_bytes_give_a_timeline_or_one_line(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("changed")
    files = pptrace.simulate(schedule="1f1b", pp=2, microbatches=2).save(folder / "step.et")
    raw = bytearray(files[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    files[0].write_bytes(raw)
    message = ""
    try:
        read(files)
    except TraceError as error:
        message = str(error)
    assert "\n" not in message


def test_files_of_two_runs_are_not_joined(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    others = pptrace.simulate(schedule="gpipe", pp=2, microbatches=3).save(tmp_path / "other" / "step.et")
    with pytest.raises(TraceError, match="is not of the same run"):
        read([files[0], others[1]])


def test_a_rank_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    timeline = pptrace.simulate(schedule="1f1b", pp=2, microbatches=2).timeline
    with pytest.raises(ConfigError, match="the timeline has no rank 7"):
        write(timeline, tmp_path / "step.et", {"rank": 7})


def test_a_folder_that_is_a_file_is_an_error(files: list[Path]) -> None:
    timeline = pptrace.simulate(schedule="1f1b", pp=2, microbatches=2).timeline
    with pytest.raises(OutputError, match="its folder is a file"):
        save(timeline, [f"{files[0]}/"], EXPORTERS, {})


def test_the_provenance_of_the_configuration_survives(files: list[Path]) -> None:
    configuration = read(files).provenance["configuration"]
    assert json.loads(json.dumps(configuration)) == configuration
    assert configuration["parallel"]["pp"] == 2
