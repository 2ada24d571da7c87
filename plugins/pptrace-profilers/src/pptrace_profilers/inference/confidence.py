"""Actions of traces that name none: forward and backward of each microbatch, with how sure that is.

Only pipelines of one stage per rank are inferred, their microbatches in the order of their forwards. The
confidence is the product of five shares, 1 for a pipeline of which everything fits:

- *even*: the fewest forwards of a rank in a step, of the most;
- *paired*: forwards that as many backwards go back through as through most of their rank (two are input and weight
  gradient);
- *alike*: forwards that consist of the same operations as most of their rank's;
- *directed*: messages that leave for the next rank behind a forward, or for the one before behind a backward;
- *counted*: messages to each neighbour, of the forwards.

Below :data:`LEAST` nothing is guessed, nor where messages pass over a neighbour: ranks then hold several stages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.action import Action, Kind
from pptrace_profilers.inference.autograd import autograd_runs
from pptrace_profilers.inference.launches import kernel_runs
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.device import on_device
from pptrace_profilers.recording.recording import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_profilers.inference.autograd import Run
    from pptrace_profilers.recording.recording import Recording

__all__ = ["LEAST", "infer"]

LEAST = 0.9
"""The confidence from which actions are inferred."""
_HELP = "`pptrace annotate` prints a module that marks them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank's runs, and which step each is in."""

    one: Recording
    runs: list[Run]
    step: list[int]

    @property
    def forwards(self) -> list[Run]:
        return [run for run, step in zip(self.runs, self.step, strict=True) if run.forward and step >= 0]

    @property
    def backwards(self) -> Counter[int]:
        return Counter(run.of for run in self.runs if not run.forward)

    @property
    def usual(self) -> int:
        """Return how many backwards most forwards have."""
        counts = self.backwards
        return Counter(counts[run.of] for run in self.forwards).most_common(1)[0][0]


