"""Inference of the stages of ranks that have several stages.

The waits of a host assign messages to actions. A microbatch is a chain of forwards over all stages. A message
links the forward before its send to the forward that waited for it. If a rank holds consecutive stages, forwards
without a receive follow, in order, forwards without a send. The index of a forward in its chain is its stage, and
chains are numbered by their start. Gradients take the reverse route. They are linked independently and confirm the
result.

The kernels of a GPU do not record which message they waited for. A search uses these constraints:

- a rank sends a message after the action that produces it;
- messages of one direction between two ranks are consumed in the order of their sends;
- an action starts after the kernel that received its message;
- on a stage, forwards run in the order of microbatches;
- the route of a microbatch is interleaved (cycles through all ranks) or V-shaped (reverses at both ends).

If several assignments fit, the actions with the same place in all of them are certain.

The search is depth-first with backtracking. It first assigns actions with a single possible place. Then it tries
the choices of one action, later stages first. It backtracks when an action has no place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace_profilers.pass_runs import Run
    from pptrace_profilers.recording import MessageEnds

_Node = tuple[int, int]
"""A forward or a run: rank and index on that rank."""
_Place = tuple[int, int]
"""Stage and microbatch."""


class RankRuns(Struct, frozen=True, kw_only=True):
    """Runs and messages of a rank in a step."""

    runs: Sequence[Run]
    """Runs by time."""
    ends: MessageEnds
    """Ends of messages by time; peers are indices of ranks."""


class StepPlaces(Struct, frozen=True, kw_only=True):
    """Stages and microbatches of the runs of a step."""

    places: Mapping[_Node, tuple[int, int]]
    """Stage and microbatch by rank and index of the run, in order; empty if no route fits."""
    shares: Mapping[str, tuple[int, int]]
    """Number of fitting items and of all items, by description."""
    route: tuple[int, ...]
    """The rank of each stage; empty if no route fits."""
    reason: str = ""
    """Reason why no route fits; empty if one fits, or if the search is incomplete."""


def assign_by_chains(parts: Sequence[RankRuns]) -> StepPlaces:
    """Assign stages and microbatches to the forwards of a step, one part per rank."""
    next_of, back_of = _link_runs(parts)
    forwards = _passes(parts, forward=True)
    chains = list(_chains(forwards, _add_local_links(next_of, forwards)))
    routes = Counter(_route(chain) for chain in chains)
    # Among equally common routes, the longest counts: shorter ones are truncated.
    route = max(routes, key=lambda path: (routes[path] * len(path), len(path)), default=())
    complete = [chain for chain in chains if _route(chain) == route]
    places = {node: (stage, number) for number, chain in enumerate(complete) for stage, node in enumerate(chain)}
    stage_counts = [route.count(rank) for rank in range(len(parts))]
    ends = sum(len(part.ends) for part in parts)
    return StepPlaces(
        places={
            (rank, index): places[rank, run.forward_number]
            for rank, part in enumerate(parts)
            for index, run in enumerate(part.runs)
            if run.forward and (rank, run.forward_number) in places
        },
        route=route,
        shares={
            "of the messages connect two actions": (2 * (len(next_of) + len(back_of)), ends),
            "of the forwards pass through all stages": (len(places), sum(map(len, forwards))),
            "of the gradients take the reverse route of their forwards": (
                _count_returned_gradients(parts, back_of, complete)
            ),
            "of the ranks hold the most frequent number of stages": (
                stage_counts.count(max(stage_counts)),
                len(stage_counts),
            ),
            "of the forwards have the usual operations of their stage": _count_usual_forwards(parts, places),
            "of the forwards start in the order of microbatches": _count_ordered(parts, places, len(route)),
        },
    )  # fmt: skip


def _route(chain: Sequence[_Node]) -> tuple[int, ...]:
    return tuple(rank for rank, _ in chain)


def _count_returned_gradients(
    parts: Sequence[RankRuns], back_of: Mapping[_Node, _Node], chains: Sequence[Sequence[_Node]]
) -> tuple[int, int]:
    """Return the gradients that follow the links of their chains, and all links."""
    all_links = _add_local_links(back_of, _passes(parts, forward=False))
    backwards = {
        (rank, run.forward_number) for rank, part in enumerate(parts) for run in part.runs if not run.forward
    }
    links = [(a, b) for chain in chains for a, b in pairwise(chain) if b in backwards]
    return sum(all_links.get(b) == a for a, b in links), max(len(links), 1)


def _link_runs(parts: Sequence[RankRuns]) -> tuple[dict[_Node, _Node], dict[_Node, _Node]]:
    """Link runs by their messages; messages between two ranks arrive in the order of their sends.

    Returns:
        The receiver of the output of each forward, and the receiver of its gradient.
    """
    next_of: dict[_Node, _Node] = {}
    back_of: dict[_Node, _Node] = {}
    second = [_second_passes(part.runs) for part in parts]
    receivers, senders = [set(indices) for indices in second], [set(indices) for indices in second]
    messages = [
        (arrival_ns, source, target, post_ns)
        for source, part in enumerate(parts)
        for target, target_part in enumerate(parts)
        for post_ns, arrival_ns in zip(
            part.ends.host_ns[part.ends.sends & (part.ends.peer == target)].tolist(),
            target_part.ends.end_ns[~target_part.ends.sends & (target_part.ends.peer == source)].tolist(),
            strict=False,
        )
    ]
    for arrival_ns, source, target, post_ns in sorted(messages, key=lambda message: message[:3]):
        receiver = _consumer(parts[target].runs, arrival_ns, receivers[target])
        if receiver < 0:
            continue
        run = parts[target].runs[receiver]
        sender = _producer(parts[source].runs, post_ns, senders[source], forward=run.forward)
        if sender < 0:
            continue
        receivers[target].add(receiver)
        senders[source].add(sender)
        from_node = source, parts[source].runs[sender].forward_number
        (next_of if run.forward else back_of)[from_node] = target, run.forward_number
    return next_of, back_of


def _second_passes(runs: Sequence[Run]) -> set[int]:
    """Return the indices of weight gradients: the second backwards of their forwards."""
    seen: set[int] = set()
    second = set()
    for number, run in enumerate(runs):
        if not run.forward:
            if run.forward_number in seen:
                second.add(number)
            seen.add(run.forward_number)
    return second


def _consumer(runs: Sequence[Run], arrival_ns: int, excluded: set[int]) -> int:
    """Return the first run after an arrival that has no message yet; -1 for none."""
    first = bisect_left(runs, arrival_ns, key=lambda run: run.start_ns)
    return next((number for number in range(first, len(runs)) if number not in excluded), -1)


def _producer(runs: Sequence[Run], post_ns: int, excluded: set[int], *, forward: bool) -> int:
    """Return the last run of a direction before a post whose output was not sent; -1 for none."""
    last = bisect_left(runs, post_ns, key=lambda run: run.start_ns) - 1
    return next(
        (number for number in range(last, -1, -1) if number not in excluded and runs[number].forward == forward),
        -1,
    )


def _passes(parts: Sequence[RankRuns], *, forward: bool) -> list[list[tuple[_Node, Run]]]:
    second = [_second_passes(part.runs) for part in parts]
    return [
        [
            ((rank, run.forward_number), run)
            for index, run in enumerate(part.runs)
            if run.forward == forward and index not in second[rank]
        ]
        for rank, part in enumerate(parts)
    ]


def _add_local_links(
    next_of: Mapping[_Node, _Node], passes: Sequence[Sequence[tuple[_Node, Run]]]
) -> dict[_Node, _Node]:
    """Add links inside a rank: from runs without a send to runs without a receive, in order."""
    links, has_input = dict(next_of), set(next_of.values())
    for runs in passes:
        senders = [(node, run) for node, run in runs if node not in next_of and node in has_input]
        receivers = [(node, run) for node, run in runs if node in next_of and node not in has_input]
        pairs = list(zip(senders, receivers, strict=False))
        if len(senders) == len(receivers) and all(a.end_ns <= b.start_ns for (_, a), (_, b) in pairs):
            links |= {a: b for (a, _), (b, _) in pairs}
    return links


def _chains(
    passes: Sequence[Sequence[tuple[_Node, Run]]], next_of: Mapping[_Node, _Node]
) -> Iterator[tuple[_Node, ...]]:
    targets = set(next_of.values())
    begins = sorted((run.start_ns, node) for runs in passes for node, run in runs if node not in targets)
    for _, begin in begins:
        chain = [begin]
        while chain[-1] in next_of:  # no cycle: a node is the source and the target of at most one link
            chain.append(next_of[chain[-1]])
        yield tuple(chain)


def _count_usual_forwards(parts: Sequence[RankRuns], places: Mapping[_Node, tuple[int, int]]) -> tuple[int, int]:
    """Return the forwards with the usual operations of their stage, and all forwards."""
    forms: dict[int, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for rank, part in enumerate(parts):
        for run in part.runs:
            place = places.get((rank, run.forward_number)) if run.forward else None
            if place is not None:
                forms[place[0]][run.operations] += 1
    return sum(max(form.values()) for form in forms.values()), max(sum(form.total() for form in forms.values()), 1)


def _count_ordered(
    parts: Sequence[RankRuns], places: Mapping[_Node, tuple[int, int]], stages: int
) -> tuple[int, int]:
    """Return the forwards that start in the order of microbatches on their stage, and all forwards."""
    started: list[list[int]] = [[] for _ in range(stages)]
    for rank, part in enumerate(parts):
        for run in part.runs:
            if run.forward and (place := places.get((rank, run.forward_number))) is not None:
                started[place[0]].append(place[1])
    count = sum(map(len, started))
    return count - sum(int((np.diff(stage) < 0).sum()) for stage in started), max(count, 1)


_NO_RANK = -1
"""The peer of an action without a send."""


class _Action(Struct, frozen=True, kw_only=True):
    """An action without a known stage."""

    forward: bool
    """Whether it is a forward."""
    is_weight_gradient: bool
    """Whether it is a separate weight gradient, which has no messages."""
    start_ns: int
    """Start of its work."""
    pair: int
    """Index on its rank of the matching forward; -1 if unknown, and for a forward."""


class _Messages(Struct, frozen=True, kw_only=True):
    """Producers of messages for a given route."""

    sent_to: Sequence[Sequence[int]]
    """Receiving rank of the output, by rank and action; :data:`_NO_RANK` for none."""
    inputs: Mapping[tuple[int, int, bool], Sequence[tuple[_Node, int]]]
    """Producer and arrival of each message in order, by target, source and whether they are activations."""


def _find_producers(
    parts: Sequence[RankRuns],
    actions: Sequence[Sequence[_Action]],
    route: Sequence[int],
    *,
    gradient_first: bool,
) -> _Messages:
    """Find the producers of the messages of a step.

    Args:
        parts: runs and messages of each rank, by launch.
        actions: actions of each rank, by launch.
        route: the rank of each stage.
        gradient_first: whether a gradient precedes an activation that was posted together to the same rank.
    """
    sent_to: list[list[int]] = []
    producers_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, part in enumerate(parts):
        ends = part.ends.sorted_by(part.ends.host_ns)
        sends = ends.of_rows(ends.sends & (ends.peer >= 0))
        consumers = [
            frozenset(receivers[stage] for stage, rank_of_stage in enumerate(route) if rank_of_stage == rank)
            for receivers in ((*route[1:], _NO_RANK), (_NO_RANK, *route[:-1]))
        ]
        producers = _producers(
            part, actions[rank], sends, consumers, {rank, _NO_RANK}, gradient_first=gradient_first
        )
        peers = [_NO_RANK] * len(part.runs)
        for peer, producer in zip(sends.peer.tolist(), producers, strict=True):
            producers_of[rank, peer].append(producer)
            if producer >= 0:
                peers[producer] = peer
        sent_to.append(peers)
    inputs: dict[tuple[int, int, bool], list[tuple[_Node, int]]] = defaultdict(list)
    for target, part in enumerate(parts):
        ends = part.ends.sorted_by(part.ends.host_ns)
        for source in range(len(parts)):
            arrivals_ns = ends.end_ns[~ends.sends & (ends.peer == source)].tolist()
            for producer, arrival_ns in zip(producers_of[source, target], arrivals_ns, strict=False):
                if producer >= 0:
                    message = (source, producer), arrival_ns
                    inputs[target, source, actions[source][producer].forward].append(message)
    return _Messages(sent_to=sent_to, inputs=inputs)


def _producers(
    part: RankRuns, actions: Sequence[_Action], sends: MessageEnds,
    consumers: Sequence[frozenset[int]], without_send: set[int], *, gradient_first: bool,
) -> list[int]:  # fmt: skip
    """Return the producer of each sent message by launch; -1 for none.

    ``consumers`` are the ranks that receive the activations, and the gradients, of the rank's stages. Those in
    ``without_send`` receive no message.
    """
    always = [not ranks & without_send for ranks in consumers]
    started = np.searchsorted([run.start_ns for run in part.runs], sends.host_ns, side="right")
    producers = [-1] * len(sends)
    assigned: set[int] = set()
    for last in np.unique(started).tolist():
        block = np.flatnonzero(started == last).tolist()
        ready = [number for number in _latest(actions, last - 1) if number not in assigned]
        if len(block) > 1:
            ready.sort(key=lambda number: actions[number].forward == gradient_first)
        else:  # actions that always send come first; ties go to the later action
            ready.sort(key=lambda number: (not always[not actions[number].forward], -number))
        for send_index in block:
            peer = {int(sends.peer[send_index])} - without_send
            fitting = (number for number in ready if peer & consumers[not actions[number].forward])
            producer = next(fitting, -1)
            producers[send_index] = producer
            if producer >= 0:
                assigned.add(producer)
                ready.remove(producer)
    return producers


def _latest(actions: Sequence[_Action], last: int) -> list[int]:
    """Return the last action up to ``last`` that may send, and the last one of the other direction."""
    latest: dict[bool, int] = {}
    for number in range(last, -1, -1):
        if not actions[number].is_weight_gradient:
            latest.setdefault(actions[number].forward, number)
        if len(latest) == len((True, False)):
            break
    return list(latest.values())


_MOST_CHUNKS = 8
"""Maximum stages per rank on V-shaped routes, whose messages do not determine the number."""
_TRIES = 100
"""Maximum assignments of a search, per action."""
_NOTHING_FITS = (
    "no placement of stages fits the messages, neither interleaved (a microbatch cycles through all ranks) nor "
    "V-shaped (it reverses at both ends): messages are missing, or consecutive stages of a rank exchange none, as "
    "in wave schedules"
)
_SEARCHED = "of the searches for stages were completed"


def assign_by_route(parts: Sequence[RankRuns], starts_ns: Sequence[Sequence[int]], *, paired: bool) -> StepPlaces:
    """Assign stages and microbatches to the actions of a step.

    Args:
        parts: runs and messages of each rank, by launch.
        starts_ns: start of each run's work on the GPU, by rank.
        paired: whether ``forward_number`` of a backward is known.
    """
    actions = [_actions(part, starts, paired=paired) for part, starts in zip(parts, starts_ns, strict=True)]
    total = max(sum(map(len, actions)), 1)
    searches = list(_searches(parts, actions))
    solutions = [(search, places) for search in searches for places in search.solutions()]
    is_complete = all(search.tries > 0 for search in searches)
    if not solutions:
        what = "of the actions fit a route through the ranks" if is_complete else _SEARCHED
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
        "of the messages connect two actions": (2 * sum(map(len, search.messages.inputs.values())), ends),
        "of the actions have a unique stage and microbatch": (
            sum(all(solution[node] == place for _, solution in solutions) for node, place in places.items()),
            total,
        ),
        _SEARCHED: (int(is_complete), 1),
        "of the forwards have the usual operations of their stage": _count_usual_forwards(parts, forward_places),
    }
    if not paired:
        what = "of the backwards of the last stage follow a single pending forward"
        shares[what] = _count_turning_backwards(actions[search.route[-1]], search.route, places)
    return StepPlaces(places=places, route=search.route, shares=shares)


def _count_turning_backwards(
    actions: Sequence[_Action], route: Sequence[int], places: Mapping[tuple[int, int], tuple[int, int]]
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


def _actions(part: RankRuns, starts_ns: Sequence[int], *, paired: bool) -> list[_Action]:
    second = _second_passes(part.runs) if paired else set()
    forwards = {run.forward_number: number for number, run in enumerate(part.runs) if run.forward}
    return [
        _Action(
            forward=run.forward, is_weight_gradient=number in second, start_ns=start,
            pair=forwards.get(run.forward_number, -1) if paired and not run.forward else -1,
        )
        for number, (run, start) in enumerate(zip(part.runs, starts_ns, strict=True))
    ]  # fmt: skip


def _searches(parts: Sequence[RankRuns], actions: Sequence[Sequence[_Action]]) -> Iterator[_Search]:
    """Yield one search per route and per assignment of messages to producers."""
    tries = _TRIES * sum(map(len, actions))
    for route, microbatches in _routes(parts, actions):
        # A gradient and an activation to the same rank may be posted together in either order.
        first, second = (_find_producers(parts, actions, route, gradient_first=order) for order in (True, False))
        for messages in (first,) if first == second else (first, second):
            yield _Search(actions, messages, route, microbatches, tries=tries)


def _routes(
    parts: Sequence[RankRuns], actions: Sequence[Sequence[_Action]]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield possible routes with their microbatches, from the numbers of forwards and messages.

    With P ranks, M microbatches and v stages per rank, a rank has vM forwards. An interleaved route has 2M(Pv - 1)
    messages. On a V-shaped route, v - 1 transfers of each microbatch stay on their rank.
    """
    ranks, forward_counts = len(actions), {sum(action.forward for action in rank) for rank in actions}
    if ranks == 1 or len(forward_counts) != 1:
        return
    (forwards,) = forward_counts
    sent = sum(int(part.ends.sends.sum()) for part in parts)
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


