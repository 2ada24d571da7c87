"""The inputs of one simulation, and the configuration places of errors about them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.choices import Bridge
from pptrace.config.flags import HEADLINES
from pptrace.config.places import Place, place_of
from pptrace.config.schema import OpenSection, module_title
from pptrace.errors import ConfigError, ConstraintError, CostError, PluginError, PptraceError, ScheduleError
from pptrace.memo import memoized
from pptrace.network.cluster import Layout
from pptrace.plugins.from_file import is_file_reference
from pptrace.report.numbers import microbatches_text
from pptrace.sim.simulation import lower_step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

    from pydantic import BaseModel

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import DataParallel, Experiment, Parallel
    from pptrace.network.cluster import RankNetwork
    from pptrace.network.contract import Network
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.run.speeds import ReplicaCosts
    from pptrace.sim.engines import Contention
    from pptrace.sim.simulation import Simulated
    from pptrace.steps.message_calls import Policy
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.text_forms import TableFile
    from pptrace.steps.workload import Workload

Offer = TypeVar("Offer")
Result = TypeVar("Result")


class StepInputs(Struct, frozen=True):
    """The inputs of one simulation."""

    resolved: Resolved
    """The configuration, every option of every plugin filled in."""
    schedule: Schedule
    """The table."""
    request: ScheduleRequest
    """The request to the schedule; of a table file, its own sizes."""
    workload: Workload
    """Costs of actions."""
    network: Network
    """The network between ranks."""
    policy: Policy
    """The message policy."""
    contention: Contention
    """Effects of simultaneous messages on each other."""
    plugins: Mapping[str, str]
    """Distribution and version of each plugin that took part."""
    job: RankNetwork | None = None
    """The cluster and the layout of the job on it; None for a network without a cluster."""
    table: TableFile | None = None
    """The file of the schedule, if any."""
    notes: tuple[str, ...] = ()
    """Dropped parts of the configuration and parts without effect, one sentence each."""
    differing: ReplicaCosts | None = None
    """Costs of replicas that may differ."""
    undivided: Schedule | None = None
    """The table of whole stages if ``schedule`` has their units as stages; None for stages without units."""

    @property
    def stage_table(self) -> Schedule:
        """The table of whole stages."""
        return self.undivided or self.schedule

    @property
    def units(self) -> int:
        """Number of units of a step without a pipeline; 1 for stages that are no units."""
        return 1 if self.undivided is None else self.schedule.stages

    @property
    def chunks(self) -> int:
        """Number of chunks of the model on each rank."""
        chunks, rest = divmod(self.schedule.stages, self.schedule.ranks * self.units)
        return self.request.chunks if rest else chunks

    @property
    def slices(self) -> int:
        """Return the number of slices of each microbatch's sequence, which the table has as microbatches."""
        return self.schedule.step_microbatches // self.request.microbatches

    @property
    def batch_text(self) -> str:
        """Return the number of microbatches in words, and of slices of each sequence where it is cut."""
        return microbatches_text(self.request.microbatches, self.slices)

    def simulate(self) -> Simulated:
        """Simulate the step.

        Raises:
            ScheduleError: the table cannot run.
            PluginError: the network fails.
        """
        reduction = self.resolved.experiment.data_parallel
        lowered = lower_step(
            self.schedule, self.workload, self.network, self.policy, contention=self.contention,
            overlap_reduction=reduction.overlaps, stage_replicas=reduction.stage_replicas,
        )  # fmt: skip
        return lowered.run()


