"""A schedule whose messages the configuration's policy cannot place runs under a rule, and its row says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from small_schedules import pptrace_schedules

from pptrace.api import compare, simulate
from pptrace.config.choices import PolicyName
from pptrace.errors import ConstraintError, PptraceError
from pptrace.plugins.hookspecs import hookimpl
from pptrace.plugins.offers import MessagePolicyOffer
from pptrace.plugins.registry import Registry
from pptrace.steps.message_calls import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pptrace.steps.schedule import Schedule

COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 MiB", "boundary": "3 MB"}
NETWORK = {"name": "hockney", "bandwidth": "1 GB/s"}
STEP: dict[str, Any] = {
    "parallel": {"pp": 2}, "batch": {"microbatches": 4}, "costs": COSTS, "network": NETWORK, "p2p": "picky",
}  # fmt: skip


class Switches(BaseModel):
    lumps: bool | None = None


def picky(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Place the messages of tables of one stage per rank, with its switch only those of lumped microbatches."""
    if schedule.stages != schedule.ranks:
        raise ConstraintError("picky cannot place this table's messages", key="p2p.policy")
    if options["lumps"] and len(schedule) == 2 * schedule.ranks * schedule.microbatches:
        raise ConstraintError("needs lumps", key="p2p.options.lumps")
    return Policy(name=PolicyName.ASYNC)


class Plugin:
    pptrace_schedules = staticmethod(pptrace_schedules)

    @staticmethod
    @hookimpl
    def pptrace_message_policies() -> list[MessagePolicyOffer]:
        return [MessagePolicyOffer(name="picky", summary="Few.", build=picky, options=lambda: Switches)]


def compared(schedules: str, step: Mapping[str, Any] = STEP, **values: Any) -> Any:
    registry = Registry.load(entry_points=False, plugins={"small": Plugin()})
    return compare(dict(step), schedules=schedules, registry=registry, **values)


def step_ns(schedule: str, policy: str) -> int:
    registry = Registry.load(entry_points=False, plugins={"small": Plugin()})
    return simulate(dict(STEP), schedule=schedule, p2p=policy, registry=registry).metrics.step_ns


@pytest.mark.parametrize("values", [{}, {"memory": "1 GiB", "vary": "vp"}])
def test_it_runs_under_a_rule_that_takes_any_table_and_is_marked(values: dict[str, Any]) -> None:
    comparison = compared("eager,chunky", **values)
    eager, chunky = comparison.table()
    lines = comparison.summary().splitlines()

    assert [(row["policy"], row["refused"]) for row in (eager, chunky)] == [("picky", None), ("ordered", None)]
    assert eager["step_ns"] == step_ns("eager", "picky")
    assert chunky["step_ns"] == step_ns("chunky", "ordered")
    assert lines[1].endswith("p2p picky")
    note = "chunky: p2p ordered here, because the configured policy does not accept their messages;"
    assert sum(line.startswith(note) for line in lines) == 1


def test_on_equal_memory_all_variants_have_a_step_under_one_policy_too() -> None:
    comparison = compared("eager,chunky", memory="1 GiB", vary="vp")
    steps = [row["common_policy_step_ns"] for row in comparison.table()]

    assert steps == [step_ns("eager", "ordered"), step_ns("chunky", "ordered")]
    assert steps[0] > comparison.table()[0]["step_ns"]
    assert "fastest under ordered: " in comparison.summary()
    assert (
        "all ordered: each schedule's best variant under ordered, the same variant for each"
        in comparison.summary()
    )
    assert "--p2p ordered" in comparison.rows[1].arguments


@pytest.mark.needs_plugins
def test_on_equal_memory_the_best_variant_under_one_policy_is_searched() -> None:
    step = {
        "model": "llama3-8b", "device": "h100-sxm", "stack": "ideal", "parallel": {"pp": 4, "tp": 2, "dp": 2},
        "batch": {"microbatches": 8, "sequence": 4096},
        "p2p": {"policy": "megatron", "options": {"overlap_p2p_comm": False}},
        "network": {"name": "hockney", "bandwidth": "20 GB/s", "latency": "10 us"},
    }  # fmt: skip
    interleaved, zb_v = compare(step, schedules="interleaved-1f1b,zb-v", memory="60 GiB", vary="vp").rows

    assert (interleaved.variant, interleaved.common_policy_variant, zb_v.common_policy_variant) == (
        "vp 2",
        "vp 4",
        "",
    )
    again = simulate(step, schedule="interleaved-1f1b", vp=4, p2p="ordered").metrics.step_ns
    common = interleaved.under_common_policy
    assert common.arguments.startswith("--schedule interleaved-1f1b --p2p ordered --vp 4 ")
    assert common.step_ns == again
    assert again < simulate(step, schedule="interleaved-1f1b", vp=2, p2p="ordered").metrics.step_ns
    assert zb_v.under_common_policy.step_ns == zb_v.variants.best.step_ns


@pytest.mark.parametrize("values", [{}, {"memory": "1 GiB", "vary": "vp"}])
@pytest.mark.parametrize("chosen", [{"p2p": "picky"}, {"sets": ["p2p.policy=picky"]}])
def test_a_policy_that_the_user_chose_for_all_is_kept(chosen: dict[str, Any], values: dict[str, Any]) -> None:
    comparison = compared("eager,chunky", **chosen, **values)

    assert "picky cannot place this table's messages" in comparison.table()[1]["refused"]
    with pytest.raises(PptraceError, match="picky cannot place this table's messages"):
        compared("chunky:p2p=picky", **values)


@pytest.mark.parametrize("values", [{}, {"memory": "1 GiB", "vary": "vp"}])
def test_a_switch_that_a_table_cannot_have_is_left_to_its_default(values: dict[str, Any]) -> None:
    step = {**STEP, "p2p": {"policy": "picky", "options": {"lumps": True}}}
    comparison = compared("eager,lumped", step, **values)

    assert [row["policy"] for row in comparison.table()] == ["picky", "picky"]
    assert comparison.table()[0]["step_ns"] == step_ns("eager", "picky")
    assert "eager ran without p2p.options.lumps, which its table does not support" in comparison.summary()


def test_a_picture_names_the_policy(tmp_path: Path) -> None:
    drawn = compared("eager,chunky", memory="1 GiB", vary="vp").save(tmp_path / "equal.svg").read_text()

    assert drawn.count("p2p ordered") == 1
