"""Tests of the torus over a few sizes."""

from pptrace_torus import OFFER, build

from pptrace.plugin import NetworkRequest, Registry
from pptrace.testing import assert_valid_network

pytest_plugins = ["pptrace.testing.fixtures"]

RATE = 1_000_000  # kB/s


def bisection(endpoints: int) -> int:
    torus = build(NetworkRequest(endpoints=endpoints, options={"bandwidth": 1000, "latency": 0}))
    return RATE * torus.width * (2 if torus.height > 2 else 1)  # noqa: PLR2004 - around two is there and back


def test_routes_are_valid_on_square_and_oblong_sizes() -> None:
    options = {"bandwidth": "1 GB/s", "latency": "500 ns"}

    assert_valid_network(OFFER, endpoints=(2, 4, 8, 16, 24), options=options, bisection=bisection)
    assert_valid_network(OFFER, endpoints=(1, 3, 5, 9, 15), options=options)


def test_pptrace_finds_it(registry: Registry) -> None:
    assert registry.networks["torus"].distribution == "pptrace-torus"  # noqa: S101 - a test asserts
