"""An action is one cell of a schedule table: a kind, a stage and the microbatch that it works on.

The text grammar is PyTorch's (``torch.distributed.pipelining.schedules._Action``) as a superset::

    action := stage kind [microbatch ["+" span]]      0F3   2B7   1SEND_F0   2F6+2   1UNSHARD
            | "(" action {";" action} ")OVERLAP_F_B"           (0F3;7B1)OVERLAP_F_B
            | action "@" action                                0F3@0OFFLOAD1

An action behind ``@`` is one whose end the action waits for, beside what it needs anyway. ``SEND_F`` names the
sender's stage and ``RECV_F`` the receiver's; likewise ``SEND_B`` and ``RECV_B``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pptrace.errors import TableError
from pptrace.model.kinds import PER_STAGE, Kind
from pptrace.record import dataclass

__all__ = ["Action", "overlapped", "parse_action"]


_KINDS = sorted((kind.name for kind in Kind), key=len, reverse=True)
_ACTION = re.compile(rf"([0-9]+)({'|'.join(_KINDS)})(?:([0-9]+)(?:\+([0-9]+))?)?")
_PAIR = re.compile(r"\(([^()]*)\)(\w*)")
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One cell of a schedule table.

    >>> str(Action(kind=Kind.F, stage=2, microbatch=6, span=2))
    '2F6+2'
    """

    kind: Kind
    """What it does; for an overlapped pair, its first sub-action's kind."""
    stage: int
    """Global stage index, from 0."""
    microbatch: int = -1
    """First microbatch, from 0; -1 for an action that belongs to no microbatch."""
    span: int = 1
    """Number of microbatches."""
    sub_actions: tuple[Action, ...] = ()
    """An overlapped pair's members, empty for any other action."""
    after: tuple[Action, ...] = ()
    """Actions, of one microbatch or the first of several, whose ends it waits for beside what it needs anyway."""

    def __str__(self) -> str:
        if self.sub_actions:
            return f"({';'.join(map(str, self.sub_actions))})OVERLAP_F_B"
        microbatch = "" if self.microbatch < 0 else str(self.microbatch)
        span = f"+{self.span}" if self.span > 1 else ""
        return f"{self.stage}{self.kind.name}{microbatch}{span}{''.join(f'@{one}' for one in self.after)}"


def parse_action(text: str) -> Action:
    """Read one action, the whole text and nothing more.

    >>> parse_action("1SEND_F0")
    Action(kind=<Kind.SEND_F: 4>, stage=1, microbatch=0, span=1, sub_actions=(), after=())
    >>> [str(a) for a in parse_action("(0F3;7B1)OVERLAP_F_B").sub_actions]
    ['0F3', '7B1']

    Raises:
        TableError: the text is no action; the message says what is allowed.
    """
    text = text.strip()
    if text.startswith("("):
        return _parse_pair(text)
    if "@" in text:
        return _parse_waiting(text)
    match = _ACTION.fullmatch(text)
    if match is None:
        raise TableError(
            f"not an action; expected stage, kind and microbatch such as 0F3, 2B7, 1SEND_F0, 2F6+2, "
            f"1UNSHARD, 0F3@0OFFLOAD1 or (0F3;7B1)OVERLAP_F_B, with a kind of {', '.join(k.name for k in Kind)}",
            cell=text,
        )
    kind = Kind[match[2]]
    if kind in PER_STAGE:
        if match[3] is not None:
            raise TableError(f"{kind.name} belongs to a stage and takes no microbatch", cell=text)
        return Action(kind=kind, stage=_number(match[1], text))
    if match[3] is None:
        raise TableError(f"{kind.name} needs a microbatch, such as {match[1]}{kind.name}0", cell=text)
    span = _number(match[4] or "1", text)
    if span < 1:
        raise TableError("a span is at least 1", cell=text)
    return Action(kind=kind, stage=_number(match[1], text), microbatch=_number(match[3], text), span=span)


def _parse_pair(text: str) -> Action:
    match = _PAIR.fullmatch(text)
    if match is None or match[2] != "OVERLAP_F_B":
        raise TableError("an overlapped pair is written (0F3;7B1)OVERLAP_F_B, and pairs do not nest", cell=text)
    members = tuple(parse_action(part) for part in match[1].split(";") if part.strip())
    if not members:
        raise TableError("an overlapped pair needs at least one action", cell=text)
    return overlapped(members)


def _parse_waiting(text: str) -> Action:
    action, *after = (parse_action(part) for part in text.split("@"))
    if action.microbatch < 0 or any(one.sub_actions or one.microbatch < 0 or one.span > 1 for one in after):
        raise TableError(
            "what waits and what it waits for have microbatches, the latter one: 0F3@0OFFLOAD1", cell=text
        )
    return replace(action, after=tuple(after))


def overlapped(members: tuple[Action, ...]) -> Action:
    """Return an overlapped pair of these members.

    >>> str(overlapped((parse_action("0F3"), parse_action("7B1"))))
    '(0F3;7B1)OVERLAP_F_B'
    """
    first = members[0]
    return Action(
        kind=first.kind, stage=first.stage, microbatch=first.microbatch, span=first.span, sub_actions=members
    )


_SHOWN = 20


def _number(digits: str, text: str) -> int:
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        short = digits if len(digits) <= _SHOWN else f"{digits[:_SHOWN]}..."
        raise TableError(f"{short} is too large; the largest number is {_LARGEST}", cell=text)
    return int(digits)
