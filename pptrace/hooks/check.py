"""Check an offer before anyone uses it: its sort, its interface version, its name and its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from pptrace.commands import COMMANDS
from pptrace.hooks.call import plugin_error
from pptrace.hooks.offers import API

if TYPE_CHECKING:
    from pptrace.hooks.offers import ClusterOffer, CommandOffer, ExporterOffer
    from pptrace.hooks.provider import AnyOffer, Provider
    from pptrace.hooks.sorts import Sort

__all__ = ["NAME", "check_offer", "cluster_fault", "command_fault", "exporter_fault", "no_fault"]

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
