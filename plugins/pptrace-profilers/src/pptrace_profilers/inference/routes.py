"""Stages and microbatches of ranks that hold several stages, where no host was seen to wait for its messages.

A GPU's kernels do not say which of them waited for which message. What they do say, taken together, is more:

- what a rank sends leaves behind the action that made it (:mod:`~pptrace_profilers.inference.outputs`);
- between two ranks messages of one direction are taken in the order in which they left;
- an action begins behind the kernel that brought its message;
- on a stage, forwards run in the order of microbatches;
- a microbatch passes the ranks around and around, as interleaved schedules have it, or there and back, as V's and
  waves do.

Whatever fits all this is searched for (:mod:`~pptrace_profilers.inference.placing`). Where two ways fit, what they
agree on is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace_profilers.inference.chains import alike, second_passes
from pptrace_profilers.inference.outputs import Known, messages_of
from pptrace_profilers.inference.placing import Placing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace_profilers.inference.chains import Part

__all__ = ["Routed", "routed"]

_MOST_CHUNKS = 8
"""Stages per rank that are tried for ways there and back, whose messages do not say how many there are."""
_TRIES = 100
"""How many times as many actions as there are one search puts somewhere at most."""
_NOTHING_FITS = (
    "no order of stages fits its messages, neither one that passes all ranks around (interleaved) nor there and "
    "back (V); messages are missing, or stages of one rank follow each other, as in waves, and send nothing that "
    "tells them apart"
)
_SEARCHED = "of the search for what fits came to its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A step's actions, put in their places."""

    places: Mapping[tuple[int, int], tuple[int, int]]
    """Stage and microbatch by rank and number of the action there; empty where nothing fits."""
    shares: Mapping[str, tuple[int, int]]
    """What speaks for it: of how many things how many fit, by what they are."""
    route: tuple[int, ...]
    """The rank of each stage; empty where nothing fits."""
    reason: str = ""
    """Why nothing fits; empty where something does, or the search was not brought to its end."""


def routed(parts: Sequence[Part], starts_ns: Sequence[Sequence[int]], *, paired: bool) -> Routed:
    """Put one step's actions in their places.

    Args:
        parts: what each rank did, by launch.
        starts_ns: when the work of each of a rank's runs began on its GPU.
        paired: whether backwards are known to go back through their ``forward_number``.
    """
    known = [_known(part, starts, paired=paired) for part, starts in zip(parts, starts_ns, strict=True)]
    total = max(sum(map(len, known)), 1)
    searches = list(_searches(parts, known))
    found = [(search, places) for search in searches for places in search.solutions()]
    whole = all(search.tries > 0 for search in searches)
    if not found:
        what = "of the actions have a place on a way through the ranks" if whole else _SEARCHED
        return Routed(places={}, shares={what: (0, total)}, route=(), reason=_NOTHING_FITS if whole else "")
    search, places = found[0]
    ends = max(sum(len(part.ends) for part in parts), 1)
    of_forwards = {
        (rank, run.forward_number): places[rank, number]
        for rank, part in enumerate(parts)
        for number, run in enumerate(part.runs)
        if run.forward
    }
    shares = {
        "of the messages lie between two actions": (2 * search.messages.linked, ends),
        "of the actions have one place alone": (_agreed([every for _, every in found]), total),
        _SEARCHED: (int(whole), 1),
        "of the forwards are like others of their stage": alike(parts, of_forwards),
    }
    if not paired:
        what = "of the backwards that begin on the last stage follow one forward alone"
        shares[what] = _turning(known[search.route[-1]], search.route, places)
    return Routed(places=places, route=search.route, shares=shares)


def _agreed(found: Sequence[Mapping[tuple[int, int], tuple[int, int]]]) -> int:
    """Return how many actions have the same place in all that fits."""
    return sum(all(other[node] == place for other in found) for node, place in found[0].items())


def _turning(
    known: Sequence[Known], route: Sequence[int], places: Mapping[tuple[int, int], tuple[int, int]]
) -> tuple[int, int]:
    """Return before how many of the last stage's backwards one forward of it had not gone back, of how many.

    Which of several goes back first no message says.
    """
    ahead = alone = count = 0
    for number, one in enumerate(known):
        if places[route[-1], number][0] != len(route) - 1:
            continue
        alone += not one.forward and ahead == 1
        count += not one.forward
        ahead += 1 if one.forward else -1
    return alone, max(count, 1)


def _known(part: Part, starts_ns: Sequence[int], *, paired: bool) -> list[Known]:
    second = second_passes(part.runs) if paired else set()
    forwards = {run.forward_number: number for number, run in enumerate(part.runs) if run.forward}
    return [
        Known(
            forward=run.forward, second=number in second, start_ns=start,
            pair=forwards.get(run.forward_number, -1) if paired and not run.forward else -1,
        )
        for number, (run, start) in enumerate(zip(part.runs, starts_ns, strict=True))
    ]  # fmt: skip


def _searches(parts: Sequence[Part], known: Sequence[Sequence[Known]]) -> Iterator[Placing]:
    """Yield the searches that there are: one for each way through the ranks, and for who made which message."""
    tries = _TRIES * sum(map(len, known))
    for route, microbatches in _routes(parts, known):
        # Of gradient and activation that leave together for one rank, either may be named first.
        first, second = (messages_of(parts, known, route, gradient_first=gradient) for gradient in (True, False))
        for messages in (first,) if first == second else (first, second):
            yield Placing(known, messages, route, microbatches, tries=tries)


def _routes(parts: Sequence[Part], known: Sequence[Sequence[Known]]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the ranks of all stages, and how many microbatches pass them, for what forwards and messages can be.

    With P ranks, M microbatches and v stages on each, a rank has vM forwards, and 2M(Pv - 1) messages go around;
    there and back, v - 1 times a rank hands over to itself.
    """
    ranks, made = len(known), {sum(one.forward for one in rank) for rank in known}
    if ranks == 1 or len(made) != 1:
        return
    (each,) = made
    sent = sum(end.sends for part in parts for end in part.ends)
    around = ranks * each - sent // 2
    if around > 0 and each % around == 0 and each > around:
        yield tuple(range(ranks)) * (each // around), around
    if sent != 2 * each * (ranks - 1):
        return
    way = tuple(range(ranks))
    for chunks in range(2, min(_MOST_CHUNKS, each) + 1):
        if each % chunks == 0:
            turns = (way[::-1] if chunk % 2 else way for chunk in range(chunks))
            yield tuple(rank for turn in turns for rank in turn), each // chunks
