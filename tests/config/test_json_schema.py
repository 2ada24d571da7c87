"""The JSON Schema accepts what loads, refuses what does not, and takes plugins' parameters in."""

import json
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.choices import PolicyName
from pptrace.config.json_schema import json_schema
from pptrace.config.quantities import Duration, Rate, Size
from pptrace.config.schema import Experiment
from pptrace.config.yaml_document import parse_yaml


class Tiers(BaseModel):
    model_config = ConfigDict(extra="forbid")

    level: int = 1


class Hockney(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bandwidth: Rate = Field(description="Per direction.")
    latency: Duration = 0
    tiers: Tiers = Tiers()


class ZeroBubble(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(ge=1)


class Chip(BaseModel):
    model_config = ConfigDict(extra="forbid")

    memory: Size


MODELS: dict[str, dict[str, type[BaseModel]]] = {
    "network": {"hockney": Hockney},
    "schedule": {"zb": ZeroBubble},
    "device": {"roofline": Chip},
    "p2p": {"framework": ZeroBubble},
    "costs": {"roofline": ZeroBubble, "unit": Tiers},
    "model": {"roofline": Chip},
}
NAMES = {
    "network": ["hockney", "ideal"],
    "cluster": ["dgx"],
    "schedule": ["1f1b", "zb"],
    "device": ["h100"],
    "costs": ["table", "unit"],
    "p2p": [*PolicyName.words(), "framework"],
}

VALID = [
    "{schedule: zb, p2p: framework}",
    "{schedule: zb, p2p: {policy: framework, options: {limit: 1}}}",
    "{schedule: zb, p2p: {policy: ordered, stream: pair}}",
    "{schedule: zb, p2p: {stream: pair}}",
    "{schedule: 1f1b, parallel: {pp: 8}, batch: {microbatches: 32}}",
    "{schedule: {name: 1f1b}, p2p: ordered}",
    "{schedule: {name: zb, options: {limit: 3}}, p2p: {policy: ordered, eager: 64 KiB}}",
    "{schedule: ./mine.py:make, network: ideal, device: h100}",
    "{schedule: {name: table.csv}, network: {name: hockney, bandwidth: 400 Gb/s, latency: 5 us}}",
    "{schedule: table.csv, device: {preset: h100, memory: 80 GiB}, costs: unit}",
    "{schedule: table.csv, device: {memory: 80 GiB}, costs: {name: unit}}",
    "{schedule: zb, costs: {name: roofline, limit: 1}}",
    "{schedule: zb, costs: {limit: 1}}",
    "{schedule: zb, costs: {level: 3}}",
    "{schedule: zb, network: {name: hockney, bandwidth: 1e3 MB/s, tiers: {level: 2}}}",
    "{schedule: 1f1b, cluster: dgxx32}",
    "{schedule: 1f1b, cluster: {preset: dgx, nodes: 2, node: {efficiency: 0.5}}}",
    "{schedule: 1f1b, cluster: {preset: dgx, fabric: {name: hockney, bandwidth: 1 GB/s}}}",
]
INVALID_ALWAYS = [
    "{parallel: {pp: 8}}",
    "{schedule: 1f1b, paralel: {pp: 8}}",
    "{schedule: 1f1b, parallel: {pp: 0}}",
    "{schedule: 1f1b, parallel: {pp: '8'}}",
    "{schedule: 1f1b, parallel: {pp: true}}",
    "{schedule: 1f1b, p2p: 3}",
    "{schedule: 1f1b, p2p: {eager: 65536}}",
    "{schedule: 1f1b, data_parallel: {latency: 5 parsecs}}",
    "{schedule: {nam: 1f1b}}",
    "{schedule: 3}",
    "{schedule: 1f1b, network: {bandwidth: 1 GB/s}}",
    "{schedule: {name: 1f1b, offload: {stages: []}}}",
    "{schedule: {name: 1f1b, recompute: {chunks: []}}}",
    "{schedule: {name: 1f1b, interleave: {}}}",
    "{schedule: {name: 1f1b, interleave: {F+B: []}}}",
    "{schedule: 1f1b, batch: {lengths: []}}",
    "{schedule: 1f1b, data_parallel: {speeds: {}}}",
    "{schedule: 1f1b, device: {ranks: {}}}",
    "{schedule: 1f1b, device: {preset: ''}}",
    "{schedule: 1f1b, plan: {pp: []}}",
]
INVALID_WITH_PLUGINS = [
    "{schedule: zb, p2p: orderd}",
    "{schedule: zb, p2p: {policy: orderd}}",
    "{schedule: zb, p2p: {policy: async, options: {limit: 1}}}",
    "{schedule: zb, p2p: {policy: framework, options: {limit: 0}}}",
    "{schedule: zb, p2p: {policy: framework, stream: pair}}",
    "{schedule: 1f2b}",
    "{schedule: zb, network: hockey}",
    "{schedule: zb, network: {name: hockney, bandwith: 1 GB/s}}",
    "{schedule: zb, costs: {limit: 0}}",
    "{schedule: zb, costs: {levle: 3}}",
    "{schedule: zb, costs: {name: unit, limit: 1}}",
    "{schedule: zb, network: {name: hockney, bandwidth: 1}}",
    "{schedule: zb, network: {name: hockney}}",
    "{schedule: zb, network: {name: ideal, bandwidth: 1 GB/s}}",
    "{schedule: {name: zb, options: {limit: 0}}}",
    "{schedule: zb, device: {memory: 80}}",
    "{schedule: zb, device: {preset: h200}}",
    "{schedule: zb, device: {}}",
    "{schedule: {name: 1f1b, options: {limit: 3}}}",
    "{schedule: zb, cluster: dgxx0}",
    "{schedule: zb, cluster: dgy}",
    "{schedule: zb, cluster: {preset: dgx, fabric: {name: hockey}}}",
    "{schedule: zb, cluster: {preset: dgx, node: {name: hockney, bandwith: 1 GB/s}}}",
]


CORE, WITH_PLUGINS = json_schema(), json_schema(MODELS, NAMES)


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    validator = jsonschema.Draft202012Validator(schema)
    return validator.is_valid(parse_yaml(text, "test").value)


@pytest.mark.parametrize("schema", [CORE, WITH_PLUGINS], ids=["core", "plugins"])
def test_it_is_a_schema_of_draft_2020_12(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("text", VALID)
def test_what_loads_is_accepted(text: str) -> None:
    assert is_valid(text, CORE)
    assert is_valid(text, WITH_PLUGINS)


@pytest.mark.parametrize("text", INVALID_ALWAYS)
def test_what_never_loads_is_refused(text: str) -> None:
    assert not is_valid(text, CORE)
    assert not is_valid(text, WITH_PLUGINS)


@pytest.mark.parametrize("text", INVALID_WITH_PLUGINS)
def test_what_no_plugin_takes_is_refused_where_plugins_are_known(text: str) -> None:
    assert is_valid(text, CORE)
    assert not is_valid(text, WITH_PLUGINS)


def test_the_same_models_give_the_same_text() -> None:
    assert json.dumps(json_schema(MODELS, NAMES)) == json.dumps(WITH_PLUGINS)
    assert list(CORE["properties"]) == [field.alias or name for name, field in fields(Experiment)]


def test_every_key_is_described() -> None:
    for model in [Experiment, *(model for _, field in fields(Experiment) for model in inner(field))]:
        assert all(field.description for _, field in fields(model)), model


def test_every_definition_is_used_and_none_is_missing() -> None:
    text, definitions = json.dumps(WITH_PLUGINS), WITH_PLUGINS["$defs"]

    assert all(f'"#/$defs/{name}"' in text for name in definitions)
    assert text.count('"$ref"') >= len(definitions)
    assert "Tiers" in definitions
    assert '"default": null' not in text


def fields(model: type[BaseModel]) -> list[tuple[str, Any]]:
    return list(model.model_fields.items())


def inner(field: Any) -> list[type[BaseModel]]:
    parts = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def test_names_tell_the_options_of_a_plugin_apart() -> None:
    (union,) = [form for form in WITH_PLUGINS["properties"]["network"]["anyOf"] if "oneOf" in form]
    assert union["discriminator"]["propertyName"] == "name"
    hockney = WITH_PLUGINS["$defs"][union["discriminator"]["mapping"]["hockney"].rpartition("/")[2]]
    assert hockney["properties"]["name"]["const"] == "hockney"
    assert hockney["properties"]["bandwidth"]["description"] == "Per direction."
    assert "default" not in hockney["properties"]["latency"]
