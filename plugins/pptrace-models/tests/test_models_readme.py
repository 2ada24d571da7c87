"""The README's tables are those of presets and fields (``--regenerate`` writes them)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from published_parameters import PUBLISHED, count_parameters

from pptrace.config.quantities import Dimension
from pptrace_models.accelerator import Accelerator
from pptrace_models.options import RooflineOptions
from pptrace_models.presets import DEVICES, MODELS
from pptrace_models.transformer import Compressed, Delta, Encoder, ExpertLoad, Indexer, Mamba, Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = Path(__file__).parents[3] / "examples"
KEYS = "| key | default | meaning |"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|---" * columns + "|", *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def models() -> str:
    rows = []
    for offer in MODELS:
        model = checked(Transformer, offer.values, "model")
        experts = f"{model.num_experts} of {model.expert_ffn}, {model.top_k} chosen" if model.num_experts else ""
        shared = f", {model.shared_ffn} shared" if model.shared_ffn else ""
        heads = f"{model.heads} / {'latent' if model.kv_rank else model.kv_heads}"
        heads += "".join(
            f", {name}" for name in ("delta", "mamba", "indexer", "compressed") if getattr(model, name)
        )
        rows.append([
            f"`{offer.name}`", str(model.layers), str(model.hidden), heads, str(model.ffn), experts + shared,
            str(model.vocabulary), f"{count_parameters(model) / 1e9:.4g} B",
            PUBLISHED[offer.name].text, offer.source,
        ])  # fmt: skip
    head = "| model | layers | width | heads / KV | FFN | experts | vocabulary | parameters | published | source |"
    return table(head, rows)


def devices() -> str:
    rows = []
    for offer in DEVICES:
        device = checked(Accelerator, offer.values, "device")
        peaks = [
            f"{peak / 1e12:g}" if peak else "" for peak in (device.peak_bf16, device.peak_fp8, device.peak_fp4)
        ]
        rows.append([
            f"`{offer.name}`", *peaks, f"{device.memory / 2**30:g} GiB",
            f"{device.memory_bandwidth / 1e12:g} TB/s",
            f"{device.scale_up_bandwidth / 1e9:g} GB/s to {device.scale_up_size}",
        ])  # fmt: skip
    head = "| device | BF16, TFLOP/s | FP8 | FP4 | memory | its bandwidth | scale-up, per direction |"
    return table(head, rows)


def default(field: FieldInfo) -> str:
    value: Any = field.default
    dimension = next((part for part in field.metadata if isinstance(part, Dimension)), None)
    if dimension is not None and value is not None:
        return dimension.exact(value)
    if isinstance(value, bool) or value is None:
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys(model: type[BaseModel]) -> Callable[[], str]:
    def made() -> str:
        rows = []
        for name, field in model.model_fields.items():
            shown = "needed" if field.is_required() else default(field)
            text = " ".join((field.description or "").replace("``", "`").split())
            rows.append([f"`{name}`", shown, text])
        return table(KEYS, rows)

    return made


@pytest.mark.parametrize(
    ("section", "head", "made"),
    [
        ("Presets", "| model |", models),
        ("Presets", "| device |", devices),
        ("model", KEYS, keys(Transformer)),
        ("model.expert_load", KEYS, keys(ExpertLoad)),
        ("model.encoder", KEYS, keys(Encoder)),
        ("model.delta", KEYS, keys(Delta)),
        ("model.mamba", KEYS, keys(Mamba)),
        ("model.indexer", KEYS, keys(Indexer)),
        ("model.compressed", KEYS, keys(Compressed)),
        ("device", KEYS, keys(Accelerator)),
        ("costs: roofline", KEYS, keys(RooflineOptions)),
    ],
)
def test_a_table_is_what_the_code_has(
    section: str, head: str, made: Callable[[], str], pytestconfig: pytest.Config
) -> None:
    page = README.read_text(encoding="utf-8")
    pattern = re.compile(rf"(^##+ {section}\n(?:(?!#).*\n)*?)({re.escape(head)}.*\n(?:\|.*\n)+)", re.MULTILINE)
    found = pattern.search(page)
    assert found is not None
    if pytestconfig.getoption("--regenerate", default=False):
        README.write_text(page[: found.start(2)] + made() + page[found.end(2) :], encoding="utf-8")
    else:
        assert found[2] == made()


def test_loads_and_overlap_are_those_that_the_example_recorded() -> None:
    page = README.read_text(encoding="utf-8")
    printed = (EXAMPLES / "experts.out").read_text(encoding="utf-8")

    workloads = re.findall(r"^(W\d) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE)
    assert workloads == re.findall(r"^\| `(W\d)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
    overlap = re.findall(r"^(\w+) +([\d.]+)% .*?(\d+) ms$", printed, re.MULTILINE)
    loads = {"uniform": "equal loads", "lognormal": "real routing"}
    assert {name for name, _, _ in overlap} == {*loads}
    for name, hidden, _ in overlap:
        row = re.search(rf"^\| {loads[name]} \|.*?\| ([\d.]+) % \|", page, re.MULTILINE)
        assert row is not None
        assert row[1] == hidden
    exchanges = {name: int(total) for name, _, total in overlap}
    words = " ".join(page.split())
    assert f"which takes {exchanges['uniform']} ms for a microbatch" in words
    assert f"they take {exchanges['lognormal'] / exchanges['uniform']:.2f} times as long here" in words
