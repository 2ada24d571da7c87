"""What a row's own columns say of its configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["number", "settings_of"]

_NOT_GIVEN = {"", "?", "n/a", "na", "-"}
_PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "bf16/fp16": "bf16",
    "fp8": "fp8",
    "fp8-cs": "fp8",
    "fp8-ds": "fp8",
    "mxfp8": "mxfp8",
    "fp8-mx": "mxfp8",
    "nvfp4": "nvfp4",
    "fp32": "fp32",
}
_SCHEDULES = {"zbv": "zb-v", "zbv-formatted": "zb-v", "zb1p": "zb-h1"}


def number(row: Mapping[str, str], column: str) -> float:
    """Return a column's number, the first where another follows in parentheses; 0 where it is blank.

    Raises:
        ConfigError: something else than a number, or than a positive one.
    """
    text = _first(row, column)
    if text.lower() in _NOT_GIVEN:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"column {column} holds {text!r}, which is no number") from None
    if not 0 < value < float("inf"):
        raise ConfigError(f"column {column} holds {text!r}: a positive number is needed")
    return value


def settings_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that a row's columns give, without model and device presets.

    Raises:
        ConfigError: a column that is needed and blank, or holds what cannot be.
    """
    parallel = _parallel(row)
    model: dict[str, Any] = {}
    for column in ("layers", "hidden"):
        if number(row, column):
            model[column] = _whole(row, column)
    precision = _first(row, "precision").lower()
    if precision not in _PRECISIONS:
        raise ConfigError(f"column precision holds {precision!r}; known are {', '.join(_PRECISIONS)}")
    model["precision"] = _PRECISIONS[precision]
    model["recompute"] = _recompute(row)
    settings: dict[str, Any] = {
        "model": model,
        "parallel": parallel,
        "batch": {
            "global": _needed(row, "gbs"),
            "micro": _needed(row, "mbs"),
            "sequence": _needed(row, "seq"),
        },
        "schedule": {"name": _schedule(row, parallel["vp"])},
    }
    zero = row.get("zero", "").strip()
    if zero.isdigit():
        settings["costs"] = {"zero": min(int(zero), 1)}
    return settings


def _first(row: Mapping[str, str], column: str) -> str:
    """Return a cell without what stands behind it in parentheses, as the figures of a second precision do."""
    return row.get(column, "").partition(" (")[0].strip()


def _parallel(row: Mapping[str, str]) -> dict[str, Any]:
    sizes = {axis: _whole(row, axis) if number(row, axis) else 1 for axis in ("tp", "cp", "ep", "vp")}
    pp, devices = _needed(row, "pp"), _needed(row, "n_gpus")
    replicas, rest = divmod(devices, sizes["tp"] * sizes["cp"] * pp)
    if rest or not replicas:
        raise ConfigError(f"tp x cp x pp does not divide n_gpus ({devices})")
    if number(row, "dp") and _whole(row, "dp") != replicas:
        raise ConfigError(f"column dp holds {row['dp']}, but n_gpus / (tp x cp x pp) is {replicas}")
    return {"pp": pp, "dp": replicas, "sequence_parallel": sizes["tp"] > 1, **sizes}


def _schedule(row: Mapping[str, str], chunks: int) -> str:
    text = row.get("schedule", "").strip().lower()
    if not text or text.startswith(("1f1b", "interleaved")):
        return "interleaved-1f1b" if chunks > 1 else "1f1b"
    return _SCHEDULES.get(text, text)


def _recompute(row: Mapping[str, str]) -> str:
    text = row.get("recompute", "").strip().lower()
    known = re.match(r"full|selective|none", text)
    if known:
        return known[0]
    if text in _NOT_GIVEN:
        return "none"
    raise ConfigError(f"column recompute holds {text!r}; known are none, selective and full")


def _needed(row: Mapping[str, str], column: str) -> int:
    if not number(row, column):
        raise ConfigError(f"column {column} is blank")
    return _whole(row, column)


def _whole(row: Mapping[str, str], column: str) -> int:
    value = number(row, column)
    if not value.is_integer():
        raise ConfigError(f"column {column} holds {row[column]!r}: a whole number is needed")
    return int(value)
