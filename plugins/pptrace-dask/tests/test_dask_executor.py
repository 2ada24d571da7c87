"""Sweeps on a real cluster of processes: the serial run's rows, also where a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, LocalCluster

import pptrace
from pptrace.errors import ConfigError
from pptrace.plugins.requests import ExecutorRequest
from pptrace_dask import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

AXES = {"microbatches": [4, 6, 8], "pp": [2, 4]}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:  # fmt: skip
        yield started


def swept(executor: Any) -> list[dict[str, Any]]:
    rows = pptrace.sweep(schedule="1f1b", over=AXES, executor=executor).rows
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def there(scheduler: LocalCluster) -> dict[str, Any]:
    return {"name": "dask", "scheduler": scheduler.scheduler_address}


def begun_then_killed(flag: str) -> int:
    """Die on the first worker that runs it, a while after it said so; return on the second."""
    if Path(flag).exists():
        return os.getpid()
    Path(flag).write_text(str(os.getpid()))
    time.sleep(60)
    return -1


def test_a_sweep_has_the_serial_run_s_rows(scheduler: LocalCluster) -> None:
    assert swept(there(scheduler)) == swept("serial")


def test_a_crossover_is_the_serial_run_s(scheduler: LocalCluster) -> None:
    def found(executor: Any) -> Any:
        return pptrace.crossover(
            between="gpipe,1f1b", over="microbatches=1..12", pp=4, p2p="sender-blocking", executor=executor
        ).to_dict()

    assert found(there(scheduler)) == found(None)


def test_a_plan_is_the_serial_run_s(scheduler: LocalCluster) -> None:
    def places(executor: Any) -> Any:
        plan_result = pptrace.plan(
            {"model": "llama3-8b", "device": "h100-sxm", "batch": {"global": 16, "sequence": 2048, "micro": 1}},
            network="ideal",
            vary={"pp": [2, 4], "micro": [1], "schedule": ["1f1b"], "recompute": ["full"]},
            gpus=8, executor=executor, robust=False, top=3,
        )  # fmt: skip
        return plan_result.to_dict()

    assert places(there(scheduler)) == places("serial")


def test_a_worker_that_is_killed_loses_no_point(scheduler: LocalCluster, tmp_path: Any) -> None:
    flag = tmp_path / "begun"
    pool = cluster.connect(ExecutorRequest(workers=2, options={"scheduler": scheduler.scheduler_address}))
    outcome = pool.submit(begun_then_killed, str(flag))
    others = [pool.submit(pow, 2, power) for power in range(8)]
    while not (flag.exists() and flag.read_text()):
        time.sleep(0.05)
    victim = int(flag.read_text())
    os.kill(victim, signal.SIGKILL)

    assert outcome.result(timeout=60) not in (-1, victim)
    assert [item.result(timeout=60) for item in others] == [2**power for power in range(8)]
    pool.shutdown()


def test_an_unreachable_scheduler_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"no scheduler answers at tcp://127\.0\.0\.1:1: start one"):
        cluster.connect(ExecutorRequest(workers=1, options={"scheduler": "tcp://127.0.0.1:1", "timeout": 1}))


def test_a_server_that_says_nothing_is_no_scheduler() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()

        with pytest.raises(ConfigError, match=rf"no scheduler answers at {address}: .*no answer in time"):
            cluster.connect(ExecutorRequest(workers=1, options={"scheduler": address, "timeout": 0.2}))

    assert time.monotonic() - begun < 10


def test_a_server_of_something_else_is_no_scheduler() -> None:
    def answer() -> None:
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)

    with socket.create_server(("127.0.0.1", 0)) as other:
        answering = threading.Thread(target=answer)
        answering.start()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(ConfigError, match=rf"{address} is not a dask scheduler: check the port"):
            cluster.connect(ExecutorRequest(workers=1, options={"scheduler": address, "timeout": 5}))

        answering.join()


def test_other_versions_on_a_worker_are_named(scheduler: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {**cluster.installed(), "pptrace": "9.9", "pptrace-mine": "1.0"}
    monkeypatch.setattr(cluster, "installed", lambda: here)

    with pytest.raises(
        ConfigError, match=r"worker tcp://\S+: pptrace: 0.1.0, here 9.9; pptrace-mine: none, here 1.0"
    ):
        cluster.connect(ExecutorRequest(workers=1, options={"scheduler": scheduler.scheduler_address}))


def test_a_worker_that_joins_later_with_other_versions_runs_nothing(scheduler: LocalCluster) -> None:
    with Client(scheduler, set_as_default=False) as client:
        call = client.submit(cluster.run_there, {"pptrace": "9.9"}, pow, 2, 5, pure=False)

        with pytest.raises(RuntimeError, match=r"pptrace: 0.1.0, here 9.9"):
            call.result(timeout=60)


def test_a_scheduler_without_workers_is_one_line() -> None:
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50) as empty,
        pytest.raises(ConfigError, match=r"no worker came within 0\.5 s"),
    ):
        cluster.connect(ExecutorRequest(workers=1, options={"scheduler": empty.scheduler_address, "timeout": 0.5}))


def test_processes_of_this_machine_end_with_the_executor(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    pool = cluster.connect(ExecutorRequest(workers=1))
    worker = pool.submit(os.getpid).result(timeout=60)

    pool.shutdown(wait=False, cancel_futures=True)

    assert "dask: 1 worker, 1 threads, dashboard http://127.0.0.1:" in capsys.readouterr().err
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    assert threading.active_count() <= before + 3
