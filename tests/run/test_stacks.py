"""Stacks set what the user did not write, where their conditions hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.errors import ConfigError, PluginError
from pptrace.plugin import Registry, StackOffer, StackRule, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pptrace.run.run import Run

pytestmark = pytest.mark.needs_plugins

STEP: dict[str, Any] = {
    "model": "llama3-8b", "device": "h100-sxm", "schedule": "1f1b", "parallel": {"pp": 2, "tp": 2},
    "batch": {"microbatches": 4, "sequence": 2048},
}  # fmt: skip


class Plugin:
    @hookimpl
    def pptrace_stacks(self) -> Iterable[StackOffer]:
        first = StackRule(set={"costs.zero": 1, "p2p.policy": "ordered", "p2p.eager": "1 KiB"}, source="a.py")
        last = StackRule(set={"costs.zero": 2}, when={"parallel.dp": {"min": 2}}, source="b.py")
        yield StackOffer(name="made-1.9", summary="Old.", rules=(first,))
        yield StackOffer(name="made-1.10", summary="New.", rules=(last,), inherits="made-1.9")
        yield StackOffer(name="loop", summary="Itself.", inherits="loop")
        yield StackOffer(name="orphan", summary="No parent.", inherits="missing-stack")
        yield StackOffer(name="wide", summary="Too much.", rules=(StackRule(set={"batch.micro": 2}, source=""),))


def run(**changed: Any) -> Run:
    return pptrace.simulate({**STEP, **changed}, registry=Registry.load(plugins={"made": Plugin()}))


def value(step: Run, key: str) -> tuple[Any, str]:
    return next((value, origin) for name, value, origin in step.prepared.resolved.explain() if name == key)


def test_a_stack_sets_what_the_user_did_not_write_with_its_source() -> None:
    step = run(stack="made-1.9")

    assert value(step, "costs.zero") == (1, "stack made-1.9: a.py")
    assert value(step, "p2p.policy") == ("ordered", "stack made-1.9: a.py")
    assert value(step, "p2p.eager")[1] == "stack made-1.9: a.py"
    assert value(run(stack="made-1.9", costs={"zero": 0}), "costs.zero") == (0, "config")


def test_a_policy_that_the_user_writes_takes_no_settings_of_the_stack() -> None:
    step = run(stack="made-1.9", p2p="async")

    assert value(step, "p2p.policy") == ("async", "config")
    assert value(step, "p2p.eager")[1] == "default"


def test_later_rules_and_heirs_override() -> None:
    assert value(run(stack="made-1.10"), "costs.zero")[0] == 1
    two = {"parallel": {**STEP["parallel"], "dp": 2}}
    assert value(run(stack="made-1.10", **two), "costs.zero") == (2, "stack made-1.10: b.py")


@pytest.mark.parametrize(
    ("name", "used", "has_note"),
    [("made", "made-1.10", False), ("made-1.9", "made-1.9", False), ("made-2", "made-1.10", True),
     ("made-1.9.5", "made-1.9", True), ("made-1.8", "made-1.9", True)],
)  # fmt: skip
def test_an_unknown_release_is_the_newest_before_it_or_the_oldest(name: str, used: str, *, has_note: bool) -> None:
    step = run(stack=name)

    assert value(step, "costs.zero")[1].startswith("stack made-1.9:")
    notes = [note for note in step.prepared.notes if "stack" in note]
    assert [used in note and name in note for note in notes] == [True] * has_note
    assert f"stack {used}," in step.summary()


@pytest.mark.parametrize("name", ["nothing", "nothing-1.8", "made-1.x"])
def test_a_name_without_releases_is_unknown(name: str) -> None:
    with pytest.raises(PluginError, match=f"stack: no installed plugin offers a stack named '{name}'"):
        run(stack=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("loop", "stack loop inherits from itself"), ("wide", "stack wide sets batch.micro: it can set keys of")],
)
def test_a_stack_that_cannot_be_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(stack=name)
    with pytest.raises(PluginError, match="missing-stack"):
        run(stack="orphan")


def test_a_model_has_the_default_stack_and_units_have_none() -> None:
    assert value(run(), "stack")[0].startswith("megatron-core-")
    assert value(run(), "costs.kernels")[0] == "shapes"
    ideal = run(stack="ideal")
    assert value(ideal, "costs.kernels") == ("groups", "default")
    assert not [origin for origin in ideal.prepared.resolved.origins.values() if origin.startswith("stack ")]
    units = pptrace.simulate(schedule="1f1b", pp=2, microbatches=4)
    assert units.prepared.resolved.experiment.stack is None


def test_without_the_plugin_of_the_default_stack_a_model_has_none() -> None:
    registry = Registry.load(disable={"pptrace-frameworks"})

    assert pptrace.simulate(STEP, registry=registry).prepared.resolved.experiment.stack is None


def test_costs_that_read_no_model_take_only_what_is_not_theirs() -> None:
    units = pptrace.simulate(
        {"schedule": "1f1b", "parallel": {"pp": 2}, "batch": {"microbatches": 4}, "stack": "made-1.9"},
        registry=Registry.load(plugins={"made": Plugin()}),
    )

    assert value(units, "p2p.policy")[0] == "ordered"
    assert value(units, "costs.name")[0] == "unit"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("when: {model.hidden: 4096}", True), ("when: {model.hidden: 4096, parallel.tp: 4}", False),
        ("when: {model.hidden: {min: 4097}}", False), ("when: {model.hidden: {min: 1, max: 4096}}", True),
        ("when: {device.preset: [a100*, 'h?00-sxm']}", True), ("when: {device.peak_bf16: {min: 1}}", True),
        ("when: {model.num_experts: {min: 1}}", False), ("unless: {model.num_experts: {min: 1}}", True),
        ("unless: {model.hidden: 4096, parallel.tp: 4}", False), ("when: {costs.zero: 1}", True),
        ("when: {parallel.sequence_parallel: false}", True), ("when: {parallel.sequence_parallel: 0}", False),
    ],
)  # fmt: skip
def test_conditions_of_a_file(tmp_path: Path, condition: str, *, holds: bool) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        f"inherits: made-1.9\nrules:\n- {{set: {{costs.gradients: bf16}}, {condition}, source: here}}\n"
    )

    step = run(stack=str(file))

    assert value(step, "costs.gradients")[0] == ("bf16" if holds else "fp32")
    assert "stack" not in step.prepared.resolved.to_dict()
    assert pptrace.simulate(step.prepared.resolved.to_dict()).step_ns == step.step_ns


def test_a_file_sets_nested_keys_and_inherits_from_the_newest_release(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("inherits: made-1.99\nrules:\n- {set: {model.product_precisions.head: mxfp8}, source: here}\n")

    step = run(stack=str(file))

    assert value(step, "model.product_precisions.head") == ("mxfp8", "stack own: here")
    assert value(step, "costs.zero")[1] == "stack made-1.9: a.py"
    assert [note for note in step.prepared.notes if "made-1.99" in note] == [
        "No plugin offers the stack made-1.99: the step has made-1.10, the newest release before it."
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: 3\n", "rules"), ("rules: [{set: {}}]\n", "source"), ("nothing: 1\n", "nothing"),
        ("rules: [{set: {costs.zero: 9}, source: x}]\n", "zero"),
        ("rules: [{set: {costs: 9}, source: x}]\n", "costs"), ("rules: [{set: {p2p.way: 9}, source: x}]\n", "way"),
        ("rules: [{set: {costs.hots: 9}, source: x}]\n", r"rules\[0\]\.set\.costs\.hots: no such key .*'host'"),
        (
            "rules: [{set: {}, when: {model.num_expert: 9}, source: x}]\n",
            r"rules\[0\]\.when\.model\.num_expert: no such key .*'num_experts'",
        ),
        ("rules: [{set: {}, unless: {model.layers: {mn: 1}}, source: x}]\n", "has min, max or both, not mn"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_stack_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=message) as caught:
        run(stack=str(file))
    assert "\n" not in str(caught.value)
