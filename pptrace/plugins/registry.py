"""The registry of offers, discovery of plugins by their entry points, and errors about unknown names."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial, reduce
from importlib import import_module
from itertools import islice
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from msgspec import Struct
from pluggy import PluginManager

from pptrace.errors import PluginError, nearest
from pptrace.plugins import hookspecs
from pptrace.plugins.guards import (
    MOST_OFFERS,
    check_offer,
    guarded,
    interruption,
    one_line,
    plugin_code,
    plugin_error,
    plugin_output,
)
from pptrace.plugins.hookspecs import MARK, PROJECT
from pptrace.plugins.providers import AnyOffer, Failure, Offered, Provided, Provider
from pptrace.version import __version__

if TYPE_CHECKING:
    from importlib import metadata
    from typing import TextIO

    from pluggy import HookimplOpts

    from pptrace.plugins import offers, providers

Offer = TypeVar("Offer", bound=AnyOffer)
DISABLE = "PPTRACE_DISABLE_PLUGINS"
"""Environment variable: names of plugins or distributions to leave out, separated by commas, or ``all``."""
ALL = "all"

TRACE = "PPTRACE_TRACE_HOOKS"
"""Environment variable: 1 prints every hook call."""

_OTHER_DISTRIBUTIONS = ("pptrace-accuracy", "pptrace-chakra", "pptrace-stp")
"""Distributions of this project that are not the ``source`` of an offer kind."""

_NONE: Mapping[str, object] = MappingProxyType({})


class OfferKind(Generic[Offer]):
    """Kind of the offers of one hook; as an attribute of a registry instance, its offers by name."""

    def __init__(self, path: str, source: str = "") -> None:
        self.path = path
        """Module in :mod:`pptrace.plugins` and class of the offers, which are imported when the hook is called."""
        self.source = source
        """Distribution with more offers of this kind, for messages about an unknown name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.plural = name
        """The registry's attribute: ``cost_models``."""
        self.hook = f"pptrace_{name}"
        """Name of the hook in :mod:`pptrace.plugins.hookspecs`."""

    @property
    def offer(self) -> type[Offer]:
        """Class of the offers."""
        record: type[Offer] = resolve_name(f"pptrace.plugins.{self.path}")
        return record

    @property
    def noun(self) -> str:
        """The singular in messages: ``cost model``."""
        singular = f"{self.plural[:-3]}y" if self.plural.endswith("ies") else self.plural.removesuffix("s")
        return singular.replace("_", " ")

    @overload
    def __get__(self, registry: None, owner: type) -> Self: ...
    @overload
    def __get__(self, registry: Registry, owner: type) -> Offered[Offer]: ...
    def __get__(self, registry: Registry | None, owner: type) -> Self | Offered[Offer]:
        return self if registry is None else registry.offered(self)


