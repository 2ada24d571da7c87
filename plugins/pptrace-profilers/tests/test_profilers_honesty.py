"""What is done to a recorded run is what a diff against the run itself says, and nothing else."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).parent / "fixtures" / "sleep-1f1b_csv"


def changed(folder: Path, change: Callable[[int, dict[str, Any]], None], run: Path = RUN) -> Path:
    """Return a copy of a run in which every rank's file was changed."""
    folder.mkdir()
    for path in sorted(run.glob("rank*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        change(int(path.name[4]), trace)
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), mtime=0))
    return folder


def untouched(rank: int, trace: dict[str, Any]) -> None:
    del rank, trace


def on_own_host(rank: int, trace: dict[str, Any]) -> None:
    trace["host_name"] = f"host{rank}"


def diffed(first: Path, second: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["diff", str(first), str(second), "--json", *options], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def test_a_run_does_not_differ_from_itself() -> None:
    code, difference = diffed(RUN, RUN)

    assert code == 0
    assert difference["actions"] == difference["orders"] == difference["causes"] == []
    assert difference["divergence"] is None
    assert difference["step_ns"][0] == difference["step_ns"][1]
    assert {rung["change_ns"] for rung in difference["ladder"]} == {0}


@pytest.mark.parametrize("name", ["2F4", "1B2", "0B7"])
def test_three_milliseconds_on_one_action_are_ranked_first_as_three(name: str, tmp_path: Path) -> None:
    def stretch(rank: int, trace: dict[str, Any]) -> None:
        del rank
        for event in trace["traceEvents"]:
            if event.get("name") == f"PP:{name}":
                event["dur"] += 3000

    code, difference = diffed(RUN, changed(tmp_path / "longer", stretch))

    first = difference["actions"][0]
    assert code in {0, 1}
    assert (first["action"], first["change_ns"]) == (name, 3_000_000)
    assert (
        difference["divergence"]["action"]["kind"] is not None
        if isinstance(difference["divergence"]["action"], dict)
        else True
    )


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shift_us", [50_000, -50_000])
def test_a_shifted_clock_changes_nothing_but_its_offset(rank: int, shift_us: int, tmp_path: Path) -> None:
    def shift(number: int, trace: dict[str, Any]) -> None:
        on_own_host(number, trace)
        for event in trace["traceEvents"] if number == rank else []:
            if "ts" in event:
                event["ts"] = round(event["ts"] + shift_us, 3)

    whole = changed(tmp_path / "whole", on_own_host)
    code, difference = diffed(whole, changed(tmp_path / "shifted", shift))

    assert code == 0
    # A microsecond's third decimal is a nanosecond: nothing else may move, and not even that does.
    assert difference["actions"] == difference["orders"] == difference["causes"] == []
    assert difference["step_ns"][0] == difference["step_ns"][1]
    offsets = [note for note in difference["notes"] if "clocks of ranks" in note]
    assert len(offsets) == 2
    assert offsets[0].split(" shifted by ")[1] != offsets[1].split(" shifted by ")[1]


def test_a_file_that_is_cut_is_read_as_far_as_it_goes_and_said(tmp_path: Path) -> None:
    folder = changed(tmp_path / "cut", untouched)
    whole = gzip.decompress((folder / "rank2.json.gz").read_bytes())
    (folder / "rank2.json").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "rank2.json.gz").unlink()

    _, difference = diffed(RUN, folder)

    assert any("rank2.json ends in the middle" in note for note in difference["notes"])
    assert difference["matched"]["actions"] > 48


def test_a_missing_rank_costs_that_rank_alone(tmp_path: Path) -> None:
    folder = changed(tmp_path / "missing", untouched)
    (folder / "rank3.json.gz").unlink()

    code, difference = diffed(RUN, folder)

    assert code == 1
    assert any("no file of rank 3" in note for note in difference["notes"])
    assert difference["matched"]["actions"] == 48
    assert difference["no_ladder"]


