"""Seq1F1B cuts every microbatch into slices along the sequence, and runs 1F1B over them.

Source: Sun et al., Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language Model Training,
arXiv:2406.03488.

A token attends to those before it, so the slices of a microbatch go forward in order, and backward from the last
to the first. Order of rank r of p, with m microbatches of k slices and w = min(k m, p - 1 - r + k - 1)::

    w F,   k m - w times F B,   w B
    forwards    microbatch 0: slice 0 … k - 1;  microbatch 1: …
    backwards   microbatch 0: slice k - 1 … 0;  microbatch 1: …

In the table, slices are numbered as microbatches: slice j of microbatch i is number k i + j.

Bubble of equal slices: (p - 1) / (k m + p - 1). Peak activations of rank r: min(k m, p - r + k - 1) / k
microbatches.
Slice j has (2 j + 1) / k^2 of the core of a causal attention. The share of this core in the time comes from the
costs of the model, or from the option ``attention``.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.interleaved_1f1b import held_after, warm_ups
from pptrace_schedules.one_f_one_b import check_one_chunk

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest

_SLICES = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.row_patterns import in_rounds, one_forward_one_backward

    slices, cut = parts(request), _cut(request)
    passes = in_rounds(cut, cut.microbatches)
    last_slice_first = passes.backward.reshape(2, -1, slices)[:, :, ::-1].reshape(2, -1)
    return one_forward_one_backward(cut, _warm_ups(request), passes._replace(backward=last_slice_first))


def parts(request: ScheduleRequest) -> int:
    """Return the slices of a microbatch."""
    return int(request.options.get("slices", _SLICES))


def part_times(request: ScheduleRequest) -> list[Fraction]:
    """Return each slice's share of its microbatch's time."""
    slices, given = parts(request), request.options.get("attention")
    core = request.causal_share if given is None else Fraction(str(given))
    return [(1 - core) / slices + core * Fraction(2 * index + 1, slices**2) for index in range(slices)]


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    return Fraction(request.ranks - 1, parts(request) * request.microbatches + request.ranks - 1)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the microbatches that each rank holds when its first backward starts."""
    return [held / parts(request) for held in held_after(_cut(request), _warm_ups(request))]


def _cut(request: ScheduleRequest) -> ScheduleRequest:
    """Return a request in which slices are microbatches."""
    from pptrace.plugin import ScheduleRequest

    return ScheduleRequest(ranks=request.ranks, microbatches=parts(request) * request.microbatches)


def _warm_ups(request: ScheduleRequest) -> list[int]:
    return warm_ups(_cut(request), per_rank=1, more=parts(request) - 1)


OFFER = ScheduleOffer(
    name="seq-1f1b",
    summary="1F1B over slices of each microbatch's sequence, which divides bubble and activations.",
    build=build,
    check=partial(check_one_chunk, name="seq-1f1b"),
    options=lambda: import_module("pptrace_schedules.options").SeqOptions,
    bubble=bubble,
    peak_activations=peak_activations,
    parts=parts,
    part_times=part_times,
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2406.03488",
)
