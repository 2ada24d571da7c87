"""The basis of a study is what its runs have in common: a configuration, flags over it, and the plugins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.resolve import load
from pptrace.errors import PluginError
from pptrace.experiment.assembly import Assembly
from pptrace.experiment.placed import placed
from pptrace.experiment.run import simulate
from pptrace.hooks.from_file import is_file_reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolve import Resolved
    from pptrace.config.yaml_file import Document
    from pptrace.experiment.run import Run
    from pptrace.hooks.offers import ScheduleOffer
    from pptrace.hooks.registry import Registry
    from pptrace.study.entry import Entry

__all__ = ["Basis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the runs of a study share."""

    file: Path | Document | None
    """The configuration, or what was read of it; None for flags alone."""
    sets: tuple[str, ...]
    """``key.path=value`` texts."""
    flags: Mapping[str, Any]
    """Values by flag name, without ``schedule``."""
    registry: Registry
    """The plugins."""

    def resolve(self, entry: Entry, varied: Sequence[Assignment] = ()) -> Resolved:
        """Return the configuration of one run."""
        return load(self.file, self.sets, self.flags, [*varied, *entry.varied])

    def find(self, entry: Entry) -> ScheduleOffer | None:
        """Return the schedule that an entry names; None for a table file, which is only read.

        Raises:
            PptraceError: nothing has this name, or the file cannot be used.
        """
        if entry.is_table:
            from pptrace.schedule.text import load_table

            load_table(Path(entry.name))
            return None
        try:
            return self.registry.schedules[entry.name].offer
        except PluginError as error:
            if error.plugin and not is_file_reference(error.plugin):
                raise
            message = f"{entry.source}: {error}"
            raise PluginError(message, plugin=error.plugin, distribution=error.distribution) from error

    def check(self, entry: Entry, resolved: Resolved) -> None:
        """Refuse, before anything runs, what no sizes could mend: unknown names, options that are none.

        Raises:
            PptraceError: what cannot be used, where it was written.
        """
        offer = self.find(entry)
        if offer is not None:
            Assembly(resolved=resolved, registry=self.registry).options("schedule", offer.options)
        with placed(resolved, "p2p"):
            _ = self.registry.message_policies[resolved.experiment.p2p.policy]

    def run(self, entry: Entry, varied: Sequence[Assignment] = ()) -> Run:
        """Simulate one step.

        The chunks per rank that the configuration says are for schedules that take them: one that does not
        makes its own, or has one, unless its entry sets them.

        Raises:
            PptraceError: what the schedule or the simulation refuses.
        """
        return simulate(self.resolve(entry, varied), self.registry, loose=not entry.sets("parallel.vp"))