def test_other_names_are_reported_and_the_rules_are_offered(tmp_path: Path) -> None:
    folder = changed(tmp_path / "renamed", renamed)

    _, difference = diffed(RUN, folder)

    told = "annotations such as QQ:#B#, QQ:#F#, QQ:#RECV_F# match no known action"
    assert any(told in note and "--rules" in note for note in difference["notes"])
    assert any("inferred from autograd" in note for note in difference["notes"])


@pytest.mark.parametrize("command", ["diff", "replay", "calibrate"])
def test_where_nothing_can_be_inferred_one_line_says_what_to_do(command: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "bare", without_autograd)

    result = CliRunner().invoke(cli, [command, str(folder), *([str(RUN)] if command == "diff" else [])])

    assert "--rules" in str(result.exception)
    assert "pptrace explain" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_what_has_no_actions_is_still_explained_by_its_messages(tmp_path: Path) -> None:
    folder = changed(tmp_path / "bare", without_autograd)

    result = CliRunner().invoke(cli, ["explain", str(folder), "--json"], catch_exceptions=False)

    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [rank["communication"]["count"] for rank in document["ranks"]] == [16, 32, 32, 16]
    assert all(rank["communication"]["size_bytes"] == 8192 * count for rank, count in zip(
        document["ranks"], (16, 32, 32, 16), strict=True))  # fmt: skip
    assert any("such as QQ:#B#" in note for note in document["notes"])
    assert "--rules FILE" in CliRunner().invoke(cli, ["explain", str(folder)]).stdout


def renamed(rank: int, trace: dict[str, Any]) -> None:
    del rank
    for event in trace["traceEvents"]:
        if str(event.get("name", "")).startswith("PP:"):
            event["name"] = "QQ:" + event["name"][3:]


def without_autograd(rank: int, trace: dict[str, Any]) -> None:
    """Rename the actions, and drop the numbers that tie what goes back to what went forward."""
    renamed(rank, trace)
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Sequence number", None)


def failed(*words: str) -> str:
    """Return the one line of a command that cannot do what is asked."""
    message = str(CliRunner().invoke(cli, words).exception)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("rank", range(4))
def test_the_other_ranks_keep_their_numbers_where_one_is_missing(rank: int, tmp_path: Path) -> None:
    late = (rank + 1) % 4

    def stretch(number: int, trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"] if number == late else []:
            if event.get("name") == f"PP:{late}F3":
                event["dur"] += 3000

    folder = changed(tmp_path / "missing", stretch)
    (folder / f"rank{rank}.json.gz").unlink()
    _, difference = diffed(RUN, folder)

    assert difference["matched"] == {
        "actions": 48, "by_order": 0, "only_first": 0, "only_second": 0, "folded_stages": [],
    }  # fmt: skip
    assert difference["orders"] == difference["ladder"] == []
    others = [other for other in range(4) if other != rank]
    assert difference["partial"] == (
        f"{folder} has no data of rank {rank}; figures are those of ranks {others[0]}, {others[1]} and {others[2]}"
    )
    first = difference["actions"][0]
    assert (first["rank"], first["action"], first["change_ns"]) == (late, f"{late}F3", 3_000_000)
    assert "whole steps of as many ranks" in failed("diff", str(RUN), str(folder), "--fail-over", "3%")
    fitted = json.loads(CliRunner().invoke(cli, ["calibrate", str(folder), "--json"]).stdout)
    assert {item["stage"] for item in fitted["fitted"]} == set(range(4)) - {rank}
    assert fitted["check"]["interval"] is None
    assert "ranks or actions are missing" in fitted["check"]["warnings"][0]


@pytest.mark.parametrize("command", ["replay", "calibrate"])
def test_files_of_two_runs_are_no_step(command: str, tmp_path: Path) -> None:
    for rank in range(4):
        run = RUN if rank < 2 else RUN.parent / "sleep-zbv"
        (tmp_path / f"rank{rank}.json.gz").symlink_to(run / f"rank{rank}.json.gz")

    message = failed(command, str(tmp_path))

    assert "cannot have happened together" in message
    assert message.endswith("are all files of one run?")


def test_a_folder_of_several_runs_is_distinguished_from_two_files_of_one_rank() -> None:
    message = failed("explain", str(RUN), str(RUN.parent / "sleep-zbv"))

    assert message.endswith(f"is of rank 0, as {RUN.name}/rank0.json.gz is: give the folder of one run")


def test_steps_of_other_numbers_of_stages_compare_no_action() -> None:
    interleaved = RUN.parent / "sleep-interleaved1f1b"

    code, difference = diffed(RUN, interleaved)

    assert code == 1
    assert difference["actions"] == difference["kinds"] == difference["orders"] == []
    assert difference["divergence"] is None
    assert {cause["kind"] for cause in difference["causes"]} <= {
        "slow link",
        "fast link",
        "slow network",
        "fast network",
    }
    told = CliRunner().invoke(cli, ["diff", str(RUN), str(interleaved)]).stdout
    assert "actions are not compared: 4 and 8 stages are not the same parts of the model" in told


def test_a_trace_of_another_sort_in_the_folder_is_named_and_left_out(tmp_path: Path) -> None:
    folder = changed(tmp_path / "mixed", untouched)
    (folder / "other.json").write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1}]}')

    code, difference = diffed(RUN, folder)

    assert code == 0
    assert any(
        "other.json is a trace of chrome, the others of pytorch: skipped" in note for note in difference["notes"]
    )
    assert "keep one format" in failed("explain", str(folder / "other.json"), str(folder / "rank0.json.gz"))


