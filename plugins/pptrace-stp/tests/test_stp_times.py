"""Steps with all-reduces take what the paper's formulas say, up to the differences that are stated here."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from pptrace.api import simulate as simulate_step
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.engines import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import actions_in_parts
from pptrace.timeline.metrics import measure
from pptrace_stp.plugin import pptrace_schedules

(OFFER,) = pptrace_schedules()

UNIT = 1_000_000
SHARE = Fraction(379, 1000)
"""All-reduces of a chunk's forward, beside a forward of 1: 27.5 % of both."""


def costs(stages: int, reduce: Fraction = SHARE, *, backward: bool = True) -> Workload:
    """Return chunks of attention and MLP, each half a unit in F, I and W, with an all-reduce behind each.

    As in the paper's table, a backward hides its own behind its weight gradients; it may have none.
    """
    ns = int(reduce * UNIT / 2)

    def part(name: str, *needs: int) -> Segment:
        return Segment(name=name, duration_ns=UNIT // 2, needs=needs or None)

    def again(*needs: int) -> Segment:
        return Segment(
            name="all-reduce", duration_ns=ns * backward, stream=Stream.TENSOR_PARALLEL, needs=needs or None
        )

    forth = Segment(name="all-reduce", duration_ns=ns, stream=Stream.TENSOR_PARALLEL)
    kinds = {
        Kind.F: (part("attention"), forth, part("mlp"), forth),
        Kind.B: (part("mlp-input"), again(), part("mlp-weight", 0), part("attention-input", 1), again(3),
                 part("attention-weight", 3)),
        Kind.I: (part("mlp-input"), again(), part("attention-input"), again()),
        Kind.W: (part("mlp-weight"), part("attention-weight")),
    }  # fmt: skip
    return Workload.uniform(stages).segmented(
        {kind: [own] * stages for kind, own in kinds.items()}, overlapped=True
    )


def table(ranks: int, microbatches: int, **options: object) -> Schedule:
    made = OFFER.build(ScheduleRequest(ranks=ranks, microbatches=microbatches, options=options))
    assert isinstance(made, Schedule)
    return made


def length(schedule: Schedule, workload: Workload) -> Fraction:
    return Fraction(measure(simulate(schedule, workload), workload).step_ns, UNIT)


def interleaved(ranks: int, microbatches: int) -> Schedule:
    """Return 1F1B over two chunks a rank, in rounds of as many microbatches as ranks, as Megatron-LM writes it."""
    order = [(turn // ranks % 2, turn // (2 * ranks) * ranks + turn % ranks) for turn in range(2 * microbatches)]
    rows = []
    for rank in range(ranks):
        ahead = ranks + 2 * (ranks - 1 - rank)
        forward = [f"{chunk * ranks + rank}F{mb}" for chunk, mb in order]
        backward = [f"{(1 - chunk) * ranks + rank}B{mb}" for chunk, mb in order]
        turns = [member for pair in zip(forward[ahead:], backward, strict=False) for member in pair]
        rows.append([*forward[:ahead], *turns, *backward[len(forward) - ahead :]])
    return Schedule.from_rows(rows)


@pytest.mark.parametrize(("p", "m"), [(2, 192), (4, 64), (4, 192), (8, 64)])
def test_interleaved_1f1b_takes_the_paper_s_formula_to_the_digit(p: int, m: int) -> None:
    bubble, exposed = (p - 1) * (3 + SHARE), 2 * m * SHARE

    assert length(interleaved(p, m), costs(2 * p)) == 6 * m + bubble + exposed


@pytest.mark.parametrize(("p", "m"), [(2, 9), (2, 192), (4, 12), (4, 64), (8, 32)])
def test_zb_v_takes_the_paper_s_formula_to_the_digit_where_steps_follow_one_another(p: int, m: int) -> None:
    request = ScheduleRequest(ranks=p, microbatches=m, chunks=2)
    made = Registry.load().schedules["zb-v"].offer.build(request)
    took = measure(simulate(made, costs(2 * p)), costs(2 * p))

    bubble, exposed = (p - 1) * (1 + 2 * SHARE + 1 - 2), 4 * m * SHARE
    assert Fraction(took.pace_ns, UNIT) == 6 * m + bubble + exposed
    assert Fraction(took.step_ns, UNIT) == 6 * m + (p - 1) * (1 + SHARE) + exposed
    assert took.memory.peak_activations.max() == min(2 * p, 2 * m)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 64), (8, 32)])
def test_interleaved_1f1b_holds_a_chunk_more_than_the_paper_s_formula(p: int, m: int) -> None:
    took = measure(simulate(interleaved(p, m), costs(2 * p)), costs(2 * p))

    assert took.memory.peak_activations[0] == took.memory.peak_activations.max() == (3 * p - 2) + 1


