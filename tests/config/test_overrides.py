"""``--set`` and flags change single keys, names keep what belongs to them, and mistakes name their part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config.choices import PolicyName, Sharing
from pptrace.config.flags import FLAGS, HEADLINES, SECTIONS, Settings, SettingsBesideSchedule
from pptrace.config.overrides import Assignment, assignment, overlaid
from pptrace.config.places import Place
from pptrace.config.resolution import Resolved, load
from pptrace.config.schema import Experiment
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
model: {preset: llama3-70b, layers: 40, split: [10, 10, 10, 10]}
parallel: {pp: 4}
batch: {microbatches: 8, sequence: 4096}
schedule: {name: zb, options: {limit: 3}}
device: h100
network: {name: hockney, bandwidth: 400 Gb/s}
p2p: {policy: ordered, eager: 64 KiB}
"""


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    file = tmp_path / "step.yaml"
    file.write_text(FILE, encoding="utf-8")

    def change(*sets: str, **flags: object) -> Resolved:
        return load(file, sets, flags)

    return change


def test_a_key_below_a_bare_name_is_added_to_it(changed: Any) -> None:
    device = changed("device.memory=80 GiB").experiment.device

    assert (device.preset, device.values) == ("h100", {"memory": "80 GiB"})


def test_another_name_drops_what_the_file_said_for_the_first(changed: Any) -> None:
    assert changed("network=ideal").experiment.network.values == {}
    assert changed(network="ideal").experiment.network.values == {}
    assert changed(model="gpt3").experiment.model.values == {}
    assert changed(schedule="1f1b").experiment.schedule.options == {}
    assert changed("network.name=tree").experiment.network.values == {}


def test_a_cluster_on_the_command_line_replaces_the_network_of_the_file(changed: Any) -> None:
    resolved = changed(cluster="c")

    assert resolved.experiment.network.name == "ideal"
    assert resolved.origin("network.name") == "default"


def test_the_same_name_keeps_what_the_file_said(changed: Any) -> None:
    assert changed(network="hockney").experiment.network.values == {"bandwidth": "400 Gb/s"}
    assert changed(schedule="zb").experiment.schedule.options == {"limit": 3}


def test_what_the_command_line_says_beside_another_name_is_kept(changed: Any) -> None:
    network = changed("network.latency=5 us", network="tree").experiment.network

    assert (network.name, network.values) == ("tree", {"latency": "5 us"})


def test_another_point_to_point_policy_keeps_the_rest(changed: Any) -> None:
    p2p = changed(p2p="async").experiment.p2p

    assert (p2p.policy, p2p.eager) == ("async", 65536)


def test_lists_mappings_and_items_are_set(changed: Any) -> None:
    assert changed("model.split=[20, 20]").experiment.model.values["split"] == [20, 20]
    assert changed("model.split[1]=11").experiment.model.values["split"] == [10, 11, 10, 10]
    assert changed("network={name: tree, arity: 2}").experiment.network.values == {"arity": 2}
    assert changed("schedule.options.deep.deeper=1").experiment.schedule.options["deep"] == {"deeper": 1}
    assert changed(network="{name: tree, arity: 2}").experiment.network.values == {"arity": 2}
    assert changed(network={"name": "tree", "arity": 2}).experiment.network.values == {"arity": 2}


def test_an_empty_value_takes_the_key_away(changed: Any) -> None:
    assert changed("network=").experiment.network.name == "ideal"
    assert changed("p2p.eager=").experiment.p2p.eager == 0
    assert changed("data_parallel.bandwidth=").experiment.data_parallel.bandwidth is None


