"""Actions of traces that name none: forward and backward of each microbatch, with how sure that is.

Where ranks hold one stage, microbatches are in the order of their forwards. The confidence is the product of five
shares, 1 for a pipeline of which everything fits:

- *even*: the fewest forwards of a rank in a step, of the most;
- *paired*: forwards that as many backwards go back through as through most of their rank (two are input and weight
  gradient);
- *alike*: forwards that consist of the same operations as most of their rank's;
- *directed*: messages that leave for the next rank behind a forward, or for the one before behind a backward;
- *counted*: messages to each neighbour, of the forwards.

Where that is not so, or messages pass over a neighbour, ranks hold several stages, and the ways that messages take
tell which forward is whose: where a host waited for them it says it (:mod:`~pptrace_profilers.inference.chains`),
and of GPUs' kernels one way fits all of them (:mod:`~pptrace_profilers.inference.routes`). Shares are then of
what a way over all stages asks for. Below :data:`LEAST` nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Action, Kind, TraceError
from pptrace_profilers.inference.autograd import autograd_runs
from pptrace_profilers.inference.launches import launch_runs
from pptrace_profilers.inference.one_stage import one_stage_each
from pptrace_profilers.inference.rank_runs import AUTOGRAD, LEAST, RankRuns
from pptrace_profilers.inference.several_stages import from_ways_of_messages
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.gpu_spans import with_gpu_spans
from pptrace_profilers.recording.recording import NO_STAGE, Execution

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_profilers.inference.autograd import Run
    from pptrace_profilers.inference.rank_runs import Places
    from pptrace_profilers.recording.recording import Recording

__all__ = ["LEAST", "infer"]

_HELP = "`pptrace annotate` prints a module that marks them"
_AGAIN = "mark actions and record again: `pptrace annotate` prints a module for that"
_MORE = "; autograd's operations tell more than launches do: record them, too (PyTorch: ProfilerActivity.CPU)"


def infer(recordings: Sequence[Recording]) -> tuple[list[Recording], str]:
    """Return recordings with actions, or as they were, and a sentence on what was inferred, or why nothing.

    Args:
        recordings: one per pipeline rank, in their order, with no action that computes.
    """
    source = AUTOGRAD
    ranks = [RankRuns.of(recording, _from_autograd(recording)) for recording in recordings]
    if not all(rank.forwards for rank in ranks):
        source = "the threads of launches"
        ranks = [RankRuns.of(one, launch_runs(one.operations, _posts(one))) for one in recordings]
    if not all(rank.forwards for rank in ranks):
        return list(recordings), ""
    verdict, placed = one_stage_each(ranks, source), [_in_order(rank) for rank in ranks]
    if verdict.objection and any(end.peer >= 0 for rank in ranks for end in rank.recording.ends):
        found = from_ways_of_messages(ranks, source)
        if found is not None:
            verdict, ranks, placed, stages = found
            source = f"{source} and the ways of messages, {stages} stages"
    if verdict.objection:
        more = "" if source.startswith(AUTOGRAD) else _MORE
        return list(recordings), f"forwards and backwards are not inferred{verdict.objection}; {_AGAIN}{more}"
    note = f"no annotation names an action: inferred from {source}, {verdict.text}; {_HELP}"
    return [_with_actions(rank, places) for rank, places in zip(ranks, placed, strict=True)], note


def _in_order(rank: RankRuns) -> Places:
    """Return the places of a rank's forwards if it holds one stage, which its number is."""
    places: Places = {}
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


def _with_actions(rank: RankRuns, places: Places) -> Recording:
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


def _executions(rank: RankRuns, places: Places) -> Iterator[Execution]:
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
