"""Rules that say of measured steps what their tables leave unsaid: whose rows they are for, and what they set."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pptrace.config.yaml_file import read_yaml
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Rule", "Rules", "read_rules"]

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
    own = path or Path(str(files("pptrace.study.accuracy").joinpath("published.yaml")))
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
