"""Schedules, networks, message policies and costs built from offers, and their checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from pptrace.errors import ConfigError, ConstraintError, PluginError, TableError
from pptrace.memo import memoized
from pptrace.network.contract import Flat, Links, Paths, check_links, check_paths
from pptrace.plugins.guards import call_plugin, plugin_code, plugin_error
from pptrace.steps.actions import Action
from pptrace.steps.message_calls import Policy, checked_calls
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import CostModelOffer, MessagePolicyOffer, NetworkOffer, ScheduleOffer
    from pptrace.plugins.providers import Provided, Provider
    from pptrace.plugins.requests import CostRequest, NetworkRequest, ScheduleRequest
    from pptrace.steps.columns import Int32s
    from pptrace.steps.message_calls import CheckedCalls, MessageRequest

_MOST_CELLS, _CELLS_PER_ACTION = 1_000_000, 64
"""Maximum cells of a row, and per stage and microbatch: more than all actions, messages and copies."""
_SEPARATORS = re.compile(r"[\s,]+")


def build_schedule(provided: Provided[ScheduleOffer], request: ScheduleRequest) -> Schedule:
    """Return the table that a schedule builds for ``request``; its actions are not validated yet.

    A row may be a list of actions, a list of texts, or one text of actions separated by blanks.

    Raises:
        ConstraintError: the schedule does not support these sizes.
        PluginError: it raised, or did not return a table of these ranks and microbatches.
    """
    offer, provider = provided.offer, provided.provider
    if offer.check is not None:
        offer.check(request)
    with plugin_code(provider, offer.build):
        built = offer.build(request)
        rows = [] if isinstance(built, Schedule) else _rows(provider, offer, built, request)
    title = f"the table of schedule {offer.name!r}"
    try:
        table = built if isinstance(built, Schedule) else Schedule.from_rows(rows)
    except TableError as error:
        raise plugin_error(provider, f"{title} cannot be read: {error}") from error
    if table.ranks != request.ranks:
        raise plugin_error(provider, f"{title} has {table.ranks} ranks, but {request.ranks} were requested")
    parts = offer.parts(request) if offer.parts else 1
    if table.microbatches != request.microbatches * parts * table.updates:
        cut = f" of {parts} parts" if parts > 1 else ""
        cut += f" for each of {table.updates} updates" if table.updates > 1 else ""
        message = f"has {table.microbatches} microbatches, but {request.microbatches}{cut} were requested"
        raise plugin_error(provider, f"{title} {message}")
    if table.has_pairs and not offer.has_pairs:
        message = f"schedule {offer.name!r} has overlapped pairs: its offer needs has_pairs=True"
        raise plugin_error(provider, message)
    return table


class GuardedNetwork(Struct, frozen=True):
    """A plugin's network with checked links and paths; its exceptions become errors of the plugin."""

    provider: Provider
    """The plugin."""
    name: str
    """The name of its offer."""
    network: Network
    """The network that the plugin built."""

    @property
    def links(self) -> Links:
        """All shared links.

        Raises:
            PluginError: the plugin raised, or returned no links.
        """
        return memoized(self._read_links, "links", self.network)

    def _read_links(self) -> Links:
        name = f"links of network {self.name!r}"
        with plugin_code(self.provider, type(self.network), name=name):
            links: object = self.network.links
        if not isinstance(links, Links):
            raise plugin_error(self.provider, f"{name} are {links!r:.60}, expected Links")
        return links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths from each ``src`` to each ``dst`` rank.

        Raises:
            PluginError: the plugin raised, or returned invalid paths.
        """
        paths = self.unchecked_paths(src, dst)
        try:
            check_paths(paths, src.size, len(self.links))
        except PluginError as error:
            raise plugin_error(self.provider, str(error)) from error
        return paths

    def unchecked_paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths from each ``src`` to each ``dst`` rank, which may have invalid values.

        Raises:
            PluginError: the plugin raised, or returned no paths.
        """
        name = f"paths of network {self.name!r}"
        with plugin_code(self.provider, self.network.paths, name=name):
            paths: object = self.network.paths(src, dst)
        if not isinstance(paths, Paths):
            raise plugin_error(self.provider, f"{name} returned {paths!r:.60}, expected Paths")
        return paths


def build_network(provided: Provided[NetworkOffer], request: NetworkRequest) -> Network:
    """Return the network that an offer builds, with checked links and paths.

    Raises:
        PluginError: it raised, or returned something without links and paths.
    """
    offer, provider = provided.offer, provided.provider
    network = offer.build(request)
    has_links = hasattr(network, "links") or hasattr(type(network), "links")  # a property may raise
    if not callable(getattr(network, "paths", None)) or not has_links:
        message = f"returned {_describe(network)}, expected an object with links and paths(src, dst)"
        raise plugin_error(provider, f"network {offer.name!r} {message}")
    if type(network) is Flat and min(network.rate_kbps, network.latency_ns, network.overhead_ns) >= 0:
        return network  # valid, and without code of the plugin
    guarded = GuardedNetwork(provider=provider, name=offer.name, network=network)
    try:
        check_links(guarded.links)
    except PluginError as error:
        raise error if error.plugin else plugin_error(provider, f"network {offer.name!r}: {error}") from error
    return guarded


