"""Lower bounds of the layouts of a plan, computed in parallel.

Candidates get their own bounds in an order that is known beforehand, until the search ends. So a few chunks of
them can be on their way; which of them is used, and in what order, depends on no machine.
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
from pptrace.search.candidate import Candidate, Fate
from pptrace.search.pricing import LAYERS, Group, Origin, Pricing
from pptrace.search.problem import Ground, setting
from pptrace.search.runner import installed
from pptrace.search.space import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pptrace.config.overrides import Assignment
    from pptrace.search.basis import Entry
    from pptrace.search.bounds import Bound
    from pptrace.search.pricing import Priced
    from pptrace.search.problem import Worth
    from pptrace.search.space import Layout, Space

__all__ = ["Ahead", "Scales", "worthwhile"]

_VP = "parallel.vp"


class Scales:
    """Weighs layouts one after another, roughly; then single candidates, with their tables."""

    def __init__(self, space: Space) -> None:
        self.space, self.ground = space, space.ground
        self.question = space.question
        self.pricing = Pricing(space.ground, space.entries, space.layers)
        self.ahead: Ahead | None = None
        """Makes bounds elsewhere, ahead of those that are asked for; None for none."""
        self.count = 0
        self.groups = 0
        self.seen: dict[Any, Candidate] = {}

    def weighed(self, layout: Layout, varied: tuple[Assignment, ...]) -> list[Candidate]:
        """Return a layout's candidates, with what they compute and keep at least, whatever their tables.

        What all stages compute together is taken not to depend on their number.

        Args:
            layout: the layout.
            varied: what it sets.
        """
        entries = self.space.entries
        if not layout.microbatches:
            step = layout.dp * layout.micro
            reason = f"batch.global: {layout.sequences} is no multiple of dp x micro = {step}"
            return [self.made(layout, entry, varied, reason) for entry in entries]
        group = Group(number=self.groups, layout=layout, varied=varied)
        self.groups += 1
        try:
            sorts = {self.pricing.has_pairs(entry) for entry in entries}
            least = {has_pairs: self.pricing.least(group, has_pairs=has_pairs) for has_pairs in sorts}
        except PptraceError as error:
            if self.question.objective != "gpus" and _is_everywhere(error):
                raise
            return [self.made(layout, entry, varied, short_reason(error)) for entry in entries]
        found: list[Candidate] = []
        for number, entry in enumerate(entries):
            bound = least[self.pricing.has_pairs(entry)]
            worth = self.question.worth(bound.step_ns, layout.sequences, layout.gpus)
            candidates = list(self._of_entry(group, number, entry))
            for one in candidates:
                if one.fate is Fate.BOUNDED:
                    self._put(one, bound, worth)
            found += candidates
        return found

    def made(self, layout: Layout, entry: Entry, varied: tuple[Assignment, ...], reason: str = "") -> Candidate:
        """Return a new candidate; with a reason, one that is refused."""
        self.count += 1
        return Candidate(
            number=self.count - 1, layout=layout, schedule=entry.label, chunks=1,
            varied=(*varied, *entry.varied), fate=Fate.REFUSED if reason else Fate.BOUNDED, reason=reason,
        )  # fmt: skip

    def refine(self, candidate: Candidate) -> None:
        """Bound a candidate by its own table and costs; it may be found to be refused, or equal to another."""
        origin, candidate.origin = candidate.origin, None
        if origin is None:
            return
        found = self.ahead.of(candidate) if self.ahead is not None else None
        if found is None or self._is_half(found):
            found = self._priced(origin)
        if found.chunks is not None:
            candidate.chunks = found.chunks
        if found.layers is not None:
            candidate.varied += (setting(LAYERS, found.layers),)
        if found.is_even:
            candidate.fate, candidate.reason = Fate.EQUAL, "an even split"
        elif found.reason:
            candidate.fate, candidate.reason = Fate.REFUSED, found.reason
        else:
            self._compare(candidate, found)

    def _compare(self, candidate: Candidate, found: Priced) -> None:
        first = self.seen.setdefault(found.sameness, candidate)
        if first is not candidate:
            candidate.fate, candidate.reason = Fate.EQUAL, first.name
        elif found.bound is not None:
            layout = candidate.layout
            worth = self.question.worth(found.bound.step_ns, layout.sequences, layout.gpus)
            self._put(candidate, found.bound, worth)

    def _priced(self, origin: Origin) -> Priced:
        found = self.pricing.priced(origin)
        if self._is_half(found):
            self.pricing.forget(found.sameness)
            found = self.pricing.priced(origin)
        return found

    def _is_half(self, found: Priced) -> bool:
        """Whether a bound was left out for the sake of another candidate that nobody took."""
        return found.bound is None and not (found.is_even or found.reason) and found.sameness not in self.seen

    def _put(self, candidate: Candidate, bound: Bound, worth: Worth) -> None:
        candidate.bound, candidate.worth = bound, worth
        if not bound.fits and not self.question.exhaustive:
            candidate.fate = Fate.MEMORY

    def _of_entry(self, group: Group, at: int, entry: Entry) -> Iterator[Candidate]:
        """Yield a schedule's candidates on a layout: with each number of chunks that it takes, and each split."""
        alone = group.layout.pp == 1 and self.space.is_plain_alone(entry)
        if alone and not self.pricing.overlaps(group, entry):
            one = self.made(group.layout, entry, group.varied)
            one.fate, one.reason = Fate.COVERED, f"{PLAIN} on one rank"
            yield one
            return
        for chunks in self._chunks_of(group.layout, entry):
            refused = self.pricing.shapes.refusal(entry, group.layout, chunks)
            settings = (setting(_VP, chunks),) if chunks is not None and chunks > 1 else ()
            for split in self.space.splits:
                reason = short_reason(refused) if refused else ""
                one = self.made(group.layout, entry, group.varied, reason)
                one.chunks, one.varied = chunks or 1, (*one.varied, *settings)
                one.origin = Origin(group=group, entry=at, chunks=chunks, split=split)
                yield one

    def _chunks_of(self, layout: Layout, entry: Entry) -> list[int | None]:
        """Return the chunks per rank that a schedule takes; its own where it takes none that the user named."""
        named = self.space.sizes["vp"]
        own = None if self.ground.registry.schedules[entry.name].offer.chunks is not None else 1
        if own is None and not named:
            return [own]
        taken: list[int | None] = [
            chunks for chunks in self.space.chunks_of(layout.pp) if self._takes(entry, layout, chunks)
        ]
        return taken or ([own] if named else [])

    def _takes(self, entry: Entry, layout: Layout, chunks: int) -> bool:
        """Return whether a schedule takes so many chunks per rank; other sizes may still be refused."""
        refused = self.pricing.shapes.refusal(entry, layout, chunks)
        return getattr(refused, "key", "") != _VP