class Preparation(Struct, kw_only=True):
    """A configuration that the stages of preparation fill in, and the plugins that they use."""

    resolved: Resolved
    """The configuration; each stage fills in its sections."""
    registry: Registry
    """All plugins."""
    plugins: dict[str, str] = field(default_factory=dict)
    """Distribution and version of each used plugin."""
    notes: tuple[str, ...] = ()
    """What a user should know of the result, one sentence each."""

    @property
    def experiment(self) -> Experiment:
        """Return the values of the configuration."""
        return self.resolved.experiment

    def copy(self) -> Preparation:
        """Return a copy that other stages can fill in."""
        return replace(self, plugins=dict(self.plugins))

    def share(
        self,
        compute: Callable[[Preparation], Result],
        name: Hashable,
        *,
        reads: Iterable[str],
        fills: Iterable[str],
        rows: int,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> Result:
        """Return the result of a stage of preparation; steps with the same sections share it.

        Args:
            compute: the stage, which gets these inputs without plugins and notes.
            name: its name, and values that it reads besides sections.
            reads: the sections that it reads.
            fills: the sections that it fills in.
            rows: rows of its result in a memo.
            may_keep: as for :func:`~pptrace.memo.memoized`.
        """

        def run() -> tuple[Result, Preparation, dict[str, Any], dict[str, str]]:
            filled = replace(self, plugins={}, notes=())
            result = compute(filled)
            values = {section: getattr(filled.experiment, section) for section in fills}
            texts = filled.resolved.origins.items()
            return result, filled, values, {key: text for key, text in texts if key.partition(".")[0] in values}

        sections = (getattr(self.experiment, section) for section in reads)
        result, filled, values, origins = memoized(
            run, name, self.registry, *sections, rows=rows, may_keep=may_keep
        )
        self.plugins |= filled.plugins
        self.notes = (*self.notes, *(note for note in filled.notes if note not in self.notes))
        self.resolved = replace(
            self.resolved, experiment=self.experiment.model_copy(update=values),
            origins={**self.resolved.origins, **origins},
        )  # fmt: skip
        return result

    def use(self, provided: Provided[Offer]) -> Provided[Offer]:
        """Record the plugin of an offer, and return the offer."""
        provider = provided.provider
        if provider.distribution:
            self.plugins[provider.distribution] = provider.version
        return provided

    def look_up(self, offers: Mapping[str, Provided[Offer]], name: str, key: str) -> Provided[Offer]:
        """Return an offer by name, and record its plugin; ``key`` is the place of errors.

        Raises:
            PluginError: a name that no plugin offers.
        """
        with at_location(self.resolved, key):
            return self.use(offers[name])

    def fill_options(self, key: str, model: Any, preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Check the options of a section over the values of a preset, fill them in and return them.

        ``model`` returns the parameter model; it is None where the plugin takes no options.

        Raises:
            ConfigError: an option that is unknown, missing or of another type.
        """
        section = getattr(self.experiment, key)
        if model is not None:
            parameters = model()
            self._check_headline(key, section, parameters.model_fields)
            self.resolved, checked = self.resolved.options(key, parameters, preset or {})
            return dict(checked.model_dump())
        options = getattr(section, "options", None)
        for name in section.values if options is None else options:
            prefix = key if options is None else f"{key}.options"
            plugin = section.policy if key == "p2p" else section.name
            is_key = options is not None and name in type(section).model_fields
            message = f"{plugin} takes no options: remove it"
            if is_key:
                message = f"it is not an option: write {key}.{name}"
            raise self.resolved.error(f"{prefix}.{name}", message)
        return {}

    def _check_headline(self, key: str, section: BaseModel | None, known: Collection[str]) -> None:
        """Refuse ``options`` and ``name`` in a section without these keys."""
        values = section.values if isinstance(section, OpenSection) else {}
        if "options" in values and "options" not in known:
            message = f"write options beside {key}.{HEADLINES[key]}, without the key options"
            raise self.resolved.error(f"{key}.options", message)
        if "name" in values and "name" not in known:
            raise self.resolved.error(f"{key}.name", f"it is not a parameter: write {key}.{HEADLINES[key]}")


@contextmanager
def at_location(resolved: Resolved, key: str, *, options: bool = False) -> Iterator[None]:
    """Attach the configuration location of ``key`` to the errors of a block that have no location.

    Args:
        resolved: the configuration.
        key: the default key.
        options: whether errors name an option under ``key``, as those of networks do, and not a whole key.

    Raises:
        ConfigError: with its location; cost overflows have the location of their section or of the batch.
        ConstraintError: with its location.
        PluginError: with its location where a name or file is unknown; failures of plugins have their own.
    """
    try:
        yield
    except CostError as error:
        raise _cost_error(resolved, error) from error
    except ConfigError as error:
        if error.file or error.line:
            raise
        error_key = f"{key}.{error.key}" if options and error.key else error.key or key
        raise _place(resolved, error_key).error(error_key, error.message) from error
    except ConstraintError as error:
        if error.file or error.line:
            raise
        error_key = error.key or key
        place = _place(resolved, error_key)
        raise ConstraintError(
            error.reason, nearest=error.nearest, key=error_key, file=place.source, line=place.line,
            column=place.column, needs_memory=error.needs_memory,
        ) from error  # fmt: skip
    except PluginError as error:
        if error.plugin and not is_file_reference(error.plugin):
            raise
        message = str(_place(resolved, key).error(key, str(error)))
        raise PluginError(message, plugin=error.plugin, distribution=error.distribution) from error


def layout_of(resolved: Resolved) -> Layout:
    """Return the layout of a configuration's parallel sizes.

    Raises:
        ConfigError: an order with a missing, doubled or unknown axis; sizes that do not fit each other.
    """
    parallel, reduction = resolved.experiment.parallel, resolved.experiment.data_parallel
    key = "layout", reduction.shard, reduction.expert_shard, reduction.subgroup
    with at_location(resolved, "parallel"):
        return memoized(lambda: parallel_layout(parallel, reduction), key, parallel)


def parallel_layout(parallel: Parallel, reduction: DataParallel | None = None) -> Layout:
    """Return the layout of parallel sizes, whose replicas share state in shard groups, or all by default.

    Raises:
        ConfigError: as for :func:`layout_of`.
    """
    order, first_gpu, encoders = tuple(parallel.order.split("-")), 0, list[Layout]()
    shard = (reduction and reduction.shard) or 0
    for name, grid in parallel.grids.items():
        if not grid.pp:
            continue
        dp, cp, tp = parallel.grid_sizes(grid)
        encoders.append(Layout(
            pp=grid.pp, dp=dp, cp=cp, tp=tp, order=order, shard=shard, first_gpu=first_gpu,
            first_rank=encoders[-1].ranks if encoders else 0, name=module_title(name),
            leaders=grid.bridge is Bridge.LEADERS,
        ))  # fmt: skip
        first_gpu = encoders[-1].gpus
    first_rank = sum(parallel.branches)
    return Layout(
        pp=(parallel.pp or 1) - first_rank, dp=parallel.dp, cp=parallel.cp, ep=parallel.ep, tp=parallel.tp,
        etp=parallel.etp or 0, order=order, shard=shard, first_gpu=first_gpu, first_rank=first_rank,
        expert_shard=(reduction and reduction.expert_shard) or 0, subgroup=reduction.subgroup if reduction else 0,
        encoders=tuple(encoders),
    )  # fmt: skip


def located(error: ScheduleError, prepared: StepInputs, registry: Registry) -> PptraceError:
    """Return a schedule's error with the cell of its file, or with the plugin of the schedule."""
    if prepared.table is not None:
        return prepared.table.locate(error)
    if error.rank >= 0:
        name = prepared.resolved.experiment.schedule.name
        provider = registry.schedules[name].provider
        of = f" of {provider}" if provider.distribution else ""
        error.args = (f"schedule {name}{of}: {error}",)
    return error


def _cost_error(resolved: Resolved, error: CostError) -> ConfigError:
    batch = resolved.experiment.batch
    if resolved.experiment.model is None:
        return _place(resolved, "costs").error("costs", f"{error}: check the units")
    key = "batch.micro" if batch.micro > (batch.sequence or 0) else "batch.sequence"
    size = f"micro {batch.micro:,} x sequence {batch.sequence:,}"
    return resolved.error(key, f"{size}: {error}; choose a smaller size")


def _place(resolved: Resolved, key: str) -> Place:
    """Return where a key is written, a section at its name."""
    named = f"{key}.{HEADLINES[key]}" if key in HEADLINES else key
    return place_of(named, resolved.positions) or Place(source=resolved.file)
