"""Inference of actions from a profile without annotations.

If each rank holds one stage, forwards run in the order of microbatches. The confidence is the product of five
shares. It is 1 if the whole recording fits a pipeline:

- *even*: the fewest forwards of a rank in a step, divided by the most;
- *paired*: forwards with the usual number of backwards of their rank (two are input and weight gradient);
- *alike*: forwards with the same operations as most forwards of their rank;
- *directed*: messages to the next rank after a forward, or to the previous rank after a backward;
- *counted*: messages to each neighbour, divided by the forwards.

Otherwise, or if messages skip a neighbour, ranks hold several stages. The routes of messages then assign forwards
to stages (:mod:`~pptrace_profilers.stage_inference`). The shares then describe a route over all stages. No action
is inferred below :data:`LEAST`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import Action, Kind, TraceError
from pptrace_profilers.gpu_spans import add_gpu_spans, window_around
from pptrace_profilers.pass_runs import autograd_runs, launch_runs, work_starts_ns
from pptrace_profilers.recording import NO_STAGE, Annotations, Executions
from pptrace_profilers.stage_inference import RankRuns, assign_by_chains, assign_by_route

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace_profilers.pass_runs import Run
    from pptrace_profilers.recording import Recording
    from pptrace_profilers.stage_inference import StepPlaces

LEAST = 0.9
"""Minimum confidence of an inference."""
_AUTOGRAD = "autograd's operations"
"""The source that identifies the forward of each backward."""
_Places = dict[int, tuple[int, int]]
"""Stage and microbatch by the number of a rank's forward."""
_ALWAYS = ("", -(2**63), 2**63 - 1)
"""The window of a recording without steps: label, start and end."""
_Verdict = tuple[str, str]
"""Confidence of an inference, and the reason against it; one of the two is empty."""
_HELP = "`pptrace annotate` prints a module that marks them"
_RECORD_HELP = "mark actions and record again: `pptrace annotate` prints a module for that"
_CPU_HELP = (
    "; autograd's operations identify actions more reliably than launches: record them too "
    "(PyTorch: ProfilerActivity.CPU)"
)


class _RankRuns(Struct, frozen=True, kw_only=True):
    """Runs of a rank with their steps; -1 outside of all steps."""

    recording: Recording
    runs: list[Run]
    steps: list[int]

    @classmethod
    def of(cls, recording: Recording, runs: list[Run]) -> _RankRuns:
        """Assign steps to the runs of a rank; all runs are in one step if the profiler marked none."""
        windows = [(start, end) for _, start, end in recording.windows]
        steps = window_around(windows, [run.start_ns for run in runs]).tolist() if windows else [0] * len(runs)
        return cls(recording=recording, runs=runs, steps=steps)

    @property
    def forwards(self) -> list[Run]:
        """Return the forwards inside steps."""
        return [run for run, step in zip(self.runs, self.steps, strict=True) if run.forward and step >= 0]

    @property
    def backwards(self) -> Counter[int]:
        """Return the number of backwards of each forward."""
        return Counter(run.forward_number for run in self.runs if not run.forward)


