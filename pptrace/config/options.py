"""Check values against a pydantic model, and say in one line what is wrong, where, and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from pptrace.config.describe import describe_validation_error, fields_at, key_path
from pptrace.config.places import Place, Places, key_text, place_of
from pptrace.config.quantity import BARE_NUMBER
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

__all__ = ["describe_validation_error", "merged", "validate_options"]

Model = TypeVar("Model", bound=BaseModel)

_NOWHERE: Places = MappingProxyType({})


def validate_options(
    model: type[Model],
    values: Mapping[str, Any],
    key_prefix: str = "",
    positions: Places = _NOWHERE,
    *,
    file: str | Path = "",
) -> Model:
    """Build ``model`` from plain values, with nothing converted but quantities in text.

    A key that ``positions`` does not hold comes from a preset and may give a quantity as an integer, in
    bytes, bytes/s, ns or FLOP/s.

    Raises:
        ConfigError: the first value that does not fit, an unknown key before all others.
    """
    text = _json(values, key_prefix, positions, file)
    _check_known(model, values, key_prefix, positions, file)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        wrong = [one for one in errors if not _is_preset_integer(one, values, key_prefix, positions)]
        if wrong:
            raise describe_validation_error(wrong, model, values, key_prefix, positions, file) from None
    try:
        return model.model_validate_json(text, strict=True, context={"integers": True})
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise describe_validation_error(errors, model, values, key_prefix, positions, file) from None


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``under`` with what ``over`` says in its place, mapping by mapping.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        both[key] = merged(below, value) if nested else value  # type: ignore[arg-type] # both are mappings
    return both


def _is_preset_integer(error: ErrorDetails, values: Mapping[str, Any], prefix: str, positions: Places) -> bool:
    if error["type"] != BARE_NUMBER or not isinstance(error["input"], int):
        return False
    return key_text(key_path(error, values), prefix) not in positions


def _check_known(
    model: type[BaseModel], values: Mapping[str, Any], prefix: str, positions: Places, file: str | Path
) -> None:
    """Refuse keys that a model would pass over in silence, as pydantic's do unless told otherwise."""
    if model.model_config.get("extra", "ignore") != "ignore":
        return
    known = fields_at(model, ())
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        raise _error(f"unknown key{nearest(unknown, known)}", key_text((unknown,), prefix), positions, file)


def _json(values: Mapping[str, Any], prefix: str, positions: Places, file: str | Path) -> str:
    wrong = _not_json(values)
    if wrong is not None:
        path, message = wrong
        raise _error(message, key_text(path, prefix), positions, file)
    return json.dumps(values, allow_nan=False)


def _not_json(value: object) -> tuple[tuple[str | int, ...], str] | None:
    """Return the path of what JSON cannot hold, and why; None where there is nothing."""
    if isinstance(value, float) and not math.isfinite(value):
        return (), "a number must be finite"
    if isinstance(value, str) and not _is_unicode(value):
        return (), f"{value!r} is not UTF-8 text"
    below: Sequence[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        below = list(value.items())
    elif isinstance(value, list | tuple):
        below = list(enumerate(value))
    for key, one in below:
        found = ((), "its name is not UTF-8 text") if not _is_unicode(str(key)) else _not_json(one)
        if found is not None:
            return (key, *found[0]), found[1]
    return None


def _is_unicode(text: str) -> bool:
    """Return whether no byte of a file's or argument's name was kept as a lone surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _error(message: str, key: str, positions: Places, file: str | Path) -> ConfigError:
    place = place_of(key, positions) or Place(source=str(file))
    return ConfigError(message, key=key, file=place.source, line=place.line, column=place.column)
