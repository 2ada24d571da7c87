"""Chains of messages between passes.

A microbatch is a chain of forwards over all stages. A message links the forward before its send to the forward
that waited for it. If a rank holds consecutive stages, forwards without a receive follow, in order, forwards
without a send. The index of a forward in its chain is its stage, and chains are numbered by their start.
Gradients take the reverse route. They are linked independently and confirm the result.

The waits of a host assign messages to actions. The kernels of a GPU do not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace_profilers.pass_runs import Run
    from pptrace_profilers.recording import MessageEnd

_Node = tuple[int, int]
"""A forward or a run: rank and index on that rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Runs and messages of a rank in a step."""

    runs: Sequence[Run]
    """Runs by time."""
    ends: Sequence[MessageEnd]
    """Ends of messages by time; peers are indices of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlaces:
    """Stages and microbatches of the runs of a step."""

    places: Mapping[_Node, tuple[int, int]]
    """Stage and microbatch by rank and index of the run, in order; empty if no route fits."""
    shares: Mapping[str, tuple[int, int]]
    """Number of fitting items and of all items, by description."""
    route: tuple[int, ...]
    """The rank of each stage; empty if no route fits."""
    reason: str = ""
    """Reason why no route fits; empty if one fits, or if the search is incomplete."""


def assign_by_chains(parts: Sequence[Part]) -> StepPlaces:
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
            "of the messages lie between two actions": (2 * (len(next_of) + len(back_of)), ends),
            "of the forwards pass through all stages": (len(places), sum(map(len, forwards))),
            "of the gradients go back as their forwards came": _count_returned_gradients(parts, back_of, complete),
            "of the ranks hold as many stages as others": (
                stage_counts.count(max(stage_counts)),
                len(stage_counts),
            ),
            "of the forwards are like others of their stage": count_usual_forwards(parts, places),
            "of the forwards begin in the order of microbatches": _count_ordered(parts, places, len(route)),
        },
    )  # fmt: skip


def _route(chain: Sequence[_Node]) -> tuple[int, ...]:
    return tuple(rank for rank, _ in chain)


def _count_returned_gradients(
    parts: Sequence[Part], back_of: Mapping[_Node, _Node], chains: Sequence[Sequence[_Node]]
) -> tuple[int, int]:
    """Return the gradients that follow the links of their chains, and all links."""
    all_links = _add_local_links(back_of, _passes(parts, forward=False))
    backwards = {
        (rank, run.forward_number) for rank, part in enumerate(parts) for run in part.runs if not run.forward
    }
    links = [(a, b) for chain in chains for a, b in pairwise(chain) if b in backwards]
    return sum(all_links.get(b) == a for a, b in links), max(len(links), 1)


def _link_runs(parts: Sequence[Part]) -> tuple[dict[_Node, _Node], dict[_Node, _Node]]:
    """Link runs by their messages; messages between two ranks arrive in the order of their sends.

    Returns:
        The receiver of the output of each forward, and the receiver of its gradient.
    """
    next_of: dict[_Node, _Node] = {}
    back_of: dict[_Node, _Node] = {}
    second = [second_passes(part.runs) for part in parts]
    receivers, senders = [set(indices) for indices in second], [set(indices) for indices in second]
    messages = [
        (receive.end_ns, source, target, send, receive)
        for source, part in enumerate(parts)
        for target, target_part in enumerate(parts)
        for send, receive in zip(
            [end for end in part.ends if end.sends and end.peer == target],
            [end for end in target_part.ends if not end.sends and end.peer == source],
            strict=False,
        )
    ]
    for _, source, target, send, receive in sorted(messages, key=lambda message: message[:3]):
        receiver = _consumer(parts[target].runs, receive, receivers[target])
        if receiver < 0:
            continue
        run = parts[target].runs[receiver]
        sender = _producer(parts[source].runs, send, senders[source], forward=run.forward)
        if sender < 0:
            continue
        receivers[target].add(receiver)
        senders[source].add(sender)
        from_node = source, parts[source].runs[sender].forward_number
        (next_of if run.forward else back_of)[from_node] = target, run.forward_number
    return next_of, back_of


def second_passes(runs: Sequence[Run]) -> set[int]:
    """Return the indices of weight gradients: the second backwards of their forwards."""
    seen: set[int] = set()
    second = set()
    for number, run in enumerate(runs):
        if not run.forward:
            if run.forward_number in seen:
                second.add(number)
            seen.add(run.forward_number)
    return second


def _consumer(runs: Sequence[Run], receive: MessageEnd, excluded: set[int]) -> int:
    """Return the first run after a receive that has no message yet; -1 for none."""
    first = int(np.searchsorted([run.start_ns for run in runs], receive.end_ns))
    return next((number for number in range(first, len(runs)) if number not in excluded), -1)


def _producer(runs: Sequence[Run], send: MessageEnd, excluded: set[int], *, forward: bool) -> int:
    """Return the last run of a direction before a send whose output was not sent; -1 for none."""
    last = int(np.searchsorted([run.start_ns for run in runs], send.host_ns)) - 1
    return next(
        (number for number in range(last, -1, -1) if number not in excluded and runs[number].forward == forward),
        -1,
    )


