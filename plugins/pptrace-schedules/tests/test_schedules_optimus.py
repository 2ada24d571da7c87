"""Optimus: an encoder on all ranks in the bubbles of a decoder's pipeline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pptrace.config.resolution import load
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import prepare
from pptrace.run.run import Run
from pptrace.steps.kinds import Kind
from pptrace.testing import assert_schedule_family, grid
from pptrace_schedules.optimus import OFFER

REGISTRY = Registry.load()
TIME = st.integers(20, 60)


def step(schedule: str, microbatches: int, forward: list[int], backward: list[int]) -> Run:
    """Return a step with these times of stages in us; the first stage of ``optimus`` is the encoder's."""
    ranks = len(forward) - (schedule == "optimus")
    times = {"forward": [f"{time} us" for time in forward], "backward": [f"{time} us" for time in backward]}
    return Run.of(prepare(load({
        "parallel": {"pp": ranks}, "batch": {"microbatches": microbatches}, "schedule": schedule,
        "costs": {"name": "table", **times},
    }), REGISTRY), REGISTRY)  # fmt: skip


def test_its_tables_are_valid_for_all_sizes() -> None:
    sizes = {"ranks": (1, 2, 4), "microbatches": (1, 3, 8)}
    assert_schedule_family(OFFER, growth=False, sizes=[
        *grid(**sizes), *grid(**sizes, encoder_stages=3, chunks=(1, 2), options={"encoder_ranks": 2}),
    ])  # fmt: skip


def test_the_encoder_of_the_first_microbatches_is_on_all_ranks_and_the_next_fill_their_bubbles() -> None:
    rows = step("optimus", 6, [30, 30, 30, 30], [60, 60, 60, 60]).prepared.schedule.rows()

    assert [row[:3] for row in rows] == [
        ["0F0", "1F0", "1F1"], ["0F1", "0F3", "2F0"], ["0F2", "0F4", "3F0"],
    ]  # fmt: skip


@settings(max_examples=10)
@example([20, 21], 8, 7, 24)  # one rank encodes five of the microbatches
@given(st.lists(TIME, min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 60), st.integers(0, 90))
def test_the_step_is_at_most_that_with_the_encoder_before_and_after_the_decoder(
    forward: list[int], microbatches: int, encoder_forward: int, encoder_backward: int
) -> None:
    backward = [2 * time for time in forward]
    alone = step("1f1b", microbatches, forward, backward).metrics.step_ns
    run = step("optimus", microbatches, [encoder_forward, *forward], [encoder_backward, *backward])

    timeline, ranks = run.timeline, len(forward)
    encoded = Counter(timeline.rank_of_row()[(timeline.stage == 0) & (timeline.kind == Kind.F)].tolist())
    assert encoded.total() == microbatches
    assert set(encoded) == set(range(min(ranks, microbatches)))
    turn = 1000 * (encoder_forward + encoder_backward)
    assert alone + turn <= run.metrics.step_ns <= alone + max(encoded.values()) * turn


def test_an_encoder_that_fits_into_the_bubbles_adds_one_forward_and_one_backward() -> None:
    alone = step("1f1b", 8, [100] * 4, [200] * 4)
    run = step("optimus", 8, [10, *[100] * 4], [20, *[200] * 4])

    assert run.metrics.step_ns == alone.metrics.step_ns + 30_000


@pytest.mark.parametrize(("sections", "said"), [
    ({"schedule": "optimus"}, "optimus needs a model with stages of an encoder: write model.encoder.stages"),
    ({"model": {"encoder": {"stages": 1}}, "schedule": {"name": "optimus", "options": {"encoder_ranks": 2}}},
     "2 are more than the encoder's stages (1)"),
    ({"model": {"encoder": {"stages": 3}}, "schedule": {"name": "optimus", "options": {"encoder_ranks": 3}}},
     "optimus divides the ranks into groups of 3, and 4 do not fill them; nearest that work: 3 or 6 ranks"),
])  # fmt: skip
def test_a_size_that_does_not_fit_is_one_line(sections: dict[str, Any], said: str) -> None:
    encoder = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "tokens": 64}
    model: dict[str, Any] = {"preset": "llama3-8b", "layers": 8}
    if "model" in sections:
        model["encoder"] = {**encoder, **sections["model"]["encoder"]}
    with pytest.raises(PptraceError) as refused:
        prepare(load({
            "parallel": {"pp": 4}, "batch": {"microbatches": 4, "sequence": 512}, "device": "h100-sxm",
            **sections, "model": model,
        }), REGISTRY)  # fmt: skip
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
