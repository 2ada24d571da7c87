"""An experiment from a file, ``--set`` and flags: what it says, where each value came from, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pptrace.config.choices import Receive, StreamPer
from pptrace.config.resolution import Resolved, load
from pptrace.errors import ConfigError
from pptrace.memo import Memo, memoizing

FULL = """\
model: llama3-70b
parallel: {pp: 8, tp: 8, dp: 4, cp: 1, vp: 2, sequence_parallel: true}
batch: {global: 1024, micro: 1, sequence: 8192}
schedule: interleaved-1f1b
device: h100-sxm
network: {name: hockney, bandwidth: 400 Gb/s, latency: 5 us}
p2p: {policy: ordered, stream: pair, eager: 64 KiB, receive: deferred}
costs: roofline
data_parallel: {overlap: true, bandwidth: 400 Gb/s, latency: 5 us}
"""
FLAGS = {"schedule": "1f1b", "pp": 8, "microbatches": 32}


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def read(text: str, *sets: str, **flags: object) -> Resolved:
        Path("step.yaml").write_text(text, encoding="utf-8")
        return load(Path("step.yaml"), sets, flags)

    return read


def test_a_full_file_is_read(step: Any) -> None:
    experiment = step(FULL).experiment

    assert experiment.model.preset == "llama3-70b"
    assert (experiment.parallel.pp, experiment.parallel.vp, experiment.parallel.ep) == (8, 2, 1)
    assert experiment.batch.microbatches == 1024 // 4
    assert (experiment.schedule.name, experiment.schedule.kind) == ("interleaved-1f1b", "plugin")
    assert experiment.network.name == "hockney"
    assert experiment.network.values == {"bandwidth": "400 Gb/s", "latency": "5 us"}
    assert (experiment.p2p.policy, experiment.p2p.stream) == ("ordered", StreamPer.PAIR)
    assert (experiment.p2p.eager, experiment.p2p.receive) == (65536, Receive.DEFERRED)
    assert experiment.costs.name == "roofline"
    assert (experiment.data_parallel.bandwidth, experiment.data_parallel.latency) == (50 * 10**9, 5000)


def test_flags_alone_give_unit_costs_and_the_ideal_network() -> None:
    resolved = load(None, flags=FLAGS)

    assert resolved.to_dict() == {
        "parallel": {
            "pp": 8,
            "tp": 1,
            "dp": 1,
            "cp": 1,
            "ep": 1,
            "vp": 1,
            "sequence_parallel": False,
            "order": "tp-cp-ep-dp-pp",
        },
        "batch": {"global": 32, "micro": 1, "microbatches": 32},
        "contention": {"links": "max-min", "compute": 1.0, "communication": 1.0},
        "schedule": {"name": "1f1b", "options": {}},
        "network": {"name": "ideal"},
        "p2p": {"policy": "async", "options": {}, "stream": "direction", "eager": "0 B"},
        "costs": {"name": "unit"},
        "data_parallel": {"overlap": False, "latency": "0 ns", "validation": "before", "stage_replicas": True},
    }


def test_every_value_says_where_it_came_from(step: Any) -> None:
    resolved = step(FULL, "p2p.eager=1 MiB", pp=4)

    origins = {key: (value, origin) for key, value, origin in resolved.explain()}
    assert origins["parallel.tp"] == (8, "step.yaml:2")
    assert origins["parallel.pp"] == (4, "--pp")
    assert origins["p2p.eager"] == ("1 MiB", "--set p2p.eager=1 MiB")
    assert origins["parallel.ep"] == (1, "default")
    assert origins["batch.microbatches"] == (256, "derived: global / (dp x micro)")
    assert origins["schedule.name"] == ("interleaved-1f1b", "step.yaml:4")


def test_the_order_is_file_then_set_then_flag(step: Any) -> None:
    assert step(FULL, "parallel.pp=2").experiment.parallel.pp == 2
    assert step(FULL, "parallel.pp=2", "parallel.pp=16").experiment.parallel.pp == 16
    assert step(FULL, "parallel.pp=2", pp=4).experiment.parallel.pp == 4
    assert step(FULL, "parallel.pp=2", pp=None).experiment.parallel.pp == 2


def test_the_whole_configuration_is_read_back_the_same(step: Any) -> None:
    resolved = step(FULL)

    again = step(yaml.safe_dump(resolved.to_dict()))

    assert again.experiment == resolved.experiment
    assert again.to_dict() == resolved.to_dict()


def test_provenance_holds_no_absolute_path(tmp_path: Path) -> None:
    flags = {"schedule": tmp_path / "table.csv", "costs": {"name": "table", "file": str(tmp_path / "t.csv")}}

    plain = load(None, flags=flags).to_dict()

    assert plain["schedule"]["name"] == "table.csv"
    assert plain["costs"]["file"] == "t.csv"
    assert str(tmp_path) not in str(plain)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("1f1b", "plugin"),
        ("./mine.py:make", "python"),
        ("/a/b.py:f", "python"),
        ("t.csv", "table"),
        ("a/T.TXT", "table"),
        ("mine.py:", "plugin"),
    ],
)
def test_a_schedule_is_recognized_by_the_form_of_its_name(name: str, kind: str) -> None:
    assert load(None, flags=FLAGS | {"schedule": name}).experiment.schedule.kind == kind


def test_a_table_file_needs_no_sizes_and_an_explicit_null_is_absent(step: Any) -> None:
    experiment = step("schedule: table.csv\nparallel:\nbatch: {global: }\n").experiment

    assert experiment.parallel.pp is None
    assert experiment.batch.known_microbatches == 0


def test_microbatches_and_global_follow_from_each_other(step: Any) -> None:
    assert step(FULL, microbatches=7).experiment.batch.global_batch == 28
    assert step(FULL, "batch.global=64").experiment.batch.microbatches == 16
    assert step(FULL, "batch.micro=2").experiment.batch.microbatches == 128
    given = step("schedule: a\nparallel: {pp: 2, dp: 2}\nbatch: {microbatches: 8}\n", dp=4)
    assert given.experiment.batch.global_batch == 32
    assert given.origin("batch.global") == "derived: microbatches x dp x micro"


BASE = "schedule: 1f1b\nparallel: {pp: 8}\nbatch: {microbatches: 32}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel: {pp: 8}\n", "step.yaml: schedule: missing: write a schedule, such as --schedule 1f1b"),
        ("schedule: 1f1b\nbatch: {microbatches: 4}\n", "step.yaml: parallel.pp: missing: write the pipeline"),
        ("schedule: 1f1b\nparallel: {pp: 8}\n", "step.yaml: batch: missing: write batch.microbatches"),
        (BASE + "parallel.tp: 2\n", "parallel.tp: unknown key: dots are for --set; write parallel: {tp: ...}"),
        (BASE + "paralel: {tp: 2}\n", "step.yaml:4:1: paralel: unknown key (did you mean 'parallel'? known:"),
        (BASE.replace("pp", "ppp"), "step.yaml:2:12: parallel.ppp: unknown key (did you mean 'pp'?"),
        (BASE.replace("8", "'8'"), "2:12: parallel.pp: must be a whole number, not '8'; remove the quotes"),
        (BASE.replace("8", "eight"), "step.yaml:2:12: parallel.pp: must be a whole number, not 'eight'"),
        (BASE.replace("8", "8.5"), "parallel.pp: must be a whole number, not 8.5"),
        (BASE.replace("8", "true"), "parallel.pp: must be a whole number, not true"),
        (BASE.replace("8", "[8]"), "parallel.pp: must be a whole number, not a list"),
        (BASE.replace("8", "0"), "step.yaml:2:12: parallel.pp: must be at least 1, not 0"),
        (BASE.replace("8", "-8"), "parallel.pp: must be at least 1, not -8"),
        (BASE.replace("8", ".nan"), "step.yaml:2:12: parallel.pp: a number must be finite"),
        (BASE.replace("8", "1e999"), "parallel.pp: a number must be finite"),
        (BASE.replace("8", "9" * 39), "parallel.pp: must be at most 2147483647, not 9999"),
        (BASE.replace("32", "0"), "step.yaml:3:9: batch.microbatches: must be at least 1, not 0"),
        (
            "schedule: 1f1b\nparallel: {pp: 100000}\nbatch: {microbatches: 100000}\n",
            (
                "step.yaml:3:9: batch.microbatches: 2 x pp 100000 x vp 1 x microbatches 100000 make "
                "20,000,000,000 actions; the maximum is 2,147,483,647"
            ),
        ),
        (BASE + "x: &a {y: .inf}\n", "step.yaml:4:8: x.y: a number must be finite"),
        (BASE.replace("8", "8, tp: 99999, dp: 99999"), "parallel: pp 8 x tp 99999 x dp 99999 x cp 1 make"),
        (BASE.replace("{pp: 8}", "8"), "step.yaml:2:1: parallel: must be a mapping, not 8"),
        (BASE.replace("1f1b", "3"), "step.yaml:1:1: schedule: must be a name or a mapping, not 3"),
        (BASE.replace("1f1b", "''"), "schedule.name: must be a name, not ''"),
        (BASE.replace("1f1b", "{nam: x}"), "schedule.nam: unknown key (did you mean 'name'? known: interleave, "),
        (BASE.replace("1f1b", "{name: 3}"), "schedule.name: must be text, not 3"),
        (BASE.replace("1f1b", "{name: a, options: 3}"), "schedule.options: must be a mapping, not 3"),
        (BASE + "network: {bandwidth: 1 GB/s}\n", "step.yaml:4:1: network.name: missing: name of a network"),
        (BASE + "network: [a]\n", "step.yaml:4:1: network: must be a name or a mapping, not a list"),
        (BASE + "p2p: {receive: lat}\n", "p2p.receive: unknown value 'lat' (known: asap, deferred)"),
        (BASE + "p2p: {stream: 3}\n", "p2p.stream: must be one of rank, pair, direction, not 3"),
        (BASE + "p2p: {eager: 65536}\n", "step.yaml:4:7: p2p.eager: 65536 has no unit; write a size as"),
        (BASE + "data_parallel: {bandwidth: 0 GB/s}\n", "a rate must be above zero"),
        (BASE + "data_parallel: {overlap: 'yes'}\n", "data_parallel.overlap: must be true or false, not 'yes'"),
        (BASE + "data_parallel: {overlap: yes}\n", "data_parallel.overlap: must be true or false, not 'yes'"),
        (
            FULL.replace("1024", "1023"),
            (
                "step.yaml:3:9: batch.global: 1023 is not a multiple of dp x micro = 4 x 1 = 4; "
                "nearest that work: 1020 or 1024"
            ),
        ),
        (FULL.replace("1024", "3"), "nearest that work: 4"),
        (
            FULL.replace("1024", "1024, microbatches: 3"),
            "batch.microbatches: 3 x dp 4 x micro 1 make 12 sequences, but batch.global is 1024",
        ),
        (FULL.replace(", sequence: 8192", ""), "step.yaml:3:1: batch.sequence: missing: a model needs"),
        (
            FULL.replace("device: h100-sxm\n", "").replace("costs: roofline\n", ""),
            "step.yaml: device: missing: a model's costs depend on it",
        ),
        (
            BASE.replace("1f1b", "{name: a, offload: {stages: []}}"),
            "schedule.offload.stages: must be at least one",
        ),
        (
            BASE.replace("1f1b", "{name: a, recompute: {chunks: []}}"),
            "schedule.recompute.chunks: must be at least",
        ),
        (
            BASE.replace("1f1b", "{name: a, interleave: {}}"),
            "schedule.interleave: must be at least one value, not an empty mapping",
        ),
        (
            BASE.replace("1f1b", "{name: a, interleave: {F+B: []}}"),
            "schedule.interleave.F+B: must be at least one",
        ),
        (BASE.replace("32", "32, lengths: []"), "batch.lengths: must be at least one value or text, not an empty"),
        (BASE.replace("32", "32, replica: -1"), "batch.replica: must be at least 0, not -1"),
        (BASE.replace("32", "32, replica: 1"), "step.yaml:3:27: batch.replica: 1: the job has replicas 0 to 0"),
        (BASE + "device: {ranks: {}}\n", "step.yaml:4:10: device.ranks: must be at least one value"),
        (BASE + "device: ''\n", "step.yaml:4:1: device.preset: must be a name, not ''"),
        (BASE + "plan: {pp: []}\n", "step.yaml:4:8: plan.pp: must be at least one value, not an empty list"),
        (BASE + "data_parallel: {speeds: {}}\n", "data_parallel.speeds: must be at least one value"),
        (BASE + "data_parallel: {seed: 3}\n", "data_parallel.seed: nothing is drawn: write data_parallel.spread"),
        (
            BASE + "data_parallel: {reshard: always, active_stages: 2}\n",
            "step.yaml:4:34: data_parallel.active_stages: reshard: always frees weights itself: remove one",
        ),
        ("a: 1\nschedule: [\n", "broken YAML: "),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line(step: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        step(text)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("step.yaml")


def test_a_misspelt_required_key_is_named_before_the_missing_one(step: Any) -> None:
    with pytest.raises(ConfigError, match=r"schedule\.nam: unknown key"):
        step(BASE.replace("1f1b", "{nam: x}"))


def test_an_error_can_be_located_later(step: Any) -> None:
    resolved = step(FULL)

    assert str(resolved.error("network.name", "gone")) == "step.yaml:6:11: network.name: gone"
    assert str(resolved.error("network.other", "gone")) == "step.yaml:6:1: network.other: gone"
    assert str(resolved.error("nowhere", "gone")) == "step.yaml: nowhere: gone"
    assert str(load(None, flags=FLAGS).error("parallel.pp", "no")) == "--pp: parallel.pp: no"


@pytest.mark.parametrize(
    "text",
    [
        "schedule: 1f1b\nparallel: {pp: 8}\nbatch: {microbatches: many}\nnetwrk: {latency: 1 us}\n",
        "parallel: {pp: 8}\nbatch: {microbatches: 4}\ndata_parallel: {bandwidth: 5}\n",
        "schedule: {nam: 1f1b}\nparallel: {pp: 0}\n",
    ],
)
def test_steps_that_share_sections_have_the_same_errors(step: Any, text: str) -> None:
    with pytest.raises(ConfigError) as alone:
        step(text)

    with memoizing(Memo()):
        step(FULL)
        with pytest.raises(ConfigError) as together:
            step(text)

    assert str(together.value) == str(alone.value)


def test_steps_share_the_sections_that_are_written_alike(step: Any) -> None:
    with memoizing(Memo()):
        first, second = (step(FULL, f"network.latency={latency} us").experiment for latency in (1, 2))

    assert second.network.values == {**first.network.values, "latency": "2 us"}
    assert all(
        getattr(first, name) is getattr(second, name) for name in type(first).model_fields if name != "network"
    )
