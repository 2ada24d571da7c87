"""Points run on any executor with the same rows; one that fails, or takes its process along, costs no other."""

from __future__ import annotations

import csv
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import pptrace
import pptrace_kernel
from pptrace.errors import ConfigError, PluginError
from pptrace.plugin import ExecutorOffer, ExecutorRequest, hookimpl
from pptrace.plugins.registry import Registry
from pptrace.search.runner import ExecutorPool, run_all

MINE = '''
import os, signal
from pptrace.errors import ConstraintError


def eager(ranks, microbatches):
    """Every forward, then every backward."""
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]


def picky(ranks, microbatches):
    if microbatches == 6:
        raise ConstraintError("6 are too many", nearest="5", key="batch.microbatches")
    return eager(ranks, microbatches)


def broken(ranks, microbatches):
    return eager(ranks, microbatches) if microbatches != 6 else 1 / 0


def deadly(ranks, microbatches):
    if microbatches == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return eager(ranks, microbatches)
'''

COSTS = {"name": "table", "forward": "10 ms", "backward": "20 ms", "boundary": "64 MiB"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    return tmp_path


def sweep(schedules: str = "eager", **changed: Any) -> Any:
    over = {"microbatches": [4, 6, 8], "schedule": [f"./mine.py:{name}" for name in schedules.split(",")]}
    given = {"pp": 4, "network": "hockney", "sets": ["network.bandwidth=50 GB/s"], "costs": COSTS}
    return pptrace.sweep(over=over, **{"executor": "serial", **given, **changed})


def test_a_row_holds_axes_then_every_input_then_every_figure() -> None:
    swept = sweep()

    row = swept.rows[0]
    run = pptrace.simulate(
        schedule="./mine.py:eager", microbatches=4, pp=4, network="hockney", costs=COSTS,
        sets=["network.bandwidth=50 GB/s"],
    )  # fmt: skip
    columns = list(row)
    assert columns[:2] == ["microbatches", "schedule"]
    assert columns[-6:] == ["error", "pptrace", "plugins", "over", "configuration", "point"]
    explained = {key: value for key, value, _ in run.prepared.resolved.explain()}
    assert {key: row[key] for key in explained} == explained
    assert row["step_ns"] == run.metrics.step_ns
    assert row["formula_bubble"] is None
    assert (row["error"], row["over"]) == (None, "microbatches, schedule")
    assert all(list(other) == columns for other in swept.rows)


def test_one_worker_or_two_processes_or_none_give_the_same_bytes() -> None:
    written = []
    for executor, workers in (("serial", 1), ("processes", 1), ("processes", 2)):
        sweep("eager,picky", executor=executor, workers=workers, outputs=["r.csv"], fresh=True)
        written.append(Path("r.csv").read_bytes())

    assert written[0] == written[1] == written[2]
    rows = list(csv.DictReader(written[0].decode().splitlines()))
    assert [(row["microbatches"], row["schedule"]) for row in rows] == [
        (microbatches, f"./mine.py:{name}") for microbatches in "468" for name in ("eager", "picky")
    ]


def test_workers_that_start_anew_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace.plugins.builtin_executors._may_fork", lambda: False)

    assert sweep(executor="processes", workers=1).rows == sweep().rows


def test_a_sweep_that_loads_compiled_code_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_INTERPRET", "1")
    sweep(outputs=["interpreted.csv"])
    monkeypatch.delenv("PPTRACE_INTERPRET")
    monkeypatch.setattr("pptrace.search.sweep.COMPILE_FROM", 0)
    sweep(outputs=["compiled.csv"], executor="processes", workers=2)

    assert Path("interpreted.csv").read_bytes() == Path("compiled.csv").read_bytes()
    assert pptrace_kernel.compiles(1, loaded=True)


@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [("picky", "6 are too many; nearest that work: 5"), ("broken", "ZeroDivisionError: division by zero")],
)
def test_a_point_that_fails_is_a_row_with_its_error_among_the_others(
    executor: str, name: str, reason: str
) -> None:
    swept = sweep(f"{name},eager", executor=executor)

    assert [row["microbatches"] for row in swept.failed] == [6]
    assert reason in swept.failed[0]["error"]
    assert "\n" not in swept.failed[0]["error"]
    assert swept.failed[0]["step_ns"] is None
    assert [row["step_ns"] for row in swept.rows[::2] if not row["error"]] == [
        row["step_ns"] for row in swept.rows[1::2] if row["microbatches"] != 6
    ]


def test_a_worker_that_dies_costs_its_point_alone() -> None:
    swept = sweep("deadly,eager", executor="processes", workers=2)

    assert [(row["microbatches"], row["schedule"]) for row in swept.failed] == [(6, "./mine.py:deadly")]
    assert swept.failed[0]["error"].startswith("the process that ran it died")
    assert all(row["step_ns"] for row in swept.rows if not row["error"])


def test_a_bug_of_ours_fails_its_point_and_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("what")

    monkeypatch.setattr("pptrace.search.runner.metrics_row", broken)

    assert {row["error"] for row in sweep().rows} == {"KeyError: 'what' (a bug: pptrace simulate shows where)"}


def test_out_of_memory_fails_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pptrace.search.runner.metrics_row", full)

    assert {row["error"][:14] for row in sweep().rows} == {"out of memory:"}


class Names(BaseModel):
    """What the threads are called."""

    model_config = ConfigDict(extra="forbid")

    prefix: str = "thread"


