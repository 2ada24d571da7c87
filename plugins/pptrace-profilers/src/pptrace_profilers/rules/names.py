"""Rules tell actions by the names of annotations, and communication by the names of kernels.

Sources: PyTorch's ``_PipelineScheduleRuntime`` (``PP:`` and the action) and its ``ScheduleGPipe`` (``Forward 3``);
kernels of NCCL before 2.9 (``ncclSendRecvKernel_``), before and since 2.19 (``ncclKernel_``, ``ncclDevKernel_``)
and of its symmetric memory (``ncclSymkDevKernel_``), RCCL with MSCCL, DeepEP, NVSHMEM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.errors import TableError
from pptrace.model.action import Action, Kind, parse_action

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BUILT_IN", "NO_STAGE", "Rule", "Rules", "written"]

NO_STAGE = -1
"""Stands for the one stage of the rank, where a name does not say which."""

_LARGEST, _MOST_UNITS = 2**31 - 1, 2**16
_KINDS = {"forward": Kind.F, "backward": Kind.B, "f": Kind.F, "b": Kind.B, "i": Kind.I, "w": Kind.W}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way in which actions are named."""

    pattern: re.Pattern[str]
    """Matches whole names; its groups are ``action`` in full, or ``kind``, ``stage`` and ``microbatch``."""
    kind: Kind | None = None
    """The kind, where the pattern has no group for it."""

    def read(self, name: str) -> Action | None:
        """Return the action that a name stands for; None where it stands for none."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        said = match.groupdict()
        if said.get("action") is not None:
            return written(said["action"])
        kind = self.kind if self.kind is not None else _kind(said.get("kind") or "")
        stage, unit = _number(said.get("stage"), NO_STAGE), _number(said.get("microbatch"), 0)
        return None if kind is None or max(stage, unit) > _LARGEST else Action(kind=kind, stage=stage, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of an import, the first that matches counts."""

    actions: Sequence[Rule]
    """How actions are named."""
    communication: re.Pattern[str]
    """Finds the names of kernels that communicate."""

    def action(self, name: str) -> Action | None:
        """Return the action that a name stands for."""
        for rule in self.actions:
            action = rule.read(name)
            if action is not None:
                return action
        return None


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


def written(text: str) -> Action | None:
    """Return the action that a text spells; None where it spells none, or one of more units than a step has."""
    try:
        action = parse_action(text)
    except TableError:
        return None
    return None if any(one.span > _MOST_UNITS for one in (action, *action.sub_actions)) else action


def _kind(text: str) -> Kind | None:
    return Kind[text] if text in Kind.__members__ else _KINDS.get(text.lower())


def _number(text: str | None, absent: int) -> int:
    return absent if text is None else int(text[:10])
