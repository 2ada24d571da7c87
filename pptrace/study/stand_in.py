"""How a schedule's messages are issued where the configuration's way is not one for its table.

A framework's policy places the messages of the schedules that the framework runs. A comparison that leaves all
others out answers nothing, so these run under a rule of the core's that takes any table, and their rows say so.
What the user said for all schedules, by a flag or a setting over the file, is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.choices import PolicyName
from pptrace.config.overrides import assignment
from pptrace.errors import ConstraintError
from pptrace.study.ranking import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pptrace.experiment.run import Run
    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry

__all__ = ["ANY_TABLE", "POLICY", "other_messages", "policy_text", "run_anyhow", "stand_in_notes"]

POLICY, _OPTIONS = "p2p.policy", "p2p.options."
ANY_TABLE: Mapping[str, Any] = {POLICY: PolicyName.ORDERED.value}
"""The policy of schedules that no one framework runs: NCCL's semantics, operation by operation."""


def other_messages(basis: Basis, entry: Entry, error: Exception | None) -> dict[str, Any]:
    """Return settings of ``p2p`` under which a table may run that was refused.

    There are none where no policy refused it, or the user chose that policy for all. A switch that the table
    cannot have is left to its default, a policy that cannot place its messages gives way.
    """
    if not isinstance(error, ConstraintError) or not error.key.startswith("p2p.") or _is_chosen(basis, entry):
        return {}
    return {error.key: None} if error.key.startswith(_OPTIONS) else dict(ANY_TABLE)


def run_anyhow(basis: Basis, entry: Entry) -> tuple[Run, Mapping[str, Any]]:
    """Run a schedule, where needed with settings under which its messages can be placed; return these too.

    Raises:
        PptraceError: what else stops it.
    """
    messages: dict[str, Any] = {}
    while True:
        try:
            varied = [assignment(key, value or "", "p2p") for key, value in messages.items()]
            return basis.run(entry, varied), messages
        except ConstraintError as error:
            more = other_messages(basis, entry, error)
            if more.keys() <= messages.keys():
                raise
            messages |= more


def _is_chosen(basis: Basis, entry: Entry) -> bool:
    """Whether how messages are issued was said over the configuration: for all schedules, or by the entry."""
    keys = [text.partition("=")[0].strip() for text in basis.sets]
    keys += [".".join(map(str, one.path)) for one in entry.varied]
    return basis.flags.get("p2p") is not None or any(key == "p2p" or key.startswith("p2p.") for key in keys)


def policy_text(run: Run) -> str:
    """Return the name of the policy that a step ran under."""
    return str(run.prepared.resolved.experiment.p2p.policy)


def stand_in_notes(ran: Iterable[tuple[str, Mapping[str, Any], Run]]) -> list[str]:
    """Return lines that say which schedules issue their messages in another way than the configuration's.

    Args:
        ran: schedules, the settings by which each differs, and its step.
    """
    others: dict[str, list[str]] = {}
    notes = []
    for label, messages, run in ran:
        if POLICY in messages:
            others.setdefault(policy_text(run), []).append(label)
        elif messages:
            notes.append(f"{label} ran without {', '.join(messages)}, which it cannot have")
    return notes + [
        f"{listed(labels)}: p2p {policy} here, for the configuration's cannot place their messages; "
        f"--p2p {policy} compares all under it"
        for policy, labels in others.items()
    ]