def _passes(parts: Sequence[Part], *, forward: bool) -> list[list[tuple[_Node, Run]]]:
    second = [second_passes(part.runs) for part in parts]
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


def count_usual_forwards(parts: Sequence[Part], places: Mapping[_Node, tuple[int, int]]) -> tuple[int, int]:
    """Return the forwards with the usual operations of their stage, and all forwards."""
    forms: dict[int, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for rank, part in enumerate(parts):
        for run in part.runs:
            place = places.get((rank, run.forward_number)) if run.forward else None
            if place is not None:
                forms[place[0]][run.operations] += 1
    return sum(max(form.values()) for form in forms.values()), max(sum(form.total() for form in forms.values()), 1)


def _count_ordered(parts: Sequence[Part], places: Mapping[_Node, tuple[int, int]], stages: int) -> tuple[int, int]:
    """Return the forwards that start in the order of microbatches on their stage, and all forwards."""
    started: list[list[int]] = [[] for _ in range(stages)]
    for rank, part in enumerate(parts):
        for run in part.runs:
            if run.forward and (place := places.get((rank, run.forward_number))) is not None:
                started[place[0]].append(place[1])
    count = sum(map(len, started))
    return count - sum(int((np.diff(stage) < 0).sum()) for stage in started), max(count, 1)


NO_RANK = -1
"""The peer of an action without a send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplacedAction:
    """An action without a known stage."""

    forward: bool
    """Whether it is a forward."""
    is_weight_gradient: bool
    """Whether it is a separate weight gradient, which has no messages."""
    start_ns: int
    """Start of its work."""
    pair: int
    """Index on its rank of the matching forward; -1 if unknown, and for a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Producers of messages for a given route."""

    sent_to: Sequence[Sequence[int]]
    """Receiving rank of the output, by rank and action; :data:`NO_RANK` for none."""
    inputs: Mapping[tuple[int, int, bool], Sequence[tuple[_Node, int]]]
    """Producer and arrival of each message in order, by target, source and whether they are activations."""


def messages_of(
    parts: Sequence[Part],
    actions: Sequence[Sequence[UnplacedAction]],
    route: Sequence[int],
    *,
    gradient_first: bool,
) -> Messages:
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
        sends = sorted((end for end in part.ends if end.sends and end.peer >= 0), key=attrgetter("host_ns"))
        consumers = [
            frozenset(receivers[stage] for stage, rank_of_stage in enumerate(route) if rank_of_stage == rank)
            for receivers in ((*route[1:], NO_RANK), (NO_RANK, *route[:-1]))
        ]
        producers = _producers(
            part, actions[rank], sends, consumers, {rank, NO_RANK}, gradient_first=gradient_first
        )
        peers = [NO_RANK] * len(part.runs)
        for send, producer in zip(sends, producers, strict=True):
            producers_of[rank, send.peer].append(producer)
            if producer >= 0:
                peers[producer] = send.peer
        sent_to.append(peers)
    inputs: dict[tuple[int, int, bool], list[tuple[_Node, int]]] = defaultdict(list)
    for target, part in enumerate(parts):
        for source in range(len(parts)):
            receives = sorted(
                (end for end in part.ends if not end.sends and end.peer == source), key=attrgetter("host_ns")
            )
            for producer, receive in zip(producers_of[source, target], receives, strict=False):
                if producer >= 0:
                    message = (source, producer), receive.end_ns
                    inputs[target, source, actions[source][producer].forward].append(message)
    return Messages(sent_to=sent_to, inputs=inputs)


def _producers(
    part: Part, actions: Sequence[UnplacedAction], sends: Sequence[MessageEnd],
    consumers: Sequence[frozenset[int]], without_send: set[int], *, gradient_first: bool,
) -> list[int]:  # fmt: skip
    """Return the producer of each sent message; -1 for none.

    Args:
        part: runs and messages of a rank, by launch.
        actions: actions of the rank, by launch.
        sends: sent messages, by launch.
        consumers: ranks that receive the activations, and the gradients, of the rank's stages.
        without_send: consumers that receive no message.
        gradient_first: whether a gradient precedes an activation that was posted together to the same rank.
    """
    always = [not ranks & without_send for ranks in consumers]
    started = np.searchsorted([run.start_ns for run in part.runs], [send.host_ns for send in sends], side="right")
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
            peer = {sends[send_index].peer} - without_send
            fitting = (number for number in ready if peer & consumers[not actions[number].forward])
            producer = next(fitting, -1)
            producers[send_index] = producer
            if producer >= 0:
                assigned.add(producer)
                ready.remove(producer)
    return producers


def _latest(actions: Sequence[UnplacedAction], last: int) -> list[int]:
    """Return the last action up to ``last`` that may send, and the last one of the other direction."""
    latest: dict[bool, int] = {}
    for number in range(last, -1, -1):
        if not actions[number].is_weight_gradient:
            latest.setdefault(actions[number].forward, number)
        if len(latest) == len((True, False)):
            break
    return list(latest.values())
