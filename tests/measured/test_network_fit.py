"""A network alone, fitted to operations of known sizes and times."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.measured.calibration import fit_network
from pptrace.measured.calibration_document import network_document, network_yaml
from pptrace.report.document import text_of
from pptrace.timeline.measurement import BySize

SIZES = np.array([1_000, 100_000, 1_000_000, 8_000_000])


def sort(
    what: str, *, latency_ns: int, ns_per_kb: int, messages: bool = True, sizes: np.ndarray = SIZES
) -> BySize:
    size = np.repeat(sizes, 5)
    late = np.tile([0, 0, 0, 0, 50_000_000], sizes.size)  # of five one is far off
    return BySize(
        what=what, messages=messages, size_bytes=size, took_ns=latency_ns + size * ns_per_kb // 1000 + late
    )


def test_latency_and_rate_are_found_beside_outliers() -> None:
    (fit,) = fit_network([sort("messages", latency_ns=7_000, ns_per_kb=50)])

    assert fit.link.latency_ns == 7_000
    assert fit.link.bytes_per_s == pytest.approx(20e9)
    assert text_of(network_document([fit])).endswith("\n  7 us and 20 GB/s; half are off by less than 0 ns")


FIVE = np.array([*SIZES, 32_000_000])


@pytest.mark.parametrize("size", FIVE)
def test_one_size_that_is_off_moves_neither_latency_nor_rate(size: int) -> None:
    fitted = sort("messages", latency_ns=7_000, ns_per_kb=50, sizes=FIVE)
    late = np.where(fitted.size_bytes == size, 50_000_000, 0)

    (fit,) = fit_network([replace(fitted, took_ns=fitted.took_ns + late)])

    assert fit.link.latency_ns == 7_000
    assert fit.link.bytes_per_s == pytest.approx(20e9)
    assert fit.link.residual_ns == 0


def test_messages_that_are_late_by_other_times_of_each_size_move_nothing() -> None:
    fitted = sort("messages", latency_ns=7_000, ns_per_kb=50, sizes=FIVE)
    late = np.where(np.arange(fitted.took_ns.size) % 5 == 0, np.arange(fitted.took_ns.size) * 3_000_000, 0)

    (fit,) = fit_network([replace(fitted, took_ns=fitted.took_ns + late)])

    assert fit.link.latency_ns == 7_000
    assert fit.link.bytes_per_s == pytest.approx(20e9)
    assert fit.link.median_ns.value == int(np.median(fitted.took_ns + late))


def test_the_slowest_messages_are_the_network_and_the_others_beside_it() -> None:
    fits = fit_network(
        [
            sort("messages inside a node", latency_ns=3_000, ns_per_kb=10),
            sort("messages between nodes", latency_ns=7_000, ns_per_kb=50),
            sort("AllReduce of 4 ranks", latency_ns=90_000, ns_per_kb=200, messages=False),
        ]
    )

    text = network_yaml(fits, "run")

    assert "  bandwidth: 20000000000 B/s  # messages between nodes\n  latency: 7000 ns\n" in text
    assert "#   3 us and 100 GB/s; " in text
    assert "costs:" not in text


def test_collectives_alone_give_a_rate_and_no_latency() -> None:
    fits = fit_network([sort("AllReduce of 4 ranks", latency_ns=90_000, ns_per_kb=50, messages=False)])

    text = network_yaml(fits, "run")

    assert "bandwidth: 20000000000 B/s" in text
    assert "latency:" not in text


def test_one_size_is_no_network_and_says_so() -> None:
    fits = fit_network([sort("messages", latency_ns=7_000, ns_per_kb=50, sizes=SIZES[:1])])

    assert network_yaml(fits, "run") == ""
    assert text_of(network_document(fits)).endswith(
        "  latency and bandwidth cannot be distinguished from one size"
    )


def test_a_rate_below_the_smallest_of_a_network_is_not_written() -> None:
    assert network_yaml(fit_network([sort("messages", latency_ns=0, ns_per_kb=2_000_000_000)]), "run") == ""
