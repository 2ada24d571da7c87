"""Measured steps, the rules that turn them into configurations, and the simulated steps."""

from __future__ import annotations

import csv
import re
from collections import Counter
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, ValidationError

from pptrace.config.overrides import parse_value
from pptrace.plugin import ConfigError, Parameters, Registry, TableError, read_yaml
from pptrace.search.runner import simulate_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_OF_SOFTWARE = ("stack", "p2p", "costs")
"""Sections of a configuration that describe the software."""
_SECTIONS = ("stack", "cluster", "network", "p2p", "contention")
"""Configuration keys without a dot that columns can set."""
NEEDED = ("source", "model", "gpu", "n_gpus", "precision", "pp", "gbs", "seq")
"""Columns that a table needs. Their cells may be blank where rules or configuration keys give the value."""
_READ = frozenset((
    *NEEDED, *_SECTIONS, "tp", "cp", "ep", "etp", "vp", "dp", "mbs", "recompute", "zero", "schedule", "layers",
    "hidden", "step_s", "tok_s_gpu", "tflops_gpu", "mem_gib",
))  # fmt: skip
"""Columns without a dot that set a key, or have a measured value."""
_DESCRIPTIONS = frozenset(("path", "notes", "series", "recipe", "mfu_pct"))
"""Columns for readers of a table."""
_TERA = 1e12


class Case(Struct, frozen=True, kw_only=True):
    """One measured step and its configuration."""

    line: int
    """Line of the table, counted from 1."""
    row: Mapping[str, str]
    """Columns of the row, with the columns that rules add."""
    measured_s: float
    """The measured step in seconds; 0 if the row has none."""
    measured_flops: float = 0.0
    """Model FLOP/s of the job, if the row has FLOP/s per device and no time; else 0."""
    settings: Mapping[str, Any]
    """The configuration; empty if the row is skipped."""
    skipped: str = ""
    """Reason why the row is not simulated; empty for a simulated row."""

    @property
    def default_settings(self) -> dict[str, Any]:
        """The configuration of a user who does not know the software of the source: the default stack.

        What the row says of sharding stays.
        """
        others = {key: value for key, value in self.settings.items() if key not in _OF_SOFTWARE}
        return others | _sharding(self.row)


