"""Say what to do about a name that no plugin offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import nearest
from pptrace.hooks.offers import (
    ClusterOffer,
    CostModelOffer,
    DeviceOffer,
    ModelOffer,
    NetworkOffer,
    ScheduleOffer,
)
from pptrace.hooks.provider import HOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace.hooks.provider import Failure, Provider

__all__ = ["unknown_name"]

_IN_HOUSE: Mapping[type, str] = {
    ScheduleOffer: "pptrace-schedules",
    CostModelOffer: "pptrace-models",
    ModelOffer: "pptrace-models",
    DeviceOffer: "pptrace-models",
    NetworkOffer: "pptrace-networks",
    ClusterOffer: "pptrace-networks",
}
"""Where more of a sort come from, where nobody knows the name."""


def unknown_name(
    name: str,
    known: Mapping[str, object],
    sort: type,
    providers: Sequence[Provider],
    disabled: Sequence[Provider],
    failures: Sequence[Failure],
) -> str:
    """Return the message for an unknown ``name``: the nearest, the known ones, and how to get more."""
    noun = HOOKS[sort].removeprefix("pptrace_").removesuffix("s").replace("_", " ")
    advice = _advice(_IN_HOUSE.get(sort, ""), providers, disabled, failures)
    file = ", or write ./FILE.py:FUNCTION for one of your own" if sort is ScheduleOffer else ""
    return f"no installed plugin offers a {noun} named {name!r}{nearest(name, known)}{advice}{file}"


def _advice(
    source: str, providers: Sequence[Provider], disabled: Sequence[Provider], failures: Sequence[Failure]
) -> str:
    broken = [failure.provider for failure in failures]
    if not source or _has(source, providers):
        return f"; left out, see `pptrace plugins`: {_listed(broken)}" if broken else ""
    if _has(source, disabled):
        return f"; {source} is disabled by PPTRACE_DISABLE_PLUGINS"
    if _has(source, broken):
        return f"; {source} failed to load, see `pptrace plugins`"
    return f"; more come with `pip install {source}`"


def _has(distribution: str, providers: Iterable[Provider]) -> bool:
    return any(provider.distribution == distribution for provider in providers)


def _listed(providers: Sequence[Provider]) -> str:
    return ", ".join(provider.distribution or provider.name for provider in providers)