class Registry:
    """The plugins of one run. Each hook is called once, on first use of its offers.

    >>> sorted(Registry.load(entry_points=False).networks)[:1]
    ['hockney']
    """

    schedules: OfferKind[offers.ScheduleOffer] = OfferKind("offers:ScheduleOffer", "pptrace-schedules")
    networks: OfferKind[offers.NetworkOffer] = OfferKind("offers:NetworkOffer", "pptrace-networks")
    message_policies: OfferKind[offers.MessagePolicyOffer] = OfferKind(
        "offers:MessagePolicyOffer", "pptrace-frameworks"
    )
    cost_models: OfferKind[offers.CostModelOffer] = OfferKind("offers:CostModelOffer", "pptrace-models")
    models: OfferKind[offers.ModelOffer] = OfferKind("offers:ModelOffer", "pptrace-models")
    devices: OfferKind[offers.DeviceOffer] = OfferKind("offers:DeviceOffer", "pptrace-models")
    stacks: OfferKind[offers.StackOffer] = OfferKind("offers:StackOffer", "pptrace-frameworks")
    clusters: OfferKind[offers.ClusterOffer] = OfferKind("offers:ClusterOffer", "pptrace-networks")
    executors: OfferKind[offers.ExecutorOffer] = OfferKind("offers:ExecutorOffer")
    exporters: OfferKind[offers.ExporterOffer] = OfferKind("offers:ExporterOffer")
    importers: OfferKind[offers.ImporterOffer] = OfferKind("offers:ImporterOffer", "pptrace-profilers")
    explanations: OfferKind[offers.ExplanationOffer] = OfferKind("offers:ExplanationOffer", "pptrace-stragglers")
    commands: OfferKind[providers.CommandOffer] = OfferKind("providers:CommandOffer", "pptrace-profilers")

    def __init__(self, plugins: Iterable[tuple[Provider, object]] = (), *, trace: TextIO | None = None) -> None:
        self.providers: list[Provider] = []
        """Active plugins; the core's own is first."""
        self.failures: list[Failure] = []
        """Plugins that failed to load."""
        self.disabled: list[Provider] = []
        """Plugins that the user disabled."""
        self._plugins: dict[Provider, object] = {}
        self._offers: dict[tuple[Provider, str], tuple[Provided[Any], ...]] = {}
        self._offered: dict[str, Offered[Any]] = {}
        self._schedules_in_files: dict[str, Provided[offers.ScheduleOffer]] = {}
        self._warn: Callable[[str], None] = _print_warning
        self._trace = trace
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
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
        """Return a registry of the core's plugin, of ``plugins`` by name, and of installed plugins.

        Args:
            entry_points: whether to load installed plugins.
            disable: names of plugins or distributions to leave out, in addition to
                ``PPTRACE_DISABLE_PLUGINS``; ``all`` for every installed plugin.
            trace: where to print hook calls; standard error where ``PPTRACE_TRACE_HOOKS`` is set and not 0.
            plugins: modules or objects with hooks, for plugins that are not installed.
            warn: called with one line for each plugin left out; prints to standard error by default.
        """
        from pptrace.plugins import builtin

        if trace is None and os.environ.get(TRACE, "0") not in {"", "0"}:
            trace = sys.stderr
        local_plugins = [(Provider(name=name), plugin) for name, plugin in plugins.items()]
        registry = cls([(core_provider(), builtin), *local_plugins], trace=trace)
        warn = registry._warn = warn or _print_warning
        if entry_points:
            unknown = registry._add_installed({*disable, *_names(os.environ.get(DISABLE, ""))})
            for name in unknown:
                warn(f"{DISABLE} names {name!r}, which no installed plugin is called")
        for failure in registry.failures:
            warn(f"{failure.provider} is skipped: {failure.reason}")
        return registry

    def offered(self, kind: OfferKind[Offer]) -> Offered[Offer]:
        """Return all offers of a kind by name. The error for an unknown name has installation hints."""
        if kind.hook not in self._offered:
            self._offered[kind.hook] = Offered(self._gather(kind), partial(self._look_up_file, kind))
        return self._offered[kind.hook]

    def offers_of(self, provider: Provider, kind: OfferKind[Offer]) -> tuple[Provided[Offer], ...]:
        """Return the offers of one kind of one plugin.

        Raises:
            PluginError: the hook raised, or yielded an invalid offer.
        """
        key = provider, kind.hook
        if key not in self._offers:
            try:
                self._offers[key] = self._call(provider, kind)
            except _UnusableError as error:
                self._leave_out(provider, str(error))
                return ()
        return self._offers[key]

    def _gather(self, kind: OfferKind[Offer]) -> dict[str, Provided[Offer]]:
        by_name: dict[str, Provided[Offer]] = {}
        for provider in tuple(self.providers):
            for provided in self.offers_of(provider, kind):
                name = provided.offer.name
                if name in by_name:
                    raise _clash(by_name[name].provider, provider, f"{kind.hook} yielded {name!r}")
                by_name[name] = provided
        return by_name

    def _call(self, provider: Provider, kind: OfferKind[Offer]) -> tuple[Provided[Offer], ...]:
        plugin, hook = self._plugins[provider], kind.hook
        implementations = getattr(self._manager.hook, hook).get_hookimpls()
        function = next((impl.function for impl in implementations if impl.plugin is plugin), None)
        if function is None:
            return ()
        other_plugins = [impl.plugin for impl in implementations if impl.plugin is not plugin]
        with plugin_code(provider, function):
            listed = self._list_offers(provider, hook, other_plugins)
        if len(listed) > MOST_OFFERS:
            raise _UnusableError(f"{hook} yields more than {MOST_OFFERS:,} offers")
        expected = kind.offer
        for offer in listed:
            check_offer(provider, offer, hook, expected)
        is_core = plugin is self._plugins.get(core_provider())  # an exception of the core is a bug: no guard
        checked_offers = listed if is_core else [guarded(provider, offer, kind.noun) for offer in listed]
        return tuple(Provided(offer=offer, provider=provider) for offer in checked_offers)

    def _list_offers(self, provider: Provider, hook: str, other_plugins: Collection[object]) -> list[Any]:
        """Return the offers that a hook yields without ``other_plugins``; at most one above the limit."""
        try:
            results = self._manager.subset_hook_caller(hook, other_plugins)()
            offers = results[0] if results else None
            if isinstance(offers, Iterable) and not isinstance(offers, str | Mapping):
                listed = list(islice(offers, MOST_OFFERS + 1))
                self._print_call(provider, hook, ", ".join(str(getattr(offer, "name", offer)) for offer in listed))
                return listed
        except (Exception, interruption()) as error:
            self._print_call(provider, hook, one_line(error))
            raise
        except BaseException as error:
            raise _UnusableError(f"{hook} raised {one_line(error)}") from error
        raise plugin_error(provider, f"{hook} returned {offers!r:.60}, expected an iterable of offers")

    def _print_call(self, provider: Provider, hook: str, outcome: str) -> None:
        if self._trace is not None:
            name = f"{provider.distribution}:{provider.name}"
            print(f"pptrace: {hook}() of {name} -> {outcome or 'nothing'}", file=self._trace)

    def _leave_out(self, provider: Provider, reason: str) -> None:
        """Remove a plugin that exits the program or yields endlessly."""
        failure = Failure(provider=provider, reason=reason)
        self.failures.append(failure)
        if provider in self.providers:
            self.providers.remove(provider)
        self._warn(f"{failure.provider} is skipped: {failure.reason}")

    def _look_up_file(self, kind: OfferKind[Any], name: str) -> Provided[Any]:
        """Return the schedule that a name refers to as ``FILE.py:FUNCTION``."""
        from pptrace.plugins.from_file import is_file_reference, schedule_from_file

        if kind is not Registry.schedules or not is_file_reference(name):
            raise PluginError(_unknown_name(name, self.offered(kind), kind, self))
        if name not in self._schedules_in_files:
            self._schedules_in_files[name] = schedule_from_file(name)
        return self._schedules_in_files[name]

    def _add_installed(self, disable: Collection[str]) -> list[str]:
        """Register installed plugins; return the names in ``disable`` that match no plugin."""
        known_names = {ALL}
        for provider, entry_point in sorted(entry_points(), key=lambda pair: (pair[0].distribution, pair[0].name)):
            names = {provider.name, provider.distribution}
            known_names |= names
            if ALL in disable or not names.isdisjoint(disable):
                self.disabled.append(provider)
            elif isinstance(entry_point, str):
                self.failures.append(Failure(provider=provider, reason=entry_point))
            else:
                self._register(provider, entry_point)
        return sorted(set(disable) - known_names)

    def _register(self, provider: Provider, plugin: object) -> None:
        """Add a plugin, which may be an entry point to load."""
        try:
            with plugin_output():
                plugin = plugin.load() if isinstance(plugin, EntryPoint) else plugin
                reason = misfit(plugin)
                if provider in self._plugins or any(plugin is other for other in self._plugins.values()):
                    reason = "it is registered already"
                if not reason:
                    self._manager.register(plugin, f"{provider.distribution}:{provider.name}")
        except interruption():
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            reason = one_line(error)
        if reason:
            self.failures.append(Failure(provider=provider, reason=reason))
        else:
            self.providers.append(provider)
            self._plugins[provider] = plugin


