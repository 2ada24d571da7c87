"""The search: by bounds, the cheapest first, until no bound beats the last place asked for.

Configurations are simulated in batches whose sizes do not depend on the machine, the cheapest bounds first. What
is left out is above the last place at that time, which only falls; so the first places are those that simulating
everything gives, whatever finished first.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from math import gcd
from time import monotonic
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import format_size
from pptrace.errors import ConfigError
from pptrace.search.candidate import Fate
from pptrace.search.filtering import Ahead, Scales, worthwhile
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.search.candidate import Candidate
    from pptrace.search.problem import Worth
    from pptrace.search.runner import Runner
    from pptrace.search.space import Layout, Space

__all__ = ["Found", "Search", "scattered"]

_BATCHES = (2, 6, 16, 32)
"""Configurations that are simulated before bounds are looked at again; the last over and over."""
_PEEKS = (24, 96, 384, 1536)
"""Bounds after which the likeliest so far are simulated, before all others are bounded."""
_EARLY = (400, 800)
"""Settings of layouts after which the likeliest so far are simulated, if none is yet: an early answer."""
_GOLDEN = 0.618
"""A step of this share of a row, over and over, leaves gaps of about the same width in it."""
_PAUSE_S = 0.2
_LARGE = 2**19
"""Pairs of passes in a step from which a table takes so long that its name is said."""
_LEAST, _FURTHER = 8, 1000
"""Configurations of least memory that are bounded where none fits: of each layout, and of all that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found."""

    ranked: tuple[Candidate, ...]
    """What was simulated and fits, the best first; of twins the first in the order of the space."""
    candidates: tuple[Candidate, ...]
    """All that was considered."""

    def count(self, fate: Fate) -> int:
        """Return of how many this became."""
        return sum(one.fate is fate for one in self.candidates)


class Search:
    """One search."""

    def __init__(self, space: Space, runner: Runner, watch: Callable[[str], None] | None = None) -> None:
        self.space, self.runner = space, runner
        self.question = space.question
        self.watch = watch or _nobody
        self.scales = Scales(space)
        self.candidates: list[Candidate] = []
        self.best: list[Candidate] = []
        self._places: dict[Any, Candidate] = {}
        self.simulated = self.bounded = 0
        self._told_at = 0.0

    def found(self) -> Found:
        """Weigh all layouts and simulate what may be among the first.

        Raises:
            ConfigError: nothing can run, or nothing fits.
            PptraceError: what cannot be used anywhere.
        """
        with always_compiled():
            self._weigh()
            try:
                self._simulate_by_bounds()
            finally:
                if self.scales.ahead is not None:
                    self.scales.ahead.end()
            if not self.best:
                raise self._nothing()
        return Found(ranked=tuple(self.best), candidates=tuple(self.candidates))

    def _weigh(self) -> None:
        """Weigh all layouts, scattered over the space: what is weighed early is of all kinds, whatever fits."""
        layouts = list(self.space.layouts())
        groups: list[list[Candidate]] = [[] for _ in layouts]
        for at in scattered(len(layouts)):
            for varied in self.space.settings_of(layouts[at]):
                found = self.scales.weighed(layouts[at], varied)
                groups[at] += found
                self.candidates += found
                if self.scales.groups in _EARLY:
                    self._answer_early()
            self._tell()
        self.candidates = [one for group in groups for one in group]
        for number, one in enumerate(self.candidates):
            one.number = number
        self.best.sort(key=_standing)

    def _answer_early(self) -> None:
        """Bound some of what is weighed so far, and simulate the likeliest; where none fits, what keeps least."""
        if self.best or self.question.exhaustive:
            return
        for count, key in ((_PEEKS[2], _promising), (_PEEKS[1], _likely)):
            able = [one for one in self.candidates if one.fate is Fate.BOUNDED and one.origin is not None]
            likely: list[Candidate] = []
            for one in nsmallest(count, able, key=key):
                self.scales.refine(one)
                self.bounded += 1
                likely += [one] * (one.fate is Fate.BOUNDED)
                if len(likely) == _BATCHES[0]:
                    break
            self._simulate(likely)
            if self.best:
                return

    def _simulate_by_bounds(self) -> None:
        """Take candidates by their bounds; one without a bound of its own gets it, and goes back into the row."""
        waiting = [(one.worth, one.number, one) for one in self.candidates if one.fate is Fate.BOUNDED]
        heapify(waiting)
        sizes, size = iter(_BATCHES), 0
        batch: list[Candidate] = []
        refined: list[Candidate] = []
        while waiting:
            size = size or next(sizes, _BATCHES[-1])
            worth, _, one = heappop(waiting)
            if self._is_hopeless(worth):
                break
            if one.origin is None:
                batch += [one] * (one.fate is Fate.BOUNDED)
            else:
                self._tell_at_times(one)
                self.scales.refine(one)
                refined.append(one)
                self.bounded += 1
                if one.fate is Fate.BOUNDED and not self._is_hopeless(one.worth):
                    heappush(waiting, (one.worth, one.number, one))
                if len(refined) in _PEEKS and not self.question.exhaustive:
                    self._simulate(self._likeliest(refined, batch))
                    self._bound_ahead(waiting)
            if len(batch) == size:
                self._simulate(batch)
                batch, size = [], 0
        self._simulate([one for one in batch if not self._is_hopeless(one.worth)])

    def _bound_ahead(self, waiting: Sequence[tuple[Worth, int, Candidate]]) -> None:
        """Have bounds made on the executor's other processes, now that there is compiled code for them."""
        executor = self.runner.others()
        if self.scales.ahead is None and executor is not None:
            rest = [one for _, _, one in sorted(waiting, key=lambda item: item[:2]) if one.origin is not None]
            if worthwhile(rest):
                self.scales.ahead = Ahead(self.space, rest, executor, self.runner.workers)

    def _likeliest(self, refined: Sequence[Candidate], batch: Sequence[Candidate]) -> list[Candidate]:
        """Return as many as are asked for of those with bounds of their own: an early answer, and a last place."""
        waiting = [one for one in refined if one.fate is Fate.BOUNDED and one not in batch]
        return sorted(waiting, key=lambda one: (one.worth, one.number))[: self.question.top]

    def _is_hopeless(self, worth: Worth) -> bool:
        """Whether what is worth no less than this cannot be among the first places."""
        top = self.question.top
        return not self.question.exhaustive and len(self.best) >= top and worth > self.best[top - 1].worth

    def _simulate(self, batch: Sequence[Candidate]) -> None:
        done = f" of {len(batch):,} that run"
        rows = self.runner.rows(batch, watch=lambda count: self._tell(f", {count:,}{done}"))
        for one, row in zip(batch, rows, strict=True):
            one.row = row
            if row.get("error"):
                one.fate, one.reason = Fate.REFUSED, str(row["error"])
                continue
            one.fate = Fate.SIMULATED
            one.worth = self.question.worth(int(row["step_ns"] or 0), one.layout.sequences, one.layout.gpus)
            self.simulated += 1
            if one.fits:
                self._rank(one)
        self._tell()

    def _rank(self, one: Candidate) -> None:
        """Give a configuration its place, which may be that of a twin."""
        first = self._places.get(_place(one))
        if first is not None and first.number < one.number:
            insort(first.twins, one, key=_number)
            return
        if first is not None:
            self.best.remove(first)
            one.twins, first.twins = [first, *first.twins], []
        self._places[_place(one)] = one
        insort(self.best, one, key=_standing)

    def _tell(self, now: str = "") -> None:
        best = f", best so far {self.best[0].name}" if self.best else ""
        bounded = f"{self.bounded:,} bounded by their tables, " if self.bounded else ""
        self.watch(f"{len(self.candidates):,} considered, {bounded}{self.simulated:,} simulated{best}{now}")

    def _tell_at_times(self, candidate: Candidate) -> None:
        """Say how far it is, now and then, and before what takes long."""
        layout = candidate.layout
        large = layout.pp * candidate.chunks * layout.microbatches > _LARGE
        if large or monotonic() - self._told_at > _PAUSE_S:
            self._told_at = monotonic()
            self._tell(f", now {candidate.name} of {layout.microbatches:,} microbatches" if large else "")

    def _nothing(self) -> ConfigError:
        """Return why nothing was found: what refused it, or the smallest memory that would do."""
        tight = [one for one in self.candidates if one.bound and one.fate in {Fate.MEMORY, Fate.SIMULATED}]
        if not tight:
            reasons = [one.reason for one in self.candidates if one.reason]
            most = max(dict.fromkeys(reasons), key=reasons.count, default="nothing varies")
            return ConfigError(f"none of {len(self.candidates):,} configurations can run: {most}", file="plan")
        needs = self._needs(tight)
        if not needs:
            return ConfigError(f"none of {len(self.candidates):,} configurations fits", file="--memory")
        size, one = min(needs, key=lambda need: need[0])
        # What has no bound of its own yet needs its rough bound at least.
        is_least = all(_need(other)[0] >= size for other in tight if other.origin is not None)
        told = f"{format_size(size)} would do{'' if is_least else ', and less may'} ({one.name})"
        message = f"none of {len(self.candidates):,} configurations fits: {told}; give more GPUs, or more memory"
        return ConfigError(message, file="--memory")

    def _needs(self, tight: Sequence[Candidate]) -> list[tuple[int, Candidate]]:
        """Return what some need, simulated: those with the least bounds by their own tables.

        Bounds that know no table know no activations. Of equal ones those that compute the most come first: they
        compute again what others keep.
        """
        layouts: dict[Layout, list[Candidate]] = {}
        for one in sorted(tight, key=_likely):
            layouts.setdefault(one.layout, []).append(one)
        likely = [one for group in layouts.values() for one in group[:_LEAST]]
        further = [one for group in layouts.values() for one in group[_LEAST:]]
        likely += sorted(further, key=_likely)[:_FURTHER]
        for one in likely:
            self._tell()
            self.scales.refine(one)
        likely = sorted((one for one in likely if one.fate in {Fate.MEMORY, Fate.SIMULATED}), key=_need)
        needs: list[tuple[int, Candidate]] = []
        for begin in range(0, len(likely), _LEAST):
            batch = likely[begin : begin + _LEAST]
            if needs and _need(batch[0])[0] >= min(size for size, _ in needs):
                break
            rows = self.runner.rows(batch)
            needs += [(int(row["peak_memory_bytes"] or 0), one) for one, row in zip(batch, rows, strict=True)
                      if not row.get("error")]  # fmt: skip
        return needs


def scattered(count: int) -> list[int]:
    """Return the numbers below a count once each, such that the first ones lie all over them."""
    step = next((step for step in range(round(count * _GOLDEN), count) if gcd(step, count) == 1), 1)
    return [at * step % count for at in range(count)]


def _promising(candidate: Candidate) -> tuple[Worth, int]:
    return candidate.worth, candidate.number


def _need(candidate: Candidate) -> tuple[int, int]:
    return candidate.bound.peak_bytes if candidate.bound else 0, candidate.number


def _place(candidate: Candidate) -> tuple[Any, ...]:
    """Return what twins have alike."""
    return candidate.layout, candidate.schedule, candidate.chunks, _standing(candidate)[:-1]


def _standing(candidate: Candidate) -> tuple[Worth, int, int]:
    return candidate.worth, int(candidate.row["peak_memory_bytes"] or 0), candidate.number


def _number(candidate: Candidate) -> int:
    return candidate.number


def _likely(candidate: Candidate) -> tuple[int, tuple[float, ...], int]:
    least, number = _need(candidate)
    return least, tuple(-float(part) for part in candidate.worth), number


def _nobody(text: str) -> None:
    del text
