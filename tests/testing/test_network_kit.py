"""The checks for network plugins find nothing wrong with sound networks, and say whose fault something is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from breakable_network import RATE, Ports, changed, offer, ports
from msgspec.structs import replace
from pydantic import BaseModel

from pptrace.errors import ConfigError, PluginError
from pptrace.network.contract import NO_ROUTE, Paths
from pptrace.plugins import builtin
from pptrace.plugins.providers import Provided, Provider
from pptrace.testing import assert_valid_network

if TYPE_CHECKING:
    from pptrace.plugins.requests import NetworkRequest

SIZES = (2, 4, 5)


def test_sound_networks_pass() -> None:
    for each in builtin.pptrace_networks():
        assert_valid_network(each, options={"bandwidth": "1 GB/s"} if each.name == "hockney" else None)
    assert_valid_network(offer(), bisection=lambda endpoints: endpoints // 2 * RATE)
    assert_valid_network(
        Provided(offer=offer(), provider=Provider(name="mine")), endpoints=(4,), bisection=2 * RATE
    )


def test_ways_that_are_equal_may_be_said_once() -> None:
    def twofold(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
        """Two paths, unless only endpoints and themselves are asked for."""
        if (src == dst).all():
            return paths
        again = np.repeat(np.arange(len(paths)), 2)
        length = np.diff(paths.link_ptr)[again]
        link = [paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]] for row in again]
        columns = {name: getattr(paths, name)[again] for name in ("overhead_ns", "latency_ns", "rate_kbps")}
        ptr = np.concatenate([[0], np.cumsum(length)])
        return Paths(**columns, link_ptr=ptr, link=np.concatenate(link), per_pair=2)

    assert_valid_network(changed(twofold), endpoints=SIZES, bisection=lambda endpoints: endpoints // 2 * RATE)


def test_pairs_without_a_route_are_said_by_the_caller() -> None:
    def rails(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
        return replace(paths, rate_kbps=np.where((src - dst) % 2, NO_ROUTE, paths.rate_kbps))

    network = changed(rails)

    assert_valid_network(network, endpoints=SIZES, routed=lambda src, dst: (src - dst) % 2 == 0)
    with pytest.raises(AssertionError, match=r"^mine with 2 endpoints: endpoint 0 to 1: no route$"):
        assert_valid_network(network, endpoints=SIZES)
    with pytest.raises(AssertionError, match="endpoint 0 to 3: a route of 1000 kB/s where none is expected"):
        assert_valid_network(offer(), endpoints=(4,), routed=lambda src, dst: abs(src - dst) < 3)


class Wanted(BaseModel, extra="forbid"):
    rate: int


def test_options_are_checked_as_a_user_s_are() -> None:
    def build(request: NetworkRequest) -> Ports:
        return Ports(endpoints=request.endpoints, rate_kbps=request.options["rate"])

    assert_valid_network(offer(build, options=lambda: Wanted), options={"rate": 7}, endpoints=(2,), bisection=7)
    with pytest.raises(ConfigError, match="speed: unknown key"):
        assert_valid_network(offer(build, options=lambda: Wanted), options={"speed": 7})
    with pytest.raises(ConfigError, match=r"options\.speed: mine takes no options: remove it"):
        assert_valid_network(offer(), options={"speed": 7})


def test_a_size_that_is_refused_is_an_assertion_with_its_reason() -> None:
    def build(_: NetworkRequest) -> Ports:
        raise ConfigError("a radix of 4 holds 2 endpoints")

    with pytest.raises(AssertionError, match=r"^mine with 4 endpoints: refused: a radix of 4 holds 2 endpoints$"):
        assert_valid_network(offer(build), endpoints=(4,))


def test_the_request_says_which_endpoints_are_nics() -> None:
    asked = []

    def build(request: NetworkRequest) -> Ports:
        asked.append((request.endpoints, request.nics, request.per_node))
        return ports(request)

    assert_valid_network(offer(build), endpoints=(4,), nics=2, per_node=4)

    assert asked == [(4, 2, 4), (4, 2, 4)]


def test_an_exception_in_the_plugin_is_the_plugins_error_and_no_assertion() -> None:
    def broken(*_: object) -> Paths:
        raise ZeroDivisionError

    for build in (broken, lambda _: Ports(endpoints=2, change=broken), lambda _: object()):
        with pytest.raises(PluginError, match=r"raised (ZeroDivision|Attribute)Error"):
            assert_valid_network(offer(build))
    with pytest.raises(PluginError, match="paths of network 'mine' returned None, expected Paths"):
        assert_valid_network(changed(lambda *_: None))
