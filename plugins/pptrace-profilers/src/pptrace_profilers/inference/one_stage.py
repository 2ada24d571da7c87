"""How sure it is that each rank is one stage, so that its microbatches are in the order of its forwards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.inference.rank_runs import Verdict, mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_profilers.inference.rank_runs import RankRuns
    from pptrace_profilers.recording.recording import Recording

__all__ = ["one_stage_each"]


def one_stage_each(ranks: Sequence[RankRuns], source: str) -> Verdict:
    """Return how sure it is that each rank is a stage."""
    peers = [end.peer for rank in ranks for end in rank.recording.ends]
    if peers and max(peers) < 0:
        return Verdict(text="", objection=": no file of a rank that these exchange messages with is here")
    if not peers:
        return Verdict(text="", objection=": no message between these ranks tells a pipeline")
    if any(_passes_over(rank.recording, number) for number, rank in enumerate(ranks)):
        return Verdict(text="", objection=(
            ": messages go to ranks that are no neighbours, so ranks hold several stages, and neither a host's "
            "operations and waits nor a GPU's kernels say which action is of which stage"
        ))  # fmt: skip
    return Verdict.of(dict(_shares(ranks)), source)


def _shares(ranks: Sequence[RankRuns]) -> Iterator[tuple[str, float]]:
    """Yield each share that speaks for the inference, with what it is a share of."""
    per_step = [
        Counter(step for run, step in zip(rank.runs, rank.steps, strict=True) if run.forward and step >= 0)
        for rank in ranks
    ]
    steps = set().union(*per_step)
    counts = [count[step] for count in per_step for step in steps]
    yield "of the forwards are on every rank", min(counts) / max(counts)
    yield "of the forwards have their backwards", mean(fits for rank in ranks for fits in _paired(rank))
    forms = [Counter(run.operations for run in rank.forwards) for rank in ranks]
    alike = sum(form.most_common(1)[0][1] for form in forms) / sum(form.total() for form in forms)
    yield "of the forwards are alike", alike
    yield (
        "of the messages leave behind what makes them",
        mean(fits for number, rank in enumerate(ranks) for fits in _directed(rank, number)),
    )
    yield "of the messages to neighbours are there", mean(_counted(ranks))


def _paired(rank: RankRuns) -> Iterator[bool]:
    """Yield of each forward whether as many backwards go back through it as through most, one or two."""
    backwards, usual = rank.backwards, rank.usual
    for run in rank.forwards:
        yield backwards[run.forward_number] == usual and usual in {1, 2}


def _directed(rank: RankRuns, number: int) -> Iterator[bool]:
    """Yield of each message that leaves whether it goes where the run before it would send it."""
    starts = [run.start_ns for run in rank.runs]
    for end in rank.recording.ends:
        before = int(np.searchsorted(starts, end.host_ns, side="right")) - 1
        if end.sends and end.peer >= 0 and before >= 0 and rank.steps[before] >= 0:
            yield end.peer - number == (1 if rank.runs[before].forward else -1)


def _counted(ranks: Sequence[RankRuns]) -> Iterator[float]:
    """Yield of each rank and neighbour how near the number of its messages is to that of its forwards."""
    for number, rank in enumerate(ranks):
        made = len(rank.forwards)
        for peer in (number - 1, number + 1):
            if 0 <= peer < len(ranks):
                ends = rank.recording.ends
                sent = sum(
                    end.sends and end.peer == peer and _in_a_step(rank.recording, end.host_ns) for end in ends
                )
                yield min(sent, made) / max(sent, made)


def _passes_over(recording: Recording, number: int) -> bool:
    return any(end.sends and end.peer >= 0 and abs(end.peer - number) != 1 for end in recording.ends)


def _in_a_step(recording: Recording, at_ns: int) -> bool:
    return not recording.windows or any(start <= at_ns <= end for _, start, end in recording.windows)
