"""Inference of the stages of ranks that have several stages.

The kernels of a GPU do not record which message they waited for. The search uses these constraints:

- a rank sends a message after the action that produces it (:mod:`~pptrace_profilers.message_chains`);
- messages of one direction between two ranks are consumed in the order of their sends;
- an action starts after the kernel that received its message;
- on a stage, forwards run in the order of microbatches;
- the route of a microbatch is interleaved (cycles through all ranks) or V-shaped (reverses at both ends).

If several assignments fit, the actions with the same place in all of them are certain.

The search is depth-first with backtracking. It first assigns actions with a single possible place. Then it tries
the choices of one action, later stages first. It backtracks when an action has no place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.message_chains import (
    NO_RANK,
    Part,
    StepPlaces,
    UnplacedAction,
    assign_by_chains,
    count_usual_forwards,
    messages_of,
    second_passes,
)
from pptrace_profilers.pass_runs import AUTOGRAD, Verdict, mean, work_starts_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace_profilers.message_chains import Messages
    from pptrace_profilers.pass_runs import Places, RankRuns

    _Inference = tuple[Verdict, list[RankRuns], list[Places], int]
    """Verdict, ranks with paired backwards, places of the forwards by rank, and number of stages."""


class _Shares:
    """Shares of the confidence of an inference, over all steps."""

    def __init__(self) -> None:
        self.fitting: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.routes: list[tuple[int, ...]] = []
        self.reason = ""

    def add(self, step: StepPlaces) -> None:
        """Add the shares of a step, and the reason if no route fits."""
        self.routes.append(step.route)
        self.reason = self.reason or step.reason
        for what, (fit, count) in step.shares.items():
            self.fitting[what] += fit
            self.counted[what] += count

    def verdict(self, ranks: Sequence[RankRuns], source: str) -> tuple[Verdict, int]:
        """Return the verdict and the number of stages."""
        shares = {what: self.fitting[what] / self.counted[what] for what in self.counted}
        route = Counter(self.routes).most_common(1)[0][0]
        shares["of the steps have their stages in the same places"] = self.routes.count(route) / len(self.routes)
        pairs = [rank.backwards[run.forward_number] in {1, 2} for rank in ranks for run in rank.forwards]
        shares["of the forwards have one backward or two"] = mean(pairs)
        source = f"{source} and the ways of messages"
        if self.reason and not any(self.routes):
            return Verdict(text="", objection=f" from {source}: {self.reason}"), 0
        return Verdict.of(shares, source), len(route)


def infer_from_messages(ranks: Sequence[RankRuns], source: str) -> _Inference | None:
    """Infer places from the routes of messages; None without waits of hosts and kernels of GPUs."""
    on_gpu = [end.posted_ns >= 0 for rank in ranks for end in rank.recording.ends if end.peer >= 0]
    from_waits = source == AUTOGRAD and not any(on_gpu)
    if not from_waits and not all(on_gpu):
        return None
    places_by_rank: list[Places] = [{} for _ in ranks]
    runs = [list(rank.runs) for rank in ranks]
    starts_ns = [[] if from_waits else work_starts_ns(rank.recording.operations, rank.runs) for rank in ranks]
    shares = _Shares()
    for step in sorted({step for rank in ranks for step in rank.steps} - {-1}):
        indices = [[index for index, number in enumerate(rank.steps) if number == step] for rank in ranks]
        parts = [_part(rank, chosen, step) for rank, chosen in zip(ranks, indices, strict=True)]
        if from_waits:
            result = assign_by_chains(parts)
        else:
            starts = [[times[index] for index in chosen] for times, chosen in zip(starts_ns, indices, strict=True)]
            result = assign_by_route(parts, starts, paired=source == AUTOGRAD)
        shares.add(result)
        forward_of_place: dict[tuple[int, int, int], int] = {}
        for (rank, number), place in result.places.items():  # by time: a forward comes before its backward
            index = indices[rank][number]
            forward = forward_of_place.setdefault((rank, *place), runs[rank][index].forward_number)
            places_by_rank[rank][forward] = place
            runs[rank][index] = replace(runs[rank][index], forward_number=forward)
    paired = [replace(rank, runs=rank_runs) for rank, rank_runs in zip(ranks, runs, strict=True)]
    verdict, stages = shares.verdict(paired, source)
    return verdict, paired, places_by_rank, stages


def _part(rank: RankRuns, indices: Sequence[int], step: int) -> Part:
    windows = rank.recording.windows
    start, end = windows[step][1:] if windows else (-(2**63), 2**63)
    return Part(
        runs=[rank.runs[index] for index in indices],
        ends=[message for message in rank.recording.ends if start <= message.host_ns <= end],
    )


_MOST_CHUNKS = 8
"""Maximum stages per rank on V-shaped routes, whose messages do not determine the number."""
_TRIES = 100
"""Maximum assignments of a search, per action."""
_NOTHING_FITS = (
    "no order of stages fits its messages, neither one that passes all ranks around (interleaved) nor there and "
    "back (V); messages are missing, or stages of one rank follow each other, as in waves, and send nothing that "
    "tells them apart"
)
_SEARCHED = "of the search for what fits came to its end"


def assign_by_route(parts: Sequence[Part], starts_ns: Sequence[Sequence[int]], *, paired: bool) -> StepPlaces:
    """Assign stages and microbatches to the actions of a step.

    Args:
        parts: runs and messages of each rank, by launch.
        starts_ns: start of each run's work on the GPU, by rank.
        paired: whether ``forward_number`` of a backward is known.
    """
    actions = [
        _unplaced_actions(part, starts, paired=paired) for part, starts in zip(parts, starts_ns, strict=True)
    ]
    total = max(sum(map(len, actions)), 1)
    searches = list(_searches(parts, actions))
    solutions = [(search, places) for search in searches for places in search.solutions()]
    is_complete = all(search.tries > 0 for search in searches)
    if not solutions:
        what = "of the actions have a place on a way through the ranks" if is_complete else _SEARCHED
        return StepPlaces(
            places={}, shares={what: (0, total)}, route=(), reason=_NOTHING_FITS if is_complete else ""
        )
    search, places = solutions[0]
    ends = max(sum(len(part.ends) for part in parts), 1)
    forward_places = {
        (rank, run.forward_number): places[rank, number]
        for rank, part in enumerate(parts)
        for number, run in enumerate(part.runs)
        if run.forward
    }
    shares = {
        "of the messages lie between two actions": (2 * sum(map(len, search.messages.inputs.values())), ends),
        "of the actions have one place alone": (
            sum(all(solution[node] == place for _, solution in solutions) for node, place in places.items()),
            total,
        ),
        _SEARCHED: (int(is_complete), 1),
        "of the forwards are like others of their stage": count_usual_forwards(parts, forward_places),
    }
    if not paired:
        what = "of the backwards that begin on the last stage follow one forward alone"
        shares[what] = _count_turning_backwards(actions[search.route[-1]], search.route, places)
    return StepPlaces(places=places, route=search.route, shares=shares)


def _count_turning_backwards(
    actions: Sequence[UnplacedAction], route: Sequence[int], places: Mapping[tuple[int, int], tuple[int, int]]
) -> tuple[int, int]:
    """Return the backwards of the last stage with a single pending forward, and all its backwards.

    No message determines the order of several pending forwards.
    """
    pending = certain = count = 0
    for number, action in enumerate(actions):
        if places[route[-1], number][0] != len(route) - 1:
            continue
        certain += not action.forward and pending == 1
        count += not action.forward
        pending += 1 if action.forward else -1
    return certain, max(count, 1)


def _unplaced_actions(part: Part, starts_ns: Sequence[int], *, paired: bool) -> list[UnplacedAction]:
    second = second_passes(part.runs) if paired else set()
    forwards = {run.forward_number: number for number, run in enumerate(part.runs) if run.forward}
    return [
        UnplacedAction(
            forward=run.forward, is_weight_gradient=number in second, start_ns=start,
            pair=forwards.get(run.forward_number, -1) if paired and not run.forward else -1,
        )
        for number, (run, start) in enumerate(zip(part.runs, starts_ns, strict=True))
    ]  # fmt: skip


def _searches(parts: Sequence[Part], actions: Sequence[Sequence[UnplacedAction]]) -> Iterator[PlaceSearch]:
    """Yield one search per route and per assignment of messages to producers."""
    tries = _TRIES * sum(map(len, actions))
    for route, microbatches in _routes(parts, actions):
        # A gradient and an activation to the same rank may be posted together in either order.
        first, second = (messages_of(parts, actions, route, gradient_first=gradient) for gradient in (True, False))
        for messages in (first,) if first == second else (first, second):
            yield PlaceSearch(actions, messages, route, microbatches, tries=tries)


def _routes(
    parts: Sequence[Part], actions: Sequence[Sequence[UnplacedAction]]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield possible routes with their microbatches, from the numbers of forwards and messages.

    With P ranks, M microbatches and v stages per rank, a rank has vM forwards. An interleaved route has 2M(Pv - 1)
    messages. On a V-shaped route, v - 1 transfers of each microbatch stay on their rank.
    """
    ranks, forward_counts = len(actions), {sum(action.forward for action in rank) for rank in actions}
    if ranks == 1 or len(forward_counts) != 1:
        return
    (forwards,) = forward_counts
    sent = sum(end.sends for part in parts for end in part.ends)
    microbatches = ranks * forwards - sent // 2
    if microbatches > 0 and forwards % microbatches == 0 and forwards > microbatches:
        yield tuple(range(ranks)) * (forwards // microbatches), microbatches
    if sent != 2 * forwards * (ranks - 1):
        return
    ascending = tuple(range(ranks))
    for chunks in range(2, min(_MOST_CHUNKS, forwards) + 1):
        if forwards % chunks == 0:
            turns = (ascending[::-1] if chunk % 2 else ascending for chunk in range(chunks))
            yield tuple(rank for turn in turns for rank in turn), forwards // chunks


_ROUNDED_NS = 2_000
"""Error of kernel times: older profilers write whole microseconds."""
_Node = tuple[int, int]
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Option:
    """A possible place of an action."""

    place: _Place
    source: int
    """Rank that sends the input, equal to the action's rank for a local input; :data:`NO_RANK` for none."""


class PlaceSearch:
    """Depth-first search for the places of the actions of a step."""

    def __init__(
        self, actions: Sequence[Sequence[UnplacedAction]], messages: Messages, route: tuple[int, ...],
        microbatches: int, *, tries: int,
    ) -> None:  # fmt: skip
        """Start the search without assigned actions.

        Args:
            actions: actions of each rank, by launch.
            messages: producers of their messages.
            route: the rank of each stage.
            microbatches: number of microbatches.
            tries: maximum number of assignments.
        """
        self.actions, self.messages, self.route, self.microbatches = actions, messages, route, microbatches
        self.tries = tries
        self.stages = [np.flatnonzero(np.equal(route, rank)).tolist() for rank in range(len(actions))]
        self.returned = [
            {
                action.pair: number
                for number, action in reversed(list(enumerate(rank)))
                if not action.is_weight_gradient
            }
            for rank in actions
        ]
        """By rank and forward, its first backward."""
        self.next_action = [0] * len(actions)
        self.places: dict[_Node, _Place] = {}
        self.started: Counter[tuple[bool, int]] = Counter()
        self.consumed: Counter[tuple[int, int, bool]] = Counter()
        self.local_outputs: dict[tuple[int, bool], list[_Node]] = defaultdict(list)
        self.trail: list[tuple[int, _Option]] = []

    def solutions(self) -> Iterator[dict[_Node, _Place]]:
        """Yield all assignments of places to actions."""
        choices: list[tuple[int, int, list[_Option]]] = []
        while self.tries > 0:
            rank, options = self._advance()
            if rank < 0 and len(self.trail) == sum(map(len, self.actions)):
                yield dict(self.places)
            if options:
                choices.append((len(self.trail), rank, options))
            while choices and not choices[-1][2]:
                choices.pop()
            if not choices:
                return
            length, rank, options = choices[-1]
            while len(self.trail) > length:
                self._undo()
            self._assign(rank, options.pop(0))

    def _advance(self) -> tuple[int, list[_Option]]:
        """Assign all actions without a choice; return a rank whose next action has options, else -1."""
        has_assigned = True
        while has_assigned:
            has_assigned, rank_of_choice, choice = False, -1, []
            for rank in range(len(self.actions)):
                while self.next_action[rank] < len(self.actions[rank]) and self.tries > 0:
                    options, waits = self._options(rank)
                    if waits:
                        break
                    if len(options) != 1:
                        if not options:
                            return -1, []
                        if rank_of_choice < 0:
                            rank_of_choice, choice = rank, options
                        break
                    self._assign(rank, options[0])
                    has_assigned = True
        return rank_of_choice, choice

    def _assign(self, rank: int, option: _Option) -> None:
        node = (rank, self.next_action[rank])
        action = self.actions[rank][node[1]]
        self.tries -= 1
        self.trail.append((rank, option))
        self.places[node] = option.place
        self.next_action[rank] += 1
        if action.is_weight_gradient:
            return
        self.started[action.forward, option.place[0]] += 1
        self.consumed[rank, option.source, action.forward] += 1
        if self._next_rank(option.place[0], forward=action.forward) == rank:
            self.local_outputs[rank, action.forward].append(node)

    def _undo(self) -> None:
        rank, option = self.trail.pop()
        self.next_action[rank] -= 1
        node = (rank, self.next_action[rank])
        action = self.actions[rank][node[1]]
        del self.places[node]
        if action.is_weight_gradient:
            return
        self.started[action.forward, option.place[0]] -= 1
        self.consumed[rank, option.source, action.forward] -= 1
        if self._next_rank(option.place[0], forward=action.forward) == rank:
            self.local_outputs[rank, action.forward].pop()

    def _next_rank(self, stage: int, *, forward: bool) -> int:
        """Return the receiver of an output; :data:`NO_RANK` after the last stage."""
        stage += 1 if forward else -1
        return self.route[stage] if 0 <= stage < len(self.route) else NO_RANK

    def _options(self, rank: int) -> tuple[list[_Option], bool]:
        """Return the options of a rank's next action, and whether they depend on progress of another rank."""
        number = self.next_action[rank]
        action = self.actions[rank][number]
        if action.pair >= 0:
            place = self.places.get((rank, action.pair))
            if place is None:
                return [], False
            if action.is_weight_gradient:
                return [_Option(place, NO_RANK)], False
            option, waits = self._option(rank, place)
            return [option] if option is not None else [], waits
        options: list[_Option] = []
        for stage in reversed(self.stages[rank]):
            microbatch = self.started[action.forward, stage]
            if microbatch >= (self.microbatches if action.forward else self.started[True, stage]):
                continue
            option, waits = self._option(rank, (stage, microbatch))
            if waits:
                return [], True
            if option is not None:
                options.append(option)
        return options, False

    def _option(self, rank: int, place: _Place) -> tuple[_Option | None, bool]:
        """Return a place as an option, None if it does not fit; and whether it depends on another rank."""
        number = self.next_action[rank]
        action, (stage, microbatch) = self.actions[rank][number], place
        if not self._sends_fit(rank, number, stage):
            return None, False
        source_stage = stage - 1 if action.forward else stage + 1
        if not 0 <= source_stage < len(self.route):
            return _Option(place, NO_RANK), False
        source = self.route[source_stage]
        consumed = self.consumed[rank, source, action.forward]
        if source == rank:
            outputs = self.local_outputs[rank, action.forward]
            fits = consumed < len(outputs) and self.places[outputs[consumed]] == (source_stage, microbatch)
            return (_Option(place, source) if fits else None), False
        inputs = self.messages.inputs.get((rank, source, action.forward), ())
        if consumed >= len(inputs) or inputs[consumed][1] > action.start_ns + _ROUNDED_NS:
            return None, False
        producer_place = self.places.get(inputs[consumed][0])
        if producer_place is None:
            return None, True
        return (_Option(place, source) if producer_place == (source_stage, microbatch) else None), False

    def _sends_fit(self, rank: int, number: int, stage: int) -> bool:
        """Return whether the sends of an action and of its known backward match the route of a stage."""
        outputs = [(number, self.actions[rank][number].forward)]
        if number in self.returned[rank]:
            outputs.append((self.returned[rank][number], False))
        for action, forward in outputs:
            receiver = self._next_rank(stage, forward=forward)
            if self.messages.sent_to[rank][action] != (NO_RANK if receiver == rank else receiver):
                return False
        return True
