"""The inputs of one simulation, and the configuration places of errors about them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pptrace.config.flags import HEADLINES
from pptrace.config.schema import OpenSection
from pptrace.errors import ConfigError, ConstraintError, CostError, PluginError, PptraceError, ScheduleError
from pptrace.plugins.from_file import is_file_reference
from pptrace.run.speeds import at_speeds_of_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic import BaseModel

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment
    from pptrace.network.cluster import Cluster, Hops
    from pptrace.network.contract import Network
    from pptrace.network.layout import Layout
    from pptrace.plugins.offers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.sim.rate_sharing import Contention
    from pptrace.steps.columns import Int64s
    from pptrace.steps.message_calls import Policy
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.text_forms import TableFile
    from pptrace.steps.workload import Workload

__all__ = ["Assembly", "Differing", "OnCluster", "Prepared", "at_location", "kinds_of", "located"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCluster:
    """A job on a cluster."""

    cluster: Cluster
    """The network between all GPUs."""
    layout: Layout
    """Which GPUs each pipeline rank is."""
    hops: Hops
    """The network between pipeline ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Differing:
    """What differs between the replicas of a job."""

    costs: Workload
    """Costs at full speed, with a class for each length."""
    lengths: Int64s | None
    """Tokens in each microbatch's sequences, shape (replicas, microbatches); None where all are alike."""
    speeds: Int64s | None
    """Speeds of ranks in thousandths, shape (replicas, ranks); None where all have the device's."""

    @classmethod
    def of(cls, costs: Workload, lengths: Int64s | None, speeds: Int64s | None) -> Self | None:
        """Return what differs, or None where nothing may."""
        return None if lengths is None and speeds is None else cls(costs=costs, lengths=lengths, speeds=speeds)

    @property
    def kinds(self) -> int:
        """How many replicas are like none before them."""
        return len(kinds_of(self.lengths, self.speeds)[0])

    def costs_of(self, replica: int, placement: Placement) -> Workload:
        """Return one replica's costs, whose stages are so placed."""
        costs = self.costs
        if self.lengths is not None:
            own = np.searchsorted(np.unique(self.lengths), self.lengths[replica]) + 1
            costs = replace(costs, microbatch_class=own.astype(np.int32))
        return costs if self.speeds is None else at_speeds_of_ranks(costs, self.speeds[replica], placement)


