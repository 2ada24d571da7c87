"""One line for what pydantic found wrong: the key, its place, what is allowed, the nearest known key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from pptrace.config.flags import key_of
from pptrace.config.places import KeyPath, Place, Places, key_text, place_of
from pptrace.config.quantity import QUANTITY_ERRORS
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = ["describe_validation_error", "fields_at", "key_path", "shown"]

_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "int_parsing": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "float_parsing": lambda _: "a number",
    "bool_type": lambda _: "true or false",
    "bool_parsing": lambda _: "true or false",
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
"""What goes before other errors of one value, which other forms of it would have."""
_FORMS = frozenset({"model_type", "dict_type", "list_type"})
"""What goes behind errors of other values: another form of the value may be the one that is meant."""
_LONGEST = 60


def describe_validation_error(
    errors: Sequence[ErrorDetails],
    model: type[BaseModel],
    values: Mapping[str, Any],
    key_prefix: str = "",
    positions: Places | None = None,
    file: str | Path = "",
) -> ConfigError:
    """Turn what pydantic found in ``values`` into the error that its user reads.

    Args:
        errors: what ``ValidationError.errors()`` gives.
        model: what the values were checked against, for its known keys.
        values: what was checked.
        key_prefix: the key under which the values stand.
        positions: where each key was written.
        file: the file to name for a key that stands nowhere.
    """
    ordered = sorted(errors, key=lambda error: (error["type"] != "extra_forbidden", error["type"] in _FORMS))
    first = key_path(ordered[0], values)
    below = [(key_path(error, values), error) for error in ordered]
    path = max((path for path, _ in below if path[: len(first)] == first), key=len)
    found = [error for where, error in below if where == path]
    message = _message(found, model, path)
    field, _, rest = message.partition(": ")
    if found[0]["type"] == "value_error" and field in fields_at(model, path):  # a model's own check of its fields
        path, message = (*path, field), rest
    place = place_of(key_text(path, key_prefix), positions or {}) or Place(source=str(file))
    return ConfigError(
        message,
        key=key_text(path, key_prefix),
        file=place.source,
        line=place.line,
        column=place.column,
    )


def key_path(error: ErrorDetails, values: object) -> KeyPath:
    """Return the error's key path without the labels that pydantic adds for the branches of a union."""
    path: list[str | int] = []
    *above, last = error["loc"] or ("",)
    for part in (*above, last):
        if isinstance(values, Mapping) and (part in values or _is_missing_key(error, part)):
            values = values.get(str(part))
        elif isinstance(values, list | tuple) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def fields_at(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, FieldInfo]:
    """Return the fields of the model that stands at ``path`` inside ``model``, by the key users write."""
    for part in path:
        field = _fields(model).get(str(part)) if isinstance(part, str) else None
        inner = _models_in(field.annotation) if field else []
        if isinstance(part, str) and not inner:
            return {}
        model = inner[0] if inner else model
    return _fields(model)


def shown(value: object) -> str:
    """Write a value as its user did, in brief."""
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
    error = next((one for kind in _FIRST for one in errors if one["type"] == kind), errors[0])
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
    expected = [_EXPECTED[one["type"]](one.get("ctx", {})) for one in errors if one["type"] in _EXPECTED]
    if not expected or error["type"] in QUANTITY_ERRORS:
        return _one_line(_lower_first(error["msg"]))
    hint = _quotes(errors) or _named(error, model, path)
    return f"must be {' or '.join(dict.fromkeys(expected))}, not {shown(error['input'])}{hint}"


def _instead(name: str, model: type[BaseModel], known: Mapping[str, FieldInfo]) -> str:
    """Return what an unknown key may stand for, as the end of a message."""
    head, dot, below = name.partition(".")
    if dot and head in known:
        return f": dots are for --set; write {head}: {{{below}: ...}}"
    before, colon, value = name.partition(":")
    if colon and before in known:
        return f": write a space behind the colon, {before}: {value}"
    key = key_of(name)
    if key != name and key.partition(".")[0] in _fields(model):
        return f": write {key}"
    return nearest(name, known) + ("; a plugin's options stand under options" if "options" in known else "")


def _named(error: ErrorDetails, model: type[BaseModel], path: KeyPath) -> str:
    """Return the long form of a name, where that stands in place of a section that has none but it."""
    wants_section = error["type"] == "model_type" and isinstance(error["input"], str)
    return f"; write {{name: {error['input']}}}" if wants_section and "name" in fields_at(model, path) else ""


def _unlisted(value: object, expected: str) -> str:
    known = [_as_written(part.strip(" '")) for part in expected.replace(" or ", ", ").split(",")]
    if isinstance(value, str) and value in known:
        return f"must be one of {', '.join(known)}, not {shown(value)}; remove the quotes"
    if isinstance(value, str):
        return f"unknown value {shown(value)}{nearest(value, known)}"
    return f"must be one of {', '.join(known)}, not {shown(value)}"


def _as_written(word: str) -> str:
    """Return a word as YAML has it."""
    return word.lower() if word in {"True", "False"} else word


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


def _is_missing_key(error: ErrorDetails, part: object) -> bool:
    return error["type"] == "missing" and part == error["loc"][-1]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split())
