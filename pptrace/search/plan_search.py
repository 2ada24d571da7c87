"""The search of a plan: best first, over lower bounds of groups and of their members.

A group is a layout with settings; its members differ in schedule, chunks and split. Groups get a bound in an order
that covers the space evenly. A group is expanded into candidates only if its bound can be among the first places.
Candidates are bounded by the outline of their table, then by the whole table. The remaining ones are simulated, in
the order of their expected steps and in batches of fixed sizes. The search ends when no bound is below the score
of the last requested place, so it finds the same places as an exhaustive search. The result depends neither on the
machine nor on the order in which simulations finish, unless the time ends first. Worker processes compute bounds
in advance.
"""

from __future__ import annotations

import pickle
import signal
from bisect import insort
from collections import Counter, deque
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from math import gcd
from operator import attrgetter
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict

from pptrace.config.quantities import DURATION, format_size
from pptrace.errors import ConfigError
from pptrace.memo import memoizing
from pptrace.plugins.guards import interruption
from pptrace.search.candidates import Candidate, Outcome
from pptrace.search.launch_arguments import ANY, FRAMEWORKS
from pptrace.search.plan_axes import PlanProblem, Space, setting
from pptrace.search.runner import installed, process_memo
from pptrace.search.space_bounds import GroupBounds, GroupMember, MemberBound, SpaceBounds
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from pptrace.run.figures import Row
    from pptrace.search.bias import Bias
    from pptrace.search.bounds import Bound
    from pptrace.search.candidates import CandidateRunner
    from pptrace.search.plan_axes import LayoutGroup, PlanLayout, Score


class CandidateGroup(Struct, kw_only=True, eq=False):
    """A group of the space: excluded as a whole, or expanded into candidates."""

    group: LayoutGroup
    """The layout with its settings."""
    members: tuple[GroupMember, ...]
    """Its configurations."""
    bounds: GroupBounds
    """Lower bounds of all members."""
    is_inherited: bool
    """Whether the bounds are those of a group without recomputation, see :meth:`GroupBounds.for_recomputation`."""
    sizes: Mapping[bool, int]
    """The number of members that can run, without and with overlapped pairs; empty if the group cannot run."""
    candidates: list[Candidate] = field(default_factory=list)
    """A candidate per member; empty until the group is expanded."""
    expanded: set[bool] = field(default_factory=set)
    """The parts that are expanded: without and with overlapped pairs."""


class GroupPart(NamedTuple):
    """The members of a group with or without overlapped pairs, which share a bound."""

    group: CandidateGroup
    has_pairs: bool

    @property
    def bound(self) -> Bound:
        """Their lower bound."""
        bound = self.group.bounds.of(has_pairs=self.has_pairs)
        if bound is None:
            msg = "a part of a group that cannot run"
            raise AssertionError(msg)
        return bound

    @property
    def key(self) -> tuple[int, bool]:
        """A key for worker processes."""
        return self.group.group.number, self.has_pairs


class Unproved(Struct, frozen=True, kw_only=True):
    """Configurations that a search did not exclude before it ended."""

    configurations: int = 0
    """Configurations whose bound does not exclude them from the requested places."""
    without_bound: int = 0
    """Groups of configurations without a bound."""
    gain: float | None = None
    """The largest possible gain over the first place, as a share of its score; None without a bound."""


_MEMBERS = 2**20
"""The distance of the numbers of candidates of consecutive groups."""
_BATCHES = (2, 6, 16, 32)
"""Sizes of the batches between two looks at the bounds; the last size repeats."""
_LOOKS = tuple(8 * 2**power for power in range(21))
"""Counts of groups without recomputation after which the best ones are expanded and simulated."""
_PEEKS = tuple(8 * 4**power for power in range(10))
"""Counts of expanded groups after which the best candidates are simulated early."""
_LIKELY, _EXPANDED = 8, 24
"""Candidates that a look needs, and groups that it expands at most."""
_TRIES = 4
"""Candidates that are bounded by their tables for each one that is simulated early."""
_AHEAD_FROM = 8
"""Number of parts from which worker processes that expand them shorten the search."""
_FOREIGN = 256
"""Candidates that the framework does not run and that are bounded by their tables."""
_OUTLINED = 2048
"""Candidates that the framework does not run and that are bounded by the outlines of their tables."""
_NEEDS = 200
"""Groups of least memory that are expanded where none fits."""
_GOLDEN = 0.618
"""Golden ratio: multiples of it, modulo 1, cover an interval evenly."""
_PAUSE_S = 0.2
_COUNT_S = 2.0
"""Pauses between two reports, and between two counts of excluded configurations."""
_COUNT_SHARE = 100
"""The pause between two counts, relative to the time of a count."""
_LARGE = 2**19
"""Forward and backward pairs from which a table takes so long that the progress text names it."""


