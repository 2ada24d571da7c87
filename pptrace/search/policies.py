"""Steps under each message policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.config.overrides import assignment
from pptrace.errors import ConfigError, DeadlockError, PptraceError
from pptrace.run.summary import time_text
from pptrace.search.basis import short_reason
from pptrace.search.ranking import slower_text
from pptrace.search.text_table import table_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.config.choices import Choice
    from pptrace.run.figures import Row
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Basis, Entry

_VARIANTS: tuple[tuple[str, type[Choice], frozenset[PolicyName]], ...] = (
    ("p2p.stream", StreamPer, frozenset({PolicyName.ORDERED})),
    ("p2p.receive", Receive, frozenset({PolicyName.BLOCKING, PolicyName.BATCHED})),
)
"""Settings with the largest effect on a policy, their values, and these policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One schedule under one policy."""

    policy: str
    """The policy with its variant, as ``ordered, stream pair``."""
    settings: Mapping[str, str]
    """Its settings by key."""
    schedule: str
    """The schedule, as the user wrote it."""
    step_ns: int | None = None
    """The step; None where the schedule cannot run under it."""
    price: float | None = None
    """The step above the schedule's shortest step under any policy, as a share."""
    reason: str = ""
    """Why it cannot run, in one line."""
    deadlocks: bool = False
    """Whether the reason is a deadlock of messages."""

    def row(self) -> Row:
        """Return one row of a tidy table."""
        return {
            "schedule": self.schedule, "policy": self.policy, "step_ns": self.step_ns, "price": self.price,
            "refused": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """Schedules under every policy."""

    rows: tuple[PolicyRow, ...]
    """Ordered by policy, then by schedule."""

    def by_policy(self) -> dict[str, list[PolicyRow]]:
        """Return the rows of each policy."""
        rows: dict[str, list[PolicyRow]] = {}
        for row in self.rows:
            rows.setdefault(row.policy, []).append(row)
        return rows

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a mapping per row, with its settings."""
        return [{**row.row(), "settings": dict(row.settings)} for row in self.rows]


def policy_settings(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of policies by their titles: the core's with their variants, then those of plugins.

    >>> policy_settings(["ordered"])["ordered, stream pair"]
    {'p2p.policy': 'ordered', 'p2p.stream': 'pair'}
    """
    settings: dict[str, dict[str, str]] = {}
    core = PolicyName.words()
    for name in sorted(names, key=lambda name: (core.index(name) if name in core else len(core), name)):
        policies = PolicyName(name) if name in core else None
        varied = [(key, choices.words()) for key, choices, takers in _VARIANTS if policies in takers]
        for key, word in [(key, word) for key, words in varied for word in words]:
            settings[f"{name}, {key.partition('.')[2]} {word}"] = {"p2p.policy": name, key: word}
        if not varied:
            settings[name] = {"p2p.policy": name}
    return settings


def compare_policies(
    basis: Basis, entries: Sequence[Entry], watch: Callable[[str], None] | None = None
) -> PolicyTable:
    """Simulate every schedule under every policy.

    Args:
        basis: the common configuration, whose policy and variant are overridden.
        entries: the schedules.
        watch: receives the name of each policy before it runs.

    Raises:
        ConfigError: an entry that sets ``p2p``.
    """
    for entry in entries:
        check_policies(entry)
    rows: list[PolicyRow] = []
    for policy, settings in policy_settings(basis.registry.message_policies).items():
        if watch is not None:
            watch(f"policy {policy}")
        rows += [_row(basis, entry, policy, settings) for entry in entries]
    least = {row.schedule: row.step_ns for row in sorted(rows, key=_longest_first) if row.step_ns is not None}
    return PolicyTable(rows=tuple(_priced(row, least.get(row.schedule)) for row in rows))


def check_policies(entry: Entry) -> None:
    """Refuse an entry with its own policy.

    Raises:
        ConfigError: it sets ``p2p``.
    """
    if any(one.path[0] == "p2p" for one in entry.varied):
        raise ConfigError("every policy is run: leave p2p out", file=entry.source)


def _row(basis: Basis, entry: Entry, policy: str, settings: Mapping[str, str]) -> PolicyRow:
    varied = [assignment(key, word, "--policies") for key, word in settings.items()]
    try:
        step_ns = basis.run(entry, varied).metrics.step_ns
    except PptraceError as error:
        return PolicyRow(
            policy=policy, settings=settings, schedule=entry.label, reason=short_reason(error),
            deadlocks=isinstance(error, DeadlockError),
        )  # fmt: skip
    return PolicyRow(policy=policy, settings=settings, schedule=entry.label, step_ns=step_ns)


def _longest_first(row: PolicyRow) -> int:
    return -(row.step_ns or 0)


def _priced(row: PolicyRow, least_ns: int | None) -> PolicyRow:
    return replace(row, price=row.step_ns / least_ns - 1) if row.step_ns and least_ns else row


def policy_lines(table: PolicyTable, run: SimulatedStep, uncertainty: float = 0.0) -> list[str]:
    """Return the lines of the table; ``run`` decides whether times have units.

    All schedules whose steps are within the share ``uncertainty`` of the shortest count as the fastest.
    """
    policies = table.by_policy()
    schedules = [row.schedule for row in next(iter(policies.values()))]
    least = [_least(rows) for rows in zip(*policies.values(), strict=True)]
    cells = [["policy", *schedules]]
    several = len(schedules) > 1
    cells[0] += ["fastest"] if several else []
    for policy, rows in policies.items():
        steps = [_cell(row, least_ns, run) for row, least_ns in zip(rows, least, strict=True)]
        cells.append([policy, *steps, *([_fastest(rows, uncertainty)] if several else [])])
    lines = table_lines(cells, {0, len(schedules) + 1})
    heading = "what each policy costs: the step, and by how much it is over the schedule's shortest"
    return [heading, *lines, *_refused(table)]


def _refused(table: PolicyTable) -> list[str]:
    """Return a line per schedule that no policy can run, or per policy that cannot run it."""
    reasons: dict[str, dict[str, str]] = {}
    for row in table.rows:
        if row.reason and not row.deadlocks:
            reasons.setdefault(row.schedule, {})[row.policy] = row.reason
    lines = []
    for schedule, by_policy in reasons.items():
        if len(by_policy) == len(table.by_policy()):
            lines.append(f"{schedule} cannot run: {next(iter(by_policy.values()))}")
        else:
            lines += [f"{schedule} under {policy} cannot run: {reason}" for policy, reason in by_policy.items()]
    return lines


def _cell(row: PolicyRow, least_ns: int, run: SimulatedStep) -> str:
    if row.step_ns is None:
        return "deadlocks" if row.deadlocks else "cannot run"
    return f"{time_text(run, row.step_ns)} {slower_text(row.step_ns, least_ns):>7}"


def _least(rows: Sequence[PolicyRow]) -> int:
    return min((row.step_ns for row in rows if row.step_ns is not None), default=0)


def _fastest(rows: Sequence[PolicyRow], uncertainty: float) -> str:
    """Return the schedule with the shortest step under a policy; all schedules of a tie."""
    most = _least(rows) * (1 + uncertainty)
    return " and ".join(row.schedule for row in rows if row.step_ns is not None and row.step_ns <= most) or "-"
