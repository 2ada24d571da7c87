"""Models of configurations: their scale, their stages, and runs of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import ConfigError
from pptrace.plugin import Registry, load, prepare
from pptrace_torch.manifest import Manifest
from pptrace_torch.scaled_model import MOST_FLOPS, ScaledModel

if TYPE_CHECKING:
    from forked_python import ForkedPython

    from pptrace.plugin import StepInputs

pytest.importorskip("pptrace_models")
pytest.importorskip("pptrace_schedules")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
SMALL = {"layers": 5, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocabulary": 128}
BASE = {
    "schedule": "1f1b", "parallel": {"pp": 4}, "batch": {"microbatches": 8, "sequence": 4096, "micro": 2},
    "device": "h100-sxm",
}  # fmt: skip


def prepared(model: Any, **more: Any) -> StepInputs:
    return prepare(load({**BASE, "model": model, **more}), Registry.load())


def scaled(model: Any, **more: Any) -> ScaledModel:
    return ScaledModel.of(prepared(model, **more), "step.yaml")


@pytest.mark.parametrize("preset", ["gpt3-175b", "llama3-8b", "llama3-405b", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_the_divisor_is_the_smallest_power_of_two_for_a_feasible_step(preset: str) -> None:
    step = prepared(preset)
    model = ScaledModel.of(step, "step.yaml")
    half = ScaledModel.over(model.divisor // 2, transformer(step), step)

    assert model.divisor.bit_count() == 1
    assert model.flops(8) <= MOST_FLOPS < half.flops(8)
    configured = transformer(step)
    assert model.hidden == max(round(configured.hidden / model.divisor), 1)
    assert (model.heads, model.kv_heads) == (configured.heads, configured.kv_heads)
    assert model.sequence == 4096 // model.divisor
    assert model.sequences == 2
    assert sum(len(stage.mlp_widths) for stage in model.stages) == configured.layers


def transformer(step: StepInputs) -> Any:
    from pptrace_models.transformer import Transformer, checked

    section = step.resolved.experiment.model
    assert section is not None
    return checked(Transformer, section.values, "model")


def test_a_small_model_keeps_its_sizes() -> None:
    model = scaled(SMALL, batch={"microbatches": 2, "sequence": 16})

    assert (model.divisor, model.hidden, model.head_dim, model.sequence, model.vocabulary) == (1, 64, 16, 16, 128)
    assert str(model) == "configured sizes: hidden 64, 4 heads of 16, sequence 16, vocabulary 128"


def test_flops_are_counted_product_by_product() -> None:
    model = scaled(SMALL, batch={"microbatches": 2, "sequence": 16})
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 160
    forward = 2 * 16 * (5 * layer + 64 * 128) + 5 * 2 * 2 * 16 * 16 * 64

    assert model.flops(1) == 3 * forward


def test_stages_are_those_of_the_configuration() -> None:
    even = scaled(SMALL).stages
    laid_out = scaled({**SMALL, "layout": "E|ttt|tt|L"}).stages

    assert [stage.embedding for stage in even] == [True, False, False, False]
    assert [stage.head for stage in even] == [False, False, False, True]
    assert [len(stage.mlp_widths) for stage in even] == [1, 1, 2, 1]
    assert [(stage.embedding, len(stage.mlp_widths), stage.head) for stage in laid_out] == [
        (True, 0, False), (False, 3, False), (False, 2, False), (False, 0, True),
    ]  # fmt: skip


def test_layers_with_experts_compute_what_one_token_does() -> None:
    experts = {"num_experts": 8, "top_k": 2, "expert_ffn": 96, "moe_every": 2, "shared_ffn": 32}
    model = scaled({**SMALL, **experts}, batch={"microbatches": 2, "sequence": 16})

    assert [width for stage in model.stages for width in stage.mlp_widths] == [160, 224, 160, 224, 160]


def test_a_slice_has_its_part_of_the_sequence() -> None:
    whole, sliced = scaled(SMALL), scaled(SMALL, schedule={"name": "seq-1f1b", "options": {"slices": 4}})

    assert (sliced.sequence * sliced.divisor, whole.sequence * whole.divisor) == (1024, 4096)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("deepseek-v3", "no multi-token prediction: take a model without it"),
        ("deepseek-v2", "no latent attention"),
        ({**SMALL, "encoder": {"layers": 2, "hidden": 8, "heads": 2, "ffn": 8, "tokens": 4}}, "no encoder"),
        ({**SMALL, "layers_per_stage": [2, 0, 2, 1]}, "stage 1 has no layers, embedding or LM head"),
    ],
)
def test_models_with_other_parts_are_refused(model: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scaled(model)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_without_a_model_gets_a_message_with_what_to_write() -> None:
    step = prepare(load(None, flags={"schedule": "1f1b", "pp": 2, "microbatches": 4}), Registry.load())

    with pytest.raises(
        ConfigError, match=r"step\.yaml has none: write one, such as --set model\.preset=llama3-8b"
    ):
        ScaledModel.of(step, "step.yaml")
    sets = ["model.preset=llama3-8b", "device.preset=h100-sxm", "batch.sequence=4096"]
    with_model = load(None, sets, {"schedule": "1f1b", "pp": 2, "microbatches": 4})
    assert ScaledModel.of(prepare(with_model, Registry.load()), "step.yaml").divisor > 1


@pytest.mark.torch
@needs_torch
def test_gradients_of_real_stages_are_those_of_autograd(tmp_path: Path, torch_python: ForkedPython) -> None:
    program = Path(__file__).with_name("check_real_stages.py")

    ran = torch_python.run(tmp_path, "1f1b", "zb-h1", "zb-v", "dualpipe-v", program=program)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.torch
@needs_torch
def test_a_run_of_a_model_states_its_scale_and_lends_its_stages(
    tmp_path: Path, torch_python: ForkedPython
) -> None:
    step = {**BASE, "parallel": {"pp": 2}, "batch": {"microbatches": 4, "sequence": 32}, "model": SMALL}
    (tmp_path / "step.yaml").write_text(json.dumps(step), encoding="utf-8")

    ran = torch_python.run(tmp_path, "torch", "run", "step.yaml", "--real", "--steps", "1", "-o", "run")
    assert ran.returncode == 0, ran.stderr
    again = torch_python.run(tmp_path, "torch", "run", "zb-h1", "--costs", "run", "--steps", "1", "-o", "again")
    assert again.returncode == 0, again.stderr

    first, second = Manifest.read(tmp_path / "run"), Manifest.read(tmp_path / "again")
    assert first.model is not None
    assert f"configured sizes: hidden {first.model.hidden}" in ran.stderr
    assert (first.stages, first.model.divisor, first.model) == ((), 1, second.model)
    assert second.microbatches == 4
    explained = torch_python.run(tmp_path, "explain", "again", "--json")
    assert explained.returncode == 0, explained.stderr
    both = torch_python.run(tmp_path, "torch", "run", "step.yaml", "--real", "--costs", "run", "-o", "both")
    assert (both.returncode, both.stderr.splitlines()[-1:]) == (
        2, ["pptrace: --costs gives the stages of another run: leave --real out"],
    )  # fmt: skip
