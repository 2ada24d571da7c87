"""What a network says is checked, and each complaint says what is wrong and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import PluginError
from pptrace.network.contract import NO_ROUTE, Links, Paths, check_links, check_paths, check_reachable

LINKS = Links(name=("a", "b", "c"), rate_kbps=[10, 20, 30], latency_ns=[1, 2, 3], flow_rate_kbps=[0, 5, 0])


def paths(**changes: Any) -> Paths:
    """Return two pairs of two paths, with some columns changed."""
    return replace(Paths.along(LINKS, [0, 2, 4, 4, 5], [0, 1, 0, 2, 2], per_pair=2), **changes)


def test_what_is_sound_passes() -> None:
    check_links(LINKS)
    check_links(Links(rate_kbps=[]))
    check_paths(paths(), 2, 3)
    check_paths(paths(rate_kbps=[NO_ROUTE] * 4), 2, 3)
    check_paths(Paths.along(LINKS, [0], []), 0, 3)
    check_reachable(paths(), np.arange(2), np.arange(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate_kbps": [10, 0, 30]}, "link b has rate_kbps of 0: expected 1 to 2**60 (kB/s, ns)"),
        ({"rate_kbps": [10, 20, -30]}, "link c has rate_kbps of -30: expected 1 to 2**60 (kB/s, ns)"),
        ({"rate_kbps": [2**60, 20, 30]}, f"link a has rate_kbps of {2**60}: expected 1 to 2**60 (kB/s, ns)"),
        ({"latency_ns": [1, -2, 3]}, "link b has latency_ns of -2: expected 0 to 2**60 (kB/s, ns)"),
        ({"overhead_ns": [0, 0, -1]}, "link c has overhead_ns of -1: expected 0 to 2**60 (kB/s, ns)"),
        ({"flow_rate_kbps": [0, -5, 0]}, "link b has flow_rate_kbps of -5: expected 0 to 2**60 (kB/s, ns)"),
        ({"rate_kbps": [10, 20]}, "the network has 3 links and 2 rate_kbps: one each"),
        ({"latency_ns": [1, 2, 3, 4]}, "the network has 3 links and 4 latency_ns: one each"),
        ({"name": ("a", "b")}, "the network has 2 links and 3 rate_kbps: one each"),
        ({"name": ("a", "b", "b")}, "two links of the network are called b: name each differently"),
    ],
)
def test_links_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_links(replace(LINKS, **changes))

    assert str(caught.value) == message


OUT_OF_RANGE = "between two ranks: expected 0 to 2**60"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_pair": 0}, "the network gives 0 paths per pair: expected 1 or more"),
        ({"per_pair": 1}, "the network gives 4 overhead_ns for 2 pairs of ranks: one each"),
        ({"per_pair": 4}, "the network gives 4 overhead_ns for 2 pairs of 4 paths: one each"),
        ({"latency_ns": [0] * 3}, "the network gives 3 latency_ns for 2 pairs of 2 paths: one each"),
        ({"rate_kbps": [5] * 5}, "the network gives 5 rate_kbps for 2 pairs of 2 paths: one each"),
        ({"overhead_ns": [0, 0, -7, 0]}, f"the network gives overhead_ns of -7 {OUT_OF_RANGE}"),
        ({"latency_ns": [0, -1, 0, 0]}, f"the network gives latency_ns of -1 {OUT_OF_RANGE}"),
        ({"rate_kbps": [5, -2, 5, 5]}, f"the network gives rate_kbps of -2 {OUT_OF_RANGE}"),
        ({"rate_kbps": [5, 2**60, 5, 5]}, f"the network gives rate_kbps of {2**60} {OUT_OF_RANGE}"),
        ({"link_ptr": [0, 2, 4, 5]}, "the network's link_ptr is not a list of 5 rising places in link"),
        ({"link_ptr": [1, 2, 4, 4, 5]}, "the network's link_ptr is not a list of 5 rising places in link"),
        ({"link_ptr": [0, 4, 2, 4, 5]}, "the network's link_ptr is not a list of 5 rising places in link"),
        ({"link_ptr": [0, 2, 4, 4, 4]}, "the network's link_ptr is not a list of 5 rising places in link"),
        ({"route_ptr": [0, 2, 4, 4, 6]}, "the network's route_ptr is not a list of 5 rising places in route"),
        ({"link": [0, 1, 3, 2, 2]}, "the network's paths name link 3, and it has 3 links, counted from 0"),
        ({"link": [0, 1, -1, 2, 2]}, "the network's paths name link -1, and it has 3 links, counted from 0"),
        ({"route": [0, 1, 9, 2, 2]}, "the network's paths name link 9, and it has 3 links, counted from 0"),
        (
            {"weight": [1, 1, 0, 1, 1]},
            "the network's weights are not one positive number for each link of each path",
        ),
        ({"weight": [1, 1]}, "the network's weights are not one positive number for each link of each path"),
    ],
)
def test_paths_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_paths(paths(**changes), 2, 3)

    assert str(caught.value) == message


def test_columns_of_two_dimensions_are_no_paths() -> None:
    with pytest.raises(ValueError, match="paths are columns of one dimension"):
        paths(rate_kbps=[[5, 5], [5, 5]])


def test_the_first_pair_without_a_route_is_named() -> None:
    lost = paths(rate_kbps=[5, 5, 5, NO_ROUTE])

    with pytest.raises(PluginError) as caught:
        check_reachable(lost, np.array([4, 6]), np.array([5, 7]))

    assert str(caught.value) == (
        "the network has no route from rank 6 to rank 7: join them, or choose another network"
    )
