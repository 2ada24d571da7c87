"""Say what to do about a name that no plugin offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.flags import FLAGS
from pptrace.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.hooks.provider import Provider
    from pptrace.hooks.registry import Registry
    from pptrace.hooks.sorts import Sort

__all__ = ["more_of", "unknown_name"]


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