_MISFIT, _PENDING = -2, -3
"""A place that does not fit, and a place that depends on actions of another rank without a place."""
_Option = tuple[_Place, int]
"""A possible place of an action, and the rank that sends its input; :data:`_NO_RANK` for none."""


class _Search:
    """Depth-first search for the places of the actions of a step."""

    def __init__(
        self, actions: Sequence[Sequence[_Action]], messages: _Messages, route: tuple[int, ...],
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
                    options = self._options(rank)
                    if options is None:
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
        self.tries -= 1
        self.trail.append((rank, option))
        self.places[rank, self.next_action[rank]] = option[0]
        self._count(rank, option, 1)
        self.next_action[rank] += 1

    def _undo(self) -> None:
        rank, option = self.trail.pop()
        self.next_action[rank] -= 1
        self._count(rank, option, -1)
        del self.places[rank, self.next_action[rank]]

    def _count(self, rank: int, option: _Option, change: int) -> None:
        """Add (1) or remove (-1) the next action of a rank as a consumer and producer of messages."""
        number = self.next_action[rank]
        action, ((stage, _), source) = self.actions[rank][number], option
        if action.is_weight_gradient:
            return
        self.started[action.forward, stage] += change
        self.consumed[rank, source, action.forward] += change
        if self._next_rank(stage, forward=action.forward) == rank:
            outputs = self.local_outputs[rank, action.forward]
            if change > 0:
                outputs.append((rank, number))
            else:
                outputs.pop()

    def _next_rank(self, stage: int, *, forward: bool) -> int:
        """Return the receiver of an output; :data:`_NO_RANK` after the last stage."""
        stage += 1 if forward else -1
        return self.route[stage] if 0 <= stage < len(self.route) else _NO_RANK

    def _options(self, rank: int) -> list[_Option] | None:
        """Return the options of a rank's next action; None if they depend on progress of another rank."""
        action = self.actions[rank][self.next_action[rank]]
        if action.pair >= 0:
            places = [self.places[rank, action.pair]] if (rank, action.pair) in self.places else []
            if action.is_weight_gradient:
                return [(place, _NO_RANK) for place in places]
        else:
            places = [(stage, self.started[action.forward, stage]) for stage in reversed(self.stages[rank])]
            places = [
                (stage, microbatch)
                for stage, microbatch in places
                if microbatch < (self.microbatches if action.forward else self.started[True, stage])
            ]
        options = [(place, self._source(rank, place)) for place in places]
        if any(source == _PENDING for _, source in options):
            return None
        return [option for option in options if option[1] != _MISFIT]

    def _source(self, rank: int, place: _Place) -> int:
        """Return the rank that sends the input of a rank's next action if the action has a place.

        Returns:
            :data:`_NO_RANK` for an action without an input, else :data:`_MISFIT` or :data:`_PENDING`.
        """
        number = self.next_action[rank]
        action, (stage, microbatch) = self.actions[rank][number], place
        if not self._sends_fit(rank, number, stage):
            return _MISFIT
        source_stage = stage - 1 if action.forward else stage + 1
        if not 0 <= source_stage < len(self.route):
            return _NO_RANK
        source = self.route[source_stage]
        consumed = self.consumed[rank, source, action.forward]
        if source == rank:
            outputs = self.local_outputs[rank, action.forward]
            producer = outputs[consumed] if consumed < len(outputs) else None
        else:
            inputs = self.messages.inputs.get((rank, source, action.forward), ())
            fits = consumed < len(inputs) and inputs[consumed][1] <= action.start_ns + _ROUNDED_NS
            producer = inputs[consumed][0] if fits else None
        if producer is None:
            return _MISFIT
        if producer not in self.places:
            return _PENDING
        return source if self.places[producer] == (source_stage, microbatch) else _MISFIT

    def _sends_fit(self, rank: int, number: int, stage: int) -> bool:
        """Return whether the sends of an action and of its known backward match the route of a stage."""
        outputs = [(number, self.actions[rank][number].forward)]
        if number in self.returned[rank]:
            outputs.append((self.returned[rank][number], False))
        for action, forward in outputs:
            receiver = self._next_rank(stage, forward=forward)
            if self.messages.sent_to[rank][action] != (_NO_RANK if receiver == rank else receiver):
                return False
        return True
