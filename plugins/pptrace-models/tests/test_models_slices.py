"""Slices of a sequence: later ones take more of causal attention's core, as much as the model's kernels say."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import pptrace
from pptrace.steps.kinds import Kind


def step(schedule: str, model: str = "llama3-8b", **more: Any) -> pptrace.Run:
    setting: dict[str, Any] = {"sequence": 8192, "slices": 4, **more}
    options = {"options": {"slices": setting["slices"]}} if schedule == "seq-1f1b" else {}
    return pptrace.simulate(
        schedule={"name": schedule, **options}, model=model, device="h100-sxm", parallel={"pp": 4},
        batch={"microbatches": 4, "sequence": setting["sequence"]}, costs={"name": "roofline"},
    )  # fmt: skip


def causal_share(run: pptrace.Run) -> Fraction:
    assert run.prepared.workload.kernels is not None
    listed = run.prepared.workload.kernels()
    core = sum(item.duration_ns for item in listed if item.causal)
    return Fraction(core, sum(item.duration_ns for item in listed))


@pytest.mark.parametrize(("sequence", "slices"), [(4096, 2), (8192, 4), (65536, 3)])
def test_a_slice_takes_its_share_of_the_core_and_an_even_one_of_all_else(sequence: int, slices: int) -> None:
    whole, cut = (step(name, sequence=sequence, slices=slices) for name in ("1f1b", "seq-1f1b"))
    core = causal_share(whole)

    workload = cut.prepared.workload
    forward = [item.f_ns.tolist() for item in (workload, *workload.classes)]
    assert len(forward) == slices
    for place, took in enumerate(forward):
        share = (1 - core) / slices + core * Fraction(2 * place + 1, slices**2)
        assert took == [int(item * share) for item in whole.prepared.workload.f_ns.tolist()]
    assert 0.02 < core < 0.75
    work = [item.prepared.workload.total_ns((Kind.F, Kind.B), item.prepared.schedule.microbatches)
            for item in (whole, cut)]  # fmt: skip
    assert 0 <= work[0] - work[1] < 4 * 4 * 2 * slices  # rounded down


def test_the_core_s_share_grows_with_the_sequence_and_windows_do_not_count() -> None:
    short, long = (causal_share(step("1f1b", sequence=sequence)) for sequence in (4096, 32768))
    assert 2 * short < long

    windowed = step("1f1b", model="gpt-oss-120b").prepared.workload.kernels
    assert windowed is not None
    cores = [item for item in windowed() if item.name == "attention core"]
    layers = {causal: sum(item.times for item in cores if item.causal is causal and item.kind is Kind.F)
              for causal in (True, False)}  # fmt: skip
    assert layers == {True: 18, False: 18}
