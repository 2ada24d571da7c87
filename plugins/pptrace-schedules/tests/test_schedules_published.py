"""Six schedules of llama2-7B on 8 pipeline ranks of a node of MI300X, as Primus measured them.

Source: https://rocm.blogs.amd.com/software-tools-optimization/primus-pipeline/README.html, its table of llama2-7B.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pptrace

PRIMUS = {
    "1f1b": 10_057, "interleaved-1f1b": 10_974, "zb-h1": 11_411, "zb-v": 11_347, "v-half": 10_894, "v-min": 8_897,
}  # fmt: skip
"""Tokens/s that Primus measured of llama2-7B on 8 pipeline ranks (zb-h1 as its zbb, two chunks interleaved)."""


PRIMUS_GB = {
    "1f1b": 16.26, "interleaved-1f1b": 21.40, "zb-h1": 16.59, "zb-v": 18.11, "v-half": 14.06, "v-min": 11.90,
}  # fmt: skip
"""Its peak of memory."""


@cache
def llama2_7b(name: str, overhead_us: int, speed: float = 1, message_speed: float = 1) -> int:
    """Return how long a step of a schedule takes, in ns, by a layer's operations at hidden size and sequence 4096.

    They give F : I : W = 7 : 8 : 6; the LM head is left out. A message is 33.5 MB, and over one link between two
    MI300X takes a twentieth of a stage's forward at the published 235.7 TFLOP/s. 32 microbatches are those of the
    project's own tests. Every computation takes ``overhead_us`` besides, however few its layers, and beside
    messages has ``speed`` of what it has alone, a message beside computation ``message_speed``.
    """
    chunks = 1 if name in {"1f1b", "zb-h1"} else 2
    f, i, w = (f"{time // chunks} us" for time in (7_000, 8_000, 6_000))
    return pptrace.simulate(
        schedule=name, pp=8, vp=chunks, microbatches=32,
        costs={
            "name": "table", "activation": "6 MiB", "weight_activation": "3 MiB", "overhead": f"{overhead_us} us",
            "forward": f, "input_gradient": i, "weight_gradient": w, "backward": f"{14_000 // chunks} us",
            "boundary": "33.5 MB",
        },
        network={"name": "hockney", "latency": "0 us", "bandwidth": "95.7 GB/s"},
        contention={"compute": speed, "communication": message_speed},
    ).metrics.step_ns  # fmt: skip


def test_six_schedules_of_llama2_7b_gain_what_primus_measured() -> None:
    """A hundredth of a microbatch's time on each computation is what V shapes, with six of them, lose to two.

    Without it zb-v is 5 % too fast; with it all six are within 1.5 %. Which of zb-v and zb-h1 comes first, 0.6 %
    apart as measured, that does not decide: here zb-v does, by less than 2 %.
    """
    steps = {name: llama2_7b(name, 200) for name in PRIMUS}

    gains = {name: steps["1f1b"] / step for name, step in steps.items()}
    measured = {name: tokens / PRIMUS["1f1b"] for name, tokens in PRIMUS.items()}
    others = [name for name in PRIMUS if name != "zb-v"]
    assert sorted(others, key=gains.__getitem__) == sorted(others, key=measured.__getitem__)
    assert all(abs(gains[name] / measured[name] - 1) < 0.015 for name in PRIMUS)
    assert max(gains["interleaved-1f1b"], gains["zb-h1"]) < gains["zb-v"] < 1.02 * gains["zb-h1"]


def test_the_readme_states_the_simulated_gains() -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    variants: list[tuple[int, *tuple[float, ...]]] = [(0,), (0, 1 / 1.4), (200,)]
    for name in PRIMUS.keys() - {"1f1b"}:
        simulated = [llama2_7b("1f1b", *variant) / llama2_7b(name, *variant) for variant in variants]
        gains = " | ".join(f"{100 * gain - 100:+.1f} %" for gain in (PRIMUS[name] / PRIMUS["1f1b"], *simulated))
        assert f"| `{name}` | {PRIMUS[name]:,} | {gains} |" in page


def test_what_every_computation_takes_besides_costs_v_shapes_most() -> None:
    slowed = {name: llama2_7b(name, 200) / llama2_7b(name, 0) for name in ("1f1b", "zb-h1", "zb-v")}

    assert slowed["1f1b"] < slowed["zb-h1"] < slowed["zb-v"]


def test_messages_beside_computation_cost_v_shapes_most() -> None:
    """Slowed as measured elsewhere, 1.4 times at most (arXiv:2507.03114), they come within 3 points of Primus."""
    names = ("1f1b", "zb-h1", "zb-v", "v-half")
    steps = {name: llama2_7b(name, 0, 1 / 1.4) for name in names}

    gains, measured = ({name: one["1f1b"] / one[name] for name in names} for one in (steps, _times_of(PRIMUS)))
    assert all(abs(gains[name] - measured[name]) < 0.03 for name in names)
    assert sorted(names, key=lambda name: steps[name] / llama2_7b(name, 0))[:2] == ["1f1b", "zb-h1"]


def test_both_together_leave_zb_h1_and_zb_v_apart_by_less_than_measured_and_order_the_others() -> None:
    """Both sides slowed by 1.4, as exchanges and computation are (docs/overlap.md), and 200 us a computation."""
    steps = {name: llama2_7b(name, 200, 1 / 1.4, 1 / 1.4) for name in PRIMUS}

    others = [name for name in PRIMUS if name != "zb-h1"]
    assert sorted(others, key=steps.__getitem__) == sorted(others, key=PRIMUS.__getitem__, reverse=True)
    assert abs(steps["zb-h1"] / steps["zb-v"] - 1) < 0.002
    assert all(abs(PRIMUS["1f1b"] * steps["1f1b"] / steps[name] / PRIMUS[name] - 1) < 0.045 for name in PRIMUS)


def _times_of(rates: dict[str, int]) -> dict[str, float]:
    return {name: 1 / rate for name, rate in rates.items()}


def test_six_schedules_of_llama2_7b_need_memory_in_the_order_that_primus_measured() -> None:
    peaks = {
        name: pptrace.simulate(
            schedule=name if name.endswith("1f1b") else {"name": name, "options": {"order": "fixed"}},
            model="llama2-7b", device="mi300x", sequence=4096, microbatches=32,
            pp=8, vp=1 if name in {"1f1b", "zb-h1"} else 2,
        ).metrics.memory.peak_bytes.max()
        for name in PRIMUS_GB
    }  # fmt: skip

    assert sorted(peaks, key=peaks.__getitem__) == sorted(PRIMUS_GB, key=PRIMUS_GB.__getitem__)
