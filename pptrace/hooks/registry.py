"""A registry holds the plugins of one run and what they offer; ``main()`` builds one, each test its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pluggy import PluginManager
from pluggy import PluginValidationError as HookMismatch

from pptrace.errors import PluginError
from pptrace.hooks import specs
from pptrace.hooks.call import one_line, plugin_code, plugin_error
from pptrace.hooks.check import check_offer
from pptrace.hooks.guard import guarded
from pptrace.hooks.loading import core_provider, find_entry_points
from pptrace.hooks.misfit import misfit
from pptrace.hooks.offers import (
    ClusterOffer,
    CostModelOffer,
    DeviceOffer,
    ExecutorOffer,
    ExporterOffer,
    ImporterOffer,
    ModelOffer,
    NetworkOffer,
    ScheduleOffer,
)
from pptrace.hooks.provider import HOOKS, AnyOffer, Failure, Provided, Provider
from pptrace.hooks.tracing import trace_calls
from pptrace.hooks.unknown import unknown_name

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["Registry"]

Offer = TypeVar("Offer", bound=AnyOffer)
DISABLE = "PPTRACE_DISABLE_PLUGINS"
"""Environment variable: names of plugins or distributions to leave out, separated by commas, or ``all``."""

TRACE = "PPTRACE_TRACE_HOOKS"
"""Environment variable: 1 prints every hook call."""

_NONE: Mapping[str, object] = MappingProxyType({})


class Registry:
    """The plugins of one run; what they offer is collected when it is first asked for, once per hook.

    >>> sorted(Registry.load(entry_points=False).networks)[:1]
    ['hockney']
    """

    def __init__(self, plugins: Iterable[tuple[Provider, object]] = (), *, trace: TextIO | None = None) -> None:
        self.providers: list[Provider] = []
        """Plugins that take part, the core's own first."""
        self.failures: list[Failure] = []
        """Plugins that were left out because something was wrong with them."""
        self.disabled: list[Provider] = []
        """Plugins that were left out because the user asked so."""
        self._plugins: dict[Provider, object] = {}
        self._offers: dict[tuple[Provider, type], tuple[Provided[Any], ...]] = {}
        self._files: dict[str, Provided[ScheduleOffer]] = {}
        self._manager = PluginManager(specs.PROJECT)
        self._manager.add_hookspecs(specs)
        if trace is not None:
            trace_calls(self._manager, trace)
        for provider, plugin in plugins:
            self._register(provider, plugin)

    @classmethod
    def load(
        cls,
        *,
        entry_points: bool = True,
        disable: Collection[str] = (),
        trace: TextIO | None = None,
        plugins: Mapping[str, object] = _NONE,
        warn: Callable[[str], None] | None = None,
    ) -> Self:
        """Return a registry of the core's own plugin, of ``plugins`` by name, and of installed ones.

        Args:
            entry_points: whether installed plugins take part.
            disable: plugin or distribution names to leave out, beside those of
                ``PPTRACE_DISABLE_PLUGINS``; ``all`` for every installed one.
            trace: where to print hook calls; standard error where ``PPTRACE_TRACE_HOOKS`` is set and not 0.
            plugins: modules or objects with hooks, for plugins that nobody installed.
            warn: called with one line for each plugin left out; prints to standard error by default.
        """
        from pptrace.hooks import builtin

        if trace is None and os.environ.get(TRACE, "0") not in {"", "0"}:
            trace = sys.stderr
        own = [(Provider(name=name), plugin) for name, plugin in plugins.items()]
        registry = cls([(core_provider(), builtin), *own], trace=trace)
        if entry_points:
            unknown = registry._add_installed({*disable, *_names(os.environ.get(DISABLE, ""))})
            for name in unknown:
                (warn or _warn)(f"{DISABLE} names {name!r}, which no installed plugin is called")
        for failure in registry.failures:
            (warn or _warn)(f"{failure.provider} is left out: {failure.reason}")
        return registry

    @cached_property
    def schedules(self) -> Mapping[str, Provided[ScheduleOffer]]:
        """Schedules by name."""
        return self._gather(ScheduleOffer)

    @cached_property
    def networks(self) -> Mapping[str, Provided[NetworkOffer]]:
        """Network models by name."""
        return self._gather(NetworkOffer)

    @cached_property
    def cost_models(self) -> Mapping[str, Provided[CostModelOffer]]:
        """Cost models by name."""
        return self._gather(CostModelOffer)

    @cached_property
    def models(self) -> Mapping[str, Provided[ModelOffer]]:
        """Model presets by name."""
        return self._gather(ModelOffer)

    @cached_property
    def devices(self) -> Mapping[str, Provided[DeviceOffer]]:
        """Device presets by name."""
        return self._gather(DeviceOffer)

    @cached_property
    def clusters(self) -> Mapping[str, Provided[ClusterOffer]]:
        """Cluster presets by name."""
        return self._gather(ClusterOffer)

    @cached_property
    def executors(self) -> Mapping[str, Provided[ExecutorOffer]]:
        """What runs the points of a sweep, by name."""
        return self._gather(ExecutorOffer)

    @cached_property
    def exporters(self) -> Mapping[str, Provided[ExporterOffer]]:
        """Trace formats that can be written, by name."""
        return self._gather(ExporterOffer)

    @cached_property
    def importers(self) -> Mapping[str, Provided[ImporterOffer]]:
        """Trace formats that can be read, by name."""
        return self._gather(ImporterOffer)

    def schedule(self, name: str) -> Provided[ScheduleOffer]:
        """Return a schedule by name, or from a file as ``./mine.py:make``; as below for others."""
        from pptrace.hooks.from_file import is_file_reference, schedule_from_file

        if is_file_reference(name):
            if name not in self._files:
                self._files[name] = schedule_from_file(name)
            return self._files[name]
        return self._find(self.schedules, name, ScheduleOffer)

    def network(self, name: str) -> Provided[NetworkOffer]:
        """Return a network model by name.

        Raises:
            PluginError: no plugin offers it; says which are known and how to get more.
        """
        return self._find(self.networks, name, NetworkOffer)

    def cost_model(self, name: str) -> Provided[CostModelOffer]:
        """Return a cost model by name."""
        return self._find(self.cost_models, name, CostModelOffer)

    def model(self, name: str) -> Provided[ModelOffer]:
        """Return a model preset by name."""
        return self._find(self.models, name, ModelOffer)

    def device(self, name: str) -> Provided[DeviceOffer]:
        """Return a device preset by name."""
        return self._find(self.devices, name, DeviceOffer)

    def cluster(self, name: str) -> Provided[ClusterOffer]:
        """Return a cluster preset by name."""
        return self._find(self.clusters, name, ClusterOffer)

    def executor(self, name: str) -> Provided[ExecutorOffer]:
        """Return an executor of sweeps by name."""
        return self._find(self.executors, name, ExecutorOffer)

    def exporter(self, name: str) -> Provided[ExporterOffer]:
        """Return an exporter by name."""
        return self._find(self.exporters, name, ExporterOffer)

    def importer(self, name: str) -> Provided[ImporterOffer]:
        """Return an importer by name."""
        return self._find(self.importers, name, ImporterOffer)

    def offers_of(self, provider: Provider, sort: type[Offer]) -> tuple[Provided[Offer], ...]:
        """Return what one plugin offers of one sort.

        Raises:
            PluginError: the hook raised, or yielded what it must not.
        """
        key = provider, sort
        if key not in self._offers:
            self._offers[key] = self._call(provider, sort)
        return self._offers[key]

    def _gather(self, sort: type[Offer]) -> Mapping[str, Provided[Offer]]:
        found: dict[str, Provided[Offer]] = {}
        for provider in self.providers:
            for provided in self.offers_of(provider, sort):
                name = provided.offer.name
                if name in found:
                    message = (
                        f"{HOOKS[sort]} yielded {name!r}, which {found[name].provider} offers too; "
                        f"uninstall one or set PPTRACE_DISABLE_PLUGINS={provider.name}"
                    )
                    raise plugin_error(provider, message)
                found[name] = provided
        return MappingProxyType(found)

    def _call(self, provider: Provider, sort: type[Offer]) -> tuple[Provided[Offer], ...]:
        plugin, hook = self._plugins[provider], HOOKS[sort]
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        function = next((impl.function for impl in impls if impl.plugin is plugin), None)
        if function is None:
            return ()
        others = [impl.plugin for impl in impls if impl.plugin is not plugin]
        with plugin_code(provider, function):
            results = self._manager.subset_hook_caller(hook, others)()
            offers = results[0] if results else None
            if not isinstance(offers, Iterable) or isinstance(offers, str | Mapping):
                raise plugin_error(provider, f"{hook} returned {offers!r:.60}, expected an iterable of offers")
            listed = list(offers)
        for offer in listed:
            check_offer(provider, offer, sort)
        own = plugin is self._plugins.get(core_provider())  # what the core raises is a bug, with its traceback
        safe = listed if own else [guarded(provider, offer) for offer in listed]
        return tuple(Provided(offer=offer, provider=provider) for offer in safe)

    def _find(self, known: Mapping[str, Provided[Offer]], name: str, sort: type[Offer]) -> Provided[Offer]:
        if name not in known:
            raise PluginError(unknown_name(name, known, sort, self.providers, self.disabled, self.failures))
        return known[name]

    def _add_installed(self, disable: Collection[str]) -> tuple[str, ...]:
        """Register what the entry points give; return the names to disable that no plugin has."""
        found = find_entry_points(disable)
        self.failures += found.failures
        self.disabled += found.disabled
        for provider, plugin in found.plugins:
            self._register(provider, plugin)
        return found.unknown

    def _register(self, provider: Provider, plugin: object) -> None:
        key = f"{provider.distribution}:{provider.name}"
        try:
            hash(plugin)
            self._manager.register(plugin, key)
            self._manager.check_pending()
            reason = misfit(plugin)
        except HookMismatch as error:
            reason = misfit(plugin) or one_line(error)
        except Exception as error:  # noqa: BLE001 - reading a foreign object's attributes may raise anything
            reason = one_line(error)
        if not reason:
            self.providers.append(provider)
            self._plugins[provider] = plugin
            return
        if self._manager.has_plugin(key):
            self._manager.unregister(name=key)
        self.failures.append(Failure(provider=provider, reason=reason))


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _warn(message: str) -> None:
    sys.stderr.write(f"pptrace: warning: {message}\n")
