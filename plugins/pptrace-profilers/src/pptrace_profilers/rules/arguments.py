"""A user's rule tells an event by its name and arguments, and what it is: an action or a message's end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pptrace.model.action import COMMUNICATION, PER_STAGE, Action, Kind
from pptrace_profilers.rules.names import NO_STAGE, Rule, written

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

__all__ = ["EventRule", "Found", "Stream"]

_SENDS = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B, Kind.I: Kind.SEND_B, Kind.W: Kind.SEND_B}
_RECEIVES = {Kind.F: Kind.RECV_F, Kind.B: Kind.RECV_B, Kind.I: Kind.RECV_B, Kind.W: Kind.RECV_B}
_KINDS = {"forward": Kind.F, "fwd": Kind.F, "backward": Kind.B, "bwd": Kind.B}


class Stream(Enum):
    """Where an event runs."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    DATA_PARALLEL = "data-parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an event is."""

    action: Action | None
    """The action; None for a message of which only the ends are known."""
    sends: bool | None = None
    """Whether it is a message that leaves, or one that arrives; None for an action."""
    peer: int = -1
    """Global rank at the message's other end; -1 where nothing says."""
    size_bytes: int = 0
    """The message's size; 0 where nothing says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule(Rule):
    """One rule; ``kind`` and what stands below are what it says itself, its groups what the event says."""

    args: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """Patterns of whole arguments, by key."""
    stage: int | None = None
    """The stage."""
    microbatch: int | None = None
    """The microbatch."""
    peer: int | None = None
    """Rank at the other end."""
    stream: Stream = Stream.COMPUTE
    """Where it runs."""

    def read(self, name: str) -> Action | None:
        """Return the action that a name stands for; None where it stands for none, or arguments count."""
        found = None if self.args else self.event(name, {})
        return found.action if found is not None else None

    def event(self, name: str, args: Mapping[str, object]) -> Found | None:
        """Return what an event is; None where the rule does not match, or what it captures is no number."""
        said = self._captured(name, args)
        if said is None:
            return None
        try:
            stage, unit = _number(said, "stage", self.stage), _number(said, "microbatch", self.microbatch)
            peer, size = _number(said, "peer", self.peer), _number(said, "bytes", None, 2**62)
            action = self._action(said, stage, unit)
        except ValueError:
            return None
        if action is None and self.stream is Stream.COMPUTE:
            return None
        sends = action.kind in {Kind.SEND_F, Kind.SEND_B} if action is not None else self.stream is Stream.SEND
        moves = action is None or action.kind in COMMUNICATION
        return Found(
            action=action, sends=sends if moves else None,
            peer=-1 if peer is None else peer, size_bytes=size or 0,
        )  # fmt: skip

    def _captured(self, name: str, args: Mapping[str, object]) -> dict[str, str] | None:
        """Return all groups that matched; None where the rule does not match."""
        matches = [self.pattern.fullmatch(name)]
        for key, pattern in self.args.items():
            value = args.get(key)
            matches.append(pattern.fullmatch(_text(value)) if value is not None else None)
        if any(match is None for match in matches):
            return None
        groups = [match.groupdict() for match in matches if match is not None]
        return {key: value for own in groups for key, value in own.items() if value is not None}

    def _action(self, said: Mapping[str, str], stage: int | None, unit: int | None) -> Action | None:
        if "action" in said:
            return written(said["action"])
        kind = self.kind if self.kind is not None else _kind(said.get("kind"))
        if self.stream in {Stream.SEND, Stream.RECEIVE}:
            table = _SENDS if self.stream is Stream.SEND else _RECEIVES
            kind = table.get(kind, kind) if kind is not None else None
            if stage is None or unit is None:
                return None
        elif self.stream is Stream.DATA_PARALLEL and kind is None:
            kind = Kind.REDUCE_GRAD
        if kind is None:
            return None
        unit = -1 if kind in PER_STAGE else unit or 0
        return Action(kind=kind, stage=NO_STAGE if stage is None else stage, unit=unit)


def _kind(text: str | None) -> Kind | None:
    if text is None:
        return None
    return Kind[text.upper()] if text.upper() in Kind.__members__ else _KINDS.get(text.lower())


def _number(said: Mapping[str, str], key: str, own: int | None, most: int = 2**31) -> int | None:
    """Return a captured number, else the rule's own.

    Raises:
        ValueError: what was captured is none, or too large.
    """
    text = said.get(key)
    if text is None:
        return own
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) else most
    if number >= most:
        raise ValueError(text)
    return number


def _text(value: object) -> str:
    """Return an argument as it is written; a list or mapping by its parts."""
    return value if isinstance(value, str) else str(value)
