"""Stacks: the page lists the rules that the code has, and each rule sets values that its keys can have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import simulate
from pptrace.config.resolution import leaves_by_key
from pptrace_frameworks.stacks import STACKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import StackOffer, StackRule

PAGE = Path(__file__).parents[3] / "docs" / "stacks.md"
HEADING = "## What each stack sets\n"
_ROOTS = [stack.rules for stack in STACKS if not stack.inherits]
COMMON = [rule for rule in _ROOTS[0] if all(rule in rules for rules in _ROOTS)]
"""Rules of all stacks."""
STEP = {
    "model": "mixtral-8x7b",
    "parallel": {"pp": 2, "tp": 2, "dp": 8},
    "batch": {"microbatches": 4, "sequence": 4096},
}


def test_the_page_lists_the_rules_of_each_stack(pytestconfig: pytest.Config) -> None:
    if not PAGE.is_file():
        pytest.skip("the repository's pages are not here")
    text = PAGE.read_text(encoding="utf-8")
    start = text.index("\n\n", text.index(HEADING) + len(HEADING) + 1) + 2
    written = "\n".join(["### All stacks", "", *table(COMMON), *map(lines_of, STACKS)])

    if pytestconfig.getoption("--regenerate", default=False):
        PAGE.write_text(text[:start] + written, encoding="utf-8")
    else:
        assert text[start:] == written


@pytest.mark.parametrize("stack", [stack.name for stack in STACKS])
def test_a_step_runs_with_each_stack(stack: str) -> None:
    run = simulate({**STEP, "device": "a100-sxm", "schedule": "1f1b", "stack": stack})

    settings = leaves_by_key(run.prepared.resolved.to_dict())
    from_stack = {key for key, origin in run.prepared.resolved.origins.items() if origin.startswith("stack ")}
    assert {"costs.kernels", "p2p.policy"} <= from_stack <= settings.keys()


@pytest.mark.parametrize("stack", [stack.name for stack in STACKS])
def test_a_schedule_that_no_framework_runs_has_messages_in_order(stack: str) -> None:
    parallel = {**STEP["parallel"], "vp": 2}

    run = simulate({**STEP, "parallel": parallel, "device": "h100-sxm", "schedule": "hanayo", "stack": stack})

    assert run.prepared.resolved.experiment.p2p.policy == "ordered"


@pytest.mark.parametrize(("model", "device"), [("mixtral-8x7b", "h100-sxm"), ("llama3-70b", "gb200")])
@pytest.mark.parametrize("stack", [stack.name for stack in STACKS])
def test_costs_in_segments_override_what_they_exclude(stack: str, model: str, device: str) -> None:
    costs = {"segments": True}

    run = simulate({**STEP, "model": model, "device": device, "schedule": "1f1b", "stack": stack, "costs": costs})

    assert run.prepared.workload.segments


def values_of(stack: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a dense step in FP8 on H100 with a stack."""
    step = {
        "model": {"preset": "llama3-70b", "precision": "fp8"}, "device": "h100-sxm", "schedule": "1f1b",
        "parallel": {"pp": 8, "tp": 4, "dp": 2}, "batch": {"microbatches": 8, "sequence": 4096}, "stack": stack,
    }  # fmt: skip
    return leaves_by_key(simulate(step | changes).prepared.resolved.to_dict())


@pytest.mark.parametrize(
    ("stack", "recipe", "gathers_in_fp8", "gradients"),
    [
        ("megatron-core-0.19", "delayed", False, "bf16"),
        ("nemo-24.07", "delayed", False, "bf16"),
        ("nemo-24.09", "delayed", False, "bf16"),
        ("nemo-24.12", "delayed", True, "bf16"),
        ("nemo-25.04", "delayed", True, "bf16"),
        ("megatron-bridge-25.09", "tensorwise", True, "bf16"),
        ("megatron-bridge-26.08", "tensorwise", True, "bf16"),
    ],
)
def test_releases_have_their_fp8_recipes(stack: str, recipe: str, *, gathers_in_fp8: bool, gradients: str) -> None:
    values = values_of(stack)

    assert values["costs.fp8_recipe"] == recipe
    assert values["costs.fp8_param_gather"] is gathers_in_fp8
    assert values["costs.gradients"] == gradients


