"""Actions of traces that name none: forward and backward of each microbatch, with how sure that is.

Where ranks hold one stage, microbatches are in the order of their forwards. The confidence is the product of five
shares, 1 for a pipeline of which everything fits:

- *even*: the fewest forwards of a rank in a step, of the most;
- *paired*: forwards that as many backwards go back through as through most of their rank (two are input and weight
  gradient);
- *alike*: forwards that consist of the same operations as most of their rank's;
- *directed*: messages that leave for the next rank behind a forward, or for the one before behind a backward;
- *counted*: messages to each neighbour, of the forwards.

Where that is not so, or messages pass over a neighbour, ranks hold several stages, and which forward is whose is
told by the ways that messages take (:mod:`~pptrace_profilers.inference.chains`), if hosts waited for them; shares
are then of what a chain of forwards over all stages asks for. Below :data:`LEAST` nothing is guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Action, Kind, TraceError
from pptrace_profilers.inference.autograd import autograd_runs
from pptrace_profilers.inference.chains import Part, chained
from pptrace_profilers.inference.launches import launch_runs
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.gpu_spans import with_gpu_spans
from pptrace_profilers.recording.intervals import window_around
from pptrace_profilers.recording.recording import NO_STAGE, Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace_profilers.inference.autograd import Run
    from pptrace_profilers.recording.recording import Recording

__all__ = ["LEAST", "infer"]

LEAST = 0.9
"""The confidence from which actions are inferred."""
_AUTOGRAD = "autograd's operations"
_Places = dict[int, tuple[int, int]]
"""By number of a rank's forward, its stage and microbatch."""
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
    source = _AUTOGRAD
    ranks = [_Rank.of(recording, _from_autograd(recording)) for recording in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [_Rank.of(one, launch_runs(one.operations, _posts(one))) for one in recordings]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    verdict, placed = _confidence(ranks, source), [_in_order(rank) for rank in ranks]
    if verdict.objection and _several_stages(ranks, source):
        verdict, placed, stages = _from_chains(ranks)
        source = f"{source} and the ways of messages, {stages} stages"
    if verdict.objection:
        return list(recordings), f"forwards and backwards are not inferred{verdict.objection}; {_HELP}"
    note = f"no annotation names an action: inferred from {source}, {verdict.text}; {_HELP}"
    return [_with_actions(rank, places) for rank, places in zip(ranks, placed, strict=True)], note


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """How sure an inference is."""

    text: str
    """The confidence, and where it is not 1 what it is for."""
    objection: str
    """What speaks against the inference; empty where nothing does."""

    @classmethod
    def of(cls, shares: Mapping[str, float], source: str) -> _Verdict:
        """Return the product of shares, and the least of them where that is not 1."""
        confidence = float(np.prod(list(shares.values())))
        weakest = min(shares, key=lambda name: shares[name])
        # Rounded down: what is less than 1, or than the limit, is not to read as that.
        rounded = f"confidence {math.floor(100 * confidence) / 100:.2f}"
        why = f"as only {math.floor(100 * shares[weakest])}% {weakest}"
        if confidence < LEAST:
            return cls(text="", objection=f" from {source}: {rounded} is below {LEAST}, {why}")
        return cls(text=rounded if confidence == 1 else f"{rounded}, {why}", objection="")


def _confidence(ranks: Sequence[_Rank], source: str) -> _Verdict:
    """Return how sure it is that each rank is a stage."""
    peers = [end.peer for rank in ranks for end in rank.recording.ends]
    if peers and max(peers) < 0:
        return _Verdict(text="", objection=": no file of a rank that these exchange messages with is here")
    if not peers:
        return _Verdict(text="", objection=": no message between these ranks tells a pipeline")
    if any(_passes_over(rank.recording, number) for number, rank in enumerate(ranks)):
        return _Verdict(text="", objection=(
            ": messages go to ranks that are no neighbours, so ranks hold several stages, and no host's "
            "operations and waits say which action is of which stage"
        ))  # fmt: skip
    return _Verdict.of(dict(_shares(ranks)), source)


def _several_stages(ranks: Sequence[_Rank], source: str) -> bool:
    """Whether ways of messages can say more: a host waited for them, and its backwards know their forwards."""
    ends = [end for rank in ranks for end in rank.recording.ends if end.peer >= 0]
    return source == _AUTOGRAD and bool(ends) and all(end.posted_ns < 0 for end in ends)


def _from_chains(ranks: Sequence[_Rank]) -> tuple[_Verdict, list[_Places], int]:
    """Return how sure it is, the place of each forward, and how many stages there are."""
    placed: list[_Places] = [{} for _ in ranks]
    fitting: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    routes: list[tuple[int, ...]] = []
    for step in sorted({step for rank in ranks for step in rank.steps} - {-1}):
        found = chained([_part(rank, step) for rank in ranks])
        routes.append(found.route)
        for (rank, forward), place in found.places.items():
            placed[rank][forward] = place
        for what, (fit, count) in found.shares.items():
            fitting[what] += fit
            counted[what] += count
    shares = {what: fitting[what] / counted[what] for what in counted}
    shares["of the steps have their stages in the same places"] = routes.count(routes[0]) / len(routes)
    pairs = [rank.backwards[run.forward_number] in {1, 2} for rank in ranks for run in rank.forwards]
    shares["of the forwards have one backward or two"] = _mean(pairs)
    return _Verdict.of(shares, f"{_AUTOGRAD} and the ways of messages"), placed, len(routes[0])


def _part(rank: _Rank, step: int) -> Part:
    runs = [run for run, its in zip(rank.runs, rank.steps, strict=True) if its == step]
    windows = rank.recording.windows
    start, end = windows[step][1:] if windows else (-(2**63), 2**63)
    return Part(runs=runs, ends=[one for one in rank.recording.ends if start <= one.host_ns <= end])


def _in_order(rank: _Rank) -> _Places:
    """Return the places of a rank's forwards if it holds one stage, which its number is."""
    places: _Places = {}
    begun: Counter[int] = Counter()
    for run, step in zip(rank.runs, rank.steps, strict=True):
        if run.forward and step >= 0:
            places[run.forward_number] = (NO_STAGE, begun[step])
            begun[step] += 1
    return places


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


def _with_actions(rank: _Rank, places: _Places) -> Recording:
    """Return a recording with its runs as actions; a GPU's kernels are those launched within them."""
    executions = tuple(_executions(rank, places))
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


def _executions(rank: _Rank, places: _Places) -> Iterator[Execution]:
    """Yield the runs of forwards that have a place, and of their backwards, as actions."""
    returned: Counter[int] = Counter()
    backwards = rank.backwards
    for run in rank.runs:
        if run.forward_number not in places:
            continue
        kind = Kind.F
        if not run.forward:
            split = backwards[run.forward_number] > 1
            kind = (Kind.I, Kind.W)[min(returned[run.forward_number], 1)] if split else Kind.B
            returned[run.forward_number] += 1
        stage, microbatch = places[run.forward_number]
        action = Action(kind=kind, stage=stage, microbatch=microbatch)
        yield Execution(action=action, start_ns=run.start_ns, end_ns=run.end_ns)
