"""Ranks, ties and substitute message policies.

A framework's policy accepts only the schedules of that framework. In a comparison, other schedules run under a
core policy that accepts any table, and their rows name it. A policy on the command line applies to all schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.config.choices import PolicyName
from pptrace.config.overrides import assignment
from pptrace.config.places import key_text
from pptrace.errors import ConstraintError
from pptrace.run.table_changes import copy_notes
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace.run.run import Run
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Basis, Entry

Ranks: TypeAlias = "tuple[int | None, ...]"
"""Ranks from 1; None for excluded values."""


def ranked(values: Sequence[Any]) -> Ranks:
    """Return the rank of each value, the smallest first; equal values share a rank, None has none.

    >>> ranked([3, 1, None, 3, 7])
    (2, 1, None, 2, 4)
    """
    return tuple(
        None if value is None else 1 + sum(other < value for other in values if other is not None)
        for value in values
    )


def moves(old_ranks: Ranks, new_ranks: Ranks) -> tuple[int, ...]:
    """Return the gained places of each value, negative if lost, among the values in both rankings.

    >>> moves((1, 2, None), (2, 1, 3))
    (-1, 1, 0)
    >>> moves((None, 1, 2), (1, 2, 3))
    (0, 0, 0)
    """
    both = [old is not None and new is not None for old, new in zip(old_ranks, new_ranks, strict=True)]
    old, new = (
        ranked([rank if shared else None for rank, shared in zip(ranks, both, strict=True)])
        for ranks in (old_ranks, new_ranks)
    )
    return tuple((was or 0) - (now or 0) for was, now in zip(old, new, strict=True))


def join_names(names: Sequence[str]) -> str:
    """Join names as in a sentence.

    >>> join_names(["a", "b", "c"]), join_names(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def groups_within(values: Sequence[tuple[int, str]], share: float) -> tuple[tuple[str, ...], ...]:
    """Return the largest groups of names whose values are within a share of their least.

    Args:
        values: values and names, ascending.
        share: the largest excess of the last value of a group over its first.

    >>> groups_within([(100, "a"), (104, "b"), (108, "c"), (150, "d")], 0.05)
    (('a', 'b'), ('b', 'c'))
    """
    groups: list[tuple[str, ...]] = []
    reached = 0
    for first, (least, _) in enumerate(values):
        end = first + sum(value <= least * (1 + share) for value, _ in values[first:])
        if end > max(reached, first + 1):
            groups.append(tuple(name for _, name in values[first:end]))
        reached = max(reached, end)
    return tuple(groups)


def uncertainty_of(runs: Iterable[SimulatedStep]) -> float:
    """Return the largest relative uncertainty of steps (``costs.uncertainty``); 0 where unknown.

    ``costs.split_uncertainty`` replaces it for schedules with split backwards.
    """
    known = []
    for run in runs:
        costs = run.prepared.resolved.to_dict().get("costs") or {}
        is_split = bool((run.prepared.schedule.kind == Kind.I).any())
        known += [costs.get("uncertainty"), costs.get("split_uncertainty") if is_split else None]
    return max((float(share) for share in known if share is not None), default=0.0)


def versions_of(provenances: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the versions of pptrace and of all plugins from the provenance of steps."""
    provenances = list(provenances)
    plugins = {name: version for each in provenances for name, version in each["plugins"].items()}
    return {"pptrace": provenances[0]["pptrace"], "plugins": dict(sorted(plugins.items()))}


POLICY, _OPTIONS = "p2p.policy", "p2p.options."
ANY_TABLE: Mapping[str, Any] = {POLICY: PolicyName.ORDERED.value}
"""The policy that accepts any table: NCCL's semantics for each operation."""


def fallback_policy(basis: Basis, entry: Entry, error: Exception | None) -> dict[str, Any]:
    """Return overrides of ``p2p`` for a table that the policy refuses.

    There are none where the error has another cause, or where the command line sets the policy. An unsuitable
    option returns to its default; an unsuitable policy becomes :data:`ANY_TABLE`.
    """
    if not isinstance(error, ConstraintError) or not error.key.startswith("p2p.") or _is_chosen(basis, entry):
        return {}
    return {error.key: None} if error.key.startswith(_OPTIONS) else dict(ANY_TABLE)


def run_with_fallback(basis: Basis, entry: Entry) -> tuple[Run, Mapping[str, Any]]:
    """Simulate a schedule, with overrides of its policy where needed; return these, too.

    Raises:
        PptraceError: any other error.
    """
    messages: dict[str, Any] = {}
    while True:
        try:
            assigned = [assignment(key, value or "", "p2p") for key, value in messages.items()]
            return basis.run(entry, assigned), messages
        except ConstraintError as error:
            more = fallback_policy(basis, entry, error)
            if more.keys() <= messages.keys():
                raise
            messages |= more


def _is_chosen(basis: Basis, entry: Entry) -> bool:
    """Return whether the command line or the entry sets the message policy."""
    keys = [*basis.given, *(key_text(setting.path) for setting in entry.varied)]
    return any(key.partition(".")[0] == "p2p" for key in keys)


def policy_text(run: SimulatedStep) -> str:
    """Return the name of a step's message policy."""
    return str(run.prepared.resolved.experiment.p2p.policy)


def fallback_notes(ran: Iterable[tuple[str, Mapping[str, Any], SimulatedStep]]) -> list[str]:
    """Return lines of the schedules with overrides of the configured policy, from labels, overrides and steps."""
    labels_by_policy: dict[str, list[str]] = {}
    notes = []
    for label, messages, run in ran:
        if POLICY in messages:
            labels_by_policy.setdefault(policy_text(run), []).append(label)
        elif messages:
            notes.append(f"{label} ran without {', '.join(messages)}, which its table does not support")
    return notes + [
        f"{join_names(labels)}: p2p {policy} here, because the configured policy does not accept their messages; "
        f"--p2p {policy} compares all under it"
        for policy, labels in labels_by_policy.items()
    ]


def notes_on_copies(runs: Iterable[tuple[str, SimulatedStep]]) -> list[str]:
    """Return a line for each step, with its label, whose copies to and from the host take no time."""
    prepared = [(label, run.prepared) for label, run in runs]
    return [f"{label}: {note}" for label, each in prepared for note in copy_notes(each.schedule, each.workload)]


_COARSE = 0.1
"""Share of a step from which a difference has no decimals."""


def slower_text(step_ns: int, least_ns: int) -> str:
    """Return the difference of a step from the shortest, as text.

    >>> slower_text(103, 100), slower_text(300, 100), slower_text(100, 100)
    ('+3.00%', '+200%', '-')
    """
    if step_ns == least_ns or not least_ns:
        return "-"
    more = step_ns / least_ns - 1
    return f"+{more:.2%}" if more < _COARSE else f"+{more:.0%}"


def share_text(value: float | None, is_exact: int | None = 1) -> str:
    """Return a share in percent; a tilde marks a share that is not exact."""
    return "-" if value is None else f"{'' if is_exact else '~'}{value:.2%}"
