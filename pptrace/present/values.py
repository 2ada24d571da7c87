"""A document's values as JSON: a figure is its number, beside it stand its ``_deviation`` and ``_spread``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pptrace.analysis.figure import Figure
from pptrace.model.action import Action
from pptrace.present.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["json_of", "plain"]

_BESIDE = ("deviation", "spread")


def json_of(documents: Document | Sequence[Document]) -> str:
    """Return a document's values, or a list of several's."""
    return json.dumps(plain(documents), indent=2)


def plain(value: Any) -> Any:
    """Return what JSON has for a value or for a document's; what is not known is null."""
    if isinstance(value, Document):
        return _named(value.values.items()) if isinstance(value.values, Mapping) else plain(value.values)
    if isinstance(value, Figure):
        value = value.value
    if isinstance(value, Action):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _named((field.name, getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _named(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name, with what is known of the figures in each beside it."""
    named: dict[str, Any] = {}
    for name, value in items:
        named[name] = plain(value)
        for beside in _BESIDE:
            if _any(known := _beside(value, beside)):
                named[f"{name}_{beside}"] = known
    return named


def _beside(value: Any, name: str) -> Any:
    """Return a value of one form with each figure's deviation or spread; None where it holds no figures."""
    if isinstance(value, Figure):
        return getattr(value, name)
    if isinstance(value, Mapping):
        return {key: _beside(part, name) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_beside(part, name) for part in value]
    return None


def _any(known: Any) -> bool:
    parts = known.values() if isinstance(known, dict) else known if isinstance(known, list) else None
    return known is not None if parts is None else any(map(_any, parts))
