"""Validation of values, with errors of one line."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from pptrace.config.flags import key_of
from pptrace.config.places import KeyPath, Places, error_at, key_text
from pptrace.config.quantities import BARE_NUMBER, QUANTITY_ERRORS
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_NOWHERE: Places = MappingProxyType({})
_FIELD = re.compile(r'^    (\w+): .*(?:\n(?: {5}|    [)\]}]).*)*\n    """((?s:.*?))"""', re.MULTILINE)
"""A field, on one line or more, and its docstring. Possessive quantifiers fail before Python 3.11.5."""


class Parameters(BaseModel):
    """A frozen set of parameters: no key beyond those declared, each described by its docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Describe the fields.

        ``use_attribute_docstrings`` does the same, but asks for the file of every module that is loaded to find
        the class: a tenth of the time that a small simulation takes.
        """
        described = _docstrings(cls.__module__).get(cls.__name__, {})
        for name, field in cls.model_fields.items():
            field.description = field.description or described.get(name)


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each class of a module; none where it has no source.

    A regular expression finds them in a tenth of the time that a syntax tree takes.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    _, *classes = re.split(r"^class (\w+)", Path(file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: {field: " ".join(text.split()) for field, text in _FIELD.findall(body)}
        for name, body in zip(classes[::2], classes[1::2], strict=True)
    }


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

    def located(path: KeyPath, message: str) -> ConfigError:
        return error_at(key_text(path, key_prefix), message, positions, file)

    def is_preset_integer(error: ErrorDetails) -> bool:
        is_integer = error["type"] == BARE_NUMBER and isinstance(error["input"], int)
        return is_integer and key_text(key_path(error, values), key_prefix) not in positions

    not_json = _not_json(values)
    if not_json is not None:
        raise located(*not_json)
    text = json.dumps(values, allow_nan=False)
    if model.model_config.get("extra", "ignore") == "ignore":  # pydantic's default ignores unknown keys
        known = _fields(model)
        unknown = next((key for key in values if key not in known), None)
        if unknown is not None:
            raise located((unknown,), f"unknown key{nearest(unknown, known)}")

    def validated(*, integers: bool) -> Model | list[ErrorDetails]:
        try:
            return model.model_validate_json(text, strict=True, context={"integers": integers})
        except ValidationError as error:
            return error.errors(include_url=False)

    result = validated(integers=False)
    if isinstance(result, list):
        result = [error for error in result if not is_preset_integer(error)] or validated(integers=True)
    if isinstance(result, list):
        raise located(*_first_error(result, model, values))
    return result


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``under``, overridden by ``over`` mapping by mapping.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        both[key] = merged(below, value) if nested else value  # type: ignore[arg-type] # both are mappings
    return both


def _not_json(value: object) -> tuple[KeyPath, str] | None:
    """Return the path of the first value that JSON cannot represent, and why; None without one."""
    if isinstance(value, float) and not math.isfinite(value):
        return (), "a number must be finite"
    if isinstance(value, str) and not _is_unicode(value):
        return (), f"{value!r} is not UTF-8 text"
    below: Sequence[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        below = list(value.items())
    elif isinstance(value, list | tuple):
        below = list(enumerate(value))
    for key, item in below:
        error = _not_json(item) if _is_unicode(str(key)) else ((), "its name is not UTF-8 text")
        if error is not None:
            return (key, *error[0]), error[1]
    return None


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which Python uses for undecodable bytes of names."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "int_parsing": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "float_parsing": lambda _: "a number",
    "bool_type": lambda _: "true or false",
    "bool_parsing": lambda _: "true or false",
    "literal_error": lambda context: str(context["expected"]),
    "string_type": lambda _: "text",
    "list_type": lambda _: "a list",
    "tuple_type": lambda _: "a list",
    "dict_type": lambda _: "a mapping",
    "model_type": lambda _: "a mapping",
    "none_required": lambda _: "empty",
    "greater_than": lambda context: f"above {_bound(context['gt'])}",
    "greater_than_equal": lambda context: f"at least {_bound(context['ge'])}",
    "less_than": lambda context: f"below {_bound(context['lt'])}",
    "less_than_equal": lambda context: f"at most {_bound(context['le'])}",
    "multiple_of": lambda context: f"a multiple of {_bound(context['multiple_of'])}",
    "string_too_short": lambda _: "a name",
    "too_short": lambda _: "at least one value",
}
_FIRST = ("too_short", *QUANTITY_ERRORS)
"""Errors that take precedence over errors of alternative forms of a value."""
_FORMS = frozenset({"model_type", "dict_type", "list_type"})
"""Errors of alternative forms of a value; errors of other values take precedence."""
_LONGEST = 60


def _first_error(
    errors: Sequence[ErrorDetails], model: type[BaseModel], values: Mapping[str, Any]
) -> tuple[KeyPath, str]:
    """Return path and message of the error that the user reads for pydantic's errors of ``values``."""
    ordered = sorted(errors, key=lambda error: (error["type"] != "extra_forbidden", error["type"] in _FORMS))
    first = key_path(ordered[0], values)
    below = [(key_path(error, values), error) for error in ordered]
    path = max((path for path, _ in below if path[: len(first)] == first), key=len)
    errors = [error for error_path, error in below if error_path == path]
    message = _message(errors, model, path)
    field, _, rest = message.partition(": ")
    if errors[0]["type"] == "value_error" and field in fields_at(model, path):  # a model's own check of its fields
        return (*path, field), rest
    return path, message


