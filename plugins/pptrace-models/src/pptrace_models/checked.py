"""Reading a mapping against its parameter model, with one line for whatever is wrong first."""

from __future__ import annotations

import ast
import sys
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pptrace.plugin import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Parameters", "checked", "divisors_near"]

_Model = TypeVar("_Model", bound=BaseModel)


class Parameters(BaseModel):
    """A frozen set of parameters: no key beyond those declared, each described by its docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Describe the fields.

        ``use_attribute_docstrings`` does the same, but asks for the file of every module that is loaded to find
        the class: a tenth of the time that a small simulation takes.
        """
        described = _docstrings(cls.__module__).get(cls.__name__, {})
        for name, field in cls.model_fields.items():
            field.description = field.description or described.get(name)


def checked(model: type[_Model], values: Mapping[str, Any], key: str) -> _Model:
    """Return ``values`` as ``model``; None stands for the default, and quantities may be bare integers.

    Raises:
        ConfigError: the first key that is unknown, missing or wrong, as ``key.name``.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return model.model_validate(given, context={"integers": True})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join([key, *(str(part) for part in first["loc"])])
    message = first["msg"].removeprefix("Value error, ").replace("\n", " ")
    field, colon, rest = message.partition(": ")
    if colon and first["type"] == "value_error" and field.isidentifier():
        raise ConfigError(rest, key=f"{place}.{field}")
    if first["type"] == "extra_forbidden":
        message = f"unknown key{nearest(str(first['loc'][-1]), model.model_fields)}"
    elif first["type"] == "missing":
        message = "missing; it has no default"
    else:
        message = f"{message[:1].lower()}{message[1:]}"
        message += f", not {first['input']!r}" if message.startswith("input should") else ""
    raise ConfigError(message, key=place)


def divisors_near(size: int, *numbers: int) -> str:
    """Return the common divisors of ``numbers`` on either side of ``size``.

    >>> divisors_near(6, 64, 8)
    '4 or 8'
    """
    common = _common_divisors(numbers)
    below = [d for d in common if d <= size][-1:]
    above = [d for d in common if d > size][:1]
    return " or ".join(map(str, below + above))


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each class of a module; none where it has no source."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    classes = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_described(node)) for node in classes}


def _described(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that a string stands behind, with that string."""
    for field, behind in pairwise(node.body):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, cleandoc(text)


def _common_divisors(numbers: Iterable[int]) -> list[int]:
    from math import gcd, isqrt

    whole = gcd(*numbers)
    low = [d for d in range(1, isqrt(whole) + 1) if whole % d == 0]
    return sorted({*low, *(whole // d for d in low)})