def _is_everywhere(error: PptraceError) -> bool:
    """Whether an error is no layout's own: a cluster of another size, a plugin that fails, a key that is none."""
    key = getattr(error, "key", "") or ""
    return not isinstance(error, ConstraintError) and not key.startswith(("parallel", "batch", "device.ranks"))


_LEAST = 500
"""Candidates from which it is worth while to make bounds on other processes."""
_CHUNK = 24
"""Candidates that are handed over at once: few enough to end soon."""


def worthwhile(candidates: Sequence[Candidate]) -> bool:
    """Return whether there are so many candidates that other processes bound them sooner."""
    return len(candidates) >= _LEAST


class _Ask(NamedTuple):
    """What a worker is asked for."""

    token: str
    """Tells the plan from others."""
    plan: bytes
    """What its bounds are made of, pickled."""
    origins: tuple[Origin, ...]
    """Of the candidates."""


class Ahead:
    """Bounds that are on their way."""

    def __init__(self, space: Space, candidates: Sequence[Candidate], executor: Executor, workers: int) -> None:
        """Hand over the first chunks.

        Args:
            space: what the plan considers.
            candidates: those without a bound of their own, in the order in which they will be asked for.
            executor: where it is done.
            workers: how many work at once.
        """
        ground = space.ground
        own = {field.name: getattr(ground, field.name) for field in fields(ground) if field.name != "registry"}
        self._plan = pickle.dumps((own, space.entries, space.layers))
        self._token = hashlib.sha256(self._plan).hexdigest()
        self._executor, self._most = executor, 2 * workers
        self._chunks = _chunks(candidates)
        self._running: deque[tuple[list[int], Future[list[Priced]]]] = deque()
        self._found: dict[int, Priced] = {}
        self._is_over = False
        self._hand_over()

    def of(self, candidate: Candidate) -> Priced | None:
        """Return what a candidate's table and costs say; None where nobody makes it, as after a worker's end."""
        while candidate.number not in self._found and self._running:
            numbers, future = self._running.popleft()
            try:
                self._found.update(zip(numbers, future.result(), strict=True))
            except Exception:  # noqa: BLE001 - whatever fails elsewhere is made, or fails, here
                self.end()
            self._hand_over()
        return self._found.pop(candidate.number, None)

    def end(self) -> None:
        """Take back what nobody has begun."""
        self._is_over = True
        for _, future in self._running:
            future.cancel()
        self._running.clear()

    def _hand_over(self) -> None:
        while not self._is_over and len(self._running) < self._most:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            origins = tuple(one.origin for one in chunk if one.origin is not None)
            try:
                future = self._executor.submit(_priced, _Ask(self._token, self._plan, origins))
            except Exception:  # noqa: BLE001 - a broken executor: bounds are made here then
                self.end()
                return
            self._running.append(([one.number for one in chunk], future))


def _chunks(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield candidates of one layout together, up to so many at once."""
    for _, group in groupby(candidates, key=lambda one: one.layout):
        own = list(group)
        yield from (own[begin : begin + _CHUNK] for begin in range(0, len(own), _CHUNK))


def _priced(ask: _Ask) -> list[Priced]:
    pricing = _pricing(ask.token, ask.plan)
    return [pricing.priced(origin) for origin in ask.origins]


@lru_cache(maxsize=1)
def _pricing(token: str, plan: bytes) -> Pricing:
    del token
    own: Any
    own, entries, layers = pickle.loads(plan)  # noqa: S301 - this plan's own process made it
    return Pricing(Ground(**own, registry=installed()), entries, layers)
