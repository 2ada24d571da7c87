"""The schedules of other plugins under the same limit: what a search starts from, and never does worse than."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, PptraceError, ScheduleError, load, prepare
from pptrace_optpipe.setting import keeps, setting_in, simulated
from pptrace_optpipe.sharing import pairs
from pptrace_optpipe.tables import rows_of_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pptrace.plugin import Prepared, Registry, Schedule
    from pptrace_optpipe.problem import Rows
    from pptrace_optpipe.setting import Ground, Setting, Simulated

__all__ = ["AGAIN", "COPIED", "Rival", "is_as_much", "rivals"]

COPIED = "+offload"
"""Behind the name of a schedule with copies to the host put into it."""
AGAIN = "+recompute"
"""Behind the name of one whose forwards are computed again."""

_OWN = "optpipe"
_LIMITS = ("device.memory", "costs.capacity")
"""Keys by which costs know what a device holds, and schedules through them."""
_ALIKE = 0.01
"""The part by which work may differ and be taken for the same."""
_OFFLOAD = "schedule.offload.gap=3"
"""What makes copies to the host part of a schedule, as PipeOffload chooses them."""
_AGAIN = "schedule.recompute.early=true"
"""What makes forwards computed again part of it, as early as ranks get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A schedule of another plugin, and what the simulator says of it."""

    name: str
    """As ``pptrace simulate --schedule`` takes it; with ``+offload`` where copies to the host are put into it, and
    ``+recompute`` where forwards are computed again."""
    table: Schedule
    """The table."""
    simulated: Simulated
    """Its step and memory."""
    of: Callable[[], Ground | None]
    """Returns what to search in to better it; None where that cannot be."""

    @property
    def peak_bytes(self) -> int:
        """The most that a rank uses."""
        return max(self.simulated.peak_bytes)

    def fits(self, memory: int) -> bool:
        """Return whether every rank keeps a limit and its own device's, where they differ; 0 is none."""
        return keeps(self.simulated.peak_bytes, self.capacities, memory)

    capacities: tuple[int, ...] = ()
    """Shape (ranks,): memory of each rank's device where they differ; empty where they do not."""

    def rows(self) -> Rows | None:
        """Return its rows; None where a search here cannot split them."""
        try:
            return rows_of_table(self.table)
        except ScheduleError:
            return None

    def ground(self) -> Ground | None:
        """Return what to search in to better it; None where that cannot be."""
        try:
            return self.of()
        except PptraceError:
            return None


def rivals(
    config: Path | None, sets: Sequence[str], registry: Registry, setting: Setting, memory: int = 0
) -> Iterator[Rival]:
    """Yield every schedule of other plugins that does a setting's work, made for a limit in bytes per rank.

    Those that take other sizes or compute more or less, as with another number of stages of the same costs, or are
    more than their tables say, are left out. Where activations can be copied to the host, each is there a second
    time, with those that there is time to copy; where forwards may be computed again, once more, with all of them.
    """
    problem, work = setting.problem(memory), _work(setting.prepared)
    limits = _limits(setting.prepared, memory) if memory else []
    ways = {"": [], COPIED: _copied(setting) * problem.copies, AGAIN: [_AGAIN] * problem.recomputes}
    for name in sorted(registry.schedules):
        for suffix, more in ways.items() if name != _OWN else ():
            if suffix and not more:
                continue
            prepared = _prepared(config, [*sets, *more], registry, name, limits)
            if prepared is None or not _is_a_table(prepared) or not is_as_much(_work(prepared), work):
                continue
            try:
                yield Rival(
                    name=f"{name}{suffix}", table=prepared.schedule,
                    simulated=simulated(prepared, prepared.schedule),
                    capacities=setting.capacities,
                    of=partial(setting_in, prepared, setting.remade, recompute=setting.recompute,
                               shared=setting.shared),
                )  # fmt: skip
            except PptraceError:
                continue


def _limits(prepared: Prepared, memory: int) -> list[list[str]]:
    """Return settings of which the first that costs read limits every rank's memory."""
    device = prepared.resolved.experiment.device
    unlike = device.limited(memory) if device else {}
    if unlike:
        return [[f"{key}={value}" for key, value in unlike.items()]]
    return [[f"{key}={memory} B"] for key in _LIMITS]


def _copied(setting: Setting) -> list[str]:
    """Return what puts copies to the host into a schedule; none where channels are not what a schedule can say."""
    if not setting.shared:
        return [_OFFLOAD]
    return [_OFFLOAD, "schedule.offload.stream=pair"] if setting.shared == pairs(setting.placement.ranks) else []


def is_as_much(one: int, other: int) -> bool:
    """Return whether two schedules compute as much, but for rounding."""
    return abs(one - other) <= _ALIKE * other


def _is_a_table(prepared: Prepared) -> bool:
    """Return whether a schedule's table, written and read, is the same step."""
    table, batch = prepared.schedule, prepared.resolved.experiment.batch
    whole = not table.interleave and not table.recompute_waits
    return whole and table.microbatches == batch.known_microbatches


def _work(prepared: Prepared) -> int:
    """Return what all ranks compute together."""
    work = prepared.workload
    return int((work.f_ns + work.i_ns + work.w_ns).sum()) * prepared.schedule.microbatches


def _prepared(
    config: Path | None, sets: Sequence[str], registry: Registry, name: str, limits: Sequence[list[str]]
) -> Prepared | None:
    """Return a schedule with what it runs in, the limit too if costs can say it; None if it cannot run."""
    for limit in [*limits, []]:
        try:
            return prepare(load(config, [*sets, *limit], {"schedule": name}), registry)
        except ConfigError as error:
            if not limit or not error.key.startswith(limit[0].partition(".")[0]):
                return None
        except PptraceError:
            return None
    return None