class Threads:
    """A plugin whose executor is a thread pool."""

    def __init__(self) -> None:
        self.workers: list[int] = []
        self.threads: set[str] = set()

    @hookimpl
    def pptrace_executors(self) -> Any:
        yield ExecutorOffer(
            name="threads", summary="Threads here.", build=self.build, options=lambda: Names, in_process=True
        )

    def build(self, request: ExecutorRequest) -> ThreadPoolExecutor:
        self.workers.append(request.workers)

        def begin() -> None:
            self.threads.add(threading.current_thread().name)

        return ThreadPoolExecutor(request.workers, request.options["prefix"], begin)


def test_a_plugin_s_executor_runs_the_points_through_the_hook() -> None:
    plugin = Threads()
    registry = Registry.load(entry_points=False, plugins={"threads": plugin})

    swept = sweep("eager,picky", executor="threads", workers=3, registry=registry)

    assert swept.rows == sweep("eager,picky").rows
    assert plugin.workers == [3]
    assert plugin.threads


@pytest.mark.parametrize(
    "executor", ["threads:prefix=tcp://host:8786", {"name": "threads", "prefix": "tcp://host:8786"}]
)
def test_an_executor_takes_options_as_text_or_as_a_mapping(executor: Any) -> None:
    plugin = Threads()

    sweep(executor=executor, registry=Registry.load(entry_points=False, plugins={"threads": plugin}))

    assert plugin.threads
    assert all(name.startswith("tcp://host:8786") for name in plugin.threads)


def test_the_executor_of_the_page_runs_points(root: Path) -> None:
    page = (root / "docs" / "sweep.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "hookimpl" in block]
    module = ModuleType("page")
    exec(compile(code, "page", "exec", dont_inherit=True), vars(module))  # noqa: S102 - our own page
    registry = Registry.load(entry_points=False, plugins={"page": module})

    assert sweep(executor="threads:prefix=mine", registry=registry).rows == sweep().rows


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ("threads:prefix=3", "executor.prefix: "),
        ("threads:suffix=a", "executor.suffix: unknown key"),
        ("threads:fast", "executor: 'fast' is not an option: write threads:key=value"),
        ("serial:fast=1", "executor.fast: serial takes no options: remove it"),
        ({"prefix": "a"}, "executor.name: missing: name the executor, such as processes"),
    ],
)
def test_options_that_an_executor_does_not_take_are_refused(executor: Any, message: str) -> None:
    registry = Registry.load(entry_points=False, plugins={"threads": Threads()})

    with pytest.raises(ConfigError, match=message):
        sweep(executor=executor, registry=registry)


def test_an_executor_that_cannot_start_is_its_plugin_s_error() -> None:
    class Broken:
        @hookimpl
        def pptrace_executors(self) -> Any:
            yield ExecutorOffer(name="far", summary="Far away.", build=lambda _: 1 // 0, in_process=True)

    registry = Registry.load(entry_points=False, plugins={"far": Broken()})

    with pytest.raises(PluginError, match="plugin 'far': build of executor 'far' raised ZeroDivisionError"):
        sweep(executor="far", registry=registry)


def test_an_unknown_executor_is_named_with_those_there_are() -> None:
    with pytest.raises(
        PluginError, match=r"named 'proceses' \(did you mean 'processes'\? known: processes, serial\)"
    ):
        sweep(executor="proceses")


def test_a_registry_of_one_s_own_does_not_reach_other_processes() -> None:
    with pytest.raises(ConfigError, match="executor: processes runs in other processes"):
        sweep(executor="processes", registry=Registry.load(entry_points=False))


def test_progress_counts_every_point_once() -> None:
    reports: list[tuple[int, int]] = []

    sweep(progress=lambda done, total: reports.append((done, total)))

    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_rows_come_when_they_are_finished_not_when_all_are() -> None:
    begun: list[int] = []

    def call(item: int) -> dict[str, Any]:
        begun.append(item)
        return {"item": item}

    from pptrace.plugins.builtin_executors import Serial

    for ((item, row),) in run_all([1, 2, 3], call, ExecutorPool(Serial), ahead=8):
        assert row == {"item": item}
        assert begun == list(range(1, item + 1))


@pytest.mark.parametrize("size", [1, 2, 6])
def test_an_executor_that_breaks_again_and_again_fails_what_breaks_it_and_nothing_else(size: int) -> None:
    from pptrace.plugins.builtin_executors import Processes

    pool = ExecutorPool(lambda: Processes(2))
    rows = dict(pair for batch in run_all(range(6), _dies_at_odd, pool, ahead=4, size=size) for pair in batch)
    pool.end(wait=True)

    assert sorted(rows) == list(range(6))
    assert [item for item, row in sorted(rows.items()) if row.get("error")] == [1, 4]


def test_a_call_that_raises_fails_its_item_and_no_other_of_its_batch() -> None:
    from pptrace.plugins.builtin_executors import Serial

    batches = run_all([2, 0, 1], lambda item: {"half": 2 // item}, ExecutorPool(Serial), ahead=1, size=2)

    rows = dict(pair for batch in batches for pair in batch)
    assert rows == {1: {"half": 2}, 2: {"half": 1}, 0: rows[0]}
    assert "division" in str(rows[0]["error"])


def _dies_at_odd(item: int) -> dict[str, Any]:
    if item in {1, 4}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"item": item}
