"""Rules tell actions and messages by names and arguments of events, and communication by names of kernels.

Sources: PyTorch's ``_PipelineScheduleRuntime`` (``PP:`` and the action) and its ``ScheduleGPipe`` (``Forward 3``);
kernels of NCCL before 2.9 (``ncclSendRecvKernel_``), before and since 2.19 (``ncclKernel_``, ``ncclDevKernel_``)
and of its symmetric memory (``ncclSymkDevKernel_``), RCCL with MSCCL, DeepEP, NVSHMEM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import (
    COMMUNICATION,
    PASSES,
    PER_STAGE,
    SENDS,
    Action,
    Kind,
    TableError,
    message_kind,
    parse_action,
)
from pptrace_profilers.recording.recording import NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace_profilers.rules.timed import Matcher

__all__ = ["BUILT_IN", "Meaning", "Rule", "Rules", "Stream"]

_MOST_MICROBATCHES = 2**16
_WORDS = {"forward": Kind.F, "fwd": Kind.F, "backward": Kind.B, "bwd": Kind.B}


class Stream(Enum):
    """Where an event runs."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    DATA_PARALLEL = "data-parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
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
class Rule:
    """One way in which events are named; groups of its patterns count, and what stands beside them."""

    pattern: Matcher
    """Matches whole names; its groups are ``action`` in full, or ``kind``, ``stage``, ``microbatch`` and so on."""
    args: Mapping[str, Matcher] = field(default_factory=dict)
    """Patterns of whole arguments, by key."""
    kind: Kind | None = None
    """The kind, where no pattern has a group for it."""
    stage: int | None = None
    """The stage, likewise."""
    microbatch: int | None = None
    """The microbatch, likewise."""
    peer: int | None = None
    """Rank at the other end, likewise."""
    stream: Stream = Stream.COMPUTE
    """Where it runs."""

    def meaning(self, name: str, args: Mapping[str, object]) -> Meaning | None:
        """Return what an event is; None where the rule does not match, or what it captures is no number."""
        groups = self._groups(name, args)
        if groups is None:
            return None
        try:
            stage = _number(groups, "stage", self.stage)
            microbatch = _number(groups, "microbatch", self.microbatch)
            peer, size = _number(groups, "peer", self.peer), _number(groups, "bytes", None, 2**62)
            action = self._action(groups, stage, microbatch)
        except ValueError:
            return None
        if action is None and self.stream is Stream.COMPUTE:
            return None
        sends = action.kind in SENDS if action is not None else self.stream is Stream.SEND
        moves = action is None or action.kind in COMMUNICATION
        return Meaning(
            action=action, sends=sends if moves else None,
            peer=-1 if peer is None else peer, size_bytes=size or 0,
        )  # fmt: skip

    def _groups(self, name: str, args: Mapping[str, object]) -> dict[str, str] | None:
        """Return all groups that matched; None where the rule does not match."""
        matches = [self.pattern.fullmatch(name)]
        for key, pattern in self.args.items():
            value = args.get(key)
            matches.append(pattern.fullmatch(str(value)) if value is not None else None)
        groups: dict[str, str] = {}
        for match in matches:
            if match is None:
                return None
            groups |= {key: value for key, value in match.groupdict().items() if value is not None}
        return groups

    def _action(self, groups: Mapping[str, str], stage: int | None, microbatch: int | None) -> Action | None:
        if "action" in groups:
            return _parsed(groups["action"])
        kind = self.kind if self.kind is not None else _kind(groups.get("kind"))
        if self.stream in {Stream.SEND, Stream.RECEIVE}:
            if kind in PASSES:
                kind = message_kind(sends=self.stream is Stream.SEND, forward=kind is Kind.F)
            if stage is None or microbatch is None:
                return None
        elif self.stream is Stream.DATA_PARALLEL and kind is None:
            kind = Kind.REDUCE_GRAD
        if kind is None:
            return None
        number = -1 if kind in PER_STAGE else microbatch or 0
        return Action(kind=kind, stage=NO_STAGE if stage is None else stage, microbatch=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of an import, the first that matches counts."""

    actions: Sequence[Rule]
    """How actions and messages are told."""
    communication: Matcher
    """Finds the names of kernels that communicate."""

    def meaning(self, name: str, args: Mapping[str, object]) -> Meaning | None:
        """Return what an event is; None where no rule matches."""
        meanings = (rule.meaning(name, args) for rule in self.actions)
        return next((meaning for meaning in meanings if meaning is not None), None)

    def communicate(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which names are those of kernels that communicate, shape (names,)."""
        return np.array([bool(self.communication.search(name)) for name in names], dtype=bool)

    def action(self, name: str) -> Action | None:
        """Return the action that a name alone stands for."""
        meanings = (rule.meaning(name, {}) for rule in self.actions)
        return next((meaning.action for meaning in meanings if meaning is not None and meaning.action), None)


BUILT_IN = Rules(
    actions=(
        Rule(pattern=re.compile(r"(?:PP:|compute:)(?P<action>.+)")),
        Rule(pattern=re.compile(r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)")),
    ),
    communication=re.compile(
        r"^nccl\w*Kernel|^rccl|^msccl|::ep::|deep_ep|nvshmem|internode|intranode", re.IGNORECASE
    ),
)
"""What is recognised without a rules file."""


def _parsed(text: str) -> Action | None:
    """Return the action that a text spells; None for none, or one of more microbatches than a step has."""
    try:
        action = parse_action(text)
    except TableError:
        return None
    return None if any(one.span > _MOST_MICROBATCHES for one in (action, *action.sub_actions)) else action


def _kind(text: str | None) -> Kind | None:
    if text is None:
        return None
    return Kind[text.upper()] if text.upper() in Kind.__members__ else _WORDS.get(text.lower())


def _number(groups: Mapping[str, str], key: str, default: int | None, most: int = 2**31) -> int | None:
    """Return a captured number, else the rule's own.

    Raises:
        ValueError: what was captured is none, or too large.
    """
    text = groups.get(key)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) else most
    if number >= most:
        raise ValueError(text)
    return number
