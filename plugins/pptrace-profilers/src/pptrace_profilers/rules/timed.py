"""A user's pattern with a time limit, for one that backtracks for ever on some name.

``re`` looks for signals every few thousand steps (``sre_lib.h``, ``MAYBE_CHECK_SIGNALS``), so a timer ends a
search that runs away. The timer counts processor time, so that a busy machine ends no pattern. Only a process's
main thread gets signals: elsewhere a pattern has no limit.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import re
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

    from pptrace.plugin import ConfigError

__all__ = ["Matcher", "TimedPattern"]

Matcher: TypeAlias = "re.Pattern[str] | TimedPattern"
"""A pattern of ours, or a user's."""
MOST_S, MOST_IN_ALL_S = 1.0, 60.0
"""Seconds of processor time that a pattern may take for one text, and for all texts of a run."""
_SHOWN = 60


class _TookTooLongError(Exception):
    """The timer's."""


@dataclass(slots=True, kw_only=True)
class TimedPattern:
    """A compiled pattern that gives up after :data:`MOST_S`."""

    compiled: re.Pattern[str]
    """The pattern."""
    error: Callable[[str], ConfigError]
    """Makes the error that says where the pattern stands."""
    spent_s: float = 0.0
    """What all texts took so far."""

    @property
    def pattern(self) -> str:
        """The pattern's text."""
        return self.compiled.pattern

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Match a whole text.

        Raises:
            ConfigError: it takes too long.
        """
        return self._within(self.compiled.fullmatch, text)

    def search(self, text: str) -> re.Match[str] | None:
        """Find the pattern in a text; raises what :meth:`fullmatch` does."""
        return self._within(self.compiled.search, text)

    def _within(self, find: Callable[[str], re.Match[str] | None], text: str) -> re.Match[str] | None:
        if threading.current_thread() is not threading.main_thread():
            return find(text)
        start, before = time.thread_time(), signal.signal(signal.SIGVTALRM, _give_up)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
            try:
                return find(text)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # the signal may still come here
        except _TookTooLongError:
            raise self._refused(f"takes more than {MOST_S:g} s for {text:.{_SHOWN}}") from None
        finally:
            signal.signal(signal.SIGVTALRM, before)
            self._count(time.thread_time() - start)

    def _count(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > MOST_IN_ALL_S:
            raise self._refused(f"took more than {MOST_IN_ALL_S:g} s")

    def _refused(self, what: str) -> ConfigError:
        return self.error(f"the pattern {self.pattern:.{_SHOWN}} {what}: write it without nested repeats")


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise _TookTooLongError
