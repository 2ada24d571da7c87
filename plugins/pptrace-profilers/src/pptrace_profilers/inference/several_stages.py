"""Stages and microbatches of ranks that hold several stages, over all steps of a recording."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace_profilers.inference.chains import Part, chained
from pptrace_profilers.inference.launches import work_starts_ns
from pptrace_profilers.inference.rank_runs import AUTOGRAD, Verdict, mean
from pptrace_profilers.inference.routes import routed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace_profilers.inference.rank_runs import Places, RankRuns

    _Found = tuple[Verdict, list[RankRuns], list[Places], int]
    """How sure it is, ranks with backwards of the right forwards, the place of each forward, how many stages."""

__all__ = ["from_ways_of_messages"]


def from_ways_of_messages(ranks: Sequence[RankRuns], source: str) -> _Found | None:
    """Return what the ways of messages say; None where neither hosts' waits nor GPUs' kernels were recorded."""
    on_gpu = [end.posted_ns >= 0 for rank in ranks for end in rank.recording.ends if end.peer >= 0]
    if source == AUTOGRAD and not any(on_gpu):
        return _from_chains(ranks)
    return _from_routes(ranks, source) if all(on_gpu) else None


class _Shares:
    """What speaks for an inference, over all steps."""

    def __init__(self) -> None:
        self.fitting: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.routes: list[tuple[int, ...]] = []
        self.reason = ""

    def add(self, shares: Mapping[str, tuple[int, int]], route: tuple[int, ...], reason: str = "") -> None:
        """Add a step's, and why nothing fits it."""
        self.routes.append(route)
        self.reason = self.reason or reason
        for what, (fit, count) in shares.items():
            self.fitting[what] += fit
            self.counted[what] += count

    def verdict(self, ranks: Sequence[RankRuns], source: str) -> tuple[Verdict, int]:
        """Return how sure it is, and how many stages there are."""
        shares = {what: self.fitting[what] / self.counted[what] for what in self.counted}
        route = Counter(self.routes).most_common(1)[0][0]
        shares["of the steps have their stages in the same places"] = self.routes.count(route) / len(self.routes)
        pairs = [rank.backwards[run.forward_number] in {1, 2} for rank in ranks for run in rank.forwards]
        shares["of the forwards have one backward or two"] = mean(pairs)
        source = f"{source} and the ways of messages"
        if self.reason and not any(self.routes):
            return Verdict(text="", objection=f" from {source}: {self.reason}"), 0
        return Verdict.of(shares, source), len(route)


def _steps(ranks: Sequence[RankRuns]) -> list[int]:
    return sorted({step for rank in ranks for step in rank.steps} - {-1})


def _from_chains(ranks: Sequence[RankRuns]) -> _Found:
    """Return what hosts say that waited for their messages."""
    placed: list[Places] = [{} for _ in ranks]
    shares = _Shares()
    for step in _steps(ranks):
        found = chained([_part(rank, step) for rank in ranks])
        shares.add(found.shares, found.route)
        for (rank, forward), place in found.places.items():
            placed[rank][forward] = place
    return shares.verdict(ranks, AUTOGRAD)[0], list(ranks), placed, len(shares.routes[0])


def _from_routes(ranks: Sequence[RankRuns], source: str) -> _Found:
    """Return what GPUs' kernels say."""
    placed: list[Places] = [{} for _ in ranks]
    runs = [list(rank.runs) for rank in ranks]
    shares = _Shares()
    for step in _steps(ranks):
        numbers = [[number for number, its in enumerate(rank.steps) if its == step] for rank in ranks]
        starts = [work_starts_ns(rank.recording.operations, rank.runs) for rank in ranks]
        found = routed(
            [_part(rank, step) for rank in ranks],
            [[start[number] for number in its] for start, its in zip(starts, numbers, strict=True)],
            paired=source == AUTOGRAD,
        )
        shares.add(found.shares, found.route, found.reason)
        of_place: dict[tuple[int, int, int], int] = {}
        for (rank, number), place in found.places.items():  # by rank and time: a forward comes before its backward
            run = runs[rank][numbers[rank][number]]
            forward = of_place.setdefault((rank, *place), run.forward_number)
            placed[rank][forward] = place
            runs[rank][numbers[rank][number]] = replace(run, forward_number=forward)
    paired = [replace(rank, runs=its) for rank, its in zip(ranks, runs, strict=True)]
    verdict, stages = shares.verdict(paired, source)
    return verdict, paired, placed, stages


def _part(rank: RankRuns, step: int) -> Part:
    runs = [run for run, its in zip(rank.runs, rank.steps, strict=True) if its == step]
    windows = rank.recording.windows
    start, end = windows[step][1:] if windows else (-(2**63), 2**63)
    return Part(runs=runs, ends=[one for one in rank.recording.ends if start <= one.host_ns <= end])