def test_a_rank_whose_times_count_from_elsewhere_is_set_by_its_messages(tmp_path: Path) -> None:
    def without_base(rank: int, trace: dict[str, Any]) -> None:
        if rank == 1:
            del trace["baseTimeNanoseconds"]

    code, difference = diffed(RUN, changed(tmp_path / "apart", without_base))

    assert code == 0
    assert difference["actions"] == []


def test_clocks_that_contradict_their_messages_are_reported(tmp_path: Path) -> None:
    def drift(rank: int, trace: dict[str, Any]) -> None:
        middle = sorted(event["ts"] for event in trace["traceEvents"] if "ts" in event)[-200]
        for event in trace["traceEvents"] if rank == 1 else []:
            if event.get("ts", 0) > middle:
                event["ts"] += 5000

    _, difference = diffed(RUN, changed(tmp_path / "drift", drift))

    assert any("contradictions are up to" in note for note in difference["notes"])
    assert not any("contradict" in note for note in diffed(RUN, RUN)[1]["notes"])


def test_a_pair_s_time_is_shared_as_its_members_take_alone(tmp_path: Path) -> None:
    def fitted(run: Path) -> dict[tuple[str, int], Any]:
        document = json.loads(CliRunner().invoke(cli, ["calibrate", str(run), "--json"]).stdout)
        return {(item["kind"], item["stage"]): item for item in document["fitted"]}

    def only_in_pairs(rank: int, trace: dict[str, Any]) -> None:
        alone = re.compile(r"PP:0[IW]\d")
        trace["traceEvents"] = [
            event for event in trace["traceEvents"] if rank or not alone.match(event.get("name", ""))
        ]

    run = RUN.parent / "sleep-dualpipev"
    whole, paired = fitted(run), fitted(changed(tmp_path / "paired", only_in_pairs, run))

    assert not whole["B", 0]["in_overlapped_pairs"]
    assert paired["B", 0]["in_overlapped_pairs"]
    assert paired["B", 0]["mean_ns"] == pytest.approx(whole["B", 1]["mean_ns"], rel=0.05)
    assert whole["F", 0]["mean_ns"] == pytest.approx(10_300_000, rel=0.02)
