"""The JSON Schema by which editors complete and check an experiment's YAML."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic.json_schema import models_json_schema

from pptrace.config.experiment import Experiment
from pptrace.config.flags import HEADLINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCHEDULE_FILE = r"(\.py:[A-Za-z_][A-Za-z_0-9]*|\.[cC][sS][vV]|\.[tT][xX][tT])$"
_IS_FILE = {"type": "string", "pattern": _SCHEDULE_FILE}
_NO_MODELS: Mapping[str, Mapping[str, type[BaseModel]]] = MappingProxyType({})
_NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})

Schema: TypeAlias = dict[str, Any]


def json_schema(
    plugin_models: Mapping[str, Mapping[str, type[BaseModel]]] = _NO_MODELS,
    names: Mapping[str, Iterable[str]] = _NO_NAMES,
) -> Schema:
    """Return the schema (draft 2020-12) of an experiment, its keys in a stable order.

    Args:
        plugin_models: per section (``model``, ``device``, ``network``, ``costs``, ``schedule``) and name,
            the parameter model; for ``model`` and ``device`` the name of who reads it.
        names: per section the names that are offered, presets for ``model`` and ``device``; a section that
            stands here or in ``plugin_models`` takes no other name.
    """
    named = {(section, name): model for section, own in plugin_models.items() for name, model in own.items()}
    refs, shared = _schemas([Experiment, *named.values()])
    definitions: dict[str, Schema] = shared["$defs"]
    top = definitions.pop("Experiment")
    for section, headline in HEADLINES.items():
        models = {
            name: _definition(refs[model], definitions) for (own, name), model in named.items() if own == section
        }
        known = sorted({*names.get(section, ()), *(models if headline == "name" else ())})
        long_form = _long_form(section, _definition(top["properties"][section], definitions), known, models)
        if section == "cluster":
            own = plugin_models.get("network", {})
            networks = {
                name: _definition(refs[own[name]], definitions) if name in own else None
                for name in names.get("network", ())
            }
            _name_parts(long_form, definitions["NetworkPart"], networks)
        top["properties"][section] = _either(section, top["properties"][section], known, long_form)
    used: Schema = _tidy({**top, "$defs": _used(top, definitions)})
    return {"$schema": _DIALECT, "title": "pptrace experiment", **used}


def _schemas(models: Iterable[type[BaseModel]]) -> tuple[dict[type[BaseModel], Schema], Schema]:
    unique = list(dict.fromkeys(models))
    by_mode, shared = models_json_schema([(model, "validation") for model in unique])
    return {model: by_mode[model, "validation"] for model in unique}, shared


def _definition(reference: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return a copy of what a ``$ref``, alone or beside null, stands for."""
    inner = reference.get("$ref") or next(part["$ref"] for part in reference["anyOf"] if "$ref" in part)
    return dict(definitions[inner.rpartition("/")[2]])


def _either(section: str, said: Schema, known: Sequence[str], long_form: Schema) -> Schema:
    short = dict(long_form["properties"][HEADLINES[section]]) if section == "p2p" else _name(section, known)
    short = {key: value for key, value in short.items() if key != "default"}
    return {"description": said["description"], "anyOf": [short, long_form]}


def _name(section: str, known: Sequence[str]) -> Schema:
    if not known:
        return {"type": "string"}
    if section == "cluster":
        presets = "|".join(re.escape(name) for name in known)
        return {"type": "string", "pattern": f"^({presets})(x[1-9][0-9]*)?$", "examples": list(known)}
    listed = {"enum": list(known)}
    return {"anyOf": [listed, _IS_FILE]} if section == "schedule" else listed


def _name_parts(cluster: Schema, own: Schema, networks: Mapping[str, Schema | None]) -> None:
    """Let a cluster's parts take the options of the networks; a part without a name is its preset's."""
    if not networks:
        return
    forms = [_option_form("network", own, name, model) for name, model in sorted(networks.items())]
    for part in ("node", "fabric"):
        described = cluster["properties"][part]["description"]
        unnamed = {**own, "not": {"required": ["name"]}}
        cluster["properties"][part] = {"description": described, "anyOf": [unnamed, *forms]}


def _long_form(section: str, own: Schema, known: Sequence[str], models: Mapping[str, Schema]) -> Schema:
    headline = HEADLINES[section]
    if section == "p2p":
        return own
    said = own["properties"][headline]
    named = {**own["properties"], headline: {"description": said["description"], **_name(section, known)}}
    if headline == "preset":
        forms = [_preset_form(own, named, model) for model in models.values()]
    else:
        forms = [_option_form(section, own, name, models.get(name)) for name in known]
        forms += [{**own, "properties": {**named, "name": _IS_FILE}}] if known and section == "schedule" else []
    return {"properties": named, "type": "object", "anyOf": forms} if forms else {**own, "properties": named}


def _preset_form(own: Schema, named: Schema, model: Schema) -> Schema:
    parameters = {key: value for key, value in model.items() if key not in {"properties", "required"}}
    needs = [{"required": ["preset"]}, {"required": model.get("required", [])}]
    return {**own, **parameters, "properties": {**named, **model.get("properties", {})}, "anyOf": needs}


def _option_form(section: str, own: Schema, name: str, model: Schema | None) -> Schema:
    said = {**own["properties"], "name": {"const": name}}
    if section != "schedule":
        inner = model or {"properties": {}, "additionalProperties": False}
        required = ["name", *inner.get("required", [])]
        return {**own, **inner, "properties": {**said, **inner.get("properties", {})}, "required": required}
    required = ["name", "options"] if model and model.get("required") else ["name"]
    return {**own, "properties": {**said, **({"options": model} if model else {})}, "required": required}


def _used(top: Schema, definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    wanted, found = [top], dict[str, Schema]()
    while wanted:
        for name in re.findall(r"'#/\$defs/([^']+)'", str(wanted.pop())):
            if name not in found:
                found[name] = definitions[name]
                wanted.append(definitions[name])
    return dict(sorted(found.items()))


def _tidy(schema: Any) -> Any:
    """Return a schema without generated titles, and without defaults that say nothing."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _tidy(part)
        for key, part in schema.items()
        if not (key == "title" and isinstance(part, str))
        and not (key == "default" and (part is None or isinstance(part, dict)) and not _is_property(part))
    }


def _is_property(part: object) -> bool:
    return isinstance(part, dict) and bool({"type", "$ref", "anyOf", "enum", "const"} & part.keys())