@pytest.mark.parametrize(("p", "m"), [(2, 9), (2, 192), (4, 64), (4, 192), (8, 64), (8, 192)])
def test_stp_takes_the_paper_s_formula_and_half_an_all_reduce_for_each_further_rank(p: int, m: int) -> None:
    bubble, exposed = (p - 1) * (1 + SHARE), (2 * p + 1) * SHARE

    assert length(table(p, m), costs(2 * p)) == 6 * m + bubble + exposed + Fraction(p - 2, 2) * SHARE
    # Where backwards have no all-reduce, one is hidden more than the formula has.
    assert length(table(p, m), costs(2 * p, backward=False)) == 6 * m + bubble + exposed - SHARE


def test_the_example_of_the_paper_s_best_case() -> None:
    one, other = length(interleaved(2, 192), costs(4)), length(table(2, 192), costs(4))

    assert float(one) == pytest.approx(1300.9, abs=0.05)
    assert float(other) == pytest.approx(1155.3, abs=0.05)
    assert float(one / other - 1) == pytest.approx(0.126, abs=0.0005)  # measured: 3.49 / 3.11 = 1.122


@pytest.mark.parametrize(("p", "m"), [(2, 9), (4, 12), (4, 40), (8, 32)])
def test_bytes_are_held_for_3p_chunks_and_a_pair_s_first_half(p: int, m: int) -> None:
    # Attention and MLP take half of a chunk each, and free it with their weight gradient, or their input's alone.
    changes = {Kind.F: (1, 0, 1, 0), Kind.B: (0, 0, -1, 0, 0, -1), Kind.I: (-1, 0, -1, 0), Kind.W: (0, 0)}
    kinds = {
        kind: [tuple(replace(item, activation_bytes=by) for item, by in zip(own, changes[kind], strict=True))]
        * (2 * p)
        for kind, (own, *_) in costs(2 * p).segments.items()
    }
    workload = Workload.uniform(2 * p, activation_bytes=2).segmented(kinds, overlapped=True)

    peak = measure(simulate(table(p, m), workload), workload).memory.peak_activation_bytes

    assert peak.tolist() == [2 * 3 * p + 1] * p


@pytest.mark.parametrize("p", [2, 4])
def test_exposed_all_reduces_do_not_grow_with_the_microbatches(p: int) -> None:
    exposed = []
    for m in (32, 64, 128):
        actions = actions_in_parts(simulate(table(p, m), costs(2 * p)))
        exposed.append(int(actions.exposed_ns.sum()))

    assert exposed[0] == exposed[1] == exposed[2]


@pytest.mark.parametrize(("p", "m"), [(2, 16), (4, 64), (8, 64)])
def test_the_lean_warm_up_idles_two_to_three_times_as_long(p: int, m: int) -> None:
    took = length(table(p, m, warm_up="lean"), costs(2 * p, Fraction(0)))

    assert 2 * (p - 1) <= took - 6 * m <= 3 * (p - 1)
    assert length(table(p, m, warm_up="lean"), costs(2 * p)) > length(table(p, m), costs(2 * p))


@pytest.mark.parametrize(("gemm", "reduce", "together"), [(8605, 3364, 9251), (334, 1643, 1685)])
def test_computation_beside_an_all_reduce_takes_what_the_micro_benchmark_measures(
    gemm: int, reduce: int, together: int
) -> None:
    nothing = Segment(name="nothing")
    matmul = Segment(name="gemm", duration_ns=1000 * gemm)
    all_reduce = Segment(name="all-reduce", duration_ns=1000 * reduce, stream=Stream.TENSOR_PARALLEL)
    workload = Workload.uniform(2).segmented(
        {Kind.F: [(nothing,), (nothing, all_reduce)], Kind.B: [(nothing,), (matmul,)]}
    )
    slowed = Contention(compute_permille=828, communication_permille=896)

    timeline = simulate(table(1, 2), workload, contention=slowed)  # one pair
    pair = [timeline[row] for row in range(len(timeline)) if timeline.pair[row] >= 0]
    took = max(member.end_ns for member in pair) - min(member.start_ns for member in pair)

    assert took / 1000 == pytest.approx(together, rel=0.001)
    assert together / max(gemm, reduce) == pytest.approx(1.075 if gemm > reduce else 1.026, abs=0.0005)


def test_slowing_is_a_parameter_of_the_configuration() -> None:
    step = {
        "schedule": "stp", "parallel": {"pp": 2}, "batch": {"microbatches": 16},
        "costs": {"name": "table", "alone": "overlapped", "backward": "2 ms", "segments": {"F": [
            {"name": "attention", "time": "500 us"},
            {"name": "all-reduce", "time": "100 us", "stream": "tensor-parallel"},
        ]}},
    }  # fmt: skip
    alone, slowed = (
        simulate_step({**step, "contention": item}) for item in ({}, {"compute": 0.828, "communication": 0.896})
    )

    assert alone.metrics.step_ns < slowed.metrics.step_ns < 1.05 * alone.metrics.step_ns
