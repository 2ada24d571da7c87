"""The registry of offers, and errors about unknown names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pluggy import PluginManager
from pluggy import PluginValidationError as HookMismatch

from pptrace.config.flags import FLAGS
from pptrace.errors import PluginError, nearest
from pptrace.plugins.discovery import core_provider, find_entry_points, misfit, trace_calls
from pptrace.plugins.guards import (
    MOST_OFFERS,
    guarded,
    interruption,
    one_line,
    plugin_code,
    plugin_error,
    plugin_output,
)
from pptrace.plugins.hookspecs import SORTS, Sort, Sorts, check_offer, hook_specs
from pptrace.plugins.markers import PROJECT
from pptrace.plugins.offers import AnyOffer, Failure, Offered, Provided, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

__all__ = ["Registry", "more_of", "unknown_name"]

Offer = TypeVar("Offer", bound=AnyOffer)
DISABLE = "PPTRACE_DISABLE_PLUGINS"
"""Environment variable: names of plugins or distributions to leave out, separated by commas, or ``all``."""

TRACE = "PPTRACE_TRACE_HOOKS"
"""Environment variable: 1 prints every hook call."""

_OWN = ("pptrace-accuracy", "pptrace-stp")
"""Distributions of pptrace's own that are no sort's source."""

_NONE: Mapping[str, object] = MappingProxyType({})


class Registry(Sorts):
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
        self._offers: dict[tuple[Provider, str], tuple[Provided[Any], ...]] = {}
        self._offered: dict[str, Offered[Any]] = {}
        self._found: dict[tuple[str, str], Provided[Any]] = {}
        self._told: Callable[[str], None] = _warn
        self._manager = PluginManager(PROJECT)
        self._manager.add_hookspecs(hook_specs())
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
        from pptrace.plugins import builtin

        if trace is None and os.environ.get(TRACE, "0") not in {"", "0"}:
            trace = sys.stderr
        own = [(Provider(name=name), plugin) for name, plugin in plugins.items()]
        registry = cls([(core_provider(), builtin), *own], trace=trace)
        registry._told = warn or _warn
        if entry_points:
            unknown = registry._add_installed({*disable, *_names(os.environ.get(DISABLE, ""))})
            for name in unknown:
                (warn or _warn)(f"{DISABLE} names {name!r}, which no installed plugin is called")
        for failure in registry.failures:
            (warn or _warn)(f"{failure.provider} is left out: {failure.reason}")
        return registry

    def offered(self, sort: Sort[Offer]) -> Offered[Offer]:
        """Return all offers of a sort by name; a name that nobody offers is an error that says how to get more."""
        if sort.hook not in self._offered:
            self._offered[sort.hook] = Offered(self._gather(sort), partial(self._elsewhere, sort))
        return self._offered[sort.hook]

    def offers_of(self, provider: Provider, sort: Sort[Offer]) -> tuple[Provided[Offer], ...]:
        """Return what one plugin offers of one sort.

        Raises:
            PluginError: the hook raised, or yielded what it must not.
        """
        key = provider, sort.hook
        if key not in self._offers:
            try:
                self._offers[key] = self._call(provider, sort)
            except _UnusableError as error:
                self._leave_out(provider, str(error))
                return ()
        return self._offers[key]

    def _gather(self, sort: Sort[Offer]) -> dict[str, Provided[Offer]]:
        found: dict[str, Provided[Offer]] = {}
        for provider in tuple(self.providers):
            for provided in self.offers_of(provider, sort):
                name = provided.offer.name
                if name in found:
                    raise _clash(found[name].provider, provider, f"{sort.hook} yielded {name!r}")
                found[name] = provided
        return found

    def _call(self, provider: Provider, sort: Sort[Offer]) -> tuple[Provided[Offer], ...]:
        plugin, hook = self._plugins[provider], sort.hook
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        function = next((impl.function for impl in impls if impl.plugin is plugin), None)
        if function is None:
            return ()
        others = [impl.plugin for impl in impls if impl.plugin is not plugin]
        with plugin_code(provider, function):
            listed = self._listed(provider, hook, others)
        if len(listed) > MOST_OFFERS:
            raise _UnusableError(f"{hook} yields more than {MOST_OFFERS:,} offers")
        for offer in listed:
            check_offer(provider, offer, sort)
        own = plugin is self._plugins.get(core_provider())  # what the core raises is a bug, with its traceback
        safe = listed if own else [guarded(provider, offer, sort.noun) for offer in listed]
        return tuple(Provided(offer=offer, provider=provider) for offer in safe)

    def _listed(self, provider: Provider, hook: str, others: Collection[object]) -> list[Any]:
        """Return what a hook yields, one more than may be at most."""
        try:
            results = self._manager.subset_hook_caller(hook, others)()
            offers = results[0] if results else None
            if isinstance(offers, Iterable) and not isinstance(offers, str | Mapping):
                return list(islice(offers, MOST_OFFERS + 1))
        except (Exception, interruption()):
            raise
        except BaseException as error:
            raise _UnusableError(f"{hook} raised {one_line(error)}") from error
        raise plugin_error(provider, f"{hook} returned {offers!r:.60}, expected an iterable of offers")

    def _leave_out(self, provider: Provider, reason: str) -> None:
        """Take a plugin out that would end the program or never end; the others go on."""
        failure = Failure(provider=provider, reason=reason)
        self.failures.append(failure)
        if provider in self.providers:
            self.providers.remove(provider)
        self._told(f"{failure.provider} is left out: {failure.reason}")

    def _elsewhere(self, sort: Sort[Offer], name: str) -> Provided[Offer]:
        key = sort.hook, name
        found = self._found.get(key) or sort.elsewhere(name)
        if found is None:
            raise PluginError(unknown_name(name, self.offered(sort), sort, self))
        self._found[key] = found
        return found

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
            with plugin_output():
                hash(plugin)
                self._manager.register(plugin, key)
                self._manager.check_pending()
                reason = misfit(plugin)
        except HookMismatch as error:
            reason = misfit(plugin) or one_line(error)
        except interruption():
            raise
        except BaseException as error:  # noqa: BLE001 - reading a foreign object's attributes may raise anything
            reason = one_line(error)
        if not reason:
            self.providers.append(provider)
            self._plugins[provider] = plugin
            return
        if self._manager.has_plugin(key):
            self._manager.unregister(name=key)
        self.failures.append(Failure(provider=provider, reason=reason))


class _UnusableError(PluginError):
    """A plugin that is left out, wherever its fault is found."""


def _clash(first: Provider, second: Provider, what: str) -> PluginError:
    """Return the error of two plugins that offer one name; what to disable is never one of pptrace's own."""
    own = {PROJECT, *_OWN, *(sort.source for sort in SORTS)}
    stranger, other = (first, second) if second.distribution in own else (second, first)
    message = f"{what}, which {other} offers too; uninstall one or set {DISABLE}={stranger.name}"
    return plugin_error(stranger, message)


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _warn(message: str) -> None:
    sys.stderr.write(f"pptrace: warning: {message}\n")