class _TimeEndedError(Exception):
    """The time of the search is over."""


class Search:
    """Best-first search of a space; ``watch`` receives its progress."""

    groups: dict[int, CandidateGroup]
    """The groups with bounds, by number."""
    best: list[Candidate]
    """Simulated candidates that fit, best first; of equivalent ones, the first in the order of the space."""
    foreign: Candidate | None
    """The fastest candidate that the framework does not run, if it is faster than all that it runs."""
    ended: str
    """Why the search ended: ``complete``, ``time`` or ``interrupt``."""

    def __init__(
        self, space: Space, runner: CandidateRunner, bias: Bias, watch: Callable[[str], None] | None = None
    ) -> None:
        self.space, self.runner, self.bias = space, runner, bias
        self.request = space.request
        self.space_bounds = SpaceBounds(space)
        self._paired_entries = [self.space_bounds.has_pairs(entry) for entry in space.entries]
        self.watch = watch or (lambda _: None)
        self.groups, self.best, self.foreign, self.ended = {}, [], None, "complete"
        self.considered = self.simulated = 0
        self._parts: list[tuple[Score, tuple[int, bool], GroupPart]] = []
        self._queue: list[tuple[Score, int, Candidate]] = []
        self._foreign: list[Candidate] = []
        self._places: dict[Any, Candidate] = {}
        self._seen: dict[Any, Candidate] = {}
        self._ahead: dict[str, Prefetch] = {}
        self._deadline_ns = self.request.deadline_ns(monotonic_ns())
        self._reported_s = self._count_from_s = 0.0
        self._excluded = 0

    def run(self) -> None:
        """Search until all places are proved, the time ends, or the user interrupts.

        Raises:
            ConfigError: no candidate can run, none fits, or none was found in the time.
            PptraceError: settings that no layout can use.
        """
        with always_compiled(), memoizing(process_memo()):
            try:
                self._search()
            except _TimeEndedError:
                self.ended = "time"
            except interruption() as error:
                if not self.best or error.args[:1] == (signal.SIGTERM,):
                    raise
                self.ended = "interrupt"
            finally:
                for prefetch in self._ahead.values():
                    prefetch.end()
            self._release_foreign()
            if not self.best:
                raise self._no_result_error()

    def unproved(self) -> Unproved:
        """Return the configurations that the search did not exclude."""
        left = list(self._left())
        number, without_bound = sum(size for _, size in left), self.space.groups - len(self.groups)
        if not self.best or without_bound:
            return Unproved(configurations=number, without_bound=without_bound, gain=None)
        first = self.best[0].score
        least = min([first, *(score for score, _ in left)])
        gain = float(1 - Fraction(least[-1], first[-1])) if least[:-1] == first[:-1] else None
        return Unproved(configurations=number, gain=gain)

    def candidates(self) -> list[Candidate]:
        """Return all candidates of the groups, in the order of the space."""
        groups = (self.groups[number] for number in sorted(self.groups))
        return [candidate for group in groups for candidate in self._candidates(group)]

    def outcomes(self) -> Iterator[tuple[Outcome, str, str]]:
        """Yield outcome, schedule and reason of each configuration; groups stay unexpanded."""
        for group in self.groups.values():
            if group.candidates:
                for candidate in group.candidates:
                    yield candidate.outcome, candidate.schedule, candidate.reason
            else:
                for member in group.members:
                    label = self.space.entries[member.entry].label
                    yield self._outcome(group, member), label, member.reason

    def _search(self) -> None:
        """Bound all groups, then expand and simulate the best ones; look for early results in between.

        Groups that recompute inherit the bounds of the group that recomputes nothing. Those that it does not
        exclude then get bounds of their costs.
        """
        for index, (number, *recomputing) in enumerate(self._variants(), 1):
            bounds = self._bounds_of(number)
            self._add(number, bounds)
            inherited = bounds.for_recomputation() if recomputing else None
            for variant in recomputing:
                bounds_of_variant = self.space_bounds.bounds_of(variant) if inherited is None else inherited
                self._add(variant, bounds_of_variant, is_inherited=inherited is not None)
            self._tick()
            if index in _LOOKS and not self.request.exhaustive:
                self._look()
                if "bounds_of" not in self._ahead:
                    later = (variants[0] for variants in islice(self._variants(), index, None))
                    self._compute_ahead("bounds_of", ((number, number) for number in later), size=16)
        self._bound_inheriting()
        self._branch()
        self._simulate_foreign()

    def _variants(self) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of groups that differ in recomputation alone; every prefix covers the space evenly."""
        for number in spread_indices(self.space.groups):
            variants = (number,) if self.request.exhaustive else self.space.variants_of(number)
            if variants[0] == number:
                yield variants

    def _bound_inheriting(self) -> None:
        """Bound groups with inherited bounds that do not exclude them, in the order of these bounds."""
        inheriting = dict.fromkeys(
            part.group.group.number for _, _, part in sorted(self._parts)
            if part.group.is_inherited and not self._is_excluded(self._part_score(part))
        )  # fmt: skip
        self._compute_ahead("bounds_of", ((number, number) for number in inheriting), size=16)
        for number in inheriting:
            group = self.groups[number]
            bounds = self._bounds_of(number)
            if group.is_inherited:
                self._bound(group, bounds)
            self._tick()
        self._parts = [entry for entry in self._parts if entry[0] == self._estimate(entry[-1])]
        heapify(self._parts)

    def _bounds_of(self, number: int) -> GroupBounds:
        """Return the bounds of the next group in the order in which workers compute them."""
        bounds: GroupBounds | None = self._take("bounds_of", number)
        return bounds or self.space_bounds.bounds_of(number)

    def _add(self, number: int, bounds: GroupBounds, *, is_inherited: bool = False) -> None:
        """Add a group with its bounds, and queue its parts unless they need more memory."""
        group = self.space.group(number)
        self.groups[number] = CandidateGroup(
            group=group, members=(), bounds=bounds, is_inherited=is_inherited, sizes={}
        )
        self._set_bounds(self.groups[number], bounds)
        self._queue_parts(self.groups[number])

    def _set_bounds(self, group: CandidateGroup, bounds: GroupBounds) -> None:
        if bounds.concerns_all and self.request.objective != "gpus":
            self.space_bounds.check(group.group)
        self.considered -= len(group.members)
        layout, group.bounds, group.sizes = group.group.layout, bounds, {}
        if bounds.plain is None:
            entries = range(len(self.space.entries))
            group.members = tuple(GroupMember(entry=entry, reason=bounds.reason) for entry in entries)
        else:
            group.members, group.sizes = self.space_bounds.members(layout, overlaps=bounds.overlaps)
        self.considered += len(group.members)

    def _bound(self, group: CandidateGroup, bounds: GroupBounds | None = None) -> None:
        """Bound a group with inherited bounds by its own costs, and queue its parts again."""
        self._set_bounds(group, bounds or self.space_bounds.bounds_of(group.group.number))
        group.is_inherited = False
        self._queue_parts(group)

    def _queue_parts(self, group: CandidateGroup) -> None:
        for part in self._parts_of(group):
            if part.bound.fits or self.request.exhaustive:
                heappush(self._parts, (self._estimate(part), part.key, part))

    def _estimate(self, part: GroupPart) -> Score:
        """Return the score of the expected step of a part, which orders the search."""
        group = part.group
        factor = group.bounds.factor(has_pairs=part.has_pairs)
        return self.space.score(round(self.bias.bound_ns(part.bound.step_ns) * factor), group.group.layout)

    def _parts_of(self, group: CandidateGroup) -> list[GroupPart]:
        """Return the parts of a group that have members and can run."""
        return [GroupPart(group, has_pairs) for has_pairs in sorted(group.sizes)]

    def _score(self, bound: Bound, layout: PlanLayout) -> Score:
        return self.space.score(self.bias.bound_ns(bound.step_ns), layout)

    def _part_score(self, part: GroupPart) -> Score:
        return self._score(part.bound, part.group.group.layout)

    def _has_pairs(self, member: GroupMember) -> bool:
        return self._paired_entries[member.entry]

    def _outcome(self, group: CandidateGroup, member: GroupMember) -> Outcome:
        """Return the outcome of a member that follows from the bounds of its group."""
        bound = group.bounds.of(has_pairs=self._has_pairs(member))
        if member.is_covered:
            return Outcome.COVERED
        if member.reason or bound is None:
            return Outcome.REFUSED
        return Outcome.BOUNDED if bound.fits or self.request.exhaustive else Outcome.MEMORY

    def _candidates(self, group: CandidateGroup) -> list[Candidate]:
        """Return the candidates of a group, with its bounds until they have bounds of their tables."""
        if group.candidates:
            return group.candidates
        key, entries = group.group, self.space.entries
        scores = {part.has_pairs: self._part_score(part) for part in self._parts_of(group)}
        for index, member in enumerate(group.members):
            entry, outcome = entries[member.entry], self._outcome(group, member)
            has_pairs = self._has_pairs(member)
            candidate = Candidate(
                number=key.number * _MEMBERS + index, layout=key.layout, schedule=entry.label,
                chunks=member.chunks or 1, outcome=outcome, reason=member.reason,
                varied=(*self.space.problem.derived, *key.varied, *entry.varied, *member.settings),
                bound=group.bounds.of(has_pairs=has_pairs),
            )  # fmt: skip
            if outcome in {Outcome.REFUSED, Outcome.COVERED}:
                candidate.bound = None
            elif candidate.bound is not None:
                candidate.origin, candidate.score = (key, member), scores[has_pairs]
            group.candidates.append(candidate)
        return group.candidates

    def _expand(self, part: GroupPart) -> list[Candidate]:
        """Bound the candidates of a part by the outlines of their tables, and queue the remaining ones."""
        if part.has_pairs in part.group.expanded or self._is_excluded(self._part_score(part)):
            return []
        if part.group.is_inherited:
            self._bound(part.group)
            return self._expand(part) if part.has_pairs in part.group.sizes else []
        candidates = [
            candidate for candidate in self._candidates(part.group)
            if candidate.origin is not None and self._has_pairs(candidate.origin[1]) == part.has_pairs
        ]  # fmt: skip
        part.group.expanded.add(part.has_pairs)
        member_bounds: list[MemberBound] | None = self._take("part_bounds", part.key)
        if member_bounds is None:
            member_bounds = []
            for candidate, member in zip(candidates, self._members(part), strict=True):
                self._tick(candidate)
                member_bounds.append(self.space_bounds.outline_bound(part.group.group, member))
        for candidate, member_bound in zip(candidates, member_bounds, strict=True):
            self._apply(candidate, member_bound)
            if candidate.is_bounded and member_bound.foreign:
                candidate.outcome, candidate.reason = Outcome.FOREIGN, member_bound.foreign
                self._foreign.append(candidate)
            self._push(candidate)
        return candidates

    def _refine(self, candidate: Candidate) -> None:
        """Bound a candidate by its whole table; it may become refused, or equal to another candidate."""
        if candidate.origin is None:
            return
        member_bound = self.space_bounds.table_bound(*candidate.origin)
        self._apply(candidate, member_bound)
        candidate.origin = None
        if member_bound.step_key is None or member_bound.reason or candidate.outcome is Outcome.EQUAL:
            return
        first = self._seen.setdefault(member_bound.step_key, candidate)
        if first is not candidate:
            candidate.outcome, candidate.reason = Outcome.EQUAL, first.name

    def _apply(self, candidate: Candidate, member_bound: MemberBound) -> None:
        """Record the bound or the refusal of a table in its candidate."""
        if member_bound.chunks is not None:
            candidate.chunks = member_bound.chunks
        candidate.varied += tuple(
            setting(key, layers) for key, layers in member_bound.splits.items() if key not in candidate.settings
        )
        if member_bound.is_even:
            candidate.outcome, candidate.reason = Outcome.EQUAL, "an even split"
        elif member_bound.reason:
            candidate.outcome = Outcome.MEMORY if member_bound.needs_memory else Outcome.REFUSED
            candidate.reason, candidate.bound, candidate.origin = member_bound.reason, None, None
        elif member_bound.bound is not None:
            candidate.bound = member_bound.bound
            candidate.score = max(candidate.score, self._score(member_bound.bound, candidate.layout))
            if not member_bound.bound.fits and not self.request.exhaustive:
                candidate.outcome = Outcome.MEMORY
        if candidate.outcome is Outcome.EQUAL:
            candidate.origin = None

    def _push(self, candidate: Candidate) -> None:
        if candidate.is_bounded and not self._is_excluded(candidate.score):
            heappush(self._queue, (candidate.score, candidate.number, candidate))

    def _look(self) -> None:
        """Expand the best groups so far, and simulate their best candidates, or those of least memory."""
        likely = 0
        for _ in range(_EXPANDED):
            if self._parts and likely < _LIKELY:
                likely += sum(candidate.is_bounded for candidate in self._expand(heappop(self._parts)[-1]))
        self._simulate_early(self.request.top if self.best else _BATCHES[0])
        if not self.best:
            parts = sorted((part.bound.peak_bytes, part.key, part) for *_, part in self._parts)
            for *_, part in parts[:_TRIES]:
                self._expand(part)
            self._simulate_early(_BATCHES[0], key=lambda entry: _memory_key(entry[-1]))

    def _branch(self) -> None:
        """Take parts by their expected steps and candidates by their bounds: expand, refine, or simulate."""
        sizes, size, expanded = iter(_BATCHES), 0, 0
        batch: list[Candidate] = []
        while self._parts or self._queue:
            self._tick()
            size = size or next(sizes, _BATCHES[-1])
            if self._parts and (not self._queue or self._parts[0][0] <= self._queue[0][0]):
                if self._expand(heappop(self._parts)[-1]):
                    expanded += 1
                    if expanded in _PEEKS and not self.request.exhaustive:
                        self._simulate_early(self.request.top)
                        self._expand_ahead()
                continue
            *_, candidate = heappop(self._queue)
            if self._is_excluded(candidate.score):
                continue
            if candidate.origin is None:
                batch += [candidate] * candidate.is_bounded
            else:
                self._refine(candidate)
                self._push(candidate)
            if len(batch) == size:
                self._simulate(batch)
                batch, size = [], 0
        self._simulate([candidate for candidate in batch if not self._is_excluded(candidate.score)])

    def _simulate_early(
        self, most: int, key: Callable[[tuple[Score, int, Candidate]], Any] = lambda entry: entry[:2]
    ) -> None:
        """Simulate queued candidates of the best bounds, or least keys. Their scores bound the last place."""
        likely: list[Candidate] = []
        for *_, candidate in nsmallest(_TRIES * most, self._queue, key=key):
            if candidate.is_bounded and len(likely) < most:
                self._tick(candidate)
                self._refine(candidate)
                likely += [candidate] * (candidate.is_bounded and not self._is_excluded(candidate.score))
        self._simulate(likely)

    def _expand_ahead(self) -> None:
        """Start to expand parts in worker processes, in the order of their bounds."""
        is_alone = self.runner.worker_executor() is None
        if is_alone or "part_bounds" in self._ahead or len(self._parts) < _AHEAD_FROM:
            return
        items = (
            (part.key, (part.key, self._members(part)))
            for _, _, part in sorted(self._parts) if not self._is_excluded(self._part_score(part))
        )  # fmt: skip
        self._compute_ahead("part_bounds", items, size=1)

    def _compute_ahead(self, method: str, items: Iterable[tuple[Hashable, Any]], *, size: int) -> None:
        """Let worker processes, if there are any, compute the values of a method of :class:`SpaceBounds`.

        Args:
            method: its name.
            items: keys with arguments, in the order in which the search needs the values.
            size: items of a task.
        """
        executor = self.runner.worker_executor()
        if executor is not None:
            problem = self.space.problem
            values = {name: value for name, value in asdict(problem).items() if name != "registry"}
            call = partial(_call_space_bounds, pickle.dumps((values, self.request)), method)
            self._ahead[method] = Prefetch(executor, call, items, ahead=2 * self.runner.workers, size=size)

    def _take(self, method: str, key: Hashable) -> Any:
        """Return the value of a method that workers computed in advance; None without one."""
        prefetch = self._ahead.get(method)
        return None if prefetch is None else prefetch.take(key)

    def _members(self, part: GroupPart) -> tuple[GroupMember, ...]:
        """Return the members of a part that can run."""
        return tuple(
            member for member in part.group.members
            if self._has_pairs(member) == part.has_pairs and not (member.reason or member.is_covered)
        )  # fmt: skip

    def _is_excluded(self, score: Score) -> bool:
        """Return whether a lower bound is above the score of the last requested place."""
        top = self.request.top
        return not self.request.exhaustive and len(self.best) >= top and score > self.best[top - 1].score

    def _left(self) -> Iterator[tuple[Score, int]]:
        """Yield the bounds that exclude nothing so far, with their numbers of configurations."""
        for group in self.groups.values():
            for part in [] if group.candidates else self._parts_of(group):
                score = self._part_score(part)
                if part.bound.fits and not self._is_excluded(score):
                    yield score, part.group.sizes[part.has_pairs]
            for candidate in group.candidates:
                if candidate.is_bounded and not self._is_excluded(candidate.score):
                    yield candidate.score, 1

    def _simulate(self, batch: Sequence[Candidate]) -> None:
        done = f" of {len(batch):,} that run"
        framework = self.space.problem.framework
        rows = self.runner.rows(batch, None, lambda number: self._report(f", {number:,}{done}"), framework)
        for candidate, row in zip(batch, rows, strict=True):
            if row.get(Outcome.FOREIGN):
                candidate.outcome, candidate.reason = Outcome.FOREIGN, str(row[Outcome.FOREIGN])
                self._foreign.append(candidate)
                continue
            candidate.row = row
            if row.get("error"):
                candidate.outcome, candidate.reason = Outcome.REFUSED, str(row["error"])
                continue
            candidate.outcome = Outcome.SIMULATED
            candidate.score = self._score_of(row, candidate)
            self.simulated += 1
            if candidate.fits:
                self._rank(candidate)
        self._report()

    def _score_of(self, row: Row, candidate: Candidate) -> Score:
        return self.space.score(self.bias.expected_ns(row, candidate.arguments), candidate.layout)

    def _simulate_foreign(self) -> None:
        """Simulate candidates that the framework does not run, in the order of their bounds.

        At most :data:`_FOREIGN` of them get a bound of their whole table, and :data:`_OUTLINED` one of its
        outline, as they take no place.
        """
        queue = [(each.score, each.number, each) for each in self._foreign if each.outcome is Outcome.FOREIGN]
        heapify(queue)
        batch: list[Candidate] = []
        outlined, tables = set[int](), 0
        while queue and self.best and queue[0][0] < (self.foreign or self.best[0]).score:
            if tables == _FOREIGN or len(outlined) == _OUTLINED:
                break
            self._tick()
            *_, candidate = heappop(queue)
            if candidate.origin is None:
                batch.append(candidate)
            elif candidate.number in outlined:
                self._refine(candidate)
                tables += 1
            else:
                self._apply(candidate, self.space_bounds.outline_bound(*candidate.origin, foreign=True))
                outlined.add(candidate.number)
            if candidate.outcome is Outcome.FOREIGN and candidate not in batch:
                heappush(queue, (candidate.score, candidate.number, candidate))
            if len(batch) == _BATCHES[1]:
                self._rank_foreign(batch)
                batch = []
        self._rank_foreign(batch)

    def _fitting_foreign(self) -> list[Candidate]:
        """Return the candidates that the framework does not run, with bounds of their outlines.

        Candidates that their group excludes keep its bounds. Candidates that need more memory are omitted.
        """
        for candidate in self._foreign:
            if candidate.origin is not None and not self._is_excluded(candidate.score):
                self._tick()
                self._apply(candidate, self.space_bounds.outline_bound(*candidate.origin, foreign=True))
        return [candidate for candidate in self._foreign if candidate.outcome is Outcome.FOREIGN]

    def _rank_foreign(self, batch: Sequence[Candidate]) -> None:
        """Simulate candidates that the framework does not run, and note the fastest one."""
        for candidate, row in zip(batch, self.runner.rows(batch), strict=True):
            if row.get("error") or not row.get("fits"):
                continue
            score = self._score_of(row, candidate)
            if score < (self.foreign or self.best[0]).score:
                self.foreign = candidate
                candidate.row, candidate.score = row, score

    def _release_foreign(self) -> None:
        """Leave only candidates that the framework does not run and that could be among the first places."""
        for candidate in self._foreign:
            if candidate.outcome is Outcome.FOREIGN and self._is_excluded(candidate.score):
                candidate.outcome, candidate.reason = Outcome.BOUNDED, ""

    def _rank(self, candidate: Candidate) -> None:
        """Insert a candidate into the ranking, or among the equivalents of another one."""
        first = self._places.get(_equivalence_key(candidate))
        if first is not None and first.number < candidate.number:
            insort(first.equivalents, candidate, key=attrgetter("number"))
            return
        if first is not None:
            self.best.remove(first)
            candidate.equivalents, first.equivalents = [first, *first.equivalents], []
        self._places[_equivalence_key(candidate)] = candidate
        insort(self.best, candidate, key=_rank_key)

    def _tick(self, candidate: Candidate | None = None) -> None:
        """Report the progress at intervals and before large tables, and end the search in time."""
        if self._deadline_ns is not None and monotonic_ns() > self._deadline_ns:
            raise _TimeEndedError
        is_large = candidate is not None and (
            candidate.layout.pp * candidate.chunks * candidate.layout.microbatches > _LARGE
        )
        if candidate is not None and is_large:
            self._report(f", now {candidate.name} of {candidate.layout.microbatches:,} microbatches")
        elif monotonic() - self._reported_s > _PAUSE_S:
            self._report()

    def _report(self, now: str = "") -> None:
        self._reported_s = monotonic()
        if self._reported_s > self._count_from_s:
            self._excluded = self.considered - self.simulated - sum(size for _, size in self._left())
            count_s = monotonic() - self._reported_s
            self._count_from_s = monotonic() + max(_COUNT_S, _COUNT_SHARE * count_s)
        best = ""
        if self.best:
            first = self.best[0]
            best = f", best so far {first.name}: {DURATION.rounded(int(first.row['step_ns'] or 0))}"
        excluded = f"{self._excluded:,} excluded, " if self._excluded else ""
        self.watch(f"{self.considered:,} considered, {excluded}{self.simulated:,} simulated{best}{now}")

    def _no_result_error(self) -> ConfigError:
        """Return the error without a result: the most frequent reason, or the least sufficient memory."""
        if self.ended == "time":
            message = f"no configuration that fits was found in {self.request.time}: give more time"
            return ConfigError(message, file="--time")
        foreign = self._fitting_foreign()
        if foreign:
            title = FRAMEWORKS[self.space.problem.framework].title
            reason = foreign[0].reason
            message = f"{title} runs none of the configurations that fit: {reason}; --for {ANY} plans with all"
            return ConfigError(message, file="plan")
        none = f"none of {self.considered:,} configurations"
        outcomes = Counter(outcome for outcome, _, _ in self.outcomes())
        if not (outcomes[Outcome.MEMORY] or outcomes[Outcome.SIMULATED]):
            reasons = Counter(reason for _, _, reason in self.outcomes() if reason)
            most = reasons.most_common(1)[0][0] if reasons else "nothing varies"
            return ConfigError(f"{none} can run: {most}", file="plan")
        need = self._least_need()
        if need is None:
            return ConfigError(f"{none} fits: give more GPUs, or more memory", file="--memory")
        size, candidate, is_least = need
        enough = f"{format_size(size)} is enough{'' if is_least else ', and less may be'} ({candidate.name})"
        return ConfigError(f"{none} fits: {enough}; give more GPUs, or more memory", file="--memory")

    def _least_need(self) -> tuple[int, Candidate, bool] | None:
        """Return the least simulated memory, its candidate, and whether no other candidate needs less.

        Parts and candidates are expanded, bounded by their tables and simulated in the order of their memory.
        Among equal bounds, the longest steps come first: they recompute.
        """
        queue: list[tuple[Any, GroupPart | Candidate]] = []
        for group in self.groups.values():
            parts = [] if group.candidates else self._parts_of(group)
            queue += [((part.bound.peak_bytes, (), *part.key), part) for part in parts]
            queue += [(_memory_key(candidate), candidate) for candidate in group.candidates if _needs(candidate)]
        heapify(queue)
        need: tuple[int, Candidate] | None = None
        expanded, is_least = 0, False
        with suppress(_TimeEndedError):
            while queue and (need is None or queue[0][0][0] < need[0]):
                _, item = heappop(queue)
                self._report()
                if isinstance(item, GroupPart):
                    expanded += 1
                    for candidate in self._expand(item) if expanded <= _NEEDS else ():
                        heappush(queue, (_memory_key(candidate), candidate))
                elif item.origin is not None:
                    self._refine(item)
                    if _needs(item):
                        heappush(queue, (_memory_key(item), item))
                else:
                    (row,) = self.runner.rows([item])
                    size = int(row.get("peak_memory_bytes") or 0)
                    if not row.get("error") and (need is None or size < need[0]):
                        need = size, item
            is_least = expanded <= _NEEDS
        return (*need, is_least) if need is not None else None


class Prefetch:
    """Values that worker processes compute in advance, in a known order."""

    def __init__(
        self,
        executor: Executor,
        call: Callable[[list[Any]], list[Any]],
        items: Iterable[tuple[Hashable, Any]],
        *,
        ahead: int,
        size: int,
    ) -> None:
        """Submit the first tasks.

        Args:
            executor: the executor of the workers.
            call: returns the values of items; picklable where the executor pickles.
            items: keys with items, in the order in which the search needs their values.
            ahead: number of tasks that are submitted at once.
            size: items of a task.
        """
        self._executor, self._call, self._items = executor, call, iter(items)
        self._ahead, self._size = ahead, size
        self._running: deque[tuple[list[Hashable], Future[list[Any]]]] = deque()
        self._values: dict[Hashable, Any] = {}
        self._has_ended = False
        self._submit()

    def take(self, key: Hashable) -> Any:
        """Return the value of a key; None if no worker computes it, for example after a failure."""
        while key not in self._values and self._running:
            keys, future = self._running.popleft()
            try:
                self._values.update(zip(keys, future.result(), strict=True))
            except Exception:  # noqa: BLE001 - this process repeats a failed task
                self.end()
            self._submit()
        return self._values.pop(key, None)

    def end(self) -> None:
        """Cancel the tasks that no worker has started."""
        self._has_ended = True
        for _, future in self._running:
            future.cancel()
        self._running.clear()

    def _submit(self) -> None:
        while not self._has_ended and len(self._running) < self._ahead:
            task = list(islice(self._items, self._size))
            if not task:
                return
            try:
                future = self._executor.submit(self._call, [item for _, item in task])
            except Exception:  # noqa: BLE001 - without an executor, this process computes the values
                self.end()
                return
            self._running.append(([key for key, _ in task], future))


def _call_space_bounds(space: bytes, method: str, items: list[Any]) -> list[Any]:
    """Return the values of a method of the space's :class:`SpaceBounds`, in a worker process."""
    space_bounds = _space_bounds(space)
    with memoizing(process_memo()):
        return [getattr(space_bounds, method)(item) for item in items]


