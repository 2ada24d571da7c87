"""Published steps, and the rules that make configurations of them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pptrace.config.yaml_document import read_yaml
from pptrace.errors import ConfigError, TableError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEEDED", "Case", "Rule", "Rules", "cases_of", "number", "read_rows", "read_rules", "settings_of"]

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
    from pptrace.config.yaml_document import parse_value

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


_FILL = re.compile(r"\{\s*(?P<factor>\d+)?\s*\*?\s*(?P<column>[a-z_]\w*)\s*\}")


class Rule(BaseModel):
    """What holds for the rows that match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: dict[str, str] = {}
    """By column, a pattern with ``*`` and ``?``; case does not count, nor does a hyphen for an underscore."""
    unless: dict[str, str] = {}
    """By column, a pattern; a row that matches any is left alone."""
    read: dict[str, str] = {}
    """By column, a regular expression whose named groups become columns where it is found."""
    columns: dict[str, str] = {}
    """Columns that count as these texts, whatever the row says."""
    needs: list[str] = []
    """Columns without which a row is skipped."""
    set: dict[str, Any] = {}
    """Configuration keys with their values; ``{hidden}`` is that column's value, ``{4*hidden}`` four times it."""
    skip: str = ""
    """Why matching rows are not simulated."""
    because: str = ""
    """Where it is known from; for readers."""

    def matches(self, row: Mapping[str, str]) -> bool:
        """Whether the rule is for a row."""
        return all(_like(row, column, text) for column, text in self.where.items()) and not any(
            _like(row, column, text) for column, text in self.unless.items()
        )

    def found(self, row: Mapping[str, str]) -> dict[str, str]:
        """Return the columns that the rule gives, or reads out of others."""
        found = dict(self.columns)
        for column, pattern in self.read.items():
            match = re.search(pattern, row.get(column, ""))
            found.update({name: text for name, text in (match.groupdict() if match else {}).items() if text})
        return found

    def values(self, row: Mapping[str, str]) -> dict[str, Any]:
        """Return what the rule sets, with the row's columns in their places."""
        return {key: _filled(value, row) for key, value in self.set.items()}


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rules: list[Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules in their order; later ones go over earlier ones."""

    rules: tuple[Rule, ...] = ()
    """Each with what it is for."""
    name: str = field(default="published.yaml")
    """The file that they were read from."""


def read_rules(path: Path | None = None) -> Rules:
    """Read rules from a file, or those for the published sources that are known here.

    Raises:
        ConfigError: a file that cannot be read, or a rule that is none.
    """
    own = path or Path(str(files("pptrace.search.accuracy").joinpath("published.yaml")))
    data = read_yaml(own).value
    try:
        document = _Document.model_validate(data)
        for rule in document.rules:
            for pattern in rule.read.values():
                re.compile(pattern)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{first['msg'][:1].lower()}{first['msg'][1:]}", key=place, file=own) from error
    except re.error as error:
        raise ConfigError(f"{error.pattern!r} is no regular expression: {error}", key="rules", file=own) from error
    return Rules(rules=tuple(document.rules), name=own.name)


def _like(row: Mapping[str, str], column: str, pattern: str) -> bool:
    return fnmatchcase(_plain(row.get(column, "")), _plain(pattern))


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _filled(value: Any, row: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, row) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    match = _FILL.fullmatch(value.strip())
    if not match:
        return value
    text = row.get(match["column"], "")
    if not text.strip().isdigit():
        raise ConfigError(f"{value} needs a whole number in column {match['column']}", key="rules")
    return int(match["factor"] or 1) * int(text)


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
