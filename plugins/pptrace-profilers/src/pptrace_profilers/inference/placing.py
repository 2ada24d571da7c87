"""The search for the stage and microbatch of each action, along a way through the ranks.

An action that can be in one place alone is put there, which says what its message is to the next. Only where that
leads no further a choice is tried, the later stage first, for what has come is mostly taken before more is begun;
it is taken back once an action has no place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace_profilers.inference.outputs import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace_profilers.inference.outputs import Known, Messages

__all__ = ["Placing"]

_ROUNDED_NS = 2_000
"""By how much times of kernels may be off: older profilers write whole microseconds."""
_Node = tuple[int, int]
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Option:
    """A place that an action may have."""

    place: _Place
    source: int
    """The rank whose message it takes, its own for what that hands over; :data:`NOBODY` for none."""


class Placing:
    """One step's actions, to be put in their places."""

    def __init__(
        self, known: Sequence[Sequence[Known]], messages: Messages, route: tuple[int, ...], microbatches: int,
        *, tries: int,
    ) -> None:  # fmt: skip
        """Begin with no action in a place.

        Args:
            known: by rank, actions by launch.
            messages: what they sent and what arrived.
            route: the rank of each stage.
            microbatches: how many there are.
            tries: after how many actions put somewhere it is given up.
        """
        self.known, self.messages, self.route, self.microbatches = known, messages, route, microbatches
        self.tries = tries
        self.stages = [[stage for stage, at in enumerate(route) if at == rank] for rank in range(len(known))]
        self.returned = [_returned(rank) for rank in known]
        self.at = [0] * len(known)
        self.places: dict[_Node, _Place] = {}
        self.begun: Counter[tuple[bool, int]] = Counter()
        self.taken: Counter[tuple[int, int, bool]] = Counter()
        self.handed: dict[tuple[int, bool], list[_Node]] = defaultdict(list)
        self.trail: list[tuple[int, _Option]] = []

    def solutions(self) -> Iterator[dict[_Node, _Place]]:
        """Yield places of all actions, as many ways as there are."""
        choices: list[tuple[int, int, list[_Option]]] = []
        while self.tries > 0:
            rank, options = self._advanced()
            if rank < 0 and len(self.trail) == sum(map(len, self.known)):
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
            self._put(rank, options.pop(0))

    def _advanced(self) -> tuple[int, list[_Option]]:
        """Put all actions where they must be; return a rank whose next one has a choice, and that; else -1."""
        moved = True
        while moved:
            moved, rank_of_choice, choice = False, -1, []
            for rank in range(len(self.known)):
                while self.at[rank] < len(self.known[rank]) and self.tries > 0:
                    options, waits = self._options(rank)
                    if waits:
                        break
                    if len(options) != 1:
                        if not options:
                            return -1, []
                        if rank_of_choice < 0:
                            rank_of_choice, choice = rank, options
                        break
                    self._put(rank, options[0])
                    moved = True
        return rank_of_choice, choice

    def _put(self, rank: int, option: _Option) -> None:
        node = (rank, self.at[rank])
        one = self.known[rank][node[1]]
        self.tries -= 1
        self.trail.append((rank, option))
        self.places[node] = option.place
        self.at[rank] += 1
        if one.second:
            return
        self.begun[one.forward, option.place[0]] += 1
        self.taken[rank, option.source, one.forward] += 1
        if self._next_rank(option.place[0], forward=one.forward) == rank:
            self.handed[rank, one.forward].append(node)

    def _undo(self) -> None:
        rank, option = self.trail.pop()
        self.at[rank] -= 1
        node = (rank, self.at[rank])
        one = self.known[rank][node[1]]
        del self.places[node]
        if one.second:
            return
        self.begun[one.forward, option.place[0]] -= 1
        self.taken[rank, option.source, one.forward] -= 1
        if self._next_rank(option.place[0], forward=one.forward) == rank:
            self.handed[rank, one.forward].pop()

    def _next_rank(self, stage: int, *, forward: bool) -> int:
        """Return the rank that an output goes to, :data:`NOBODY` at the end of the way."""
        stage += 1 if forward else -1
        return self.route[stage] if 0 <= stage < len(self.route) else NOBODY

    def _options(self, rank: int) -> tuple[list[_Option], bool]:
        """Return where a rank's next action may be, and whether that is open until another rank has gone on."""
        number = self.at[rank]
        one = self.known[rank][number]
        if one.pair >= 0:
            place = self.places.get((rank, one.pair))
            if place is None:
                return [], False
            if one.second:
                return [_Option(place, NOBODY)], False
            option, waits = self._option(rank, place)
            return [option] if option is not None else [], waits
        found: list[_Option] = []
        for stage in reversed(self.stages[rank]):
            microbatch = self.begun[one.forward, stage]
            if microbatch >= (self.microbatches if one.forward else self.begun[True, stage]):
                continue
            option, waits = self._option(rank, (stage, microbatch))
            if waits:
                return [], True
            if option is not None:
                found.append(option)
        return found, False

    def _option(self, rank: int, place: _Place) -> tuple[_Option | None, bool]:
        """Return a place as a rank's next action can have it, None if it cannot; and whether that is open."""
        number = self.at[rank]
        one, (stage, microbatch) = self.known[rank][number], place
        if not self._leaves(rank, number, stage):
            return None, False
        before = stage - 1 if one.forward else stage + 1
        if not 0 <= before < len(self.route):
            return _Option(place, NOBODY), False
        source = self.route[before]
        taken = self.taken[rank, source, one.forward]
        if source == rank:
            handed = self.handed[rank, one.forward]
            fits = taken < len(handed) and self.places[handed[taken]] == (before, microbatch)
            return (_Option(place, source) if fits else None), False
        inputs = self.messages.inputs.get((rank, source, one.forward), ())
        if taken >= len(inputs) or inputs[taken].there_ns > one.start_ns + _ROUNDED_NS:
            return None, False
        made = self.places.get(inputs[taken].maker)
        if made is None:
            return None, True
        return (_Option(place, source) if made == (before, microbatch) else None), False

    def _leaves(self, rank: int, number: int, stage: int) -> bool:
        """Say whether what an action sent, and its backward if that is known, goes where a stage's output goes."""
        ways = [(number, self.known[rank][number].forward)]
        if number in self.returned[rank]:
            ways.append((self.returned[rank][number], False))
        for action, forward in ways:
            goes = self._next_rank(stage, forward=forward)
            if self.messages.sent_to[rank][action] != (NOBODY if goes == rank else goes):
                return False
        return True


def _returned(known: Sequence[Known]) -> dict[int, int]:
    """Return by forward the number of the first action that goes back through it."""
    pairs = [(one.pair, number) for number, one in enumerate(known) if one.pair >= 0 and not one.second]
    return dict(reversed(pairs))
