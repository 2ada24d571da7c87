"""Changes of configurations to others that the schema allows, so that what comes behind its checks is met."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml
from click.testing import CliRunner

from .mutations import in_yaml

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["in_configuration"]

_TEXTS = ("1 ms", "10 us", "2 GiB", "50 GB/s", "1", "0", "none")
_SMALL, _PARTS = (1, 2, 3, 4, 8, 16), (0.5, 1.0, 2.0)


def in_configuration(content: bytes, random: Random) -> bytes:
    """Set some keys to what the schema allows, or change values to anything."""
    if random.random() < 0.5:
        return in_yaml(content, random)
    tree, schema = yaml.safe_load(content), _schema()
    for _ in range(random.choice([1, 1, 2, 3])):
        section = random.choice(list(schema["properties"]))
        value = _allowed(schema["properties"][section], random)
        if isinstance(value, dict) and isinstance(tree.get(section), dict):
            value = tree[section] | value
        if value is not None:
            tree[section] = value
    return yaml.safe_dump(tree).encode()


@cache
def _schema() -> dict[str, Any]:
    from pptrace.cli.schema import command

    schema: dict[str, Any] = json.loads(CliRunner().invoke(command).stdout)
    return schema


def _allowed(schema: dict[str, Any], random: Random) -> Any:
    """Return a small value that a part of the schema allows, going by types, bounds and choices."""
    if "$ref" in schema:
        return _allowed(_schema()["$defs"][schema["$ref"].rpartition("/")[2]], random)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _allowed(random.choice(choices), random)
    if "const" in schema or "enum" in schema:
        return random.choice(schema.get("enum", [schema.get("const")]))
    made = _MADE.get(schema.get("type", ""))
    return made and made(schema, random)


def _number(schema: dict[str, Any], random: Random) -> float:
    number = random.choice(_SMALL if schema["type"] == "integer" else _PARTS)
    return min(max(number, schema.get("minimum", number)), schema.get("maximum", number))


def _list(schema: dict[str, Any], random: Random) -> list[Any]:
    return [_allowed(schema.get("items", {}), random) for _ in range(random.randrange(4))]


def _mapping(schema: dict[str, Any], random: Random) -> dict[str, Any]:
    known = schema.get("properties", {})
    chosen = random.sample(list(known), min(len(known), random.choice([1, 1, 2, 3])))
    return {
        key: _allowed(one, random) for key, one in known.items() if key in {*chosen, *schema.get("required", ())}
    }


_MADE: dict[str, Callable[[dict[str, Any], Random], Any]] = {
    "boolean": lambda _, random: random.random() < 0.5,
    "integer": _number,
    "number": _number,
    "string": lambda _, random: random.choice(_TEXTS),
    "array": _list,
    "object": _mapping,
}
"""By type."""
