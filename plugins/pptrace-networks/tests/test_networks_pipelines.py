"""Pipelines on whole networks: full bisection holds nobody up, and what is narrow does."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from pptrace.api import simulate as simulate_experiment
from pptrace.config.choices import Sharing
from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError, PluginError
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import NetworkRequest, ScheduleRequest
from pptrace.sim import simulation as module
from pptrace.sim.engines import Contention, shared_links
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload
from pptrace_networks.plugin import pptrace_networks

OFFERS = {offer.name: offer for offer in pptrace_networks()}
WORKLOAD = Workload.uniform(16, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=64_000_000)


def tree(**options: Any) -> Any:
    offer = OFFERS["infiniband-fat-tree"]
    assert offer.options is not None
    checked = validate_options(offer.options(), {"efficiency": 1.0, "hosts_per_leaf": 4, **options}, "network")
    return offer.build(NetworkRequest(endpoints=16, options=dict(checked.model_dump())))


def one_f_one_b() -> Any:
    build = Registry.load().schedules["1f1b"].offer.build
    return build(ScheduleRequest(ranks=16, microbatches=24))


@pytest.mark.parametrize("routing", ["adaptive", "ecmp-message"])
def test_a_pipeline_on_full_bisection_runs_as_without_contention(routing: str) -> None:
    # Half a port for each of the two messages that a rank may send at once; a spine for every host of a leaf.
    network = tree(flow_rate="25 GB/s", routing=routing, spines=4)
    free = simulate(one_f_one_b(), WORKLOAD, network, contention=Contention(links=Sharing.NONE))

    with patch.object(module, "shared_links", partial(shared_links, prune=False)):
        shared = simulate(one_f_one_b(), WORKLOAD, network)

    if routing == "adaptive":
        assert shared.difference(free) == ""
    else:  # two messages may take one spine, and only then is a step longer
        assert int(shared.end_ns.max()) >= int(free.end_ns.max())


def test_a_narrow_tree_is_slower_than_a_wide_one() -> None:
    wide, narrow = (simulate(one_f_one_b(), WORKLOAD, tree(oversubscription=ratio)) for ratio in (1, 4))

    assert int(narrow.end_ns.max()) > int(wide.end_ns.max())


def test_pcie_uplinks_are_shared_by_the_hops_that_cross_them() -> None:
    offer = OFFERS["pcie"]
    network = offer.build(NetworkRequest(endpoints=16, options={**_defaults("pcie"), "gpus_per_switch": 1}))
    through_host = offer.build(NetworkRequest(endpoints=16, options={**_defaults("pcie"), "peer_to_peer": False}))

    alone, shared = (simulate(one_f_one_b(), WORKLOAD, one) for one in (network, through_host))

    assert int(shared.end_ns.max()) > int(alone.end_ns.max())


def _defaults(name: str) -> dict[str, Any]:
    offer = OFFERS[name]
    assert offer.options is not None
    return dict(validate_options(offer.options(), {}, "network").model_dump())


@pytest.mark.parametrize(
    "cluster",
    [
        *("dgx-h200x4", "h20-8gpux4", "vr200-nvl72"),
        *("dgx-a100x4", "dgx-h100x4", "dgx-b200x4", "dgx-b300x4", "gb200-nvl72", "gb300-nvl72", "pcie-8gpux4"),
        *("aws-p5x4", "gcp-a3-megax4", "h800-8x100x4", "h800-8x400x4", "mi300x-8gpux4", "mi355x-8gpux4"),
    ],
)
def test_every_machine_takes_a_job_of_its_size(cluster: str) -> None:
    run = simulate_experiment(schedule="1f1b", pp=4, tp=8, microbatches=8, cluster=cluster)

    assert run.traffic is not None
    assert run.traffic.paths.rate_kbps.min() > 0
    assert (np.diff(run.traffic.paths.route_ptr) >= 2).all()


@pytest.mark.parametrize(
    ("gpus", "cluster", "changes", "nodes"),
    [
        (64, "gb200-nvl72", {}, (1, 72)),  # one domain
        (256, "gb200-nvl72", {}, (4, 64)),  # 16 of 18 trays
        (256, "gb300-nvl72x4", {}, (4, 64)),
        (256, "gb200-nvl72x8", {"spare": True}, (8, 64)),
        (216, "gb200-nvl72", {}, (3, 72)),
        (120, "gb200-nvl72", {}, (2, 60)),
        (200, "gb200-nvl72x3", {"spare": True}, (3, 72)),  # five times 40 are too many nodes
        (88, "gb200-nvl72", {}, (2, 44)),
        (76, "gb200-nvl72", {}, (2, 72)),  # 19 trays are prime
        (256, "gb200-nvl72", {"gpus": 72}, (4, 72)),
        (24, "dgx-h100", {}, (3, 8)),
    ],
)
def test_a_job_has_equal_numbers_of_trays_in_each_domain(
    gpus: int, cluster: str, changes: dict[str, Any], nodes: tuple[int, int]
) -> None:
    run = simulate_experiment(
        schedule="1f1b", pp=2, tp=2, dp=gpus // 4, microbatches=4, cluster={"preset": cluster, **changes}
    )

    filled = run.prepared.resolved.experiment.cluster
    assert (filled.nodes, filled.gpus) == nodes
    assert filled.nics == filled.gpus


@pytest.mark.parametrize(("cluster", "rate", "domain"), [("gb200-nvl72", 50, 64), ("dgx-h200", 50, 8)])
def test_experts_on_a_cluster_take_as_long_as_on_a_network_of_the_same_rates(
    cluster: str, rate: int, domain: int
) -> None:
    job: dict[str, Any] = {
        "schedule": "1f1b", "model": "deepseek-v3", "sequence": 4096, "pp": 4, "dp": 64, "ep": 64, "global": 512,
    }  # fmt: skip
    device = {"gb200-nvl72": "gb200", "dgx-h200": "h200-sxm"}[cluster]
    network = {"name": "hockney", "bandwidth": f"{rate} GB/s", "latency": "5 us"}

    linked = simulate_experiment(**job, cluster=cluster)
    flat = simulate_experiment(
        **job, device={"preset": device, "scale_up_size": domain}, network=network,
        data_parallel={"bandwidth": f"{rate} GB/s"},
    )  # fmt: skip

    assert linked.metrics.step_ns == pytest.approx(flat.metrics.step_ns, rel=0.06)


@pytest.mark.parametrize("name", ["baseline", "slow-nw-fast-cp", "fast-nw-slow-cp"])
def test_the_papers_systems_run_its_model(name: str) -> None:
    model = {"layers": 128, "hidden": 4096, "heads": 64, "ffn": 16384, "vocabulary": 51200}

    run = simulate_experiment(
        schedule="gpipe", pp=8, microbatches=8, sequence=4096, cluster=f"{name}x8", model=model
    )

    assert run.metrics.step_ns > 0


@pytest.mark.parametrize("nodes", ["0", "-1", "1.5", "02", "", "99999999999"])
def test_what_is_no_number_of_nodes_is_reported_as_such(nodes: str) -> None:
    line = rf"cluster\.preset: '{nodes}' is not a number of nodes: write 1 to 2,147,483,647, such as dgx-h100x4"
    with pytest.raises(ConfigError, match=line):
        simulate_experiment(schedule="1f1b", pp=2, microbatches=4, cluster=f"dgx-h100x{nodes}")


def test_a_preset_that_ends_like_a_number_of_nodes_is_itself() -> None:
    run = simulate_experiment(schedule="1f1b", pp=8, microbatches=8, cluster="h800-8x100")

    assert run.prepared.resolved.experiment.cluster.nodes == 1
    with pytest.raises(PluginError, match="no installed plugin offers a cluster named 'dgx-h1000'"):
        simulate_experiment(schedule="1f1b", pp=2, microbatches=4, cluster="dgx-h1000x2")


def test_parameters_without_a_preset_change_the_cluster_s_device() -> None:
    job: dict[str, Any] = {
        "schedule": "1f1b", "pp": 2, "tp": 4, "microbatches": 4, "sequence": 4096, "model": "llama3-8b",
        "cluster": "dgx-h100x1",
    }  # fmt: skip

    whole = simulate_experiment(**job)
    limited = simulate_experiment(**job, device={"power_limit": "500 W"})
    named = simulate_experiment(**job, device={"preset": "h100-sxm", "power_limit": "500 W"})

    assert limited.prepared.resolved.origins["device.preset"] == "cluster dgx-h100"
    assert whole.metrics.step_ns < limited.metrics.step_ns == named.metrics.step_ns
