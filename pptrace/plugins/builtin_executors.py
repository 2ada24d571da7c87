"""Executors of the core: local processes, and the current process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pptrace.plugins.guards import SIGNALS, block_signals

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class Processes(ProcessPoolExecutor):
    """A pool of processes that ignore Ctrl-C and end with their parent.

    Processes are forked if that is safe: they then share the parent's plugins and compiled code.
    """

    def __init__(self, workers: int) -> None:
        method = "fork" if _may_fork() else "spawn"
        super().__init__(workers, mp_context=multiprocessing.get_context(method), initializer=_initialize_worker)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a call; the first call starts all workers.

        Signals are blocked: workers have this process's handlers until their initializer runs.
        """
        with warnings.catch_warnings(), block_signals():
            # Python 3.12 warns of forks with threads; numpy's threads, which it counts, are safe to fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - theirs
        """End the workers, after their running calls (``wait``) or immediately."""
        if not wait:
            for process in list((self._processes or {}).values()):
                process.terminate()
        # Without the wait, the interpreter's exit can write to a pipe that the pool's thread is closing.
        super().shutdown(wait=True, cancel_futures=cancel_futures)


class Serial(Executor):
    """Sequential executor: ``submit`` runs the call.

    >>> Serial().submit(pow, 2, 5).result()
    32
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call and return its finished future."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a future stores any exception of its call
            future.set_exception(error)
        return future


def _may_fork() -> bool:
    """Return whether a fork is safe: on Linux, without other threads that may hold a lock."""
    return sys.platform.startswith("linux") and threading.active_count() == 1


def _initialize_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # otherwise a handler's exception counts as the call's error
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: Any) -> None:
    # A worker has both ends of its work pipe, so the pipe does not signal the end of the parent.
    wait([sentinel])
    os._exit(1)
