"""The JSON Schema by which editors complete and check an experiment's YAML."""

from __future__ import annotations

import re
from copy import copy
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, create_model

from pptrace.config.choices import PolicyName
from pptrace.config.flags import FLAGS
from pptrace.config.schema import (
    DEFAULT_COSTS,
    Cluster,
    CostChoice,
    Device,
    Experiment,
    NetworkChoice,
    NetworkPart,
    PointToPoint,
    Preset,
    ScheduleChoice,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic.fields import FieldInfo

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_File: TypeAlias = Annotated[str, Field(pattern=r"(\.py:[A-Za-z_][A-Za-z_0-9]*|\.[cC][sS][vV]|\.[tT][xX][tT])$")]

_NO_NAME = {"not": {"required": ["name"]}}

Schema: TypeAlias = dict[str, Any]
Offers: TypeAlias = "Mapping[str, type[BaseModel] | None]"
"""The options of each offer of a section, by its name; None where it takes none."""


def json_schema(
    plugin_models: Mapping[str, Mapping[str, type[BaseModel]]] = MappingProxyType({}),
    names: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Schema:
    """Return the schema (draft 2020-12) of an experiment, its keys in a stable order.

    Where a section's names are known, its long form is a union of them that ``name`` tells apart, each with the
    options that it takes.

    Args:
        plugin_models: per section (``model``, ``device``, ``network``, ``costs``, ``schedule``) and name,
            the parameter model; for ``model`` and ``device`` the name of who reads it.
        names: per section the names that are offered, presets for ``model`` and ``device``; a section that
            stands here or in ``plugin_models`` takes no other name.
    """
    offers: dict[str, Offers] = {}
    for section, flag in FLAGS.items():
        models = plugin_models.get(section, {})
        known = {*names.get(section, ()), *(models if flag.headline == "name" else ())}
        offers[section] = {name: models.get(name) for name in sorted(known)}
    networks = _union("network", NetworkChoice, offers["network"])
    forms: dict[str, Any] = {
        "model": _presets("model", offers["model"], plugin_models.get("model", {})),
        "schedule": _schedules(offers["schedule"]),
        "device": _presets("device", offers["device"], plugin_models.get("device", {})),
        "network": _any(_named(offers["network"]), networks),
        "cluster": _clusters(offers["cluster"], networks if offers["network"] else NetworkPart),
        "costs": _costs(offers["costs"], plugin_models.get("model", {})),
    }
    forms |= {
        name: _any(flag.choices, Experiment.model_fields[name].annotation)
        for name, flag in FLAGS.items()
        if flag.choices is not None and not flag.offers
    }
    forms["p2p"] = _policies(offers["p2p"])
    known_fields = _fields(Experiment)
    fields = {section: (form, known_fields[section]) for section, form in forms.items()}
    whole: Any = create_model("Experiment", __base__=Experiment, **fields)  # type: ignore[call-overload] # any forms
    return {"$schema": _DIALECT, **_tidy(whole.model_json_schema()), "title": "pptrace experiment"}


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return copies of a model's fields, because pydantic before 2.12 changes those that a new model takes."""
    return {name: copy(field) for name, field in model.model_fields.items()}


def _named(offers: Offers) -> Any:
    """Return the short form, a bare name."""
    return Literal[tuple(offers)] if offers else str


def _union(section: str, section_model: type[BaseModel], offers: Offers) -> Any:
    """Return the long forms with options beside the name, which ``name`` tells apart."""
    if not offers:
        return section_model
    forms = [
        _closed(f"{section}-{name}", model, name=(Literal[name], _fields(section_model)["name"]))
        for name, model in offers.items()
    ]
    return _by_name(forms)


def _by_name(forms: Sequence[Any]) -> Any:
    return Annotated[_any(*forms), Field(discriminator="name")] if len(forms) > 1 else forms[0]


def _any(*forms: Any) -> Any:
    return reduce(or_, forms)


def _costs(offers: Offers, readers: Iterable[str]) -> Any:
    """Return the forms of costs: a name, with its options beside it, or the options of a cost model by default."""
    unnamed = [
        _closed(f"costs-default-{name}", offers[name]) for name in (DEFAULT_COSTS, *readers) if offers.get(name)
    ]
    return _any(_named(offers), _union("costs", CostChoice, offers), *unnamed)


def _schedules(offers: Offers) -> Any:
    """Return the forms of a schedule, whose options stand under a key of their own."""
    if not offers:
        return _any(str, ScheduleChoice)
    forms = []
    fields = _fields(ScheduleChoice)
    core_fields = {key: (fields[key].annotation, fields[key]) for key in fields if key not in {"name", "options"}}
    for name, model in offers.items():
        forms.append(
            _closed(
                f"schedule-{name}",
                None,
                name=(Literal[name], fields["name"]),
                options=_options(f"schedule-{name}-options", model),
                **core_fields,
            )
        )
    of_file = create_model("schedule-file", __base__=ScheduleChoice, name=(_File, ...))
    return _any(_named(offers), _File, _by_name(forms), of_file)


def _options(title: str, model: type[BaseModel] | None) -> Any:
    """Return the field of options under a key of their own: empty without a model."""
    if model is None:
        return Annotated[dict[str, Any], Field(max_length=0)], {}
    needed = any(field.is_required() for field in model.model_fields.values())
    return _closed(title, model), ... if needed else {}


def _policies(offers: Offers) -> Any:
    """Return the forms of a message policy: its name, the core's own settings, or a plugin's name and options."""
    if not offers:
        return _any(str, PointToPoint)
    fields = _fields(PointToPoint)
    words = tuple(name for name in PolicyName.words() if name in offers)
    forms = [_closed("p2p", PointToPoint, policy=(Literal[words], fields["policy"]), options=_options("", None))]
    for name, model in offers.items():
        if name not in words:
            options = _options(f"p2p-{name}-options", model)
            forms.append(_closed(f"p2p-{name}", None, policy=(Literal[name], ...), options=options))
    return _any(_named(offers), *forms)


def _presets(section: str, offers: Offers, readers: Mapping[str, type[BaseModel]]) -> Any:
    """Return the forms of a model or device: a preset, or what one of the readers needs."""
    base = Device if section == "device" else Preset
    fields: dict[str, Any] = {"preset": (_any(_named(offers), None), _fields(Preset)["preset"])}
    if base is Device:
        fields["ranks"] = (Device.model_fields["ranks"].annotation, _fields(Device)["ranks"])

    def either(schema: Schema) -> None:
        enough = [{"required": [key]} for key in fields]
        schema["anyOf"] = [*enough, {"required": schema.pop("required", [])}]

    forms = [
        create_model(
            f"{section}-{name}", __base__=model, __doc__=model.__doc__,
            __cls_kwargs__={"json_schema_extra": either}, **fields,
        )
        for name, model in readers.items()
    ]  # fmt: skip
    return _any(_named(offers), *(forms or [create_model(section, __base__=base, **fields)]), None)


def _clusters(offers: Offers, networks: Any) -> Any:
    """Return the forms of a cluster, whose parts are networks, or without a name the preset's."""
    known = "|".join(re.escape(name) for name in offers)
    name: Any = str
    if offers:
        name = Annotated[str, Field(pattern=f"^({known})(x[1-9][0-9]*)?$", examples=list(offers))]
    fields: dict[str, Any] = {"preset": (_any(name, None), _fields(Cluster)["preset"])}
    if networks is not NetworkPart:
        unnamed = create_model(
            "cluster-part", __base__=NetworkPart, __cls_kwargs__={"json_schema_extra": _NO_NAME}
        )
        fields |= {part: (_any(unnamed, networks, None), _fields(Cluster)[part]) for part in ("node", "fabric")}
    return _any(name, create_model("cluster", __base__=Cluster, **fields), None)


def _closed(title: str, model: type[BaseModel] | None, **fields: Any) -> type[BaseModel]:
    """Return a model with fields besides its own, which takes no other keys unless it says so itself."""
    base = model or BaseModel
    extra = base.model_config.get("extra", "ignore")
    closed: type[BaseModel] = create_model(
        title, __base__=base, __doc__=model.__doc__ if model else None,
        __cls_kwargs__={"extra": "forbid" if extra == "ignore" else extra}, **fields,
    )  # fmt: skip
    return closed


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
        and not (key == "default" and isinstance(part, int) and schema.get("type") == "string")
    }


def _is_property(part: object) -> bool:
    return isinstance(part, dict) and bool({"type", "$ref", "anyOf", "enum", "const"} & part.keys())
