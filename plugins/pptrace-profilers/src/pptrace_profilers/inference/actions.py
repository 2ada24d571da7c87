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

from pptrace.plugin import Action, Kind, TraceError
from pptrace_profilers.inference.autograd import autograd_runs
from pptrace_profilers.inference.launches import launch_runs
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.gpu_spans import with_gpu_spans
from pptrace_profilers.recording.intervals import window_around
from pptrace_profilers.recording.recording import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pptrace_profilers.inference.autograd import Run
    from pptrace_profilers.recording.recording import Recording

__all__ = ["LEAST", "infer"]

LEAST = 0.9
"""The confidence from which actions are inferred."""
_HELP = "`pptrace annotate` prints a module that marks them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank's runs, and which step each is in."""

    recording: Recording
    runs: list[Run]
    steps: list[int]

    @classmethod
    def of(cls, recording: Recording, runs: list[Run]) -> _Rank:
        """Take a rank's runs; all are of one step where the profiler marked none."""
        windows = [(start, end) for _, start, end in recording.windows]
        steps = window_around(windows, [run.start_ns for run in runs]).tolist() if windows else [0] * len(runs)
        return cls(recording=recording, runs=runs, steps=steps)

    @property
    def forwards(self) -> list[Run]:
        return [run for run, step in zip(self.runs, self.steps, strict=True) if run.forward and step >= 0]

    @property
    def backwards(self) -> Counter[int]:
        """Return how many backwards each forward has."""
        return Counter(run.forward_number for run in self.runs if not run.forward)

    @property
    def usual(self) -> int:
        """Return how many backwards most forwards have."""
        counts = self.backwards
        return Counter(counts[run.forward_number] for run in self.forwards).most_common(1)[0][0]


def infer(recordings: Sequence[Recording]) -> tuple[list[Recording], str]:
    """Return recordings with actions, or as they were, and a sentence on what was inferred, or why nothing.

    Args:
        recordings: one per pipeline rank, in their order, with no action that computes.
    """
    source = "autograd's operations"
    ranks = [_Rank.of(recording, _from_autograd(recording)) for recording in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [_Rank.of(one, launch_runs(one.operations, _posts(one))) for one in recordings]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    confidence, objection = _confidence(ranks, source)
    if objection:
        return list(recordings), f"forwards and backwards are not inferred{objection}; {_HELP}"
    note = f"no annotation names an action: inferred from {source}, confidence {confidence:.2f}; {_HELP}"
    return [_with_actions(rank, number) for number, rank in enumerate(ranks)], note


def _confidence(ranks: Sequence[_Rank], source: str) -> tuple[float, str]:
    """Return how sure the inference is, and what speaks against it."""
    if not any(end.peer >= 0 for rank in ranks for end in rank.recording.ends):
        return 0.0, ": no message between these ranks tells a pipeline"
    if any(_passes_over(rank.recording, number) for number, rank in enumerate(ranks)):
        return 0.0, ": messages go to ranks that are no neighbours, so ranks hold several stages"
    shares = dict(_shares(ranks))
    confidence = float(np.prod(list(shares.values())))
    weakest = min(shares, key=lambda name: shares[name])
    low = f"confidence {confidence:.2f} is below {LEAST}, as only {shares[weakest]:.0%} {weakest}"
    return confidence, f" from {source}: {low}" if confidence < LEAST else ""


def _from_autograd(recording: Recording) -> list[Run]:
    try:
        return autograd_runs(recording.path, _posts(recording))
    except (TraceError, OSError):
        return []


def _posts(recording: Recording) -> list[int]:
    return [end.host_ns for end in recording.ends]


def _shares(ranks: Sequence[_Rank]) -> Iterator[tuple[str, float]]:
    """Yield each share that speaks for the inference, with what it is a share of."""
    per_step = [
        Counter(step for run, step in zip(rank.runs, rank.steps, strict=True) if run.forward and step >= 0)
        for rank in ranks
    ]
    steps = set().union(*per_step)
    counts = [count[step] for count in per_step for step in steps]
    yield "of the forwards are on every rank", min(counts) / max(counts)
    yield "of the forwards have their backwards", _mean(fits for rank in ranks for fits in _paired(rank))
    forms = [Counter(run.operations for run in rank.forwards) for rank in ranks]
    alike = sum(form.most_common(1)[0][1] for form in forms) / sum(form.total() for form in forms)
    yield "of the forwards are alike", alike
    yield (
        "of the messages leave behind what makes them",
        _mean(fits for number, rank in enumerate(ranks) for fits in _directed(rank, number)),
    )
    yield "of the messages to neighbours are there", _mean(_counted(ranks))


def _passes_over(recording: Recording, number: int) -> bool:
    return any(end.sends and end.peer >= 0 and abs(end.peer - number) != 1 for end in recording.ends)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def _paired(rank: _Rank) -> Iterator[bool]:
    """Yield of each forward whether as many backwards go back through it as through most, one or two."""
    backwards, usual = rank.backwards, rank.usual
    for run in rank.forwards:
        yield backwards[run.forward_number] == usual and usual in {1, 2}


def _directed(rank: _Rank, number: int) -> Iterator[bool]:
    """Yield of each message that leaves whether it goes where the run before it would send it."""
    starts = [run.start_ns for run in rank.runs]
    for end in rank.recording.ends:
        before = int(np.searchsorted(starts, end.host_ns, side="right")) - 1
        if end.sends and end.peer >= 0 and before >= 0 and rank.steps[before] >= 0:
            yield end.peer - number == (1 if rank.runs[before].forward else -1)


def _counted(ranks: Sequence[_Rank]) -> Iterator[float]:
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


def _in_a_step(recording: Recording, at_ns: int) -> bool:
    return not recording.windows or any(start <= at_ns <= end for _, start, end in recording.windows)


def _with_actions(rank: _Rank, stage: int) -> Recording:
    """Return a recording with its runs as actions; a GPU's kernels are those launched within them."""
    executions = tuple(_executions(rank, stage))
    recording = replace(rank.recording, executions=executions, unattributed=())
    operations = recording.operations
    if operations is None:
        return recording
    annotations = Annotations(
        start_ns=np.array([execution.start_ns for execution in executions]),
        end_ns=np.array([execution.end_ns for execution in executions]),
        thread=np.full(len(executions), -1, dtype=np.int32), row=np.zeros(len(executions), dtype=np.int64),
    )  # fmt: skip
    launched = operations.launch_ns
    around = annotations.around(launched, np.zeros(launched.size, dtype=np.int32), np.zeros_like(launched))
    action = np.where(launched >= 0, around, -1).astype(np.int32)
    return with_gpu_spans(replace(recording, operations=replace(operations, action=action)))


def _executions(rank: _Rank, stage: int) -> Iterator[Execution]:
    """Yield the runs of forwards that are in a step, and of their backwards, as actions."""
    microbatches: dict[int, int] = {}
    begun: Counter[int] = Counter()
    for run, step in zip(rank.runs, rank.steps, strict=True):
        if run.forward and step >= 0:
            microbatches[run.forward_number] = begun[step]
            begun[step] += 1
    returned: Counter[int] = Counter()
    usual = rank.usual
    for run in rank.runs:
        if run.forward_number not in microbatches:
            continue
        kind = Kind.F
        if not run.forward:
            kind = Kind.B if usual == 1 else (Kind.I, Kind.W)[min(returned[run.forward_number], 1)]
            returned[run.forward_number] += 1
        action = Action(kind=kind, stage=stage, microbatch=microbatches[run.forward_number])
        yield Execution(action=action, start_ns=run.start_ns, end_ns=run.end_ns)
