"""The hooks that a plugin can implement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from pptrace.plugins import offers
from pptrace.plugins.command_names import COMMANDS
from pptrace.plugins.guards import plugin_error
from pptrace.plugins.markers import hookspec
from pptrace.plugins.offers import API, AnyOffer, Offered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.plugins.offers import ClusterOffer, CommandOffer, ExporterOffer, Provided, Provider

__all__ = [
    "NAME",
    "SORTS",
    "Sort",
    "Sorts",
    "check_offer",
    "cluster_fault",
    "command_fault",
    "exporter_fault",
    "hook_specs",
    "no_fault",
]

NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
"""A name as users type it: lower-case words and digits, joined by hyphens (or a version's dots)."""


def check_offer(provider: Provider, offer: object, sort: Sort[Any]) -> None:
    """Return when ``offer`` is a sound offer of its sort.

    Raises:
        PluginError: what is wrong with it, and whose it is.
    """
    expected = sort.offer
    if not isinstance(offer, expected):
        kind = f"the class {offer.__name__}" if isinstance(offer, type) else f"a {type(offer).__name__}"
        raise plugin_error(provider, f"{sort.hook} yielded {kind}, expected a {expected.__name__}")
    wrong = _version(offer) or _name(offer) or _fields(offer) or sort.fault(offer)
    if wrong:
        raise plugin_error(provider, f"{sort.hook} yielded {expected.__name__} {offer.name!r}: {wrong}")


def no_fault(offer: object) -> str:
    """Return nothing: an offer's fields say all."""
    del offer
    return ""


def cluster_fault(offer: ClusterOffer) -> str:
    """Return what is wrong with a cluster's device."""
    return "" if isinstance(offer.device, str | Mapping) else "its device is neither a name nor a mapping"


def exporter_fault(offer: ExporterOffer) -> str:
    """Return what is wrong with a format's endings."""
    suffixes: object = offer.suffixes
    if isinstance(suffixes, tuple) and all(isinstance(each, str) and each.startswith(".") for each in suffixes):
        return ""
    return "its suffixes are not a tuple of endings such as '.json'"


def command_fault(offer: CommandOffer) -> str:
    """Return what is wrong with a command's name."""
    return "pptrace has a command of that name itself; give it another" if offer.name in COMMANDS else ""


def _version(offer: AnyOffer) -> str:
    if offer.api == API:
        return ""
    newer = isinstance(offer.api, int) and offer.api > API
    remedy = "update pptrace" if newer else "update the plugin"
    return f"it asks for plugin interface {offer.api!r} and this pptrace has {API}; {remedy}"


def _name(offer: AnyOffer) -> str:
    if not isinstance(offer.name, str) or not NAME.fullmatch(offer.name):
        return "a name is lower-case letters and digits in words joined by hyphens, such as zb-h1"
    if not isinstance(offer.summary, str) or not offer.summary.strip() or "\n" in offer.summary:
        return "its summary is not one line of text"
    return ""


def _fields(offer: Any) -> str:
    """Return what is wrong with the callables and mappings that an offer's annotations promise."""
    for field in fields(offer):
        value, annotation = getattr(offer, field.name), str(field.type)
        left_out = value is None and field.default is not MISSING
        if annotation.startswith("Callable") and not callable(value) and not left_out:
            return f"its {field.name} is not callable"
        if annotation.startswith("Mapping") and not isinstance(value, Mapping):
            return f"its {field.name} are not a mapping"
    return ""


Offer = TypeVar("Offer", bound=AnyOffer)


class _Registry(Protocol):
    def offered(self, sort: Sort[Offer]) -> Offered[Offer]: ...


def _nowhere(name: str) -> Provided[Any] | None:
    del name
    return None


def _schedule_in_a_file(name: str) -> Provided[offers.ScheduleOffer] | None:
    from pptrace.plugins.from_file import is_file_reference, schedule_from_file

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
    explanations = Sort(hook="pptrace_explanations", offer=offers.ExplanationOffer, source="pptrace-stragglers")
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
