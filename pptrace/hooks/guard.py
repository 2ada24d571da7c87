"""Guard an offer: whoever calls it, what goes wrong in the plugin's code is a plugin's error in one line."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Rational
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from pptrace.hooks.call import plugin_code, plugin_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.hooks.provider import AnyOffer, Provider

__all__ = ["guarded"]

Offer = TypeVar("Offer", bound="AnyOffer")

_FILES = frozenset({"write", "recognises", "read"})
"""Callables that touch the user's files: a full disk is no fault of the plugin."""


def guarded(provider: Provider, offer: Offer, noun: str) -> Offer:
    """Return ``offer`` with each callable raising as :func:`~pptrace.hooks.call.plugin_code` says.

    What an option model, a closed form or a reader returns is checked as well, and that a writer wrote; ``build``
    of each sort has its own check in :mod:`pptrace.hooks.build`.
    """
    guards = {
        field.name: _guard(provider, f"{field.name} of {noun} {offer.name!r}", field.name, function)
        for field in fields(offer)  # type: ignore[arg-type] # every offer is a dataclass
        if callable(function := getattr(offer, field.name))
    }
    return replace(offer, **guards)  # type: ignore[type-var] # as above


def _guard(provider: Provider, title: str, field: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passing = (OSError,) if field in _FILES else ()
    expected, holds = _RETURNS.get(field, ("", None))

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> Any:
        with plugin_code(provider, function, name=title, passing=passing):
            value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            raise plugin_error(provider, f"{title} is async, and nothing awaits it: write it without async")
        if holds is not None and not holds(value):
            raise plugin_error(provider, f"{title} returned {value!r:.60}, expected {expected}")
        if field == "write" and not args[1].exists():
            raise plugin_error(provider, f"{title} wrote no file")
        return value

    return guard


def _is_model(value: object) -> bool:
    return isinstance(value, type) and hasattr(value, "model_validate")


def _is_fractions(value: object) -> bool:
    return value is None or (isinstance(value, Sequence) and all(isinstance(item, Rational) for item in value))


def _is_timeline(value: object) -> bool:
    from pptrace.timeline.timeline import Timeline

    return isinstance(value, Timeline)


def _is_command(value: object) -> bool:
    from click import Command

    return isinstance(value, Command)


_MODEL = ("a pydantic model class", _is_model)
_COUNT = ("a whole number from 1", lambda value: isinstance(value, int) and value >= 1)
_RETURNS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "options": _MODEL,
    "model": _MODEL,
    "device": _MODEL,
    "bubble": ("a Fraction", lambda value: value is None or isinstance(value, Rational)),
    "peak_activations": ("one Fraction per rank", _is_fractions),
    "chunks": _COUNT,
    "parts": _COUNT,
    "part_times": ("one Fraction per part", lambda value: value is not None and _is_fractions(value)),
    "read": ("a Timeline", _is_timeline),
    "load": ("a click command", _is_command),
}
"""What a callable of each name has to return."""
