"""A fat-tree's sizes follow from its ports, and what no switch holds is refused with what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.api import simulate
from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError
from pptrace.plugins.requests import NetworkRequest
from pptrace_networks.fat_tree import FatTreeOptions, fat_tree

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace_networks.fat_tree import FatTree


def tree(endpoints: int, per_node: int = 1, **options: Any) -> FatTree:
    checked = validate_options(FatTreeOptions, {"efficiency": 1.0, **options}).model_dump()
    return fat_tree(NetworkRequest(endpoints=endpoints, per_node=per_node, options=checked))


@pytest.mark.parametrize(
    ("endpoints", "options", "sizes"),
    [
        (2048, {}, (32, 64, 32, 2)),
        (2049, {}, (32, 65, 32, 3)),
        (800, {"generation": "hdr", "oversubscription": 4}, (32, 25, 8, 2)),
        (200, {"radix": 58, "oversubscription": 1.9}, (38, 6, 20, 2)),
        (200, {"spines": 8, "oversubscription": 4}, (32, 7, 8, 2)),
        (200, {"spines": 40}, (24, 9, 40, 2)),
        (10, {}, (10, 1, 1, 2)),
        (64, {"hosts_per_leaf": 64}, (64, 1, 1, 2)),
    ],
)
def test_sizes_follow_from_radix_and_oversubscription(
    endpoints: int, options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    shape = tree(endpoints, **options).shape

    assert (shape.hosts_per_leaf, shape.leaves, shape.spines, shape.levels) == sizes


@given(
    radix=st.integers(min_value=2, max_value=200),
    hundredths=st.integers(min_value=100, max_value=2_000),
    hosts=st.integers(min_value=2, max_value=300),
)
def test_no_switch_has_more_links_than_ports_and_no_leaf_too_few_uplinks(
    radix: int, hundredths: int, hosts: int
) -> None:
    ratio = hundredths / 100
    try:
        shape = tree(hosts, radix=radix, oversubscription=ratio).shape
    except ConfigError as refused:
        assert refused.key == "radix"  # noqa: PT017 - whether it is refused depends on the sizes
        return

    assert hosts <= shape.leaves * shape.hosts_per_leaf < hosts + shape.hosts_per_leaf
    if shape.leaves > 1:
        assert shape.hosts_per_leaf + shape.spines <= radix
        assert (shape.spines - 1) * hundredths < shape.hosts_per_leaf * 100 <= shape.spines * hundredths
        assert shape.leaves_per_pod + shape.cores_per_spine <= radix
        assert shape.pods <= radix


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"radix": 8, "levels": 2}, "levels", "two levels hold 32 NICs of these 64; write levels: 3"),
        ({"radix": 4}, "radix", "three levels hold 16 NICs of these 64; write radix: 8"),
        ({"radix": 4, "oversubscription": 3}, "radix", "three levels hold 24 NICs of these 64; write radix: 6"),
        ({"hosts_per_leaf": 40}, "hosts_per_leaf", "80 ports of a leaf, and a switch has 64"),
        ({"hosts_per_leaf": 40}, "hosts_per_leaf", "at oversubscription 1; write hosts_per_leaf: 32"),
        ({"hosts_per_leaf": 40, "spines": 30}, "spines", "write spines: 24 or fewer"),
        ({"spines": 64}, "spines", "write spines: 63 or fewer"),
        ({"radix": 8, "hosts_per_leaf": 9, "spines": 1}, "hosts_per_leaf", "write hosts_per_leaf: 4"),
    ],
)
def test_a_fabric_that_its_ports_cannot_hold_names_the_option_and_what_would(
    options: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        tree(64, **options)

    assert refused.value.key == key


def test_rails_that_the_ports_cannot_hold_count_whole_rails() -> None:
    with pytest.raises(ConfigError, match="two levels hold 6 NICs of these 18; write levels: 3"):
        tree(18, per_node=3, rails=True, radix=4, levels=2)


@pytest.mark.parametrize("radix", [4, 5, 6, 9])
def test_the_radix_that_is_advised_is_the_least_that_holds_the_hosts(radix: int) -> None:
    with pytest.raises(ConfigError) as refused:
        tree(500, radix=radix)
    advised = int(str(refused.value).rsplit(" ", 1)[1])

    tree(500, radix=advised)
    with pytest.raises(ConfigError):
        tree(500, radix=advised - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"generation": "fdr"}, {"oversubscription": 0.5}, {"routing": "random"}, {"levels": 4}, {"radix": 1},
        {"hosts_per_leaf": 0}, {"spines": 0}, {"bandwidth": "0 GB/s"}, {"efficiency": 1.1},
        {"switch_latency": "-1 ns"}, {"rails": "yes"}, {"spine": 3},
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        tree(8, **options)

    assert refused.value.key == next(iter(options))


@pytest.mark.parametrize("section", ["network", "cluster.fabric"])
def test_a_fabric_too_small_is_named_where_it_was_written(section: str, tmp_path: Path) -> None:
    small = "{name: infiniband-fat-tree, radix: 2, levels: 2}"
    where = (
        f"network: {small}"
        if section == "network"
        else f"cluster: {{nodes: 8, gpus: 1, nics: 1, node: {{name: nvlink}}, fabric: {small}}}"
    )
    step = tmp_path / "step.yaml"
    step.write_text(
        f"schedule: 1f1b\nparallel: {{pp: 8}}\nbatch: {{microbatches: 8}}\n{where}\n", encoding="utf-8"
    )

    with pytest.raises(ConfigError) as refused:
        simulate(step)

    assert str(refused.value).startswith(f"{step}:4:")
    assert f": {section}.levels: 8 leaves, and a spine has 2 ports" in str(refused.value)
