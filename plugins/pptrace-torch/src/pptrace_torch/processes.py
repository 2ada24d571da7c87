"""Processes of a run: one per rank, and none that outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from pptrace.plugin import ConfigError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from pptrace_torch.worker import Job

__all__ = ["run_ranks"]

_GRACE_S = 1.0
"""Time in which other ranks may report an error after the first."""
_LOST_PEER = (
    "connection reset", "connection closed", "closed by peer", "broken pipe", "socket timeout",
    "timed out waiting", "connection refused", "remote process exited",
)  # fmt: skip
"""Texts of errors that a rank raises because another one ended."""


def run_ranks(job: Job, ranks: int, deadline_s: float, progress: Callable[[int], None]) -> None:
    """Run every rank in a process, and return once all have ended.

    PyTorch is imported once, and CPU ranks are forked from this process. Whatever happens, no process is left.

    Args:
        job: what each rank runs.
        ranks: number of ranks.
        deadline_s: limit of the whole run.
        progress: called with each step that all ranks have ended.

    Raises:
        ConfigError: there are fewer GPUs than ranks, or PyTorch has no NCCL.
        PptraceError: a rank failed, was killed, or the time is over.
    """
    import torch

    from pptrace_torch.worker import run_rank

    if job.manifest.backend == "nccl":
        gpus = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
        if gpus < ranks:
            message = f"nccl needs a GPU per rank, and {ranks} ranks have {gpus}: take gloo"
            raise ConfigError(message, key="--backend")
    context: Any = multiprocessing.get_context("spawn" if job.manifest.backend == "nccl" else "fork")
    with _killed_at_the_end() as (processes, pipes):
        with _blocked_signals():
            for rank in range(ranks):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=run_rank, args=(rank, job, sender, os.getpid()), daemon=True)
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
        _Reports(processes, pipes, progress).follow(time.monotonic() + deadline_s)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM after the block: during a fork, Python ignores exceptions of their handlers."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _killed_at_the_end() -> Iterator[tuple[list[Any], list[Connection]]]:
    """Yield lists of processes and pipes, and kill the processes at the end."""
    processes: list[Any] = []
    pipes: list[Connection] = []
    try:
        yield processes, pipes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


class _Reports:
    """Reports of all ranks: their steps, failures and ends."""

    def __init__(
        self, processes: Sequence[Any], pipes: Sequence[Connection], progress: Callable[[int], None]
    ) -> None:
        self._processes = processes
        self._open: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
        self._progress = progress
        self._steps = [-1] * len(pipes)
        self._failures: dict[int, str] = {}
        self._ended: set[int] = set()

    def follow(self, deadline: float) -> None:
        """Read reports until every rank has ended, or until the grace time after a failure is over.

        Raises:
            PptraceError: a rank failed, or the deadline has passed.
        """
        while self._open:
            ready = wait(list(self._open), max(deadline - time.monotonic(), 0))
            if not ready:
                break
            failed = bool(self._failures)
            for pipe in ready:
                self._take(pipe)
            if self._failures and not failed:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        if self._failures:
            rank = _root(self._failures)
            raise PptraceError(f"rank {rank} {self._failures[rank]}")
        if self._open:
            slowest = min(range(len(self._steps)), key=self._steps.__getitem__)
            step = _step_name(self._steps[slowest] + 1)
            raise PptraceError(f"rank {slowest} did not end {step} in time: give a longer --timeout")

    def _take(self, pipe: Any) -> None:
        """Take one report of a rank; a closed pipe without an end or an error is a failure."""
        rank = self._open[pipe]
        try:
            kind, *content = pipe.recv()
        except (EOFError, OSError):
            del self._open[pipe]
            if rank not in self._ended and rank not in self._failures:
                self._processes[rank].join()
                self._failures[rank] = _end_of(self._processes[rank].exitcode)
            return
        if kind == "end":
            self._ended.add(rank)
        elif kind == "error":
            self._failures[rank] = content[0]
        else:
            self._steps[rank] = content[0]
            if min(self._steps) == content[0]:
                self._progress(content[0])


def _step_name(step: int) -> str:
    """Return the name of a step; step 0 is not recorded."""
    return f"step {step}" if step else "the warm-up step"


def _end_of(exitcode: int) -> str:
    return f"was ended by signal {-exitcode}" if exitcode < 0 else f"ended with status {exitcode}"


def _root(failures: dict[int, str]) -> int:
    """Return the rank that failed first of itself; the others failed since they lost it."""
    killed = [rank for rank, text in failures.items() if text.startswith("was ended")]
    own = [rank for rank, text in failures.items() if not any(words in text.lower() for words in _LOST_PEER)]
    return (killed or own or list(failures))[0]
