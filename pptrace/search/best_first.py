"""Best-first search over lower bounds.

Configurations are simulated in the order of their bounds, in batches of fixed sizes. The search ends when no bound
is below the score of the last requested place, so it finds the same places as an exhaustive search. The result
does not depend on the machine or on the order in which simulations finish.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from math import gcd
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import format_size
from pptrace.errors import ConfigError
from pptrace.search.candidates import BoundPrefetch, CandidateFilter, Outcome, should_prefetch
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.search.candidates import Candidate, CandidateRunner
    from pptrace.search.problem import Layout, Score
    from pptrace.search.space import Space

_BATCHES = (2, 6, 16, 32)
"""Sizes of the batches between two looks at the bounds; the last size repeats."""
_PEEKS = (24, 96, 384, 1536)
"""Counts of bounded candidates after which the best of them are simulated early."""
_EARLY = (400, 800)
"""Counts of groups after which the best candidates are simulated, unless some are already."""
_GOLDEN = 0.618
"""Golden ratio: multiples of it, modulo 1, cover an interval evenly."""
_PAUSE_S = 0.2
_LARGE = 2**19
"""Forward and backward pairs from which a table takes so long that the progress text names it."""
_NEED_MEMORY = {Outcome.MEMORY, Outcome.SIMULATED}
_LEAST, _FURTHER = 8, 1000
"""Candidates of least memory that are bounded where none fits: per layout, and of all remaining ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search."""

    ranked: tuple[Candidate, ...]
    """Simulated candidates that fit, best first; of equivalent ones, the first in the order of the space."""
    candidates: tuple[Candidate, ...]
    """All candidates of the space."""

    def count(self, outcome: Outcome) -> int:
        """Return the number of candidates with an outcome."""
        return sum(candidate.outcome is outcome for candidate in self.candidates)


class Search:
    """Best-first search of a space; ``watch`` receives its progress."""

    def __init__(self, space: Space, runner: CandidateRunner, watch: Callable[[str], None] | None = None) -> None:
        self.space, self.runner = space, runner
        self.request = space.request
        self.watch = watch or (lambda _: None)
        self.filter = CandidateFilter(space)
        self.candidates: list[Candidate] = []
        self.best: list[Candidate] = []
        self._places: dict[Any, Candidate] = {}
        self.simulated = self.bounded = 0
        self._reported_s = 0.0

    def run(self) -> SearchResult:
        """Bound all layouts, then simulate the candidates that can be among the first places.

        Raises:
            ConfigError: no candidate can run, or none fits.
            PptraceError: settings that no layout can use.
        """
        with always_compiled():
            self._bound_layouts()
            try:
                self._simulate_by_bounds()
            finally:
                if self.filter.prefetch is not None:
                    self.filter.prefetch.end()
            if not self.best:
                raise self._nothing()
        return SearchResult(ranked=tuple(self.best), candidates=tuple(self.candidates))

    def _bound_layouts(self) -> None:
        """Bound all layouts, in an order that covers the whole space early."""
        layouts = list(self.space.layouts())
        groups: list[list[Candidate]] = [[] for _ in layouts]
        for index in spread_indices(len(layouts)):
            for varied in self.space.settings_of(layouts[index]):
                candidates = self.filter.candidates_of(layouts[index], varied)
                groups[index] += candidates
                self.candidates += candidates
                if self.filter.groups in _EARLY:
                    self._simulate_early()
            self._report()
        self.candidates = [candidate for group in groups for candidate in group]
        for number, candidate in enumerate(self.candidates):
            candidate.number = number
        self.best.sort(key=_standing)

    def _simulate_early(self) -> None:
        """Simulate the candidates with the best scores, or of least memory where none of these fits."""
        if self.best or self.request.exhaustive:
            return
        for count, key in ((_PEEKS[2], attrgetter("score", "number")), (_PEEKS[1], _likely)):
            able = [
                candidate for candidate in self.candidates if candidate.is_bounded and candidate.origin is not None
            ]
            likely: list[Candidate] = []
            for candidate in nsmallest(count, able, key=key):
                self.filter.refine(candidate)
                self.bounded += 1
                likely += [candidate] * candidate.is_bounded
                if len(likely) == _BATCHES[0]:
                    break
            self._simulate(likely)
            if self.best:
                return

    def _simulate_by_bounds(self) -> None:
        """Pop candidates by their bounds. One with a layout's bound alone gets its own and is pushed again."""
        waiting = [
            (candidate.score, candidate.number, candidate) for candidate in self.candidates if candidate.is_bounded
        ]
        heapify(waiting)
        sizes, size = iter(_BATCHES), 0
        batch: list[Candidate] = []
        refined: list[Candidate] = []
        while waiting:
            size = size or next(sizes, _BATCHES[-1])
            score, _, candidate = heappop(waiting)
            if self._is_hopeless(score):
                break
            if candidate.origin is None:
                batch += [candidate] * candidate.is_bounded
            else:
                self._report_at_intervals(candidate)
                self.filter.refine(candidate)
                refined.append(candidate)
                self.bounded += 1
                if candidate.is_bounded and not self._is_hopeless(candidate.score):
                    heappush(waiting, (candidate.score, candidate.number, candidate))
                if len(refined) in _PEEKS and not self.request.exhaustive:
                    self._simulate(self._likeliest(refined, batch))
                    self._prefetch_bounds(waiting)
            if len(batch) == size:
                self._simulate(batch)
                batch, size = [], 0
        self._simulate([candidate for candidate in batch if not self._is_hopeless(candidate.score)])

    def _prefetch_bounds(self, waiting: Sequence[tuple[Score, int, Candidate]]) -> None:
        """Start to bound candidates in worker processes, once these have compiled kernels."""
        executor = self.runner.worker_executor()
        if self.filter.prefetch is None and executor is not None:
            rest = [candidate for *_, candidate in sorted(waiting) if candidate.origin is not None]
            if should_prefetch(rest):
                self.filter.prefetch = BoundPrefetch(self.space, rest, executor, self.runner.workers)

    def _likeliest(self, refined: Sequence[Candidate], batch: Sequence[Candidate]) -> list[Candidate]:
        """Return the requested number of bounded candidates, best first. Their scores bound the last place."""
        waiting = [candidate for candidate in refined if candidate.is_bounded and candidate not in batch]
        return sorted(waiting, key=attrgetter("score", "number"))[: self.request.top]

    def _is_hopeless(self, score: Score) -> bool:
        """Return whether a lower bound is above the score of the last requested place."""
        top = self.request.top
        return not self.request.exhaustive and len(self.best) >= top and score > self.best[top - 1].score

    def _simulate(self, batch: Sequence[Candidate]) -> None:
        done = f" of {len(batch):,} that run"
        rows = self.runner.rows(batch, watch=lambda count: self._report(f", {count:,}{done}"))
        for candidate, row in zip(batch, rows, strict=True):
            candidate.row = row
            if row.get("error"):
                candidate.outcome, candidate.reason = Outcome.REFUSED, str(row["error"])
                continue
            candidate.outcome = Outcome.SIMULATED
            candidate.score = self.request.score(int(row["step_ns"] or 0), candidate.layout)
            self.simulated += 1
            if candidate.fits:
                self._rank(candidate)
        self._report()

    def _rank(self, candidate: Candidate) -> None:
        """Insert a candidate into the ranking, or among the equivalents of another one."""
        first = self._places.get(_place(candidate))
        if first is not None and first.number < candidate.number:
            insort(first.equivalents, candidate, key=attrgetter("number"))
            return
        if first is not None:
            self.best.remove(first)
            candidate.equivalents, first.equivalents = [first, *first.equivalents], []
        self._places[_place(candidate)] = candidate
        insort(self.best, candidate, key=_standing)

    def _report(self, now: str = "") -> None:
        best = f", best so far {self.best[0].name}" if self.best else ""
        bounded = f"{self.bounded:,} bounded by their tables, " if self.bounded else ""
        self.watch(f"{len(self.candidates):,} considered, {bounded}{self.simulated:,} simulated{best}{now}")

    def _report_at_intervals(self, candidate: Candidate) -> None:
        """Report the progress, at intervals and before large tables."""
        layout = candidate.layout
        large = layout.pp * candidate.chunks * layout.microbatches > _LARGE
        if large or monotonic() - self._reported_s > _PAUSE_S:
            self._reported_s = monotonic()
            self._report(f", now {candidate.name} of {layout.microbatches:,} microbatches" if large else "")

    def _nothing(self) -> ConfigError:
        """Return the error without a result: the most frequent reason, or the least sufficient memory."""
        tight = [
            candidate for candidate in self.candidates if candidate.bound and candidate.outcome in _NEED_MEMORY
        ]
        if not tight:
            reasons = [candidate.reason for candidate in self.candidates if candidate.reason]
            most = max(dict.fromkeys(reasons), key=reasons.count, default="nothing varies")
            return ConfigError(f"none of {len(self.candidates):,} configurations can run: {most}", file="plan")
        needs = self._needs(tight)
        if not needs:
            return ConfigError(f"none of {len(self.candidates):,} configurations fits", file="--memory")
        size, candidate = min(needs, key=lambda need: need[0])
        # A candidate without a bound of its own needs at least the bound of its layout.
        is_least = all(_need(other)[0] >= size for other in tight if other.origin is not None)
        enough = f"{format_size(size)} would do{'' if is_least else ', and less may'} ({candidate.name})"
        message = f"none of {len(self.candidates):,} configurations fits: {enough}; give more GPUs, or more memory"
        return ConfigError(message, file="--memory")

    def _needs(self, tight: Sequence[Candidate]) -> list[tuple[int, Candidate]]:
        """Return the simulated memory of the candidates with the least bounds by their own tables.

        Bounds of layouts ignore activations. Among equal bounds, the longest steps come first: they recompute.
        """
        layouts: dict[Layout, list[Candidate]] = {}
        for candidate in sorted(tight, key=_likely):
            layouts.setdefault(candidate.layout, []).append(candidate)
        likely = [candidate for group in layouts.values() for candidate in group[:_LEAST]]
        further = [candidate for group in layouts.values() for candidate in group[_LEAST:]]
        likely += sorted(further, key=_likely)[:_FURTHER]
        for candidate in likely:
            self._report()
            self.filter.refine(candidate)
        likely = sorted((candidate for candidate in likely if candidate.outcome in _NEED_MEMORY), key=_need)
        needs: list[tuple[int, Candidate]] = []
        for begin in range(0, len(likely), _LEAST):
            batch = likely[begin : begin + _LEAST]
            if needs and _need(batch[0])[0] >= min(size for size, _ in needs):
                break
            for candidate, row in zip(batch, self.runner.rows(batch), strict=True):
                if not row.get("error"):
                    needs.append((int(row["peak_memory_bytes"] or 0), candidate))
        return needs


def spread_indices(count: int) -> list[int]:
    """Return the numbers below a count once each, such that every prefix covers the range evenly."""
    step = next((step for step in range(round(count * _GOLDEN), count) if gcd(step, count) == 1), 1)
    return [index * step % count for index in range(count)]


def _need(candidate: Candidate) -> tuple[int, int]:
    return candidate.bound.peak_bytes if candidate.bound else 0, candidate.number


def _place(candidate: Candidate) -> tuple[Any, ...]:
    """Return the key that equivalent candidates share."""
    return candidate.layout, candidate.schedule, candidate.chunks, _standing(candidate)[:-1]


def _standing(candidate: Candidate) -> tuple[Score, int, int]:
    return candidate.score, int(candidate.row["peak_memory_bytes"] or 0), candidate.number


def _likely(candidate: Candidate) -> tuple[int, tuple[float, ...], int]:
    least, number = _need(candidate)
    return least, tuple(-float(part) for part in candidate.score), number
