"""``pptrace optimize`` and ``schedule: optpipe``: what they print, write, keep and refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from toy_pipelines import BRIEF, FIRST

from pptrace.api import simulate
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.testing import assert_schedule_family, grid
from pptrace_optpipe import model, start_schedules
from pptrace_optpipe.cache import Cache
from pptrace_optpipe.command import command
from pptrace_optpipe.plugin import pptrace_schedules
from pptrace_optpipe.setting import setting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 2**30
COSTS = {
    "name": "table", "forward": "10 ms", "input_gradient": "10 ms", "weight_gradient": "10 ms", "offload": "5 ms",
    "reload": "5 ms", "boundary": "1 MiB", "activation": "2 GiB", "weight_activation": "1 GiB", "weights": "3 GiB",
    "optimizer": "7 GiB",
}  # fmt: skip
STEP: dict[str, Any] = {
    "parallel": {"pp": 4}, "batch": {"microbatches": 8}, "schedule": "optpipe", "costs": COSTS,
    "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPTRACE_OPTPIPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "step.yaml").write_text(json.dumps(STEP), encoding="utf-8")
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "schedules,stp")  # their schedules have tests of their own
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def optimize(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def found(*arguments: str, file: str = "step.yaml") -> dict[str, Any]:
    values: dict[str, Any] = json.loads(optimize(file, *arguments, "--json").stdout)
    return values


def test_the_table_s_step_and_memory_are_the_simulator_s() -> None:
    values = found("--memory", "17GiB", "--work", "0.3", "-o", "best.csv")

    run = simulate("step.yaml", schedule="best.csv")

    assert run.metrics.step_ns == values["step_ns"] >= values["bound_ns"] >= 270_000_000
    assert run.metrics.memory.peak_bytes.tolist() == values["peak_bytes"]
    assert max(values["peak_bytes"]) <= 17 * GIB
    assert len(values["offloaded"][0]) > 0
    assert values["without_offload_bytes"][0] > values["peak_bytes"][0]


def test_copies_shorten_what_memory_makes_long() -> None:
    plain = found("--memory", "17GiB", "--work", "0.3", "--set", "costs.offload=0 ms")

    assert not any(plain["offloaded"])
    assert found("--memory", "17GiB", "--work", "0.3")["step_ns"] < plain["step_ns"]


def test_forwards_are_computed_again_where_memory_is_short_and_that_is_allowed() -> None:
    given = ["--memory", "14GiB", "--work", "0.3", "--set", "costs.offload=0 ms"]
    plain = found(*given)
    values = found(*given, "--recompute", "-o", "best.csv")
    said = optimize("step.yaml", *given, "--recompute").stdout

    run = simulate("step.yaml", schedule="best.csv")

    count = [len(one) for one in values["recomputed"]]
    assert run.metrics.step_ns == values["step_ns"] < 0.8 * plain["step_ns"]
    assert not any(map(any, plain["recomputed"]))
    assert run.metrics.memory.peak_bytes.tolist() == values["peak_bytes"]
    assert f"0 activations offloaded, {count[0]} computed again, " in said
    assert f"computing again takes {count[0] * 10 / 240:.0%} of it" in said


def test_the_report_and_its_progress_are_lines() -> None:
    result = optimize("step.yaml", "--memory", "30GiB", "--work", "0.1")

    step, bound, memory, *ranks = result.stdout.splitlines()
    assert step.startswith("step    270.")
    assert bound == "bound   270.078 ms: no order of these stages is faster"
    assert memory == "memory  30 GiB"
    assert [line.split()[:2] for line in ranks[-4:]] == [["rank", str(rank)] for rank in range(4)]
    assert "bound 270.078 ms  gap 0." in result.stderr


@pytest.mark.needs_plugins
def test_of_unlike_devices_the_report_tells_every_rank_s_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace_optpipe.bounds._FINEST", 100)  # no bound has to be tight
    step = {
        "model": "llama3-8b", "parallel": {"pp": 4, "tp": 8}, "batch": {"microbatches": 4, "sequence": 1024},
        "schedule": "optpipe", "device": {"preset": "a100-sxm", "ranks": {"2-3": "h200-sxm"}},
    }  # fmt: skip
    Path("unlike.yaml").write_text(json.dumps(step), encoding="utf-8")

    def asked(*more: str) -> Any:
        return optimize("unlike.yaml", "--work", "0.1", *more)

    values = json.loads(asked("--json").stdout)
    limits = values["rank_limit_bytes"]
    assert max(limits) == values["memory_limit_bytes"] > min(limits) == limits[0]
    assert all(peak <= limit for peak, limit in zip(values["peak_bytes"], limits, strict=True))
    assert "memory  80 GiB on ranks 0 to 1, 140 GiB on ranks 2 to 3, 2 GiB of it reserved\n" in asked().stdout
    assert "memory  30 GiB, 2 GiB of it reserved\n" in asked("--memory", "30GiB").stdout


def test_a_table_to_start_from_is_never_made_worse() -> None:
    first = found("--memory", "17GiB", "--work", "0.1", "-o", "best.csv", "--no-cache")
    again = found("--memory", "17GiB", "--work", "0.1", "--from", "best.csv", "--no-cache")

    assert again["step_ns"] <= first["step_ns"]


def test_nor_is_one_whose_backwards_in_one_are_shorter_than_their_halves() -> None:
    Path("brief.yaml").write_text(BRIEF)
    Path("first.csv").write_text("\n".join(FIRST))
    values = found("--memory", "4GiB", "--work", "0.1", "--from", "first.csv", "--no-cache", file="brief.yaml")

    assert values["bound_ns"] <= values["step_ns"] <= 198_000_000


def test_stages_go_down_and_up_where_that_is_asked_for() -> None:
    values = found("--placement", "v", "--set", "parallel.vp=2", "--work", "0.1", "-o", "best.csv")

    run = simulate("step.yaml", schedule="best.csv", vp=2)

    assert run.prepared.schedule.placement.stage_rank.tolist() == [[0, 1, 2, 3, 3, 2, 1, 0]]
    assert run.metrics.step_ns == values["step_ns"]


def test_stages_that_follow_on_one_rank_have_no_message_between_them() -> None:
    sets = ["parallel.vp=2", "network=ideal"]

    setting, _ = setting_of(Path("step.yaml"), sets, Registry.load(), shape="v")

    assert setting.transfers == ((0,) * 7, (0,) * 7)


def test_a_sweep_of_limits_has_a_line_for_each() -> None:
    result = optimize("step.yaml", "--memory", "11GiB,17GiB,30GiB", "--work", "0.1", "--pareto")

    lines = result.stdout.splitlines()
    assert "nothing fits" in lines[1]
    assert lines[3].split()[-1] == "#" * (len(lines[3].split()[-1]))
    assert len(lines) == 4


def test_a_folder_of_the_cache_that_is_none_is_one_line(cache: Path) -> None:
    cache.touch()

    result = optimize("step.yaml", "--memory", "11GiB,17GiB,30GiB", "--work", "0.1", "--pareto")

    assert result.stderr.splitlines()[0] == (
        f"{cache}: is not a folder, so nothing is cached: set PPTRACE_OPTPIPE_CACHE to one"
    )
    assert result.stderr.count("is not a folder") == 1


def test_what_was_found_is_found_again_at_once_listed_and_forgotten(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found("--memory", "17GiB", "--work", "0.1")
    monkeypatch.setattr(start_schedules, "started", lambda _: pytest.fail("searched again"))
    monkeypatch.setattr(model, "build", lambda *_, **__: pytest.fail("solved again"))
    again = found("--memory", "17GiB", "--work", "0.1")

    assert (again["step_ns"], again["bound_ns"]) == (first["step_ns"], first["bound_ns"])
    assert "4 ranks, 4 stages, 8 microbatches, copies" in optimize("--cache").stdout
    assert "1 entries removed" in optimize("--clear-cache").stdout
    assert not list(cache.iterdir())


def test_a_damaged_entry_is_one_line_and_solved_anew(cache: Path) -> None:
    first = found("--memory", "30GiB", "--work", "0.1")
    (file,) = cache.iterdir()
    file.write_text(file.read_text(encoding="utf-8")[:40], encoding="utf-8")

    result = optimize("step.yaml", "--memory", "30GiB", "--work", "0.1", "--json")

    assert f"{file}: is damaged, and is solved anew" in result.stderr
    assert json.loads(result.stdout)["step_ns"] == first["step_ns"]
    assert "is damaged" not in optimize("step.yaml", "--memory", "30GiB", "--time", "0.5s").stderr


WRONG = [
    (["--memory", "9GiB"], "--memory: 9 GiB is less than rank 1 needs without activations, 10 GiB"),
    (["--memory", "11GiB"], "--memory: rank 0 has 1022 MiB for activations, and one microbatch's of a stage"),
    (["--time", "3s", "--work", "3"], "give time or work, not both"),
    (["--work", "inf"], "work: a number must be finite"),
    (["--memory", "30GiB", "--time", "5ms"], "--time: 5ms is too short for any search; nearest that work: 0.1s"),
    (["--memory", "many"], "--memory: 'many' is not a size"),
    (["--recompute", "--set", "costs.recompute=0 ms"], "recompute: the model's backward already recomputes"),
    (["--from", "routes.csv"], "microbatches take several routes: give a table in which all take one"),
    (["--time", "100s", "-o", "missing/best.csv"], "missing/best.csv: cannot be written: the folder does"),
    (["--workers", "0"], "--workers: must be at least 1"),
    (["--time", "5"], "--time: 5 has no unit; write a time as"),
    (["--from", "pairs.csv"], "overlapped pairs and actions of several microbatches cannot be split"),
    (["--set", "parallel.pp=null"], "parallel.pp"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), WRONG)
def test_wrong_input_is_one_line(arguments: list[str], line: str) -> None:
    Path("pairs.csv").write_text(
        "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,1B2\n",
        encoding="utf-8",
    )
    Path("routes.csv").write_text("0F0,1F1,1B1,0B0,0F2,0B2\n1F0,1B0,0F1,0B1,1F2,1B2\n", encoding="utf-8")
    fewer = ["--set", "parallel.pp=2", "--set", "batch.microbatches=3"] if "--from" in arguments else []

    with pytest.raises(PptraceError) as caught:
        optimize("step.yaml", *arguments, *fewer)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [[], ["step.yaml", "-o", "best.png"], ["step.yaml", "--memory", "1GiB,2GiB"]]
)
def test_wrong_use_is_said(arguments: list[str]) -> None:
    assert optimize(*arguments).exit_code == 2


def test_a_configuration_searches_in_place_within_the_device() -> None:
    options = {"work": 0.1, "cache": False}
    step = {**STEP, "costs": {**COSTS, "capacity": "18 GiB"}, "schedule": {"name": "optpipe", "options": options}}

    run = simulate(step)

    assert int(run.metrics.memory.peak_bytes.max()) <= 18 * GIB
    assert run.prepared.schedule.microbatches == 8
    assert run.metrics.step_ns <= 281_000_000


def test_too_short_a_time_in_a_configuration_is_one_line() -> None:
    with pytest.raises(PptraceError, match=r"schedule.options.time: 0.001 s is too short for any search"):
        simulate({**STEP, "schedule": {"name": "optpipe", "options": {"time": "1 ms"}}})


@pytest.fixture
def searching() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a long search and waits for its first result; no search outlives the test."""
    runs: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        memory = ["--memory", "14GiB", "--work", "1000", "-o", "best.csv", *more]
        run = subprocess.Popen(
            [sys.executable, "-c", "from pptrace.cli.main import main; main()", "optimize", "step.yaml", *memory],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        runs.append(run)
        assert run.stderr is not None
        assert "bound" in run.stderr.readline()
        return run

    yield start
    for run in runs:
        run.kill()
        run.communicate()


def test_a_search_that_is_killed_leaves_what_was_there(searching: Any) -> None:
    Path("best.csv").write_text("an earlier table", encoding="utf-8")
    before = sorted(Path().iterdir())
    run = searching("--no-cache")

    run.kill()
    run.communicate(timeout=60)

    assert Path("best.csv").read_text(encoding="utf-8") == "an earlier table"
    assert sorted(Path().iterdir()) == before


def test_an_interrupt_keeps_the_best_so_far(searching: Any) -> None:
    run = searching("--no-cache")

    run.send_signal(signal.SIGINT)
    out, told = run.communicate(timeout=60)

    assert "stopping with the best so far" in told
    assert run.returncode == 0
    assert out.startswith("step ")
    assert simulate("step.yaml", schedule="best.csv").metrics.step_ns > 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_ends_a_search_and_the_next_one_starts_from_what_was_found(
    cache: Path, searching: Any, workers: str
) -> None:
    Path("best.csv").write_text("an earlier table", encoding="utf-8")
    before = sorted(Path().iterdir())
    run = searching("--workers", workers)

    run.send_signal(signal.SIGTERM)
    out, told = run.communicate()

    assert (run.returncode, out) == (143, "")
    assert told.splitlines()[-1] == "pptrace: terminated"
    assert "Traceback" not in told
    assert Path("best.csv").read_text(encoding="utf-8") == "an earlier table"
    assert sorted(Path().iterdir()) == sorted([*before, Path(cache.name)])
    ((name, content),) = Cache(cache).entries()
    assert [file.name for file in cache.iterdir()] == [name]
    assert content.startswith("4 ranks, 4 stages, 8 microbatches")
    again = optimize("step.yaml", "--memory", "14GiB", "--work", "0.1")
    assert "damaged" not in again.stderr
    assert [file.name for file in cache.iterdir()] == [name]


@pytest.mark.parametrize("way", ["command", "schedule"])
def test_a_missing_solver_is_one_line(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)

    with pytest.raises(PptraceError, match="the solver cannot be loaded") as caught:
        optimize("step.yaml") if way == "command" else simulate(STEP)

    assert "pip install 'ortools>=9.14'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_solver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise TypeError("Descriptors cannot be created directly.\nmore lines")

    monkeypatch.setattr("importlib.import_module", broken)

    with pytest.raises(PptraceError, match=r"solver cannot be loaded \(Descriptors cannot be created"):
        optimize("step.yaml")


def test_the_offer_keeps_its_word() -> None:
    sizes = grid(ranks=(1, 2, 4), microbatches=(1, 4), chunks=(1, 2), options={"work": 0.1, "cache": False})

    assert_schedule_family(next(iter(pptrace_schedules())), sizes=sizes, growth=False)