def infer(recordings: Sequence[Recording]) -> tuple[list[Recording], str]:
    """Return recordings with actions, or as they were, and a sentence on what was inferred, or why nothing.

    Args:
        recordings: one per pipeline rank, in their order, with no action that computes.
    """
    source = "autograd's operations"
    ranks = [_within_steps(one, _from_autograd(one)) for one in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [_within_steps(one, _from_kernels(one)) for one in recordings]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    if not any(end.peer >= 0 for rank in ranks for end in rank.one.ends):
        return list(recordings), (
            "forwards and backwards are not inferred: no message between these ranks tells a pipeline; " + _HELP
        )
    if any(_passes_over(rank.one, number) for number, rank in enumerate(ranks)):
        return list(recordings), (
            "forwards and backwards are not inferred: messages go to ranks that are no neighbours, so ranks hold "
            f"several stages; {_HELP}"
        )
    shares = dict(_shares(ranks))
    confidence = float(np.prod(list(shares.values())))
    if confidence < LEAST:
        weakest = min(shares, key=lambda name: shares[name])
        return list(recordings), (
            f"forwards and backwards are not inferred from {source}: confidence {confidence:.2f} is below "
            f"{LEAST}, as only {shares[weakest]:.0%} {weakest}; {_HELP}"
        )
    told = f"no annotation names an action: inferred from {source}, confidence {confidence:.2f}; {_HELP}"
    return [_acted(rank, number) for number, rank in enumerate(ranks)], told


def _from_autograd(one: Recording) -> list[Run]:
    try:
        return autograd_runs(one.path, list(_posts(one)))
    except (TraceError, OSError):
        return []


def _from_kernels(one: Recording) -> list[Run]:
    return kernel_runs(one.operations, list(_posts(one)))


def _posts(one: Recording) -> Iterator[int]:
    for end in one.ends:
        yield end.posted_ns if end.posted_ns >= 0 else end.start_ns


def _within_steps(one: Recording, runs: list[Run]) -> _Rank:
    if not one.windows:
        return _Rank(one=one, runs=runs, step=[0] * len(runs))
    starts = np.array([start for _, start, _ in one.windows])
    ends = np.array([end for _, _, end in one.windows])
    times = np.array([run.start_ns for run in runs], dtype=np.int64)
    at = np.searchsorted(starts, times, side="right") - 1
    return _Rank(one=one, runs=runs, step=np.where((at >= 0) & (times <= ends[at]), at, -1).tolist())


def _shares(ranks: Sequence[_Rank]) -> Iterator[tuple[str, float]]:
    """Yield each share that speaks for the inference, with what it is a share of."""
    per_step = [
        Counter(step for run, step in zip(rank.runs, rank.step, strict=True) if run.forward and step >= 0)
        for rank in ranks
    ]
    steps = set().union(*per_step)
    counts = [count[step] for count in per_step for step in steps]
    yield "of the forwards are on every rank", min(counts) / max(counts)
    yield (
        "of the forwards have their backwards",
        _mean(
            rank.backwards[run.of] == rank.usual and rank.usual in {1, 2}
            for rank in ranks
            for run in rank.forwards
        ),
    )
    shapes = [Counter(run.shape for run in rank.forwards) for rank in ranks]
    alike = sum(shape.most_common(1)[0][1] for shape in shapes) / sum(shape.total() for shape in shapes)
    yield "of the forwards are alike", alike
    yield (
        "of the messages leave behind what makes them",
        _mean(fits for number, rank in enumerate(ranks) for fits in _directed(rank, number)),
    )
    yield "of the messages to neighbours are there", _mean(_counted(ranks))


def _passes_over(one: Recording, number: int) -> bool:
    return any(end.sends and end.peer >= 0 and abs(end.peer - number) != 1 for end in one.ends)


def _mean(values: Iterator[float] | Iterator[bool]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0


def _directed(rank: _Rank, number: int) -> Iterator[bool]:
    starts = [run.start_ns for run in rank.runs]
    for end, at in zip(rank.one.ends, _posts(rank.one), strict=True):
        before = int(np.searchsorted(starts, at, side="right")) - 1
        if end.sends and end.peer >= 0 and before >= 0 and rank.step[before] >= 0:
            yield end.peer - number == (1 if rank.runs[before].forward else -1)


def _counted(ranks: Sequence[_Rank]) -> Iterator[float]:
    for number, rank in enumerate(ranks):
        made = len(rank.forwards)
        for peer in (number - 1, number + 1):
            if 0 <= peer < len(ranks):
                sent = sum(
                    end.sends and end.peer == peer and _in_a_step(rank.one, at)
                    for end, at in zip(rank.one.ends, _posts(rank.one), strict=True)
                )
                yield min(sent, made) / max(sent, made)


def _in_a_step(one: Recording, at_ns: int) -> bool:
    return not one.windows or any(start <= at_ns <= end for _, start, end in one.windows)


def _acted(rank: _Rank, number: int) -> Recording:
    """Return a recording with its runs as actions; a GPU's kernels are those launched within them."""
    units: dict[int, int] = {}
    begun: Counter[int] = Counter()
    for run, step in zip(rank.runs, rank.step, strict=True):
        if run.forward and step >= 0:
            units[run.of] = begun[step]
            begun[step] += 1
    gone: Counter[int] = Counter()
    ran = []
    for run in rank.runs:
        if run.of not in units:
            continue
        kind = Kind.F
        if not run.forward:
            kind = Kind.B if rank.usual == 1 else (Kind.I, Kind.W)[min(gone[run.of], 1)]
            gone[run.of] += 1
        action = Action(kind=kind, stage=number, unit=units[run.of])
        ran.append(Ran(action=action, start_ns=run.start_ns, end_ns=run.end_ns))
    one = replace(rank.one, ran=tuple(ran), unattributed=())
    if one.operations is None:
        return one
    launched = one.operations.launch_ns
    annotations = Annotations(
        start_ns=np.array([each.start_ns for each in ran]), end_ns=np.array([each.end_ns for each in ran]),
        thread=np.full(len(ran), -1, dtype=np.int32), row=np.zeros(len(ran), dtype=np.int64),
    )  # fmt: skip
    around = annotations.around(launched, np.zeros(launched.size, dtype=np.int32), np.zeros_like(launched))
    action_of = np.where(launched >= 0, around, -1).astype(np.int32)
    return on_device(replace(one, operations=replace(one.operations, action=action_of)))
