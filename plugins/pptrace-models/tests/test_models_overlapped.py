"""Tensor-parallel collectives beside products: nothing hidden from nothing, closed forms, and what devices do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace_models.layer import Operation, Product, Work
from pptrace_models.layer_times import GroupTimes, HalfTimes, beside_products

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

ROWS = 4096


def operation(name: str, products: int) -> Operation:
    """Return an operation with so many products in each pass."""
    work = Work(products=tuple(Product(m=ROWS, n=1 + at, k=1) for at in range(products)))
    return Operation(name=name, unit="linear", forward=work, input_gradient=work, weight_gradient=work)


OPERATIONS = (operation("attention projections", 2), operation("mlp", 2))


def left(
    gather: int, reduce: int, devices: int, taken: Callable[[Product], int], *, sums: bool = True
) -> tuple[int, int]:
    """Return what is left of both halves' collectives, forward and backward."""
    whole, half = 2 * (gather + reduce), HalfTimes(gather, reduce, gather)
    group = GroupTimes(forward_ns=whole, backward_ns=whole, halves=(half, half))
    found = beside_products(group, OPERATIONS, devices, taken, sums=sums)
    return found.forward_ns, found.backward_ns


def even(product: Product) -> int:
    """Return the time of a product whose pieces take their share of it."""
    return 100 * product.m


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([2, 4, 8, 16]))
def test_what_is_left_forward_lies_between_nothing_and_all(gather: int, reduce: int, devices: int) -> None:
    forward, backward = left(gather, reduce, devices, even)
    assert 0 <= forward <= 2 * (gather + reduce)
    assert backward >= 0


def test_a_collective_that_products_cover_takes_its_share_of_them_alone() -> None:
    forward, backward = left(1000, 1000, 4, even)
    # Each of four collectives forward slows what is beside it; backward there is a third gathering in each half.
    assert forward == 4 * 190
    assert backward == 6 * 190


def test_sums_of_a_forward_that_follow_their_products_are_exposed_whole() -> None:
    forward, backward = left(1000, 1000, 4, even, sums=False)
    assert forward == 2 * 190 + 2 * 1000
    assert backward == 6 * 190


def test_a_collective_that_covers_products_hides_no_more_than_they_take() -> None:
    whole, product = 10**8, even(Product(m=ROWS, n=1, k=1))
    forward, _ = left(whole, whole, 2, even)
    # Of two pieces of a product one is there at once, the other waits for the collective's only step.
    assert forward == 4 * (whole - product // 2)


def test_pieces_that_lose_more_than_they_hide_leave_a_collective_whole() -> None:
    forward, _ = left(1000, 1000, 8, lambda product: even(product) + 10_000)
    assert forward == 4 * 1000


def test_one_device_has_nothing_to_hide() -> None:
    assert left(7, 9, 1, even) == (32, 32)


@pytest.mark.parametrize("kernels", ["groups", "shapes"])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_what_is_hidden_is_what_the_forward_is_shorter_by(
    costs: Callable[..., Workload], tp: int, kernels: str
) -> None:
    model = {"hidden": 8192, "heads": 64, "ffn": 32768}
    alone, beside = (
        costs(model, tp=tp, sequence_parallel=True, options={"kernels": kernels, "overlap_tp": overlap})
        for overlap in (False, True)
    )
    hidden = alone.f_collective_ns[1] - beside.f_collective_ns[1]
    assert 0 < hidden == alone.f_ns[1] - beside.f_ns[1]
    assert beside.b_ns[1] < alone.b_ns[1]
    assert any(note.startswith("Tensor-parallel collectives overlap") for note in beside.notes)
    assert not any(note.startswith("Tensor-parallel collectives overlap") for note in alone.notes)


def test_experts_collectives_are_not_cut() -> None:
    group = GroupTimes(forward_ns=60, backward_ns=60, halves=(HalfTimes(10, 10, 10), HalfTimes(20, 20, 20)))
    found = beside_products(group, [OPERATIONS[0], operation("experts", 2)], 2, even)
    assert found.forward_ns == 40 + 2 * 2  # 0.19 of 10, rounded, twice
