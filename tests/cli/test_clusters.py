"""A cluster of one's own, with the networks that the core has: sizes, orders, routes, and what cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    Pptrace = Any

CLUSTER = "{nodes: 2, gpus: 2, nics: 1, node: {name: ideal}, fabric: {name: hockney, bandwidth: 10 GB/s}}"
STEP = f"""schedule: table.csv
parallel: {{tp: 2}}
cluster: {CLUSTER}
costs: {{name: unit, unit: 1 ms, boundary: 10 MB}}
"""
TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "job.yaml").write_text(STEP)
    return tmp_path


def changed(job: Path, *changes: tuple[str, str]) -> str:
    text = (job / "job.yaml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (job / "changed.yaml").write_text(text)
    return "changed.yaml"


@pytest.mark.usefixtures("job")
def test_a_job_runs_on_a_cluster_of_one_s_own(pptrace: Pptrace) -> None:
    answer = pptrace("simulate", "job.yaml")

    assert "custom cluster, 2 nodes of 2" in answer.out


@pytest.mark.usefixtures("job")
def test_a_hop_between_nodes_takes_as_long_as_the_fabric_says(pptrace: Pptrace) -> None:
    fast = json.loads(pptrace("simulate", "job.yaml", "--json").out)
    slow = json.loads(pptrace("simulate", "job.yaml", "--json", "--set", "cluster.fabric.bandwidth=5 GB/s").out)

    # Two hops are on the critical path, each 10 MB: 1 ms at 10 GB/s, 2 ms at 5.
    assert slow["step_ns"] - fast["step_ns"] == 2_000_000


@pytest.mark.usefixtures("job")
def test_ranks_in_one_node_never_touch_the_fabric(pptrace: Pptrace) -> None:
    inside = pptrace(
        "simulate", "job.yaml", "--tp", 1, "--set", "cluster.nodes=1", "--set", "cluster.gpus=2", "--json"
    )
    ideal = pptrace("simulate", "--schedule", "table.csv", "--set", "costs={name: unit, unit: 1 ms}", "--json")

    assert json.loads(inside.out)["step_ns"] == json.loads(ideal.out)["step_ns"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            [("nodes: 2", "nodes: 1")],
            "cluster.nodes: pp 2 x dp 1 x cp 1 x tp 2 need 4 GPUs, and 1 nodes of 2 GPUs are 2",
        ),
        (
            [("nodes: 2", "nodes: 3")],
            "cluster.nodes: pp 2 x dp 1 x cp 1 x tp 2 make 4 GPUs, and 3 nodes of 2 GPUs are 6",
        ),
        ([("tp: 2", "tp: 2, order: tp-cp-ep-pp")], "parallel.order: 'tp-cp-ep-pp' misses: dp"),
        ([("tp: 2", "tp: 2, order: tp-tp-cp-ep-dp-pp")], "parallel.order: 'tp-tp-cp-ep-dp-pp' names twice: tp"),
        (
            [("tp: 2", "tp: 2, order: tp-cp-ep-dp-zz-pp")],
            "parallel.order: 'tp-cp-ep-dp-zz-pp' names unknown axes: zz",
        ),
        ([("tp: 2", "tp: 2, ep: 3")], "parallel.ep: 3 does not divide dp x cp = 1 x 1"),
        (
            [(", fabric: {name: hockney, bandwidth: 10 GB/s}", "")],
            "cluster: no route from GPU 0 of rank 0 to GPU 2",
        ),
        ([(", nics: 1", "")], "cluster.nics: missing: the fabric joins NICs"),
        ([("nics: 1", "nics: 0")], "cluster.nics: 0 NICs are too few: the fabric joins NICs"),
        (
            [("tp: 2", "tp: 1"), ("nodes: 2", "nodes: 1"), ("{name: hockney", "{name: hockey")],
            "cluster.fabric.name: no installed plugin offers a network named 'hockey'",
        ),
        (
            [("tp: 2", "tp: 1"), ("nodes: 2", "nodes: 1"), ("10 GB/s", "10 GB/s, speed: 3")],
            "cluster.fabric.speed: unknown key",
        ),
        ([("gpus: 2, ", "")], "cluster.gpus: missing: write the GPUs of a node"),
        ([("node: {name: ideal}, ", "")], "cluster.node: missing: write what joins a node's GPUs"),
        ([("{name: ideal}", "{nome: ideal}")], "cluster.node.name: missing: write a network that a plugin offers"),
        (
            [("{name: ideal}", "{name: ideas}")],
            "no installed plugin offers a network named 'ideas' (did you mean 'ideal'?",
        ),
        (
            [("{name: ideal}", "{name: ideal, speed: 3}")],
            "cluster.node.speed: this network takes no options: remove it",
        ),
        ([("10 GB/s", "10 GB/s, speed: 3")], "cluster.fabric.speed: unknown key"),
        ([("10 GB/s", "0 GB/s")], "cluster.fabric.bandwidth: "),
        ([("10 GB/s", "-3 GB/s")], "cluster.fabric.bandwidth: "),
        ([("nodes: 2", "nodes: 0")], "cluster.nodes: "),
        (
            [("schedule:", "network: {name: hockney, bandwidth: 1 GB/s}\nschedule:")],
            "network: the cluster describes",
        ),
    ],
)
def test_what_a_cluster_cannot_be_is_one_line(
    pptrace: Pptrace, job: Path, changes: list[tuple[str, str]], line: str
) -> None:
    complaint = pptrace("simulate", changed(job, *changes)).complaint

    assert line in complaint
    assert complaint.startswith("changed.yaml:")


@pytest.mark.usefixtures("job")
def test_an_unknown_preset_says_how_to_get_more(pptrace: Pptrace) -> None:
    complaint = pptrace("simulate", "job.yaml", "--cluster", "dgx-h900x4").complaint

    assert "cluster named 'dgx-h900'" in complaint


@pytest.mark.usefixtures("job")
def test_spare_gpus_may_be_left_idle_where_one_says_so(pptrace: Pptrace) -> None:
    assert pptrace("simulate", "job.yaml", "--set", "cluster.nodes=3", "--set", "cluster.spare=true").code == 0


def test_nodes_are_as_many_as_the_job_needs(pptrace: Pptrace, job: Path) -> None:
    explained = pptrace("simulate", changed(job, ("nodes: 2, ", "")), "--explain").out

    line = next(line for line in explained.splitlines() if line.startswith("cluster.nodes"))
    assert line.split() == ["cluster.nodes", "2", "derived:", "as", "many", "as", "the", "job", "needs"]


@pytest.mark.usefixtures("job")
def test_the_network_between_two_gpus_is_shown(pptrace: Pptrace) -> None:
    out = pptrace("network", "job.yaml", "--between", "0,2").out

    assert "GPU 0 (pp 0, dp 0, cp 0, tp 0) to GPU 2 (pp 1, dp 0, cp 0, tp 0)" in out
    assert "alone                         10 GB/s, 0 ns latency" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("job.yaml", "--between", "0,99"), "no GPU 99: the cluster has GPUs 0 to 3"),
        (("job.yaml", "--between", "0"), "'0' is not a pair of GPUs: write two numbers, such as 0,9"),
        (("job.yaml", "-o", "picture.bmp"), "picture.bmp: a picture of a cluster ends in .svg, .png, .pdf"),
        (("flat.yaml",), "flat.yaml: cluster: missing: the file describes no cluster"),
        (("none.yaml",), "none.yaml"),
        (("nope",), "cluster named 'nope'"),
    ],
)
def test_what_the_network_command_cannot_use_is_one_line(
    pptrace: Pptrace, job: Path, arguments: tuple[str, ...], line: str
) -> None:
    (job / "flat.yaml").write_text("schedule: table.csv\n")

    assert line in pptrace("network", *arguments).complaint


def test_a_picture_of_the_cluster_is_written_whole(pptrace: Pptrace, job: Path) -> None:
    pptrace("network", "job.yaml", "--between", "0,3", "-o", "cluster.svg")

    picture = (job / "cluster.svg").read_text()
    assert picture.startswith("<svg")
    assert picture.rstrip().endswith("</svg>")
    assert picture.count("<title>GPU ") == 4
    assert "GPU 0 to GPU 3: 10 GB/s alone, 10 GB/s under the traffic" in picture


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("arguments", "pipeline"),
    [
        ((), "pp 4, tp 8, tp-cp-ep-dp-pp"),
        (("--tp", 4), "pp 8, tp 4, tp-cp-ep-dp-pp"),
        (("--tp", 4, "--dp", 2), "pp 4, tp 4, dp 2, tp-cp-ep-dp-pp"),
        (("--set", "parallel.pp=2"), "pp 2, tp-cp-ep-dp-pp"),
        (("--set", "parallel.order=pp-tp-cp-ep-dp"), "pp 4, tp 8, pp-tp-cp-ep-dp"),
    ],
)
def test_the_pipeline_on_a_preset_has_the_given_sizes_and_all_gpus(
    pptrace: Pptrace, arguments: tuple[str | int, ...], pipeline: str
) -> None:
    assert f"pipeline: {pipeline}" in pptrace("network", "dgx-h100x4", *arguments).out.splitlines()


@pytest.mark.usefixtures("job")
def test_the_network_as_json_has_every_link_and_the_route(pptrace: Pptrace) -> None:
    document = json.loads(pptrace("network", "job.yaml", "--between", "0,2", "--json").out)

    assert document["pipeline"] == {"pp": 2, "dp": 1, "cp": 1, "tp": 2}
    assert document["between"]["alone_bytes_per_s"] == 10_000_000_000
    assert document["between"]["shared_bytes_per_s"] == 10_000_000_000


def test_the_configuration_of_a_job_on_a_part_of_a_node_runs_again(pptrace: Pptrace, job: Path) -> None:
    part = changed(job, ("nodes: 2, gpus: 2", "gpus: 8"))
    first = json.loads(pptrace("simulate", part, "--json").out)
    (job / "again.yaml").write_text(json.dumps(first["provenance"]["configuration"]))

    assert json.loads(pptrace("simulate", "again.yaml", "--json").out)["step_ns"] == first["step_ns"]
    assert pptrace("costs", part, "-o", "costs.yaml").code == 0
