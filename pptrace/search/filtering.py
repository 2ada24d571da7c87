"""Lower bounds of the candidates of a plan, computed in parallel.

The order in which candidates get their own bounds is known in advance, so worker processes prefetch chunks of
them. The order in which the search uses them does not depend on the machine.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from dataclasses import fields
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pptrace.errors import ConstraintError, PptraceError
from pptrace.search.basis import short_reason
from pptrace.search.candidate import Candidate, Outcome
from pptrace.search.pricing import LAYERS, Group, Origin, Pricing
from pptrace.search.problem import PlanProblem, setting
from pptrace.search.runner import installed
from pptrace.search.space import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pptrace.config.overrides import Assignment
    from pptrace.search.basis import Entry
    from pptrace.search.bounds import Bound
    from pptrace.search.pricing import Priced
    from pptrace.search.problem import Score
    from pptrace.search.space import Layout, Space

_VP = "parallel.vp"


class CandidateFilter:
    """Creates the candidates of layouts with rough bounds, then bounds single candidates by their tables."""

    def __init__(self, space: Space) -> None:
        self.space, self.problem = space, space.problem
        self.request = space.request
        self.pricing = Pricing(space.problem, space.entries, space.layers)
        self.prefetch: BoundPrefetch | None = None
        """Bounds in worker processes; None where this process computes all of them."""
        self.count = 0
        self.groups = 0
        self.seen: dict[Any, Candidate] = {}

    def candidates_of(self, layout: Layout, varied: tuple[Assignment, ...]) -> list[Candidate]:
        """Return a layout's candidates with lower bounds that hold for any table.

        The total computation is assumed not to depend on the number of stages.
        """
        entries = self.space.entries
        if not layout.microbatches:
            step = layout.dp * layout.micro
            reason = f"batch.global: {layout.sequences} is no multiple of dp x micro = {step}"
            return [self.made(layout, entry, varied, reason) for entry in entries]
        group = Group(number=self.groups, layout=layout, varied=varied)
        self.groups += 1
        try:
            pairs = {self.pricing.has_pairs(entry) for entry in entries}
            least = {has_pairs: self.pricing.least(group, has_pairs=has_pairs) for has_pairs in pairs}
        except PptraceError as error:
            if self.request.objective != "gpus" and _is_everywhere(error):
                raise
            return [self.made(layout, entry, varied, short_reason(error)) for entry in entries]
        found: list[Candidate] = []
        for number, entry in enumerate(entries):
            bound = least[self.pricing.has_pairs(entry)]
            score = self.request.score(bound.step_ns, layout.sequences, layout.gpus)
            candidates = list(self._of_entry(group, number, entry))
            for one in candidates:
                if one.outcome is Outcome.BOUNDED:
                    self._put(one, bound, score)
            found += candidates
        return found

    def made(self, layout: Layout, entry: Entry, varied: tuple[Assignment, ...], reason: str = "") -> Candidate:
        """Return a new candidate; a reason makes it a refused one."""
        self.count += 1
        return Candidate(
            number=self.count - 1, layout=layout, schedule=entry.label, chunks=1,
            varied=(*varied, *entry.varied), outcome=Outcome.REFUSED if reason else Outcome.BOUNDED, reason=reason,
        )  # fmt: skip

    def refine(self, candidate: Candidate) -> None:
        """Bound a candidate by its own table and costs; it may turn out refused, or equal to another one."""
        origin, candidate.origin = candidate.origin, None
        if origin is None:
            return
        found = self.prefetch.of(candidate) if self.prefetch is not None else None
        if found is None or self._is_half(found):
            found = self._priced(origin)
        if found.chunks is not None:
            candidate.chunks = found.chunks
        if found.layers is not None:
            candidate.varied += (setting(LAYERS, found.layers),)
        if found.is_even:
            candidate.outcome, candidate.reason = Outcome.EQUAL, "an even split"
        elif found.reason:
            candidate.outcome, candidate.reason = Outcome.REFUSED, found.reason
        else:
            self._compare(candidate, found)

    def _compare(self, candidate: Candidate, found: Priced) -> None:
        first = self.seen.setdefault(found.sameness, candidate)
        if first is not candidate:
            candidate.outcome, candidate.reason = Outcome.EQUAL, first.name
        elif found.bound is not None:
            layout = candidate.layout
            score = self.request.score(found.bound.step_ns, layout.sequences, layout.gpus)
            self._put(candidate, found.bound, score)

    def _priced(self, origin: Origin) -> Priced:
        found = self.pricing.priced(origin)
        if self._is_half(found):
            self.pricing.forget(found.sameness)
            found = self.pricing.priced(origin)
        return found

    def _is_half(self, found: Priced) -> bool:
        """Return whether the bound is missing because of an equal candidate that was never used."""
        return found.bound is None and not (found.is_even or found.reason) and found.sameness not in self.seen

    def _put(self, candidate: Candidate, bound: Bound, score: Score) -> None:
        candidate.bound, candidate.score = bound, score
        if not bound.fits and not self.request.exhaustive:
            candidate.outcome = Outcome.MEMORY

    def _of_entry(self, group: Group, index: int, entry: Entry) -> Iterator[Candidate]:
        """Yield a schedule's candidates on a layout: one per accepted number of chunks and per split."""
        alone = group.layout.pp == 1 and self.space.is_plain_alone(entry)
        if alone and not self.pricing.overlaps(group, entry):
            one = self.made(group.layout, entry, group.varied)
            one.outcome, one.reason = Outcome.COVERED, f"{PLAIN} on one rank"
            yield one
            return
        for chunks in self._chunks_of(group.layout, entry):
            refused = self.pricing.tables.refusal(entry, group.layout, chunks)
            settings = (setting(_VP, chunks),) if chunks is not None and chunks > 1 else ()
            for split in self.space.splits:
                reason = short_reason(refused) if refused else ""
                one = self.made(group.layout, entry, group.varied, reason)
                one.chunks, one.varied = chunks or 1, (*one.varied, *settings)
                one.origin = Origin(group=group, entry=index, chunks=chunks, split=split)
                yield one

    def _chunks_of(self, layout: Layout, entry: Entry) -> list[int | None]:
        """Return the chunks per rank that a schedule accepts; its default where it accepts no requested one."""
        named = self.space.sizes["vp"]
        own = None if self.problem.registry.schedules[entry.name].offer.chunks is not None else 1
        if own is None and not named:
            return [own]
        taken: list[int | None] = [
            chunks for chunks in self.space.chunks_of(layout.pp) if self._takes(entry, layout, chunks)
        ]
        return taken or ([own] if named else [])

    def _takes(self, entry: Entry, layout: Layout, chunks: int) -> bool:
        """Return whether a schedule accepts a number of chunks; other sizes may still be refused."""
        refused = self.pricing.tables.refusal(entry, layout, chunks)
        return getattr(refused, "key", "") != _VP