def read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table of measured steps, each with its line.

    Raises:
        TableError: the file cannot be read, has a column twice, or lacks a needed column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [
                (reader.line_num, {str(key): value or "" for key, value in row.items() if key is not None})
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TableError(f"cannot be read: {reason}", file=path) from error
    duplicates = [name for name, count in Counter(columns).items() if name and count > 1]
    if duplicates:
        raise TableError(f"has the column {duplicates[0]} twice: keep one", file=path)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise TableError(f"has no column {missing[0]}; required columns: {', '.join(NEEDED)}", file=path)
    if not rows:
        raise TableError("has no rows", file=path)
    return rows


def unread_columns(row: Mapping[str, str], rules: Sequence[Rule]) -> list[str]:
    """Return the columns that set nothing, that no rule reads, and that do not describe a source."""
    read = _READ | _DESCRIPTIONS | {column for rule in rules for column in rule.read_columns}
    return [column for column in row if column and "." not in column and column not in read]


def build_cases(
    rows: Sequence[tuple[int, dict[str, str]]], rules: Sequence[Rule], overrides: Mapping[str, Any] | None = None
) -> list[Case]:
    """Return the configuration of each row; a row without a configuration has the reason.

    Args:
        rows: lines and columns.
        rules: rules in order; a later rule overrides an earlier rule.
        overrides: configuration keys that override the keys of every row.
    """
    return [_case(line, dict(row), rules, overrides or {}) for line, row in rows]


def _case(line: int, row: dict[str, str], rules: Sequence[Rule], overrides: Mapping[str, Any]) -> Case:
    try:
        settings = _settings(row, rules, overrides)
        measured_s, measured_flops = _measured(row)
    except ConfigError as error:
        return Case(line=line, row=row, measured_s=0.0, settings={}, skipped=str(error))
    return Case(line=line, row=row, measured_s=measured_s, measured_flops=measured_flops, settings=settings)


def _settings(row: dict[str, str], rules: Sequence[Rule], overrides: Mapping[str, Any]) -> dict[str, Any]:
    matching = _apply_columns(row, rules)
    settings = _settings_of_columns(row)
    keys = {
        key: parse_value(text, "column")
        for key, text in row.items() if ("." in key or key in _SECTIONS) and text.strip()
    }  # fmt: skip
    for rule in matching:
        _merge_keys(settings, rule.values(row))
    if any(key.partition(".")[0] == "cluster" for key in (*keys, *overrides)):
        settings.pop("network", None)
        settings.get("data_parallel", {}).pop("bandwidth", None)
    _merge_keys(settings, keys)
    _merge_keys(settings, overrides)
    if not {"preset", "heads"} & set(settings["model"]):
        settings["model"]["preset"] = _preset(row, "model")
    device = settings.setdefault("device", {})
    if not {"preset", "peak_bf16"} & set(device):
        device["preset"] = _preset(row, "gpu")
    return settings


def _apply_columns(row: dict[str, str], rules: Sequence[Rule]) -> list[Rule]:
    """Add the columns of matching rules to the row, and return these rules."""
    matching = []
    for rule in rules:
        if rule.matches(row):
            row.update(rule.extracted_columns(row))
            matching.append(rule)
    for rule in matching:
        if rule.skip:
            raise ConfigError(rule.skip)
        for column in rule.needs:
            if not row.get(column, "").strip():
                raise ConfigError(f"column {column} is blank")
    return matching


def _preset(row: Mapping[str, str], column: str) -> str:
    """Return the preset with the name in a column, with or without separators; an unknown name as it is.

    Raises:
        ConfigError: the column is blank.
    """
    name = row.get(column, "").strip()
    if not name:
        raise ConfigError(f"column {column} is blank")
    return _presets(column).get(_joined(name.rpartition("/")[2]), name)


@cache
def _presets(column: str) -> dict[str, str]:
    """Return the presets that a column can name, by their names without separators."""
    registry = Registry.load(warn=lambda _: None)
    return {_joined(name): name for name in (registry.models if column == "model" else registry.devices)}


_SHORT_FORM_KEYS = {"model": "preset", "device": "preset", "cluster": "preset", "p2p": "policy"}
"""Key of a section's short form; ``name`` in all other sections."""


def _merge_keys(settings: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        _merge(settings, key.split("."), value)


def _merge(settings: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value of a key path; mappings are merged."""
    section = settings
    for key in path[:-1]:
        inner = section.get(key)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {_SHORT_FORM_KEYS.get(key, "name"): inner}
        section[key] = inner
        section = inner
    current = section.get(path[-1])
    if isinstance(current, dict) and isinstance(value, dict):
        for key, inner in value.items():
            _merge(current, [key], inner)
    else:
        section[path[-1]] = value


def _measured(row: Mapping[str, str]) -> tuple[float, float]:
    """Return the step in seconds and 0, or 0 and the model FLOP/s.

    Both are 0 for a row with memory only.
    """
    step, devices = _number(row, "step_s"), _number(row, "n_gpus")
    if step:
        return step, 0.0
    rate = _number(row, "tok_s_gpu")
    if rate and devices:
        return _number(row, "gbs") * _number(row, "seq") / (rate * devices), 0.0
    flops = _number(row, "tflops_gpu")
    if flops and devices:
        return 0.0, flops * devices * _TERA
    if re.search(r"\d", row.get("mem_gib", "")):
        return 0.0, 0.0
    raise ConfigError("neither step_s nor tok_s_gpu nor tflops_gpu is given")


_PLACEHOLDER = re.compile(r"\{\s*(?P<factor>\d+)?\s*\*?\s*(?P<column>[a-z_]\w*)\s*\}")
_SHARE = re.compile(r"\d+\.\d+")
_INSERTED = re.compile(r"\{(?:\d+\*)?([a-z_]\w*)\}")
_TEXT_PLACEHOLDER = re.compile(r"\{([a-z_]\w*)\}")


class Rule(BaseModel):
    """Columns and configuration keys for the rows that match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: dict[str, str] = {}
    """Patterns by column, with ``*`` and ``?``. Case, hyphens, underscores and spaces are ignored."""
    unless: dict[str, str] = {}
    """Patterns by column; the rule does not apply to a row that matches any of them."""
    read: dict[str, str] = {}
    """Regular expressions by column; their named groups become columns."""
    columns: dict[str, str] = {}
    """Columns and their texts, which override columns of the row."""
    needs: list[str] = []
    """Columns without which a row is skipped."""
    set: dict[str, Any] = {}
    """Configuration keys with values. ``{hidden}`` is the number in that column, ``{4*hidden}`` its fourfold, and
    ``nemo-{release}`` a text with the column's text in it."""
    skip: str = ""
    """Reason why matching rows are not simulated; empty to simulate them."""
    because: str = ""
    """The source of the rule, for readers."""

    def matches(self, row: Mapping[str, str]) -> bool:
        """Return whether the rule applies to a row."""
        return all(_matches(row, column, text) for column, text in self.where.items()) and not any(
            _matches(row, column, text) for column, text in self.unless.items()
        )

    def extracted_columns(self, row: Mapping[str, str]) -> dict[str, str]:
        """Return the columns that the rule sets, or extracts from other columns."""
        extracted = dict(self.columns)
        for column, pattern in self.read.items():
            match = re.search(pattern, row.get(column, ""))
            extracted.update({name: text for name, text in (match.groupdict() if match else {}).items() if text})
        return extracted

    @property
    def read_columns(self) -> frozenset[str]:
        """The columns that the rule compares, reads, needs or inserts into a value."""
        inserted = _INSERTED.findall(str(self.set))
        return frozenset((*self.where, *self.unless, *self.read, *self.needs, *inserted))

    def values(self, row: Mapping[str, str]) -> dict[str, Any]:
        """Return the configuration keys of the rule, with placeholders replaced by values of the row."""
        return {key: _substitute(value, row) for key, value in self.set.items()}


class _Document(Parameters):
    rules: list[Rule]


def read_rules(path: Path | None = None) -> list[Rule]:
    """Return the rules of a file; by default, the rules for published sources.

    Raises:
        ConfigError: the file cannot be read, or a rule is invalid.
    """
    file = path or Path(__file__).with_name("published.yaml")
    data = read_yaml(file).value
    try:
        rules = _Document.model_validate(data).rules
        for rule in rules:
            for pattern in rule.read.values():
                re.compile(pattern)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{first['msg'][:1].lower()}{first['msg'][1:]}", key=key, file=file) from error
    except re.error as error:
        raise ConfigError(
            f"{error.pattern!r} is not a regular expression: {error}", key="rules", file=file
        ) from error
    return rules


def _matches(row: Mapping[str, str], column: str, pattern: str) -> bool:
    return fnmatchcase(_joined(row.get(column, "")), _joined(pattern))


def _joined(text: str) -> str:
    """Return lower-case text without separators, except in the brackets of a pattern."""
    return re.sub(r"[-_ ](?![^\[]*\])", "", text.lower())


def _substitute(value: Any, row: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(inner, row) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    match = _PLACEHOLDER.fullmatch(value.strip())
    if not match:
        return _TEXT_PLACEHOLDER.sub(lambda part: row.get(part[1], "").strip(), value)
    text = row.get(match["column"], "").strip()
    if _SHARE.fullmatch(text) and not match["factor"]:
        return float(text)
    if not text.isdigit():
        raise ConfigError(f"{value} needs a whole number in column {match['column']}", key="rules")
    return int(match["factor"] or 1) * int(text)


_BLANK = {"", "?", "n/a", "na", "none", "-", "/"}
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_PRECISIONS = {
    "bf16": "bf16", "fp16": "fp16", "bf16/fp16": "bf16", "fp8": "fp8", "fp8-cs": "fp8", "fp8-ds": "fp8",
    "mxfp8": "mxfp8", "fp8-mx": "mxfp8", "nvfp4": "nvfp4", "fp32": "fp32",
}  # fmt: skip
_SCHEDULES = {"zbv": "zb-v", "zbv-formatted": "zb-v", "zb1p": "zb-h1"}


def _settings_of_columns(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration from the columns of a row, without presets of model and device.

    Raises:
        ConfigError: a needed column is blank, or a column has an invalid value.
    """
    parallel = _parallel(row)
    model: dict[str, Any] = {
        column: _whole_number(row, column) for column in ("layers", "hidden") if _number(row, column)
    }
    precision = _first_value(row, "precision").lower()
    if precision not in _PRECISIONS:
        raise ConfigError(f"column precision holds {precision!r}; known are {', '.join(_PRECISIONS)}")
    model["precision"] = _PRECISIONS[precision]
    model["recompute"] = _recompute(row)
    settings: dict[str, Any] = {
        "model": model,
        "parallel": parallel,
        "batch": {
            "global": _needed_number(row, "gbs"),
            "micro": _needed_number(row, "mbs"),
            "sequence": _needed_number(row, "seq"),
        },
        "schedule": {"name": _schedule(row, parallel["vp"])},
    }
    return settings | _sharding(row)


def _sharding(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the section of costs with the level of ZeRO in a row; nothing for a row without it."""
    zero = row.get("zero", "").strip()
    return {"costs": {"zero": int(zero)}} if zero.isdigit() else {}


def _parallel(row: Mapping[str, str]) -> dict[str, Any]:
    sizes = {axis: _whole_number(row, axis) if _number(row, axis) else 1 for axis in ("tp", "cp", "ep", "vp")}
    pp, devices = _needed_number(row, "pp"), _needed_number(row, "n_gpus")
    replicas, remainder = divmod(devices, sizes["tp"] * sizes["cp"] * pp)
    if remainder or not replicas:
        raise ConfigError(f"tp x cp x pp does not divide n_gpus ({devices})")
    if _number(row, "dp") and _whole_number(row, "dp") != replicas:
        raise ConfigError(f"column dp holds {row['dp']}, but n_gpus / (tp x cp x pp) is {replicas}")
    experts = {"etp": _whole_number(row, "etp")} if _number(row, "etp") else {}
    return {"pp": pp, "dp": replicas, **sizes, **experts}


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
    if text in _BLANK:
        return "none"
    raise ConfigError(f"column recompute holds {text!r}; known are none, selective and full")


def _first_value(row: Mapping[str, str], column: str) -> str:
    """Return a cell without the part in parentheses, which some sources use for a second precision."""
    return row.get(column, "").partition(" (")[0].strip()


def _number(row: Mapping[str, str], column: str) -> float:
    """Return the first number of a cell; 0 for a blank cell.

    Raises:
        ConfigError: the cell holds no positive number.
    """
    text = _first_value(row, column)
    if text.lower() in _BLANK:
        return 0.0
    grouped = column != "step_s" and _THOUSANDS.fullmatch(text)  # 7,286 s can be 7.286 s
    try:
        value = float(text.replace(",", "") if grouped else text)
    except ValueError:
        raise ConfigError(f"column {column} holds {text!r}, which is not a number") from None
    if not 0 < value < float("inf"):
        raise ConfigError(f"column {column} holds {text!r}: a positive number is needed")
    return value


def _needed_number(row: Mapping[str, str], column: str) -> int:
    if not _number(row, column):
        raise ConfigError(f"column {column} is blank")
    return _whole_number(row, column)


def _whole_number(row: Mapping[str, str], column: str) -> int:
    value = _number(row, column)
    if not value.is_integer():
        raise ConfigError(f"column {column} holds {row[column]!r}: a whole number is needed")
    return int(value)


COLUMNS = (
    "line", "source", "model", "gpu", "n_gpus", "precision", "tp", "pp", "cp", "ep", "vp", "dp", "mbs", "gbs",
    "seq", "kind", "measured_s", "simulated_s", "error_pct", "default_s", "default_error_pct",
    "measured_memory", "memory_gib", "memory_error_pct",
    "device_gib", "skipped", "note",
)  # fmt: skip
"""Columns of the result, one row per measured step."""

_GIB = 2**30
_OTHER_STACK = "No plugin offers the stack"
"""Start of the note on a release that stands for another."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run_cases(
    cases: Sequence[Case],
    *,
    executor: str = "processes",
    workers: int = 0,
    journal: Path | None = None,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return a row of :data:`COLUMNS` per case, in the order of the cases.

    Args:
        cases: measured steps.
        executor: name and options of an executor, as for a sweep.
        workers: concurrent cases; 0 for one per core of this machine.
        journal: file of finished cases, to resume an interrupted call. The caller removes it.
        fresh: whether to ignore the cases in the journal.
        progress: called with the number of finished simulations and of all; a case that runs has two.

    Raises:
        OutputError: the journal cannot be written.
        PluginError: no plugin offers the executor.
    """
    configured = [case for case in cases if not case.skipped]
    skipped = len(cases) - len(configured)

    def report(finished: int, total: int) -> None:
        if progress is not None:
            progress(finished + skipped, total + skipped)

    settings = [settings for case in configured for settings in (case.settings, case.default_settings)]
    simulated = simulate_many(
        settings, _figures, executor=executor, workers=workers, journal=journal, fresh=fresh, progress=report
    )
    figures = iter(simulated)
    return [_row(case, {}, {}) if case.skipped else _row(case, next(figures), next(figures)) for case in cases]


def _figures(run: Any) -> dict[str, Any]:
    metrics, memory = run.metrics, run.metrics.memory
    settings = {key: value for key, value, _ in run.prepared.resolved.explain()}
    return {
        "kind": "moe" if settings.get("model.num_experts") else "dense",
        "simulated_s": metrics.step_ns / 1e9,
        "model_flops": metrics.model_flops,
        "memory_gib": round(int(memory.peak_bytes.max(initial=0)) / _GIB, 2),
        "device_gib": round(memory.capacity_bytes / _GIB, 2),
        "note": next((note for note in run.prepared.notes if note.startswith(_OTHER_STACK)), ""),
    }


def _row(case: Case, figures: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    simulated, default_s = figures.get("simulated_s"), default.get("simulated_s")
    measured = case.measured_s
    if not measured and case.measured_flops and simulated:
        measured = figures["model_flops"] / case.measured_flops
    printed, memory = _largest_number(case.row.get("mem_gib", "")), figures.get("memory_gib")
    return {
        **{name: case.row.get(name, "") for name in COLUMNS},
        "line": case.line, "kind": figures.get("kind"), "measured_s": measured or None,
        "simulated_s": simulated, "error_pct": _error_percent(simulated, measured),
        "default_s": default_s, "default_error_pct": _error_percent(default_s, measured),
        "measured_memory": case.row.get("mem_gib", ""), "memory_gib": memory,
        "memory_error_pct": _error_percent(memory, printed), "device_gib": figures.get("device_gib"),
        "skipped": case.skipped or figures.get("error") or "", "note": figures.get("note", ""),
    }  # fmt: skip


def _largest_number(text: str) -> float:
    """Return the largest number of a cell, such as the memory of the fullest stage; 0 without numbers."""
    return max(map(float, _NUMBER.findall(text)), default=0.0)


def _error_percent(simulated: float | None, measured: float | None) -> float | None:
    return round(100 * (simulated / measured - 1), 3) if simulated and measured else None