def test_a_flag_may_be_text_or_a_number(changed: Any) -> None:
    assert changed(pp="16").experiment.parallel.pp == 16
    assert changed(pp=16).experiment.parallel.pp == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel.pp", "--set: write --set key.path=value, not 'parallel.pp'"),
        ("=3", "--set: write --set key.path=value, not '=3'"),
        ("a..b=3", "--set: write --set key.path=value"),
        ("a[x]=3", "--set: write --set key.path=value"),
        ("parallel.ppp=3", "--set parallel.ppp=3: unknown key (did you mean 'pp'?"),
        ("paralel.pp=3", "--set paralel.pp=3: paralel: unknown key (did you mean 'parallel'?"),
        ("parallel.pp.x=3", "--set parallel.pp.x=3: parallel.pp: is a single value; it has no key 'x'"),
        ("model.split.x=3", "model.split: is a list, whose items are set as key[0]; it has no key 'x'"),
        ("model.split[4]=3", "--set model.split[4]=3: model.split: has no item 4; its 4 items count from 0"),
        ("network[0]=3", "--set network[0]=3: network: is not a list, so it has no item 0"),
        ("parallel.pp=[1", "--set parallel.pp=[1: broken YAML: expected ',' or ']'"),
        ("parallel.pp='8'", "--set parallel.pp='8': must be a whole number, not '8'; remove the quotes"),
        ("parallel.pp={a: 1}", "--set parallel.pp={a: 1}: must be a whole number, not a mapping"),
        ("parallel=8", "--set parallel=8: must be a mapping, not 8"),
        ("network=8", "--set network=8: must be a name or a mapping, not 8"),
        ("network.x=.inf", "--set network.x=.inf: a number must be finite"),
        ("pp=4", "--set pp=4: unknown key: write parallel.pp"),
        ("parallel.microbatches=4", "--set parallel.microbatches=4: unknown key: write batch.microbatches"),
        ("schedule.vp=2", "--set schedule.vp=2: unknown key: write parallel.vp"),
        ("schedule.order=2", "options, recompute); write a plugin's options under options"),
        ("parallel={PP: 4}", "parallel.PP: unknown key (did you mean 'pp'?"),
        ("parallel={'pp:4': null}", "parallel.pp:4: unknown key: write a space after the colon, pp: 4"),
        ("cluster={node: nvlink}", "cluster.node: must be a mapping, not 'nvlink'; write {name: nvlink}"),
        ("p2p.eager=3", "--set p2p.eager=3: 3 has no unit"),
        ("x\n\x1b=3", "--set x\\n\\x1b=3: 'x\\n\\x1b': unknown key"),
    ],
)
def test_a_wrong_set_is_one_line(changed: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(text)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pp": "x"}, "--pp: parallel.pp: must be a whole number, not 'x'"),
        ({"pp": 0}, "--pp: parallel.pp: must be at least 1, not 0"),
        ({"pp": True}, "--pp: parallel.pp: must be a whole number, not true"),
        ({"ranks": 3}, "--ranks: unknown flag (known:"),
        ({"microbatch": 3}, "--microbatch: unknown flag (did you mean 'microbatches'?"),
        ({"contention": "fif"}, "--contention: contention.links: unknown value 'fif' (did you mean 'fifo'?"),
        ({"network": object()}, "--network: a value of type object is not a number, text, list or mapping"),
        ({"network": "{name"}, "--network: broken YAML"),
    ],
)
def test_a_wrong_flag_is_one_line(changed: Any, flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(**flags)

    assert message in str(caught.value)


def test_contradicting_parts_of_one_command_line_are_refused(changed: Any) -> None:
    with pytest.raises(ConfigError, match=r"--microbatches: batch\.microbatches: 3 x dp 1 x micro 1 make 3"):
        changed("batch.global=64", microbatches=3)


def test_every_flag_sets_a_key_that_exists() -> None:
    names = {"schedule": "a.csv", "model": "m", "device": "d", "network": "n", "costs": "c", "p2p": "async"}
    flags = names | {"cluster": "c", "contention": "fifo", "stack": "s"}
    counts = dict.fromkeys(set(FLAGS) - set(flags), 1)

    explained = load(None, flags=flags | counts)

    assert {explained.origin(flag.key) for flag in FLAGS.values() if "." in flag.key} == {
        f"--{name}" for name, flag in FLAGS.items() if "." in flag.key
    }


def test_flags_describe_the_settings_that_they_set() -> None:
    assert {*HEADLINES, *SECTIONS, "stack", "plan"} == {*Experiment.model_fields}
    for name, flag in FLAGS.items():
        section, _, key = flag.key.partition(".")
        field = Experiment.model_fields[section]
        if key:
            inner = field.annotation.model_fields.items()
            field = next(one for attribute, one in inner if (one.alias or attribute) == key)
        assert field.description == flag.text, name


def test_functions_take_every_flag_and_section_by_name() -> None:
    known = Settings.__required_keys__ | Settings.__optional_keys__

    assert known == {*FLAGS, *SECTIONS}
    assert known - {"schedule"} == SettingsBesideSchedule.__optional_keys__


def test_a_choice_may_be_given_as_what_it_is() -> None:
    flags = {"schedule": "a.csv", "p2p": PolicyName.BATCHED, "contention": Sharing.FIFO}

    experiment = load(None, flags=flags).experiment

    assert (experiment.p2p.policy, experiment.contention.links) == ("batched", Sharing.FIFO)


def test_what_is_laid_over_a_section_leaves_the_value_that_gave_it() -> None:
    whole = Assignment(path=("parallel",), value={"pp": 4}, place=Place(source="--parallel"))

    overlaid({}, {}, [whole, assignment("vp", "2", "--vp")])

    assert whole.value == {"pp": 4}


def test_a_key_that_null_takes_away_is_nobody_s_choice(changed: Any) -> None:
    resolved = changed("parallel.pp=2", "parallel.vp=2", "parallel.vp=null")

    assert resolved.experiment.parallel.vp == 1
    assert resolved.origin("parallel.vp") == "default"


def test_what_a_study_varies_wins_over_flags(tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(FILE, encoding="utf-8")
    varied = [assignment("microbatches", "16", "--over microbatches"), assignment("p2p", "batched", "--over p2p")]

    resolved = load(file, (), {"microbatches": 32, "p2p": "blocking"}, varied)

    assert resolved.experiment.batch.microbatches == 16
    assert resolved.experiment.p2p.policy == "batched"
    assert resolved.origin("batch.microbatches") == "--over microbatches"


@pytest.mark.parametrize("key", ["", "a..b", "batch.[0]"])
def test_what_a_study_varies_must_be_a_key(key: str) -> None:
    with pytest.raises(ConfigError, match=r"--over x: '.*' is not a key"):
        assignment(key, "1", "--over x")
