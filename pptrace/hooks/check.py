"""Check an offer before anyone uses it: its sort, its interface version, its name and its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pptrace.hooks.call import plugin_error
from pptrace.hooks.offers import API, ClusterOffer
from pptrace.hooks.provider import HOOKS

if TYPE_CHECKING:
    from pptrace.hooks.provider import AnyOffer, Provider

__all__ = ["NAME", "check_offer"]

NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
"""A name as users type it: lower-case words and digits, joined by hyphens (or a version's dots)."""

_REQUIRED = ("build", "write", "recognises", "read")
_OPTIONAL = ("options", "check", "bubble", "peak_activations", "model", "device")


def check_offer(provider: Provider, offer: object, expected: type[AnyOffer]) -> None:
    """Return when ``offer`` is a sound offer of the sort ``expected``.

    Raises:
        PluginError: what is wrong with it, and whose it is.
    """
    hook = HOOKS[expected]
    if not isinstance(offer, expected):
        kind = f"the class {offer.__name__}" if isinstance(offer, type) else f"a {type(offer).__name__}"
        raise plugin_error(provider, f"{hook} yielded {kind}, expected a {expected.__name__}")
    wrong = _version(offer) or _name(offer) or _fields(offer)
    if wrong:
        raise plugin_error(provider, f"{hook} yielded {expected.__name__} {offer.name!r}: {wrong}")


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


def _fields(offer: AnyOffer) -> str:
    if not isinstance(getattr(offer, "values", {}), Mapping):
        return "its values are not a mapping"
    if isinstance(offer, ClusterOffer):
        return "" if isinstance(offer.device, str | Mapping) else "its device is neither a name nor a mapping"
    for field in (*_REQUIRED, *_OPTIONAL):
        value = getattr(offer, field, None)
        absent_is_fine = field in _OPTIONAL or not hasattr(offer, field)
        if not callable(value) and not (value is None and absent_is_fine):
            return f"its {field} is not callable"
    suffixes = getattr(offer, "suffixes", (".",))
    if not isinstance(suffixes, tuple) or not all(
        isinstance(suffix, str) and suffix.startswith(".") for suffix in suffixes
    ):
        return "its suffixes are not a tuple of endings such as '.json'"
    return ""