def infer(recordings: Sequence[Recording]) -> tuple[list[Recording], str]:
    """Return the recordings, with actions if they are inferred, and a sentence on the inference.

    Args:
        recordings: one per pipeline rank, in their order, without computations.
    """
    source = _AUTOGRAD
    ranks = [_RankRuns.of(recording, _from_autograd(recording)) for recording in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [
            _RankRuns.of(recording, launch_runs(recording.operations, recording.ends.host_ns))
            for recording in recordings
        ]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    (confidence, objection), places_by_rank = _one_stage_each(ranks, source), [_in_order(rank) for rank in ranks]
    exchange_messages = any((rank.recording.ends.peer >= 0).any() for rank in ranks)
    if objection and exchange_messages:
        inference = _infer_from_messages(ranks, source)
        if inference is not None:
            (confidence, objection), ranks, places_by_rank, stages = inference
            source = f"{source} and the routes of messages, {stages} stages"
    if objection:
        more = _CPU_HELP if exchange_messages and not source.startswith(_AUTOGRAD) else ""
        return list(recordings), f"forwards and backwards are not inferred{objection}; {_RECORD_HELP}{more}"
    note = f"no annotation names an action: inferred from {source}, {confidence}; {_HELP}"
    return [_with_actions(rank, places) for rank, places in zip(ranks, places_by_rank, strict=True)], note


def _in_order(rank: _RankRuns) -> _Places:
    """Return the places of the forwards of a rank that holds one stage."""
    places: _Places = {}
    started: Counter[int] = Counter()
    for run, step in zip(rank.runs, rank.steps, strict=True):
        if run.forward and step >= 0:
            places[run.forward_number] = (NO_STAGE, started[step])
            started[step] += 1
    return places


def _from_autograd(recording: Recording) -> list[Run]:
    try:
        return autograd_runs(recording.path, recording.ends.host_ns, is_perfetto=recording.has_clock)
    except (TraceError, OSError):
        return []


def _with_actions(rank: _RankRuns, places: _Places) -> Recording:
    """Return a recording with its runs as actions; a kernel belongs to the action that launched it."""
    executions = Executions.from_rows(("action", "start_ns", "end_ns"), _executions(rank, places))
    recording = replace(rank.recording, executions=executions, unattributed=())
    operations = recording.operations
    if operations is None:
        return recording
    annotations = Annotations(
        start_ns=executions.start_ns, end_ns=executions.end_ns,
        thread=np.full(len(executions), -1, dtype=np.int32), row=np.zeros(len(executions), dtype=np.int64),
    )  # fmt: skip
    launched = operations.launch_ns
    launcher = annotations.around(launched, np.zeros(launched.size, dtype=np.int32), np.zeros_like(launched))
    action = np.where(launched >= 0, launcher, -1).astype(np.int32)
    return add_gpu_spans(replace(recording, operations=replace(operations, action=action)))


def _executions(rank: _RankRuns, places: _Places) -> Iterator[tuple[Action, int, int]]:
    """Yield actions for the forwards that have a place, and for their backwards, each with start and end."""
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
        yield action, run.start_ns, run.end_ns


def _one_stage_each(ranks: Sequence[_RankRuns], source: str) -> _Verdict:
    """Return the confidence that each rank holds one stage."""
    ends = [rank.recording.ends for rank in ranks]
    if not any(map(len, ends)):
        return "", ": these ranks exchange no messages"
    if all((of_rank.peer < 0).all() for of_rank in ends):
        return "", ": the files of the ranks that receive or send the other ends of their messages are missing"
    if any(
        (of_rank.sends & (of_rank.peer >= 0) & (abs(of_rank.peer - number) != 1)).any()
        for number, of_rank in enumerate(ends)
    ):
        return "", (
            ": messages skip neighbouring ranks, so ranks hold several stages, and files lack data that assign "
            "actions to stages: autograd's operations with waits of hosts, or kernels of GPUs"
        )
    return _judge(dict(_shares(ranks)), source)


def _judge(shares: Mapping[str, float], source: str) -> _Verdict:
    """Return the product of shares, and the least share if the product is below 1."""
    confidence = float(np.prod(list(shares.values())))
    weakest = min(shares, key=lambda name: shares[name])
    # Rounded down, so that a value below 1 or below the limit does not print as that limit.
    rounded = f"confidence {math.floor(100 * confidence) / 100:.2f}"
    weakest_text = f"as only {math.floor(100 * shares[weakest])}% {weakest}"
    if confidence < LEAST:
        return "", f" from {source}: {rounded} is below {LEAST}, {weakest_text}"
    return rounded if confidence == 1 else f"{rounded}, {weakest_text}", ""


def _mean(values: Iterable[float]) -> float:
    """Return the mean, 0 for no values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def _shares(ranks: Sequence[_RankRuns]) -> Iterator[tuple[str, float]]:
    """Yield each share of the confidence with its description."""
    per_step = [
        Counter(step for run, step in zip(rank.runs, rank.steps, strict=True) if run.forward and step >= 0)
        for rank in ranks
    ]
    steps = set().union(*per_step)
    counts = [count[step] for count in per_step for step in steps]
    yield "of the forwards are on every rank", min(counts) / max(counts)
    yield "of the forwards have their backwards", _mean(fits for rank in ranks for fits in _paired(rank))
    forms = [Counter(run.operations for run in rank.forwards) for rank in ranks]
    usual_share = sum(form.most_common(1)[0][1] for form in forms) / sum(form.total() for form in forms)
    yield "of the forwards have the usual operations", usual_share
    yield (
        "of the messages follow a pass of their direction",
        _mean(fits for number, rank in enumerate(ranks) for fits in _directed(rank, number)),
    )
    yield "of the messages to neighbours were recorded", _mean(_counted(ranks))


def _paired(rank: _RankRuns) -> Iterator[bool]:
    """Yield for each forward whether it has the usual number of backwards, one or two."""
    backwards = rank.backwards
    counts = [backwards[run.forward_number] for run in rank.forwards]
    usual = Counter(counts).most_common(1)[0][0]
    return (count == usual and usual in {1, 2} for count in counts)


def _directed(rank: _RankRuns, number: int) -> Iterator[bool]:
    """Yield for each sent message whether its direction is that of the run before it."""
    ends = rank.recording.ends
    ends = ends.of_rows(ends.sends & (ends.peer >= 0))
    run_of_end = np.searchsorted([run.start_ns for run in rank.runs], ends.host_ns, side="right") - 1
    for run_index, peer in zip(run_of_end.tolist(), ends.peer.tolist(), strict=True):
        if run_index >= 0 and rank.steps[run_index] >= 0:
            yield peer - number == (1 if rank.runs[run_index].forward else -1)


def _counted(ranks: Sequence[_RankRuns]) -> Iterator[float]:
    """Yield the ratio of messages to forwards for each rank and neighbour."""
    for number, rank in enumerate(ranks):
        forward_count = len(rank.forwards)
        ends = rank.recording.ends
        in_step = np.zeros(len(ends), dtype=bool)
        for _, start_ns, end_ns in rank.recording.windows or [_ALWAYS]:
            in_step |= (start_ns <= ends.host_ns) & (ends.host_ns <= end_ns)
        for peer in (number - 1, number + 1):
            if 0 <= peer < len(ranks):
                sent = int((in_step & ends.sends & (ends.peer == peer)).sum())
                yield min(sent, forward_count) / max(sent, forward_count)


_Inference = tuple[_Verdict, list[_RankRuns], list[_Places], int]
"""Verdict, ranks with paired backwards, places of the forwards by rank, and number of stages."""


def _infer_from_messages(ranks: Sequence[_RankRuns], source: str) -> _Inference | None:
    """Infer places from the routes of messages; None without waits of hosts and kernels of GPUs."""
    ends = [rank.recording.ends for rank in ranks]
    on_gpu = np.concatenate([of_rank.posted_ns[of_rank.peer >= 0] >= 0 for of_rank in ends])
    from_waits = source == _AUTOGRAD and not on_gpu.any()
    if not from_waits and not on_gpu.all():
        return None
    places_by_rank: list[_Places] = [{} for _ in ranks]
    runs = [list(rank.runs) for rank in ranks]
    starts_ns = [[] if from_waits else work_starts_ns(rank.recording.operations, rank.runs) for rank in ranks]
    step_places: list[StepPlaces] = []
    for step in sorted({step for rank in ranks for step in rank.steps} - {-1}):
        indices = [[index for index, number in enumerate(rank.steps) if number == step] for rank in ranks]
        parts = [_part(rank, chosen, step) for rank, chosen in zip(ranks, indices, strict=True)]
        if from_waits:
            result = assign_by_chains(parts)
        else:
            starts = [[times[index] for index in chosen] for times, chosen in zip(starts_ns, indices, strict=True)]
            result = assign_by_route(parts, starts, paired=source == _AUTOGRAD)
        step_places.append(result)
        forward_of_place: dict[tuple[int, int, int], int] = {}
        for (rank, number), place in result.places.items():  # by time: a forward comes before its backward
            index = indices[rank][number]
            forward = forward_of_place.setdefault((rank, *place), runs[rank][index].forward_number)
            places_by_rank[rank][forward] = place
            runs[rank][index] = replace(runs[rank][index], forward_number=forward)
    paired = [replace(rank, runs=rank_runs) for rank, rank_runs in zip(ranks, runs, strict=True)]
    verdict, stages = _judge_steps(step_places, paired, f"{source} and the routes of messages")
    return verdict, paired, places_by_rank, stages


def _part(rank: _RankRuns, indices: Sequence[int], step: int) -> RankRuns:
    windows, ends = rank.recording.windows, rank.recording.ends
    _, start_ns, end_ns = windows[step] if windows else _ALWAYS
    return RankRuns(
        runs=[rank.runs[index] for index in indices],
        ends=ends.of_rows((start_ns <= ends.host_ns) & (ends.host_ns <= end_ns)),
    )


def _judge_steps(steps: Sequence[StepPlaces], ranks: Sequence[_RankRuns], source: str) -> tuple[_Verdict, int]:
    """Return the verdict over all steps, and the number of stages."""
    reason = next((step.reason for step in steps if step.reason), "")
    if reason and not any(step.route for step in steps):
        return ("", f" from {source}: {reason}"), 0
    fitting: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for step in steps:
        for what, (fit, count) in step.shares.items():
            fitting[what] += fit
            counted[what] += count
    shares = {what: fitting[what] / counted[what] for what in counted}
    ((route, times),) = Counter(step.route for step in steps).most_common(1)
    shares["of the steps have the same route"] = times / len(steps)
    shares["of the forwards have one backward or two"] = _mean(
        rank.backwards[run.forward_number] in {1, 2} for rank in ranks for run in rank.forwards
    )
    return _judge(shares, source), len(route)