@lru_cache(maxsize=1)
def _space_bounds(space: bytes) -> SpaceBounds:
    values: Any
    values, request = pickle.loads(space)  # noqa: S301 - pickled by the process of this plan
    return SpaceBounds(Space(PlanProblem(**values, registry=installed()), request))


def spread_indices(count: int) -> Iterator[int]:
    """Yield the numbers below a count once each, such that every prefix covers the range evenly."""
    step = next((step for step in range(round(count * _GOLDEN), count) if gcd(step, count) == 1), 1)
    return (index * step % count for index in range(count))


def _needs(candidate: Candidate) -> bool:
    """Return whether memory alone keeps a candidate from a place."""
    outcomes = {Outcome.MEMORY, Outcome.SIMULATED, Outcome.BOUNDED}
    return candidate.outcome in outcomes and candidate.bound is not None


def _equivalence_key(candidate: Candidate) -> tuple[Any, ...]:
    """Return the key that equivalent candidates share."""
    return candidate.layout, candidate.schedule, candidate.chunks, _rank_key(candidate)[:-1]


def _rank_key(candidate: Candidate) -> tuple[Score, int, int]:
    return candidate.score, int(candidate.row["peak_memory_bytes"] or 0), candidate.number


def _memory_key(candidate: Candidate) -> tuple[int, tuple[float, ...], int]:
    least = candidate.bound.peak_bytes if candidate.bound else 0
    return least, tuple(-float(part) for part in candidate.score), candidate.number
