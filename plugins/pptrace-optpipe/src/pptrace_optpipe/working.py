"""The work of ``pptrace optimize``: a search that tells how it goes, stops when asked, or follows a job."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pptrace.plugin import Registry, Schedule
    from pptrace_optpipe.caching import Cache
    from pptrace_optpipe.optimising import Optimised
    from pptrace_optpipe.options import OptimizeOptions
    from pptrace_optpipe.rivals import Rival
    from pptrace_optpipe.setting import Setting

__all__ = ["Work", "watch"]

_SHARE = 0.25
"""The part of the time in which other plugins' schedules are made and played."""
_AT_LEAST = 3.0
"""Seconds that this may take, however short a search is asked for."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is searched for, with what, and for how long."""

    setting: Setting
    options: OptimizeOptions
    cache: Cache | None
    config: Path
    sets: tuple[str, ...]
    registry: Registry
    table: Schedule | None

    def search(self, memory: int) -> tuple[Optimised, list[Rival]]:
        """Search under one limit, and tell how it goes; Ctrl-C returns the best so far, SIGTERM caches it."""
        from pptrace_optpipe.optimising import optimise
        from pptrace_optpipe.rivals import rivals
        from pptrace_optpipe.sharing import shared_of
        from pptrace_optpipe.solving import limited

        began, options = time.monotonic(), self.options
        setting = replace(
            self.setting, recompute=options.recompute, shared=shared_of(self.setting.prepared, options.copies)
        )

        told: list[tuple[int, int]] = []

        def tell(best: Optimised) -> None:
            step, bound = best.simulated.step_ns, best.bound_ns
            if told[-1:] == [(step, bound)]:
                return
            told.append((step, bound))
            verdict = f"bound {bound / 1e6:.3f} ms  gap {best.gap:.2%}" if bound else "bound not known"
            sys.stderr.write(f"{time.monotonic() - began:7.1f} s  step {step / 1e6:.3f} ms  {verdict}\n")

        with _stoppable() as stopped:
            effort = limited(
                options.time, options.work, workers=options.workers, seed=options.seed, stopped=stopped
            )
            first = effort.clock()
            others: list[Rival] = []
            for one in rivals(self.config, self.sets, self.registry, setting, memory):
                others.append(one)
                effort.count(int(one.table.row_ptr[-1]))
                if stopped() or effort.clock() - first > max(effort.seconds * _SHARE, _AT_LEAST):
                    break
            took = min(effort.clock() - first, effort.seconds * _SHARE)
            left = replace(effort, seconds=effort.seconds - took)
            found = optimise(
                setting, memory, left, self.cache, warm=self.table, rivals=others, tell=tell, warn=_warn
            )
        return found, others


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into an answer; the second one interrupts as ever.

    After a SIGTERM the command ends once the block has kept what it found.
    """
    asked = 0

    def stop(number: int, _: object) -> None:
        nonlocal asked
        asked = number
        restore()
        if number == signal.SIGINT:
            sys.stderr.write("stopping with the best so far; once more to leave it\n")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield lambda: bool(asked)
    finally:
        restore()
        if asked == signal.SIGTERM:
            signal.raise_signal(asked)


def watch(
    run: Path, output: Path, sets: tuple[str, ...], registry: Registry, options: OptimizeOptions,
    cache: Cache | None, *, pause: float, rounds: int | None,
) -> Iterator[str]:  # fmt: skip
    """Search after each new measurement, until Ctrl-C or for some rounds, and yield a line on each."""
    from pptrace_optpipe.watching import Watch

    watched = Watch(run, output, sets, registry)

    def search(setting: Setting, config: Path, last: Schedule | None) -> Optimised:
        limit = next(iter(options.memory), max(setting.capacities, default=setting.workload.capacity_bytes))
        return Work(setting, options, cache, config, sets, registry, last).search(limit)[0]

    while rounds is None or rounds > 0:
        if watched.is_new():
            try:
                yield watched.improve(search).line()
            except PptraceError as error:
                sys.stderr.write(f"{run}: {error}\n")
            rounds = None if rounds is None else rounds - 1
        if rounds != 0:
            time.sleep(pause)