def unknown_name(name: str, known: Iterable[str], sort: Sort[Any], registry: Registry) -> str:
    """Return the message for an unknown ``name``: the section that knows it, or how to get more."""
    known = list(known)
    if "," in name and {one.strip() for one in name.split(",")} <= set(known):
        return f"{name!r} are several {sort.plural.replace('_', ' ')}: name one"
    flags = [flag for flag in FLAGS.values() if flag.offers and flag.offers != sort.plural]
    other = next((flag.key for flag in flags if name in getattr(registry, flag.offers)), None)
    if other is not None:
        return f"{name!r} is no {sort.noun}: write it under {other}"
    advice = f"{more_of(sort, registry)}{sort.hint}"
    article = "an" if sort.noun[0] in "aeiou" else "a"
    return f"no installed plugin offers {article} {sort.noun} named {name!r}{nearest(name, known)}{advice}"


def more_of(sort: Sort[Any], registry: Registry) -> str:
    """Return how to get more of a sort, as the end of a message; nothing where all is well."""
    source, broken = sort.source, [failure.provider for failure in registry.failures]
    if not source or _has(source, registry.providers):
        return f"; left out, see `pptrace plugins`: {_listed(broken)}" if broken else ""
    if _has(source, registry.disabled):
        return f"; {source} is disabled by PPTRACE_DISABLE_PLUGINS"
    if _has(source, broken):
        return f"; {source} failed to load, see `pptrace plugins`"
    return f"; more come with `pip install {source}`"


def _has(distribution: str, providers: Iterable[Provider]) -> bool:
    return any(provider.distribution == distribution for provider in providers)


def _listed(providers: Sequence[Provider]) -> str:
    return ", ".join(provider.distribution or provider.name for provider in providers)
