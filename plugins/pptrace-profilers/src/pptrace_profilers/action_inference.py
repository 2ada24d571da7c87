"""Inference of actions from a profile without annotations.

If each rank holds one stage, forwards run in the order of microbatches. The confidence is the product of five
shares. It is 1 if the whole recording fits a pipeline:

- *even*: the fewest forwards of a rank in a step, divided by the most;
- *paired*: forwards with the usual number of backwards of their rank (two are input and weight gradient);
- *alike*: forwards with the same operations as most forwards of their rank;
- *directed*: messages to the next rank after a forward, or to the previous rank after a backward;
- *counted*: messages to each neighbour, divided by the forwards.

Otherwise, or if messages skip a neighbour, ranks hold several stages. The routes of messages then assign forwards
to stages: from the waits of hosts (:mod:`~pptrace_profilers.message_chains`) or from the kernels of GPUs
(:mod:`~pptrace_profilers.stage_inference`). The shares then describe a route over all stages. No action is
inferred below :data:`~pptrace_profilers.pass_runs.LEAST`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Action, Kind, TraceError
from pptrace_profilers.gpu_spans import add_gpu_spans
from pptrace_profilers.pass_runs import AUTOGRAD, RankRuns, Verdict, autograd_runs, launch_runs, mean
from pptrace_profilers.recording import NO_STAGE, Annotations, Execution
from pptrace_profilers.stage_inference import infer_from_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_profilers.pass_runs import Places, Run
    from pptrace_profilers.recording import Recording

_HELP = "`pptrace annotate` prints a module that marks them"
_RECORD_HELP = "mark actions and record again: `pptrace annotate` prints a module for that"
_CPU_HELP = "; autograd's operations tell more than launches do: record them, too (PyTorch: ProfilerActivity.CPU)"


def infer(recordings: Sequence[Recording]) -> tuple[list[Recording], str]:
    """Return the recordings, with actions if they are inferred, and a sentence on the inference.

    Args:
        recordings: one per pipeline rank, in their order, without computations.
    """
    source = AUTOGRAD
    ranks = [RankRuns.of(recording, _from_autograd(recording)) for recording in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [
            RankRuns.of(recording, launch_runs(recording.operations, _posts(recording)))
            for recording in recordings
        ]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    verdict, places_by_rank = one_stage_each(ranks, source), [_in_order(rank) for rank in ranks]
    if verdict.objection and any(end.peer >= 0 for rank in ranks for end in rank.recording.ends):
        inference = infer_from_messages(ranks, source)
        if inference is not None:
            verdict, ranks, places_by_rank, stages = inference
            source = f"{source} and the ways of messages, {stages} stages"
    if verdict.objection:
        more = "" if source.startswith(AUTOGRAD) else _CPU_HELP
        return list(
            recordings
        ), f"forwards and backwards are not inferred{verdict.objection}; {_RECORD_HELP}{more}"
    note = f"no annotation names an action: inferred from {source}, {verdict.text}; {_HELP}"
    return [_with_actions(rank, places) for rank, places in zip(ranks, places_by_rank, strict=True)], note


def _in_order(rank: RankRuns) -> Places:
    """Return the places of the forwards of a rank that holds one stage."""
    places: Places = {}
    started: Counter[int] = Counter()
    for run, step in zip(rank.runs, rank.steps, strict=True):
        if run.forward and step >= 0:
            places[run.forward_number] = (NO_STAGE, started[step])
            started[step] += 1
    return places


def _from_autograd(recording: Recording) -> list[Run]:
    try:
        return autograd_runs(recording.path, _posts(recording))
    except (TraceError, OSError):
        return []


def _posts(recording: Recording) -> list[int]:
    return [end.host_ns for end in recording.ends]


def _with_actions(rank: RankRuns, places: Places) -> Recording:
    """Return a recording with its runs as actions; a kernel belongs to the action that launched it."""
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
    launcher = annotations.around(launched, np.zeros(launched.size, dtype=np.int32), np.zeros_like(launched))
    action = np.where(launched >= 0, launcher, -1).astype(np.int32)
    return add_gpu_spans(replace(recording, operations=replace(operations, action=action)))


def _executions(rank: RankRuns, places: Places) -> Iterator[Execution]:
    """Yield actions for the forwards that have a place, and for their backwards."""
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


def one_stage_each(ranks: Sequence[RankRuns], source: str) -> Verdict:
    """Return the confidence that each rank holds one stage."""
    peers = [end.peer for rank in ranks for end in rank.recording.ends]
    if peers and max(peers) < 0:
        return Verdict(text="", objection=": no file of a rank that these exchange messages with is here")
    if not peers:
        return Verdict(text="", objection=": no message between these ranks tells a pipeline")
    if any(
        end.sends and end.peer >= 0 and abs(end.peer - number) != 1
        for number, rank in enumerate(ranks)
        for end in rank.recording.ends
    ):
        return Verdict(text="", objection=(
            ": messages go to ranks that are no neighbours, so ranks hold several stages, and neither a host's "
            "operations and waits nor a GPU's kernels say which action is of which stage"
        ))  # fmt: skip
    return Verdict.of(dict(_shares(ranks)), source)


def _shares(ranks: Sequence[RankRuns]) -> Iterator[tuple[str, float]]:
    """Yield each share of the confidence with its description."""
    per_step = [
        Counter(step for run, step in zip(rank.runs, rank.steps, strict=True) if run.forward and step >= 0)
        for rank in ranks
    ]
    steps = set().union(*per_step)
    counts = [count[step] for count in per_step for step in steps]
    yield "of the forwards are on every rank", min(counts) / max(counts)
    yield "of the forwards have their backwards", mean(fits for rank in ranks for fits in _paired(rank))
    forms = [Counter(run.operations for run in rank.forwards) for rank in ranks]
    usual_share = sum(form.most_common(1)[0][1] for form in forms) / sum(form.total() for form in forms)
    yield "of the forwards are alike", usual_share
    yield (
        "of the messages leave behind what makes them",
        mean(fits for number, rank in enumerate(ranks) for fits in _directed(rank, number)),
    )
    yield "of the messages to neighbours are there", mean(_counted(ranks))


def _paired(rank: RankRuns) -> Iterator[bool]:
    """Yield for each forward whether it has the usual number of backwards, one or two."""
    backwards, usual = rank.backwards, rank.usual
    for run in rank.forwards:
        yield backwards[run.forward_number] == usual and usual in {1, 2}


def _directed(rank: RankRuns, number: int) -> Iterator[bool]:
    """Yield for each sent message whether its direction is that of the run before it."""
    starts = [run.start_ns for run in rank.runs]
    for end in rank.recording.ends:
        run_index = int(np.searchsorted(starts, end.host_ns, side="right")) - 1
        if end.sends and end.peer >= 0 and run_index >= 0 and rank.steps[run_index] >= 0:
            yield end.peer - number == (1 if rank.runs[run_index].forward else -1)


def _counted(ranks: Sequence[RankRuns]) -> Iterator[float]:
    """Yield the ratio of messages to forwards for each rank and neighbour."""
    for number, rank in enumerate(ranks):
        forward_count = len(rank.forwards)
        windows = rank.recording.windows or [("", -(2**63), 2**63)]
        for peer in (number - 1, number + 1):
            if 0 <= peer < len(ranks):
                sent = sum(
                    end.sends
                    and end.peer == peer
                    and any(start <= end.host_ns <= stop for _, start, stop in windows)
                    for end in rank.recording.ends
                )
                yield min(sent, forward_count) / max(sent, forward_count)
