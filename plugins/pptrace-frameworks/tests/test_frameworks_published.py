"""What published and recorded steps took, and what closed forms say, beside the policies of frameworks."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.measured.replay import Replayed, replay
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement
from pptrace.steps.message_calls import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.schedule import Schedule

pytestmark = pytest.mark.needs_plugins
ROOT = Path(__file__).parents[3]
RUNS = ROOT / "plugins" / "pptrace-profilers" / "tests" / "fixtures"
WITHOUT_OVERLAP = {"policy": "megatron", "options": {"overlap_p2p_comm": False}}
ASAP = {"policy": "batched", "receive": "asap"}


def step_ns(chunks: int, p2p: Any, microbatches: int = 64, ranks: int = 8) -> int:
    """Return a step's length: forward 10 ms and backward 20 ms of a rank, messages 0.67 ms."""
    run = pptrace.simulate(
        {
            "schedule": "1f1b" if chunks == 1 else "interleaved-1f1b", "p2p": p2p,
            "parallel": {"pp": ranks, "vp": chunks}, "batch": {"microbatches": microbatches},
            "costs": {"name": "table", "forward": f"{10 / chunks} ms", "backward": f"{20 / chunks} ms"},
            "network": {"name": "hockney", "bandwidth": "unlimited", "latency": "670 us"},
        }
    )  # fmt: skip
    return run.metrics.step_ns


@pytest.mark.parametrize(("p2p", "shown"), [("async", 124), ("ordered", 130), ("megatron", 139), ("torch", 139)])
def test_1f1b_shows_its_messages(p2p: str, shown: int) -> None:
    """Megatron's loop and PyTorch's show two messages a microbatch, 2 (m + p) - 5: 4.4 % of the ideal step."""
    assert step_ns(1, p2p) == (64 + 8 - 1) * 30_000_000 + shown * 670_000


def test_1f1b_in_batches_of_early_receives_is_another_program() -> None:
    ideal = (64 + 8 - 1) * 30_000_000

    assert step_ns(1, "megatron") / ideal - 1 == pytest.approx(0.044, abs=0.0005)
    assert step_ns(1, ASAP) / ideal - 1 == pytest.approx(0.617, abs=0.001)


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaved_1f1b_overlaps_its_messages(chunks: int) -> None:
    """With overlap, only those of the first microbatch's way and the last one's show: 2 (p v - 1)."""
    least, overlapped, alone = (step_ns(chunks, p2p) for p2p in ("async", "megatron", WITHOUT_OVERLAP))
    ideal = (64 * chunks + 7) * 30_000_000 // chunks

    assert overlapped == pytest.approx(least, rel=0.01)
    assert overlapped - ideal == 2 * (8 * chunks - 1) * 670_000
    assert least < alone < 1.08 * least
    assert alone < step_ns(chunks, ASAP)


@cache
def published() -> Any:
    """Return the example that holds the published steps."""
    path = ROOT / "examples" / "published-steps" / "published_steps.py"
    spec: Any = importlib.util.spec_from_file_location("published_steps", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trillion_parameters_take_what_was_published() -> None:
    """71.49 s: Korthikanti et al., arXiv:2205.05198, table 5."""
    run = pptrace.simulate(ROOT / "examples" / "published-steps" / "gpt-a100.yaml")

    assert run.metrics.step_ns / 1e9 == pytest.approx(71.49, rel=0.08)
    assert run.metrics.step_ns == published().simulated(published().steps()[5], "megatron").metrics.step_ns


def test_every_published_step_is_near_under_every_way_but_batches_of_early_receives() -> None:
    steps = published().steps()
    near, early = (
        [published().error(step, published().POLICIES[policy]) for step in steps]
        for policy in ("no overlap", "batched, asap")
    )

    assert max(map(abs, near)) < 0.09
    assert sum(map(abs, near)) / len(near) < 0.04
    assert sum(map(abs, early)) / len(early) > 0.3


@pytest.mark.parametrize("p2p", ["megatron", WITHOUT_OVERLAP], ids=["megatron", "without overlap"])
@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("batch", [12, 60])
def test_interleaving_pays_for_gpt3_on_96_gpus(batch: int, chunks: int, p2p: Any) -> None:
    """SC21 (arXiv:2104.04473), figure 12: ahead at every batch, most at the smallest.

    The published script has two layers a virtual stage, that is four chunks a rank.
    """

    def step(vp: int) -> int:
        row = {
            "layers": "96", "hidden": "12288", "heads": "96", "tp": "8", "pp": "12", "dp": "1", "micro": "1",
            "recompute": "full", "vp": str(vp), "global": str(batch),
        }  # fmt: skip
        return int(published().simulated(row, p2p).metrics.step_ns)

    gain = step(1) / step(chunks) - 1
    assert gain > (0.2 if batch == 12 else 0.05)


@cache
def recorded(name: str) -> Any:
    measurement, _ = read_measurement([RUNS / f"sleep-{name}"], Registry.load())
    return measurement.steps[0].timeline


def replayed(name: str, policy: Callable[[Schedule], Policy]) -> Replayed:
    return replay(recorded(name), policy)


def framework(name: str) -> Callable[[Schedule], Policy]:
    provided = Registry.load().message_policies[name]
    return lambda order: build_policy(provided, order, checked_options(provided, {}, "p2p.options"))


RULES = [
    *(Policy(name=name) for name in (PolicyName.ASYNC, PolicyName.SENDER_BLOCKING, PolicyName.BLOCKING)),
    *(Policy(name=PolicyName.ORDERED, stream=stream) for stream in StreamPer),
    *(Policy(name=PolicyName.BATCHED, receive=receive) for receive in Receive),
]


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved1f1b"])
def test_torch_explains_recorded_steps_of_pytorch_as_well_as_any_rule(name: str) -> None:
    """To a thousandth of the step, which is less than what threads of the host take."""
    unexplained = []
    for rule in RULES:
        try:
            unexplained.append(abs(replayed(name, lambda _order, rule=rule: rule).explained - 1))
        except pptrace.errors.DeadlockError:
            continue

    assert abs(replayed(name, framework("torch")).explained - 1) <= min(unexplained) + 0.001


@pytest.mark.parametrize("name", ["zb_h1_csv", "interleaved_zb", "zbv", "dualpipev"])
def test_tables_that_split_backwards_run_in_pytorch_s_runtime(name: str) -> None:
    pairs = Policy(name=PolicyName.ORDERED, stream=StreamPer.PAIR)

    found = replayed(name, framework("torch")).replayed_ns

    assert found == replayed(name, lambda _order: pairs).replayed_ns


@pytest.mark.parametrize(
    ("policy", "schedule", "chunks"),
    [("megatron", "1f1b", 1), ("megatron", "interleaved-1f1b", 2), ("torch", "1f1b", 1), ("torch", "gpipe", 1),
     ("torch", "interleaved-1f1b", 2), ("deepspeed", "1f1b", 1)],
)  # fmt: skip
def test_a_simulated_step_replayed_under_its_policy_is_that_step(policy: str, schedule: str, chunks: int) -> None:
    step = pptrace.simulate(
        {
            "schedule": schedule, "parallel": {"pp": 4, "vp": chunks}, "batch": {"microbatches": 8}, "p2p": policy,
            "costs": {"name": "table", "forward": ["9 ms", "12 ms"] * 2 * chunks, "backward": "20 ms"},
            "network": {"name": "hockney", "bandwidth": "unlimited", "latency": "2 ms"},
        }
    )  # fmt: skip

    assert replay(step.timeline, framework(policy)).explained == 1
