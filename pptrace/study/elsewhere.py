"""Steps of a search that are simulated on an executor, before the search asks for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pptrace.config.resolve import document_of
from pptrace.study.executor import choose
from pptrace.study.grid import Base
from pptrace.study.point import run_point
from pptrace.study.pool import Kept, run_all
from pptrace.study.sweep import cores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from pptrace.config.overrides import Assignment
    from pptrace.hooks.registry import Registry
    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry
    from pptrace.study.executor import ExecutorChoice
    from pptrace.study.row import Row

__all__ = ["Elsewhere", "chosen_for_search"]


@dataclass(slots=True, kw_only=True)
class Elsewhere:
    """An executor for the steps of one search, as a context."""

    base: Base
    """What the steps have in common."""
    chosen: ExecutorChoice
    """What they run on."""
    registry: Registry | None
    """The plugins, where steps run in this process."""
    kept: Kept
    """The executor, once it runs."""
    found: dict[tuple[int, int], tuple[int, bool] | None] = field(default_factory=dict)
    """Step and whether it fits, by value and place among the entries; None where it cannot run."""

    @classmethod
    def of(cls, basis: Basis, chosen: ExecutorChoice) -> Self:
        """Return an executor for the steps of a basis, which is read once."""
        base = Base(document=document_of(basis.file), sets=basis.sets, flags=basis.flags)
        own = basis.registry if chosen.in_process else None
        return cls(base=base, chosen=chosen, registry=own, kept=Kept(chosen.start))

    def __enter__(self) -> Self:
        self.kept.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kept.__exit__(kind, error, trace)

    def simulate(self, entries: tuple[Entry, Entry], values: dict[int, Assignment]) -> None:
        """Simulate both entries at values that were not asked for yet."""
        asked = [
            (value, place, replace(entry, varied=(one, *entry.varied)))
            for value, one in values.items()
            for place, entry in enumerate(entries)
            if (value, place) not in self.found
        ]
        call = partial(_call, self.base, registry=self.registry)
        for (value, place, _), row in run_all(asked, call, self.kept, ahead=2 * self.chosen.request.workers):
            step = row.get("step_ns")
            self.found[value, place] = (step, bool(row["fits"])) if isinstance(step, int) else None


def chosen_for_search(
    registry: Registry, executor: str | Mapping[str, Any] | None, workers: int | None
) -> ExecutorChoice | None:
    """Return what a search runs on: processes where only their number is given, None where nothing is.

    Raises:
        PluginError: no plugin offers the executor.
        ConfigError: an option that it does not take.
    """
    if executor is None and workers is None:
        return None
    return choose(executor or "processes", registry, workers or cores())


def _call(base: Base, asked: tuple[int, int, Entry], *, registry: Registry | None) -> Row:
    return run_point(base, asked[2], registry)