def _is_everywhere(error: PptraceError) -> bool:
    """Return whether an error concerns every layout: a cluster size, a failing plugin, an unknown key."""
    key = getattr(error, "key", "") or ""
    return not isinstance(error, ConstraintError) and not key.startswith(("parallel", "batch", "device.ranks"))


_LEAST = 500
"""Candidates from which worker processes shorten the search."""
_CHUNK = 24
"""Candidates per task of a worker."""


def should_prefetch(candidates: Sequence[Candidate]) -> bool:
    """Return whether there are enough candidates for worker processes to bound."""
    return len(candidates) >= _LEAST


class _Ask(NamedTuple):
    """A task of a worker."""

    token: str
    """Digest of the plan."""
    plan: bytes
    """Pickled inputs of the bounds."""
    origins: tuple[Origin, ...]


class BoundPrefetch:
    """Bounds that worker processes compute in advance."""

    def __init__(self, space: Space, candidates: Sequence[Candidate], executor: Executor, workers: int) -> None:
        """Submit the first chunks.

        Args:
            space: the space of the plan.
            candidates: candidates without a bound of their own, in the order in which the search will need them.
            executor: the executor of the workers.
            workers: number of workers.
        """
        problem = space.problem
        own = {field.name: getattr(problem, field.name) for field in fields(problem) if field.name != "registry"}
        self._plan = pickle.dumps((own, space.entries, space.layers))
        self._token = hashlib.sha256(self._plan).hexdigest()
        self._executor, self._most = executor, 2 * workers
        self._chunks = _chunks(candidates)
        self._running: deque[tuple[list[int], Future[list[Priced]]]] = deque()
        self._found: dict[int, Priced] = {}
        self._has_ended = False
        self._submit()

    def of(self, candidate: Candidate) -> Priced | None:
        """Return a candidate's bound; None where no worker computes it, as after a failure."""
        while candidate.number not in self._found and self._running:
            numbers, future = self._running.popleft()
            try:
                self._found.update(zip(numbers, future.result(), strict=True))
            except Exception:  # noqa: BLE001 - this process repeats a failed task
                self.end()
            self._submit()
        return self._found.pop(candidate.number, None)

    def end(self) -> None:
        """Cancel the tasks that no worker has started."""
        self._has_ended = True
        for _, future in self._running:
            future.cancel()
        self._running.clear()

    def _submit(self) -> None:
        while not self._has_ended and len(self._running) < self._most:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            origins = tuple(one.origin for one in chunk if one.origin is not None)
            try:
                future = self._executor.submit(_priced, _Ask(self._token, self._plan, origins))
            except Exception:  # noqa: BLE001 - without an executor, this process computes the bounds
                self.end()
                return
            self._running.append(([one.number for one in chunk], future))


def _chunks(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield chunks of candidates of one layout."""
    for _, group in groupby(candidates, key=lambda one: one.layout):
        members = list(group)
        yield from (members[begin : begin + _CHUNK] for begin in range(0, len(members), _CHUNK))


def _priced(ask: _Ask) -> list[Priced]:
    pricing = _pricing(ask.token, ask.plan)
    return [pricing.priced(origin) for origin in ask.origins]


@lru_cache(maxsize=1)
def _pricing(token: str, plan: bytes) -> Pricing:
    del token
    values: Any
    values, entries, layers = pickle.loads(plan)  # noqa: S301 - pickled by the process of this plan
    return Pricing(PlanProblem(**values, registry=installed()), entries, layers)
