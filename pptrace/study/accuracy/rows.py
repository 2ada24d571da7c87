"""Rows of measured steps: read from CSV, and made configurations by their columns and by rules."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, TableError
from pptrace.study.accuracy.given import number, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pptrace.study.accuracy.rules import Rule, Rules

__all__ = ["NEEDED", "Case", "cases_of", "read_rows"]

NEEDED = ("source", "model", "gpu", "n_gpus", "precision", "pp", "gbs", "seq")
"""Columns that a file has to have; what rules or a configuration's keys say may be blank in them."""
_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured step, and how it is simulated."""

    line: int
    """Its line in the file, counted from 1."""
    row: Mapping[str, str]
    """Its columns, with those that rules read out of others."""
    measured_s: float
    """What its step takes, in seconds; 0 where the row does not say: its memory is compared alone then."""
    measured_flops: float = 0.0
    """Model FLOP/s of the whole job, where the row prints those of a device and no time."""
    settings: Mapping[str, Any]
    """The configuration; empty where the row is skipped."""
    skipped: str = ""
    """Why it is not simulated."""


def read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Read a table of measured steps, each row with its line.

    Raises:
        TableError: a file that cannot be read, has a column twice, or lacks a needed one.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [(reader.line_num, _texts(row)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TableError(f"cannot be read: {reason}", file=path) from error
    twice = [name for name, count in Counter(columns).items() if name and count > 1]
    if twice:
        raise TableError(f"has the column {twice[0]} twice: keep one", file=path)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise TableError(f"lacks the column {missing[0]}; needed are {', '.join(NEEDED)}", file=path)
    if not rows:
        raise TableError("has no rows", file=path)
    return rows


def cases_of(
    rows: list[tuple[int, dict[str, str]]], rules: Rules, over: Mapping[str, Any] | None = None
) -> list[Case]:
    """Return rows as configurations; one that cannot be made says why.

    Args:
        rows: lines and columns.
        rules: what the rows leave unsaid.
        over: configuration keys that go over every row's.
    """
    return [_case(line, row, rules, over or {}) for line, row in rows]


def _case(line: int, row: dict[str, str], rules: Rules, over: Mapping[str, Any]) -> Case:
    full = dict(row)
    try:
        settings = _settings(full, rules, over)
        measured, rate = _measured(full)
    except ConfigError as error:
        return Case(line=line, row=full, measured_s=0.0, settings={}, skipped=str(error))
    return Case(line=line, row=full, measured_s=measured, measured_flops=rate, settings=settings)


def _settings(row: dict[str, str], rules: Rules, over: Mapping[str, Any]) -> dict[str, Any]:
    chosen = _chosen(row, rules)
    settings = settings_of(row)
    own = {key: _value(text) for key, text in row.items() if "." in key and text.strip()}
    for values in (*(rule.values(row) for rule in chosen), own, over):
        for key, value in values.items():
            _put(settings, key.split("."), value)
    if not {"preset", "heads"} & set(settings.get("model", {})):
        raise _unknown("model", row)
    if not settings.get("device"):
        raise _unknown("gpu", row)
    return settings


def _chosen(row: dict[str, str], rules: Rules) -> list[Rule]:
    """Return the rules that match, and put the columns that they give into the row."""
    chosen = []
    for rule in rules.rules:
        if rule.matches(row):
            row.update(rule.found(row))
            chosen.append(rule)
    for rule in chosen:
        if rule.skip:
            raise ConfigError(rule.skip)
        for column in rule.needs:
            if not row.get(column, "").strip():
                raise ConfigError(f"column {column} is blank")
    return chosen


def _unknown(column: str, row: Mapping[str, str]) -> ConfigError:
    return ConfigError(f"no preset is known for {column} {row.get(column, '')!r}; a rule may name one")


def _put(settings: dict[str, Any], path: list[str], value: Any) -> None:
    """Lay a value over what is there; mappings are merged."""
    place = settings
    for part in path[:-1]:
        inner = place.get(part)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {_SHORT.get(part, "name"): inner}
        place[part] = inner
        place = inner
    last = place.get(path[-1])
    if isinstance(last, dict) and isinstance(value, dict):
        for key, each in value.items():
            _put(last, [key], each)
    else:
        place[path[-1]] = value


_SHORT = {"model": "preset", "device": "preset", "cluster": "preset", "p2p": "policy"}


def _value(text: str) -> Any:
    from pptrace.config.yaml_file import parse_value

    return parse_value(text, "column")


def _measured(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the step in seconds, or the model FLOP/s that it follows from, and 0 for the other.

    Both are 0 where the row prints no time, but memory.
    """
    step, devices = number(row, "step_s"), number(row, "n_gpus")
    if step:
        return step, 0.0
    rate = number(row, "tok_s_gpu")
    if rate and devices:
        return number(row, "gbs") * number(row, "seq") / (rate * devices), 0.0
    flops = number(row, "tflops_gpu")
    if flops and devices:
        return 0.0, flops * devices * _TERA
    if re.search(r"\d", row.get("mem_gib", "")):
        return 0.0, 0.0
    raise ConfigError("neither step_s nor tok_s_gpu nor tflops_gpu is given")


def _texts(row: Mapping[str | None, Any]) -> dict[str, str]:
    return {str(key): (value or "") for key, value in row.items() if key is not None}