def build_policy(provided: Provided[MessagePolicyOffer], schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Return the message policy of an offer for a table; errors of its program become errors of the plugin.

    Raises:
        ConstraintError: it cannot place this table's messages, or does not support the options for this table.
        PluginError: it raised, or returned no policy.
        ScheduleError: it cannot place the messages because the table is invalid.
    """
    offer, provider = provided.offer, provided.provider
    try:
        policy: object = offer.build(schedule, options)
    except ConstraintError:
        validate(schedule)
        raise
    if not isinstance(policy, Policy):
        raise plugin_error(
            provider, f"message policy {offer.name!r} returned {_describe(policy)}, expected a Policy"
        )
    program = policy.program
    if program is not None and schedule.has_communication:
        raise ConstraintError(
            f"{offer.name} inserts messages, but the table already has messages: use ordered or blocking",
            key="p2p.policy",
        )
    if program is None:
        return replace(policy, title=offer.name)

    def guarded(request: MessageRequest) -> CheckedCalls:
        calls = call_plugin(provider, program, request)
        try:
            return checked_calls(request, calls, offer.name)
        except PluginError as error:
            raise plugin_error(provider, str(error)) from error

    return replace(policy, program=guarded, title=offer.name)


def build_workload(provided: Provided[CostModelOffer], request: CostRequest) -> Workload:
    """Return the workload that a cost model builds for ``request``.

    Raises:
        PluginError: it raised, or did not return a workload of these stages.
    """
    offer, provider = provided.offer, provided.provider
    workload: object = offer.build(request)
    title = f"cost model {offer.name!r} returned"
    if not isinstance(workload, Workload):
        raise plugin_error(provider, f"{title} {_describe(workload)}, expected a Workload")
    if workload.stages != request.stages:
        message = f"costs of {workload.stages} stages, but {request.stages} were requested"
        raise plugin_error(provider, f"{title} {message}")
    classified = workload.microbatch_class.size
    if classified not in {0, request.microbatches}:
        message = f"classes of {classified} microbatches where there are {request.microbatches}"
        raise plugin_error(provider, f"{title} {message}")
    return workload


def checked_options(provided: Provided[Any], options: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the validated options of an offer, with its defaults.

    Args:
        provided: the offer; an offer without a parameter model takes no options.
        options: the user's options.
        key: configuration key of the options, for errors.

    Raises:
        ConfigError: an option is unknown, missing or of another type.
    """
    from pptrace.config.validation import validate_options

    offer = provided.offer
    if offer.options is not None:
        return dict(validate_options(offer.options(), dict(options), key).model_dump())
    if options:
        raise ConfigError(f"{offer.name} takes no options: remove it", key=f"{key}.{next(iter(options))}")
    return {}


def _rows(
    provider: Provider, offer: ScheduleOffer, built: object, request: ScheduleRequest
) -> list[list[str | Action | None]]:
    def error(message: str) -> PluginError:
        return plugin_error(provider, f"schedule {offer.name!r} returned {message}")

    if not isinstance(built, Iterable) or isinstance(built, str):
        raise error(f"{_describe(built)}, expected a Schedule or one row of actions per rank")
    rows: list[list[str | Action | None]] = []
    max_cells = max(_MOST_CELLS, _CELLS_PER_ACTION * request.stages * request.microbatches)
    for rank, row in enumerate(built):
        if rank == request.ranks:
            raise error(f"more rows than the {rank} requested ranks")
        if not isinstance(row, Iterable):
            raise error(f"{_describe(row)} as the row of rank {rank}, expected a list of actions")
        cells = (
            [cell for cell in _SEPARATORS.split(row) if cell]
            if isinstance(row, str)
            else list(islice(row, max_cells + 1))
        )
        if len(cells) > max_cells:
            raise error(f"more than {max_cells:,} actions of rank {rank}: does it ever end?")
        for position, cell in enumerate(cells):
            if cell is not None and not isinstance(cell, str | Action):
                raise error(f"{_describe(cell)} as action {position} of rank {rank}, expected text such as 0F3")
        rows.append(cast("list[str | Action | None]", cells))
    return rows


def _describe(value: object) -> str:
    text = " ".join(repr(value).split())
    short = f"{text[:57]}…" if len(text) > 60 else text  # noqa: PLR2004 - a line of a terminal holds it
    return f"{short} ({type(value).__name__})"
