"""What plugins can offer: a row per sort, and hook, place in the registry, checks and messages follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from pptrace.hooks import offers
from pptrace.hooks.check import cluster_fault, command_fault, exporter_fault, no_fault
from pptrace.hooks.provider import AnyOffer, Offered
from pptrace.hooks.specs import hookspec
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.hooks.provider import Provided

__all__ = ["SORTS", "Sort", "Sorts", "hook_specs"]

Offer = TypeVar("Offer", bound=AnyOffer)


class _Registry(Protocol):
    def offered(self, sort: Sort[Offer]) -> Offered[Offer]: ...


def _nowhere(name: str) -> Provided[Any] | None:
    del name
    return None


def _schedule_in_a_file(name: str) -> Provided[offers.ScheduleOffer] | None:
    from pptrace.hooks.from_file import is_file_reference, schedule_from_file

    return schedule_from_file(name) if is_file_reference(name) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Generic[Offer]):
    """One sort of offers; as an attribute of a registry, all of them by name."""

    hook: str
    """The hook that yields them, a plural noun behind ``pptrace_``."""
    offer: type[Offer]
    """The record that each of them is."""
    fault: Callable[[Any], str] = no_fault
    """Says what is wrong with an offer beyond what its fields' types say; nothing where it is sound."""
    source: str = ""
    """The distribution that more of them come with, where nobody knows a name."""
    elsewhere: Callable[[str], Provided[Offer] | None] = _nowhere
    """Makes an offer of a name that no plugin lists; None where there is none."""
    hint: str = ""
    """What else a user may write in place of a name, as the end of a message."""

    @property
    def plural(self) -> str:
        """The registry's attribute: ``cost_models``."""
        return self.hook.removeprefix("pptrace_")

    @property
    def noun(self) -> str:
        """What messages call one of them: ``cost model``."""
        singular = f"{self.plural[:-3]}y" if self.plural.endswith("ies") else self.plural.removesuffix("s")
        return singular.replace("_", " ")

    @overload
    def __get__(self, registry: None, owner: type) -> Self: ...
    @overload
    def __get__(self, registry: _Registry, owner: type) -> Offered[Offer]: ...
    def __get__(self, registry: _Registry | None, owner: type) -> Self | Offered[Offer]:
        return self if registry is None else registry.offered(self)


class Sorts:
    """The table of sorts."""

    schedules = Sort(
        hook="pptrace_schedules",
        offer=offers.ScheduleOffer,
        source="pptrace-schedules",
        elsewhere=_schedule_in_a_file,
        hint=", or write ./FILE.py:FUNCTION for one of your own",
    )
    networks = Sort(hook="pptrace_networks", offer=offers.NetworkOffer, source="pptrace-networks")
    message_policies = Sort(
        hook="pptrace_message_policies", offer=offers.MessagePolicyOffer, source="pptrace-frameworks"
    )
    cost_models = Sort(hook="pptrace_cost_models", offer=offers.CostModelOffer, source="pptrace-models")
    models = Sort(hook="pptrace_models", offer=offers.ModelOffer, source="pptrace-models")
    devices = Sort(hook="pptrace_devices", offer=offers.DeviceOffer, source="pptrace-models")
    clusters = Sort(
        hook="pptrace_clusters", offer=offers.ClusterOffer, source="pptrace-networks", fault=cluster_fault
    )
    executors = Sort(hook="pptrace_executors", offer=offers.ExecutorOffer)
    exporters = Sort(hook="pptrace_exporters", offer=offers.ExporterOffer, fault=exporter_fault)
    importers = Sort(hook="pptrace_importers", offer=offers.ImporterOffer, source="pptrace-profilers")
    commands = Sort(
        hook="pptrace_commands", offer=offers.CommandOffer, source="pptrace-profilers", fault=command_fault
    )


SORTS: tuple[Sort[Any], ...] = tuple(row for row in vars(Sorts).values() if isinstance(row, Sort))
"""The rows, in their order."""


def hook_specs() -> type:
    """Return what pluggy knows hooks by: a function of no arguments per sort."""
    return type("Hooks", (), {sort.hook: hookspec(_spec(sort)) for sort in SORTS})


def _spec(sort: Sort[Any]) -> Callable[[], None]:
    def spec() -> None:
        """Yield what a plugin offers."""

    spec.__name__ = sort.hook
    return spec
