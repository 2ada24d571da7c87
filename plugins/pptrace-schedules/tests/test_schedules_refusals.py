"""Sizes that chimera and hanayo cannot take are refused in one line with the nearest that they can."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from pptrace.errors import ConstraintError
from pptrace.plugins.requests import ScheduleRequest
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
SCALES = ("merged", "concatenation", "forward-doubling", "backward-halving")


def refused(name: str, ranks: int, microbatches: int, chunks: int = 1, **options: Any) -> ConstraintError | None:
    check = OFFERS[name].check
    assert check is not None
    try:
        check(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=options))
    except ConstraintError as error:
        return error
    return None


@pytest.mark.parametrize("pipelines", range(2, 10))
@pytest.mark.parametrize("scale", SCALES)
def test_whoever_follows_chimeras_advice_key_by_key_arrives_and_nothing_nearer_works(
    scale: str, pipelines: int
) -> None:
    def refusal(sizes: dict[str, int]) -> ConstraintError | None:
        return refused("chimera", *list(sizes.values())[1:], scale=scale, pipelines=sizes["pipelines"])

    for ranks in range(1, 14):
        for microbatches in range(1, 20):
            sizes, seen = {"pipelines": pipelines, "pp": ranks, "microbatches": microbatches}, list[str]()
            while error := refusal(sizes):
                key = error.key.split(".")[-1]
                near = [int(number) for number in re.findall(r"\d+", error.nearest)]
                nearer = range(near[0] + 1, near[1]) if len(near) > 1 else range(sizes[key], near[0])
                assert all(refusal(sizes | {key: other}) for other in nearer)
                assert key not in seen
                for other in near:
                    still = refusal(sizes | {key: other})
                    assert still is None or still.key != error.key
                seen.append(key)
                sizes[key] = near[-1]
            assert seen == sorted(seen, key=["pp", "pipelines", "microbatches"].index)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--pp 5 --microbatches 8",
            (
                "--pp: parallel.pp: chimera pairs a rank with its mirror image, and 5 ranks are odd; "
                "nearest that work: 4 or 6 ranks"
            ),
        ),
        (
            "--pp 5 --microbatches 8 --set schedule.options.pipelines=4",
            (
                "--pp: parallel.pp: chimera pairs a rank with its mirror image, and 5 ranks are odd; "
                "nearest that work: 4 or 8 ranks"
            ),
        ),
        (
            "--pp 1 --microbatches 8",
            (
                "--pp: parallel.pp: chimera pairs a rank with its mirror image, and 1 ranks are odd; "
                "nearest that work: 2 ranks"
            ),
        ),
        (
            "--pp 4 --microbatches 7",
            (
                "--microbatches: batch.microbatches: chimera (merged) fills 2 pipelines, "
                "and 7 microbatches do not; nearest that work: 6 or 8 microbatches"
            ),
        ),
        (
            "--pp 4 --microbatches 6 --set schedule.options.scale=concatenation",
            (
                "--microbatches: batch.microbatches: chimera (concatenation) fills basic units of 4, "
                "and 6 microbatches do not; nearest that work: 4 or 8 microbatches"
            ),
        ),
        (
            "--pp 4 --microbatches 6 --set schedule.options.scale=forward-doubling",
            (
                "--microbatches: batch.microbatches: chimera (forward-doubling) fills 2 pipelines with two "
                "microbatches at once, and 6 microbatches do not; nearest that work: 4 or 8 microbatches"
            ),
        ),
        (
            "--pp 4 --microbatches 12 --set schedule.options.scale=forward-doubling",
            (
                "--microbatches: batch.microbatches: chimera (forward-doubling) fills basic units of 8, "
                "and 12 microbatches do not; nearest that work: 8 or 16 microbatches"
            ),
        ),
        (
            "--pp 4 --microbatches 10 --set schedule.options.scale=backward-halving",
            (
                "--microbatches: batch.microbatches: chimera (backward-halving) fills basic units of 4, "
                "and 10 microbatches do not; nearest that work: 8 or 12 microbatches"
            ),
        ),
        (
            "--pp 4 --microbatches 1",
            (
                "--microbatches: batch.microbatches: chimera (merged) fills 2 pipelines, "
                "and 1 microbatches do not; nearest that work: 2 microbatches"
            ),
        ),
        (
            "--pp 12 --microbatches 24 --set schedule.options.pipelines=8",
            (
                "--set schedule.options.pipelines=8: 8 pipelines do not spread evenly "
                "over 12 ranks in both directions; nearest that work: 6 or 12 pipelines"
            ),
        ),
        (
            "--pp 4 --vp 2 --microbatches 8",
            (
                "--vp: parallel.vp: chimera keeps one chunk of the model on a rank, not 2 "
                "(hanayo takes several); nearest that work: 1 chunk"
            ),
        ),
        (
            "--pp 4 --microbatches 8 --set schedule.options.pipelines=1",
            (
                "--set schedule.options.pipelines=1: must be at least 2, not 1"
            ),
        ),
    ],
)  # fmt: skip
def test_what_chimera_cannot_take_is_refused_in_one_line(
    flags: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(f"simulate --schedule chimera {flags}", monkeypatch) == 2
    assert capsys.readouterr().err == f"pptrace: {line}\n"


def test_an_unknown_construction_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--pp 4 --microbatches 8 --set schedule.options.scale=double"

    assert command(f"simulate --schedule chimera {flags}", monkeypatch) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(scale in error for scale in SCALES)


HANAYO = "simulate --schedule hanayo --pp 4 --microbatches 4"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--vp 3",
            (
                "--vp: parallel.vp: a wave holds two chunks of the model on a rank, so hanayo takes an even "
                "number, not the 3 chunks per rank that are written; nearest that work: 2 or 4 chunks"
            ),
        ),
        (
            "--vp 4 --set schedule.options.waves=3",
            (
                "--vp: parallel.vp: 3 waves hold 6 chunks of the model on a rank, not the 4 chunks per rank that "
                "are written; nearest that work: 6 chunks"
            ),
        ),
        ("--vp 1", "--vp: parallel.vp: hanayo has 4 per rank, not 1: write 4"),
        (
            "--set schedule.options.waves=0",
            "--set schedule.options.waves=0: must be at least 1, not 0",
        ),
    ],
)
def test_chunks_that_are_no_waves_are_refused_in_one_line(
    flags: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(f"{HANAYO} {flags}", monkeypatch) == 2
    assert capsys.readouterr().err == f"pptrace: {line}\n"


def test_what_was_not_written_has_no_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("simulate --schedule interleaved-1f1b --pp 4 --microbatches 8", monkeypatch) == 2
    assert capsys.readouterr().err.startswith("pptrace: parallel.vp: interleaved-1f1b needs at least 2 chunks")


def test_chunks_that_hanayo_makes_count_as_memory_before_they_are_simulated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "1MiB")
    steps = f"{HANAYO} --pp 4 --microbatches 64 --set schedule.options.waves="

    assert command(f"{steps}8", monkeypatch) == 2
    assert "8,192 actions on 4 ranks would take about 2 MiB of memory" in capsys.readouterr().err


@pytest.mark.parametrize("chunks", range(1, 12))
@pytest.mark.parametrize("waves", [None, 1, 2, 3, 5])
def test_the_nearest_chunks_that_hanayo_names_make_waves(chunks: int, waves: int | None) -> None:
    options = {"waves": waves} if waves else {}
    error = refused("hanayo", 4, 4, chunks, **options)

    fits = chunks == 1 or chunks % 2 == 0 if waves is None else chunks in {1, 2 * waves}
    assert (error is None) == fits
    for number in re.findall(r"\d+", error.nearest) if error else ():
        assert refused("hanayo", 4, 4, int(number), **options) is None


def command(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    from pptrace.cli.main import main

    monkeypatch.setattr(sys, "argv", ["pptrace", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_memory_for_a_fixed_order_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "--set schedule.options.memory=1GiB"
    flags = f"--pp 4 --microbatches 8 {given} --set schedule.options.order=fixed"
    assert command(f"simulate --schedule zb-h1 {flags}", monkeypatch) == 2
    expected = "schedule.options: memory is for generated orders, and order is fixed: leave one of them out"
    assert capsys.readouterr().err == f"pptrace: {given}: {expected}\n"