class _Manager(PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> HookimplOpts | None:
        """Return the options of a hook. The look-up of pluggy is slow, so it is for functions alone."""
        is_function = inspect.isroutine(getattr(plugin, name, None))
        return super().parse_hookimpl_opts(plugin, name) if is_function else None


class _UnusableError(PluginError):
    """A fault for which the plugin is left out."""


def _clash(first: Provider, second: Provider, what: str) -> PluginError:
    """Return the error of two plugins that offer the same name; advise to disable a third-party plugin."""
    project_distributions = {PROJECT, *_OTHER_DISTRIBUTIONS, *(kind.source for kind in OFFER_KINDS)}
    third_party, other = (first, second) if second.distribution in project_distributions else (second, first)
    message = f"{what}, which {other} offers too; uninstall one or set {DISABLE}={third_party.name}"
    return plugin_error(third_party, message)


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _print_warning(message: str) -> None:
    sys.stderr.write(f"pptrace: warning: {message}\n")


def _unknown_name(name: str, known: Iterable[str], kind: OfferKind[Any], registry: Registry) -> str:
    """Return the message for an unknown ``name``: the section with this name, or installation hints."""
    from pptrace.config.flags import FLAGS

    known = list(known)
    if "," in name and {part.strip() for part in name.split(",")} <= set(known):
        return f"{name!r} are several {kind.plural.replace('_', ' ')}: name one"
    if kind is Registry.schedules and (with_options := re.fullmatch(r"(.+?):(\w+=.*)", name)):
        schedule, options = with_options[1], with_options[2].split(":")
        keys = [f"parallel.{each}" if each.startswith("vp=") else f"schedule.options.{each}" for each in options]
        return f"{name!r} has options: name the schedule {schedule}, and set {' and '.join(keys)}"
    flags = [flag for flag in FLAGS.values() if flag.offers and flag.offers != kind.plural]
    section = next((flag.key for flag in flags if name in getattr(registry, flag.offers)), None)
    article = "an" if kind.noun[0] in "aeiou" else "a"
    if section is not None:
        return f"{name!r} is not {article} {kind.noun}: write it under {section}"
    file_hint = ", or write ./FILE.py:FUNCTION for your own" if kind is Registry.schedules else ""
    advice = f"{more_of(kind, registry)}{file_hint}"
    return f"no installed plugin offers {article} {kind.noun} named {name!r}{nearest(name, known)}{advice}"


def more_of(kind: OfferKind[Any], registry: Registry) -> str:
    """Return advice on installing more offers of a kind, to end a message; empty if its source is installed."""
    source, failed = kind.source, [failure.provider for failure in registry.failures]
    if not source or _has(source, registry.providers):
        names = ", ".join(provider.distribution or provider.name for provider in failed)
        return f"; skipped, see `pptrace plugins`: {names}" if failed else ""
    if _has(source, registry.disabled):
        return f"; {source} is disabled by PPTRACE_DISABLE_PLUGINS"
    if _has(source, failed):
        return f"; {source} failed to load, see `pptrace plugins`"
    return f"; more come with {installation(source)}"


def installation(plugin: str) -> str:
    """Return the command that installs a plugin of the repository, to end a message."""
    return f"`pip install ./plugins/{plugin}` in a copy of the repository"


def _has(distribution: str, providers: Iterable[Provider]) -> bool:
    return any(provider.distribution == distribution for provider in providers)


def core_provider() -> Provider:
    """Return the provider of the core's own offers."""
    return Provider(name="builtin", distribution=PROJECT, version=__version__)


class EntryPoint(Struct, frozen=True):
    """Where a plugin is: a module, or an attribute of it."""

    module: str
    """The module's name."""
    attribute: str = ""
    """Names joined by dots; empty for the module itself."""

    def load(self) -> object:
        """Import the plugin."""
        names = self.attribute.split(".") if self.attribute else []
        plugin: object = reduce(getattr, names, import_module(self.module))
        return plugin


class _Distribution(Struct, frozen=True):
    """A distribution that is installed in a folder."""

    folder: str
    """The folder of its metadata."""

    def read_text(self, name: str) -> str | None:
        """Return the text of a file of metadata; None if it is missing."""
        try:
            with open(f"{self.folder}/{name}", encoding="utf-8") as file:  # noqa: PTH123 - pathlib slows start-up
                return file.read()
        except OSError:
            return None


def _distributions(path: Iterable[str]) -> Iterator[_Distribution | metadata.Distribution]:
    """Yield the installed distributions in the order of Python's path.

    Only those in archives need ``importlib.metadata``, whose import takes a sixth of ``pptrace --help``.
    """
    for place in path:
        try:
            names = [entry.name for entry in os.scandir(place or ".")]
        except NotADirectoryError:
            from importlib import metadata

            yield from metadata.distributions(path=[place])
        except OSError:
            continue
        else:
            folders = (name for name in names if name.endswith((".dist-info", ".egg-info")))
            yield from (_Distribution(f"{place or '.'}/{folder}") for folder in folders)


def entry_points() -> tuple[tuple[Provider, EntryPoint | str], ...]:
    """Return each plugin with its entry point or an error message.

    ``metadata.entry_points`` fails if one line of any installed distribution is malformed.
    """
    return _entry_points(tuple(sys.path), tuple(map(_state_of, sys.path)))


def _state_of(place: str) -> tuple[int, ...]:
    """Return what changes with the entries of a folder: inode, number of links, time of the last change in ns."""
    try:
        state = os.stat(place or ".")  # noqa: PTH116 - pathlib slows start-up
    except OSError:
        return ()
    return state.st_ino, state.st_nlink, state.st_mtime_ns


@lru_cache(maxsize=1)
def _entry_points(
    path: tuple[str, ...], _states: tuple[tuple[int, ...], ...]
) -> tuple[tuple[Provider, EntryPoint | str], ...]:
    """Return the entry points in Python's path, which are read again after a folder has changed."""
    return tuple(_read_entry_points(path))


def _read_entry_points(path: Iterable[str]) -> Iterator[tuple[Provider, EntryPoint | str]]:
    seen_names = set()
    for distribution in _distributions(path):
        try:
            lines = _lines_of_group(distribution.read_text("entry_points.txt") or "")
        except UnicodeDecodeError:
            name, version = _identity(distribution)
            yield Provider(name=name, distribution=name, version=version), "its entry_points.txt is not UTF-8 text"
            continue
        if not lines:
            continue
        name, version = _identity(distribution)
        if name and name in seen_names:  # Python imports from the first on its path
            continue
        seen_names.add(name)
        for line in lines:
            entry = line.partition("=")[0].strip()
            yield Provider(name=entry, distribution=name, version=version), _entry_point(line)


def _lines_of_group(text: str) -> list[str]:
    lines, section = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == f"[{PROJECT}]" and line and not line.startswith("#"):
            lines.append(line)
    return lines


def _identity(distribution: _Distribution | metadata.Distribution) -> tuple[str, str]:
    """Return name and version, empty where the metadata does not hold them."""
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except UnicodeDecodeError:
        return "", ""
    headers = text.partition("\n\n")[0]  # distribution.metadata parses the description, too
    matches = (re.search(rf"^{key}: *(.*)$", headers, re.MULTILINE) for key in ("Name", "Version"))
    name, version = (match[1].strip() if match else "" for match in matches)
    return name, version


def _entry_point(line: str) -> EntryPoint | str:
    name, _, value = (part.strip() for part in line.partition("="))
    place = _PLACE.fullmatch(value)
    if name and place:
        return EntryPoint(place["module"], place["attribute"] or "")
    return f"its entry point {line!r} is not NAME = MODULE"


_PLACE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\])?")
"""The value of an entry point; extras in brackets are ignored."""
_PREFIX = f"{PROJECT}_"


def misfit(plugin: object) -> str:
    """Return the reason why ``plugin`` is unusable as one sentence; the empty string for a usable plugin."""
    known = {name for name in vars(hookspecs) if name.startswith(_PREFIX)}
    hooks = 0
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        mark = getattr(function, MARK, None)
        if mark is None:
            if name in known:
                return f"{name} is not marked; write @hookimpl above it"
            continue
        hook = mark["specname"] or name
        if hook not in known:
            return f"hook {hook!r} does not exist{nearest(hook, known)}"
        if inspect.signature(function).parameters:
            return f"{name} takes no arguments, and this one declares {inspect.signature(function)}"
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return f"{name} is async, and nothing awaits it: write it without async"
        hooks += 1
    if hooks:
        return ""
    return f"it implements no hook{nearest('', known)}"


OFFER_KINDS: tuple[OfferKind[Any], ...] = tuple(
    kind for kind in vars(Registry).values() if isinstance(kind, OfferKind)
)
"""Kinds of offers, in the order of :class:`Registry`."""