@pytest.mark.parametrize(("costs", "is_kept"), [({}, True), ({"zero": 3}, False)])
def test_cast_weights_are_kept_unless_weights_are_sharded(costs: dict[str, Any], *, is_kept: bool) -> None:
    values = values_of("megatron-core-0.19", costs={"name": "roofline", **costs})

    assert values["costs.kept_casts"] is is_kept


def test_recipes_of_fp8_are_not_set_in_other_precisions() -> None:
    values = values_of("megatron-bridge-26.08", model={"preset": "llama3-70b", "precision": "bf16"})

    assert values["costs.fp8_recipe"] == "delayed"
    assert values["costs.fp8_param_gather"] is False


def test_a_written_recipe_overrides_that_of_the_stack() -> None:
    values = values_of("megatron-bridge-26.08", costs={"name": "roofline", "fp8_recipe": "blockwise"})

    assert values["costs.fp8_recipe"] == "blockwise"
    assert values["costs.fp8_param_gather"] is True


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({}, True),
        ({"parallel": {"pp": 8, "dp": 8}}, False),
        ({"schedule": "combined-1f1b", "parallel": {"pp": 8, "vp": 2, "tp": 4, "dp": 2}}, False),
        ({"device": "gb200", "model": {"preset": "llama3-70b", "precision": "nvfp4"}}, False),
        ({"device": "a100-sxm", "model": "llama3-70b"}, False),
    ],
)
def test_tensor_parallel_collectives_of_dense_models_overlap_with_products(
    changes: dict[str, Any], *, overlaps: bool
) -> None:
    assert values_of("megatron-core", **changes)["costs.overlap_tp"] is overlaps


def test_torchtitan_recomputes_by_operation_and_scales_by_current_values() -> None:
    values = values_of(
        "torchtitan-0.3", model={"preset": "llama3-8b", "precision": "fp8", "recompute": "selective"}
    )

    assert values["model.recompute_modules"] == ["alternate_products"]
    assert values["costs.fp8_recipe"] == "tensorwise"


@pytest.mark.parametrize(
    ("stack", "attention", "fused", "chunks"),
    [("torchtitan-0.2", "fused", False, 1), ("torchtitan-0.3", "flash-2", "attention", 8)],
)
def test_configurations_of_torchtitan_have_the_operators_of_their_release(
    stack: str, attention: str, fused: object, chunks: int
) -> None:
    values = values_of(stack, model="llama3-8b")

    assert values["costs.attention"] == attention
    assert values["model.fused_projections"] == fused
    assert values.get("costs.loss_chunks", 1) == chunks


def lines_of(stack: StackOffer) -> str:
    inherited = (
        f" It has the rules of `{stack.inherits}`{', and:' if stack.rules else '.'}" if stack.inherits else ""
    )
    rules = [rule for rule in stack.rules if rule not in COMMON]
    lines = [f"### {stack.name}", "", f"{stack.summary}{inherited}", ""]
    return "\n".join(lines + (table(rules) if rules else []))


def table(rules: Sequence[StackRule]) -> list[str]:
    lines = ["| sets | condition | source |", "|---|---|---|"]
    for rule in rules:
        conditions = [written(rule.when), *(f"not {text}" for text in [written(rule.unless)] if text)]
        lines.append(f"| {written(rule.set)} | {', '.join(filter(None, conditions))} | {rule.source} |")
    return [*lines, ""]


def written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}: {shown(value)}`" for key, value in values.items())


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{'from' if bound == 'min' else 'to'} {limit}" for bound, limit in value.items())
    if isinstance(value, list | tuple):
        return " or ".join(map(shown, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
