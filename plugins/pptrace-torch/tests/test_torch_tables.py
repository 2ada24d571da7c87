"""Tables that PyTorch cannot run, and manifests, without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from pptrace.errors import ConfigError, ScheduleError
from pptrace.steps.schedule import Schedule
from pptrace_torch.manifest import NAME, Manifest, StageTimes, check_table, require_torch

if TYPE_CHECKING:
    from pathlib import Path

FINE = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1I0", "1W0", "1F1", "1B1"]]


def refusal(rows: list[list[str]]) -> str:
    with pytest.raises(ScheduleError) as caught:
        check_table(Schedule.from_rows(rows))
    return str(caught.value)


def test_a_table_that_pytorch_runs_is_accepted() -> None:
    check_table(Schedule.from_rows(FINE))


def test_an_overlapped_pair_is_accepted() -> None:
    check_table(Schedule.from_rows([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]))


def test_a_table_that_pytorch_refuses_or_misreads_is_refused_in_one_line() -> None:
    text = refusal([["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"]])

    assert text.startswith("PyTorch cannot run this table, which has actions such as 0OFFLOAD0: ")
    assert "\n" not in text


@pytest.mark.parametrize(("installed", "said"), [("2.12.1+cpu", "too old"), (None, "not installed")])
def test_pytorch_that_is_missing_or_old_is_named(
    installed: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(_: str) -> str:
        if installed is None:
            raise PackageNotFoundError
        return installed

    monkeypatch.setattr("pptrace_torch.manifest.version", version)

    with pytest.raises(ConfigError, match=said):
        require_torch()


def manifest() -> Manifest:
    times = StageTimes(forward_ns=1, input_gradient_ns=2, weight_gradient_ns=3, backward_ns=5, message_bytes=7)
    return Manifest(
        table=tuple(map(tuple, FINE)), microbatches=2, stages=(times, replace(times, forward_ns=9)),
        backend="gloo", empty_input_gradient=False, versions={"torch": "2.13.0"},
    )  # fmt: skip


def test_a_manifest_reads_as_it_was_written(tmp_path: Path) -> None:
    manifest().write(tmp_path)

    assert Manifest.read(tmp_path) == manifest()
    assert manifest().schedule.rows() == FINE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "stages": [3]}', "[" * 100_000]
)
def test_a_damaged_manifest_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)

    with pytest.raises(ConfigError, match=NAME) as caught:
        Manifest.read(tmp_path)
    assert "\n" not in str(caught.value)