def key_path(error: ErrorDetails, values: object) -> KeyPath:
    """Return the error's key path without the labels that pydantic adds for the branches of a union."""
    path: list[str | int] = []
    *above, last = error["loc"] or ("",)
    for part in (*above, last):
        if isinstance(values, Mapping) and (part in values or (error["type"] == "missing" and part == last)):
            values = values.get(str(part))
        elif isinstance(values, list | tuple) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def fields_at(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, FieldInfo]:
    """Return the fields of the model at ``path`` inside ``model``, by their keys in YAML."""
    names = False
    for part in path:
        if names:  # the key of a model in a mapping
            names = False
            continue
        field = _fields(model).get(str(part)) if isinstance(part, str) else None
        inner = _models_in(field.annotation) if field else []
        names = bool(inner) and field is not None and _is_mapping(field.annotation)
        if isinstance(part, str) and not inner:
            return {}
        model = inner[0] if inner else model
    return _fields(model)


def shown(value: object) -> str:
    """Return a short text of a value, as in YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _message(errors: Sequence[ErrorDetails], model: type[BaseModel], path: KeyPath) -> str:
    error = next((error for kind in _FIRST for error in errors if error["type"] == kind), errors[0])
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key{_instead(str(path[-1]), model, fields_at(model, path[:-1]))}"
        case "missing":
            field = fields_at(model, path[:-1]).get(str(path[-1]))
            about = field.description if field else None
            return f"missing: {_lower_first(about)}" if about else "missing; write it"
        case "literal_error" | "enum":
            return _unlisted(error["input"], context["expected"])
        case "value_error" | "assertion_error":
            return _one_line(str(context.get("error", error["msg"])))
    expected = [_EXPECTED[each["type"]](each.get("ctx", {})) for each in errors if each["type"] in _EXPECTED]
    if not expected or error["type"] in QUANTITY_ERRORS:
        return _one_line(_lower_first(error["msg"]))
    hint = _quotes(errors) or _named(error, model, path)
    return f"must be {' or '.join(dict.fromkeys(expected))}, not {shown(error['input'])}{hint}"


def _instead(name: str, model: type[BaseModel], known: Mapping[str, FieldInfo]) -> str:
    """Return the likely meaning of an unknown key, as the end of a message."""
    head, dot, below = name.partition(".")
    if dot and head in known:
        return f": dots are for --set; write {head}: {{{below}: ...}}"
    name_before_colon, colon, value = name.partition(":")
    if colon and name_before_colon in known:
        return f": write a space after the colon, {name_before_colon}: {value}"
    key = key_of(name)
    if key != name and key.partition(".")[0] in _fields(model):
        return f": write {key}"
    return nearest(name, known) + ("; write a plugin's options under options" if "options" in known else "")


def _named(error: ErrorDetails, model: type[BaseModel], path: KeyPath) -> str:
    """Return a hint to write ``{name: …}`` for a name in place of a section; else the empty string."""
    wants_section = error["type"] == "model_type" and isinstance(error["input"], str)
    return f"; write {{name: {error['input']}}}" if wants_section and "name" in fields_at(model, path) else ""


def _unlisted(value: object, expected: str) -> str:
    words = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    known = [word.lower() if word in {"True", "False"} else word for word in words]
    if isinstance(value, str) and value in known:
        return f"must be one of {', '.join(known)}, not {shown(value)}; remove the quotes"
    if isinstance(value, str):
        return f"unknown value {shown(value)}{nearest(value, known)}"
    return f"must be one of {', '.join(known)}, not {shown(value)}"


def _quotes(errors: Sequence[ErrorDetails]) -> str:
    text = errors[0]["input"]
    wants_number = any(error["type"].startswith(("int_", "float_")) for error in errors)
    if not isinstance(text, str) or not wants_number:
        return ""
    return "; remove the quotes" if text.strip().lstrip("+-").replace(".", "", 1).isdigit() else ""


def _bound(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _is_mapping(annotation: object) -> bool:
    """Return whether an annotation is a mapping, or an alternative of one."""
    return get_origin(annotation) is dict or any(get_origin(part) is dict for part in get_args(annotation))


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split())