def kinds_of(lengths: Int64s | None, speeds: Int64s | None) -> tuple[Int64s, Int64s]:
    """Return the first replica of each kind, and which kind each replica is.

    Args:
        lengths: shape (replicas, microbatches); None where all are alike.
        speeds: shape (replicas, ranks); not None, too.
    """
    rows = np.hstack([one for one in (lengths, speeds) if one is not None])
    _, first, kind_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind_of.ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What one simulation is run on."""

    resolved: Resolved
    """The configuration, every option of every plugin filled in."""
    schedule: Schedule
    """The table."""
    request: ScheduleRequest
    """What the schedule was asked for; a table file answers what it holds."""
    workload: Workload
    """What the actions cost."""
    network: Network
    """What lies between the ranks."""
    policy: Policy
    """How messages are issued."""
    contention: Contention
    """What messages that meet do to each other."""
    plugins: Mapping[str, str]
    """Distribution and version of each plugin that took part."""
    job: OnCluster | None = None
    """The cluster and the job's place on it; None where a flat network stands for it."""
    table: TableFile | None = None
    """The file that the schedule was read from, if any."""
    notes: tuple[str, ...] = ()
    """What of the configuration was left out or has no effect, one sentence each."""
    differing: Differing | None = None
    """What differs between replicas; None where nothing may."""

    @property
    def batch_text(self) -> str:
        """How many microbatches, in words, and in how many slices of a sequence each where it is cut."""
        whole = self.request.microbatches
        slices = self.schedule.microbatches // whole
        return f"{whole} microbatches" + (f" in {slices} slices each" if slices > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The configuration and the plugins that took part; every step returns another one that knows more."""

    resolved: Resolved
    """The configuration, filled in further by every part."""
    registry: Registry
    """The plugins."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Distribution and version of each plugin that took part."""

    @property
    def experiment(self) -> Experiment:
        """What the configuration says."""
        return self.resolved.experiment

    def at(self, resolved: Resolved) -> Assembly:
        """Return this with a configuration that is filled in further."""
        return replace(self, resolved=resolved)

    def using(self, provided: Provided[Any]) -> Assembly:
        """Return this with a note of whose offer is used."""
        if not provided.distribution:
            return self
        return replace(self, plugins={**self.plugins, provided.distribution: provided.version})

    def options(
        self, key: str, model: Any, preset: Mapping[str, Any] | None = None
    ) -> tuple[Assembly, dict[str, Any]]:
        """Return checked options, and this with them filled in: for a parameter model its fields, else none.

        Raises:
            ConfigError: an option that is unknown, missing or of another type.
        """
        section = getattr(self.experiment, key)
        if model is not None:
            self._refuse_other_forms(key, section, model().model_fields)
            resolved, checked = self.resolved.options(key, model(), preset or {})
            return self.at(resolved), dict(checked.model_dump())
        apart = getattr(section, "options", None)
        for name in section.values if apart is None else apart:
            prefix = key if apart is None else f"{key}.options"
            called = section.policy if key == "p2p" else section.name
            own = apart is not None and name in type(section).model_fields
            message = f"it is no option: write {key}.{name}" if own else f"{called} takes no options: remove it"
            raise self.resolved.error(f"{prefix}.{name}", message)
        return self, {}

    def _refuse_other_forms(self, key: str, section: BaseModel | None, known: Collection[str]) -> None:
        """Refuse the keys that other sections have in place of this one's."""
        values = section.values if isinstance(section, OpenSection) else {}
        if "options" in values and "options" not in known:
            message = f"options stand beside {key}.{HEADLINES[key]}, without a key of their own"
            raise self.resolved.error(f"{key}.options", message)
        if "name" in values and "name" not in known:
            raise self.resolved.error(f"{key}.name", f"it is no parameter: write {key}.{HEADLINES[key]}")


@contextmanager
def at_location(resolved: Resolved, key: str, *, options: bool = False) -> Iterator[None]:
    """Run a block on behalf of what stands under ``key``, the place of errors that name no other key.

    Args:
        resolved: the configuration.
        key: whose block this is.
        options: whether errors name an option under ``key``, as those of networks do, and not a whole key.

    Raises:
        ConfigError: as the block raised it, with its place; costs that cannot be counted, with the place of their
            section, or of the batch that they follow from.
        ConstraintError: likewise.
        PluginError: likewise where a name or file is unknown; what a plugin did wrong has its own place.
    """
    try:
        yield
    except ConfigError as error:
        if error.file or error.line:
            raise
        own = f"{key}.{error.key}" if options and error.key else error.key
        raise _at(resolved, own or key, error.message) from error
    except CostError as error:
        raise _at_costs(resolved, error) from error
    except ConstraintError as error:
        if error.file or error.line:
            raise
        at = _at(resolved, error.key or key, error.reason)
        raise ConstraintError(
            at.message, nearest=error.nearest, key=at.key, file=at.file, line=at.line, column=at.column
        ) from error
    except PluginError as error:
        if error.plugin and not is_file_reference(error.plugin):
            raise
        message = str(_at(resolved, key, str(error)))
        raise PluginError(message, plugin=error.plugin, distribution=error.distribution) from error


def located(error: ScheduleError, prepared: Prepared, registry: Registry) -> PptraceError:
    """Return an error of a schedule with the cell of its file, or with who made the offending action."""
    if prepared.table is not None:
        return prepared.table.locate(error)
    if error.rank >= 0:
        name = prepared.resolved.experiment.schedule.name
        maker = registry.schedules[name].provider
        of = f" of {maker}" if maker.distribution else ""
        error.args = (f"schedule {name}{of}: {error}",)
    return error


def _at_costs(resolved: Resolved, error: CostError) -> ConfigError:
    batch = resolved.experiment.batch
    if resolved.experiment.model is None:
        return _at(resolved, "costs", f"{error}: check the units")
    key = "batch.micro" if batch.micro > (batch.sequence or 0) else "batch.sequence"
    size = f"micro {batch.micro:,} x sequence {batch.sequence:,}"
    return resolved.error(key, f"{size}: {error}; choose a smaller size")


def _at(resolved: Resolved, key: str, message: str) -> ConfigError:
    """Return an error about a key; a whole section's place is that of its name."""
    named = f"{key}.{HEADLINES[key]}" if key in HEADLINES else key
    at = resolved.error(named, message)
    return ConfigError(message, key=key, file=at.file, line=at.line, column=at.column)
