"""The core's executors: workers leave Ctrl-C to their parent, never outlive it, and end at once where asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from pptrace.plugins.builtin_executors import Processes, Serial

LONG_S = 60.0

PARENT = """
import sys, time
from pptrace.plugins.builtin_executors import Processes

if __name__ == "__main__":
    pool = Processes(2)
    pids = {pool.submit(__import__("os").getpid).result() for _ in range(20)}
    waiting = [pool.submit(time.sleep, 60) for _ in range(2)]
    print(*(process.pid for process in pool._processes.values()), flush=True)
    time.sleep(60)
"""

ENDED_EARLY = """
import os, signal
from concurrent.futures.process import BrokenProcessPool
from pptrace.plugins.builtin_executors import Processes
from pptrace.plugins.guards import interrupt

signal.signal(signal.SIGTERM, interrupt)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
with Processes(1) as pool:
    print(type(pool.submit(os.getpid).exception()).__name__)
"""
"""A parent that handles SIGTERM, and whose worker gets one before it has begun."""


def interrupted() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    return "still here"


def told_asleep(file: Path) -> None:
    file.touch()
    time.sleep(LONG_S)


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tZ" in status.read_text(encoding="utf-8")


def eventually(condition: object, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_worker_leaves_ctrl_c_to_its_parent() -> None:
    with Processes(1) as pool:
        assert pool.submit(interrupted).result() == "still here"


def test_workers_are_other_processes_and_the_serial_executor_is_this_one() -> None:
    with Processes(2) as pool, Serial() as here:
        assert pool.submit(os.getpid).result() != os.getpid()
        assert here.submit(os.getpid).result() == os.getpid()


def test_shutting_down_without_waiting_ends_what_runs() -> None:
    pool = Processes(2)
    running = [pool.submit(time.sleep, LONG_S) for _ in range(4)]
    started = time.monotonic()

    pool.shutdown(wait=False, cancel_futures=True)

    assert all(isinstance(future.exception() if not future.cancelled() else BrokenProcessPool(), BrokenProcessPool)
               for future in running if eventually(future.done))  # fmt: skip
    assert time.monotonic() - started < LONG_S / 2


def test_workers_do_not_handle_sigterm_as_their_parent_does(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        pool = Processes(1)
        running = pool.submit(told_asleep, tmp_path / "asleep")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert eventually((tmp_path / "asleep").exists)

    pool.shutdown(wait=False)

    assert isinstance(running.exception(), BrokenProcessPool)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux alone")
def test_a_worker_that_sigterm_ends_before_it_has_begun_prints_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDED_EARLY], capture_output=True, text=True, check=False)

    assert (ended.stdout, ended.stderr) == ("BrokenProcessPool\n", "")


def test_a_call_that_fails_is_its_future_s_error_and_ctrl_c_is_not() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert isinstance(Serial().submit(int, "x").exception(), ValueError)
    with pytest.raises(KeyboardInterrupt):
        Serial().submit(interrupt)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks /proc which processes there are")
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()

    assert len(workers) == 2
    assert eventually(lambda: all(map(gone, workers)))
