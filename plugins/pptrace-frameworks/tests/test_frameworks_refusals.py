"""Messages that a program cannot place are one line with the key; others' programs run, and are held to laws."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

import pptrace
from pptrace.config.choices import PolicyName
from pptrace.errors import ConfigError, PluginError
from pptrace.plugin import MessageCalls, MessagePolicyOffer, MessageRequest, Policy, hookimpl
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOPED = "--schedule interleaved-1f1b --vp 2 --microbatches 8"
OVERLAP = "--set p2p.options.overlap_p2p_comm"
CANNOT = "--p2p: p2p.policy: {} cannot place this table's messages: "
SINCE_2_15 = "--p2p torch --set p2p.options.version=2.15"
CASES = {
    "overlap-of-one-chunk": (
        "--pp 4 --schedule 1f1b --microbatches 8 --p2p megatron --set p2p.options.overlap_p2p_comm=true",
        f"{OVERLAP}=true: needs several chunks per rank: parallel.vp of 2 or more",
    ),
    "batches-that-overlap": (
        f"--pp 4 {LOOPED} --p2p megatron {OVERLAP}=true --set p2p.options.batch_p2p_comm=true",
        "--set p2p.options.batch_p2p_comm=true: cannot be true with overlap_p2p_comm",
    ),
    "flush-without-overlap": (
        f"--pp 4 {LOOPED} --p2p megatron {OVERLAP}=false {OVERLAP}_warmup_flush=true",
        "--set p2p.options.overlap_p2p_comm_warmup_flush=true: needs overlap_p2p_comm",
    ),
    "two-ranks-without-overlap": (
        f"--pp 2 {LOOPED} --p2p megatron --set p2p.options.overlap_p2p_comm=false",
        "--set p2p.options.overlap_p2p_comm=false: cannot be false on 2 ranks with several chunks, as in Megatron",
    ),
    "waves-under-megatron": (
        "--pp 4 --schedule hanayo --microbatches 8 --p2p megatron",
        f"{CANNOT.format('megatron')}it does not loop its stages over the ranks",
    ),
    "waves-under-deepspeed": (
        "--pp 4 --schedule hanayo --microbatches 8 --p2p deepspeed",
        f"{CANNOT.format('deepspeed')}it does not have one stage on each rank",
    ),
    "gpipe-under-deepspeed": (
        "--pp 4 --schedule gpipe --microbatches 8 --p2p deepspeed",
        f"{CANNOT.format('deepspeed')}it is not in the order of 1F1B",
    ),
    "two-pipelines-under-megatron": (
        "--pp 4 --schedule chimera --microbatches 8 --p2p megatron",
        f"{CANNOT.format('megatron')}it does not loop its stages over the ranks",
    ),
    "fewer-microbatches-than-ranks": (
        "--pp 8 --schedule interleaved-1f1b --vp 2 --microbatches 4 --p2p megatron",
        "microbatches in groups of at least 8 on 8 ranks, but 4 microbatches",
    ),
    "one-microbatch-less-than-ranks": (
        "--pp 8 --schedule interleaved-1f1b --vp 2 --microbatches 7 --p2p megatron",
        "microbatches in groups of at least 8 on 8 ranks, but 7 microbatches",
    ),
    "unknown-policy": (
        "--pp 4 --schedule 1f1b --microbatches 8 --p2p megatrn",
        "--p2p: no installed plugin offers a message policy named 'megatrn' (did you mean 'megatron'?",
    ),
    "unknown-option": (
        "--pp 4 --schedule 1f1b --microbatches 8 --p2p megatron --set p2p.options.overlap=true",
        "--set p2p.options.overlap=true: unknown key (did you mean 'overlap_p2p_comm'?",
    ),
    "option-of-another-type": (
        f"--pp 4 {LOOPED} --p2p megatron --set p2p.options.overlap_p2p_comm=maybe",
        "--set p2p.options.overlap_p2p_comm=maybe: must be true or false, not 'maybe'",
    ),
    "options-of-deepspeed": (
        "--pp 4 --schedule 1f1b --microbatches 8 --p2p deepspeed --set p2p.options.receive=asap",
        "--set p2p.options.receive=asap: it is not an option: write p2p.receive",
    ),
    "unknown-receive-of-torch": (
        f"--pp 4 {LOOPED} --p2p torch --set p2p.options.receive=later",
        "--set p2p.options.receive=later: unknown value 'later' (known: asap, deferred)",
    ),
    "fewer-microbatches-than-stages-under-torch": (
        "--pp 3 --schedule 1f1b --microbatches 2 --p2p torch",
        "PyTorch's Schedule1F1B takes at least as many microbatches as stages, and 2 are fewer than 3: give 3 or",
    ),
    "unequal-rounds-under-torch": (
        "--pp 4 --schedule zb-h1 --set schedule.options.order=fixed --microbatches 9 --p2p torch",
        "PyTorch's ScheduleInterleavedZeroBubble runs microbatches in rounds of equal size, and 9 is not",
    ),
    "two-pipelines-under-torch": (
        "--pp 4 --schedule dualpipe --microbatches 8 --p2p torch",
        f"{CANNOT.format('torch')}it has stage 0 on several ranks; torch runs chains of stages, each stage on one",
    ),
    "actions-of-two-microbatches-under-torch": (
        "--schedule double.csv --p2p torch",
        f"{CANNOT.format('torch')}it has actions of several microbatches, such as",
    ),
    "a-limit-of-sends-under-torch-2.13": (
        f"--pp 4 {LOOPED} --p2p torch --set p2p.options.max_outstanding_sends=2",
        "--set p2p.options.max_outstanding_sends=2: needs version 2.15: PyTorch 2.13 has no such option",
    ),
    "a-lookahead-for-other-ranks": (
        f"--pp 4 {LOOPED} {SINCE_2_15} --set p2p.options.unshard_lookahead=[1,2]",
        "--set p2p.options.unshard_lookahead=[1,2]: 2 numbers for 4 ranks: give one per rank",
    ),
    "a-lookahead-in-a-table-with-messages": (
        f"--schedule waits.csv {SINCE_2_15} --set p2p.options.unshard_lookahead=auto",
        "unshard_lookahead=auto: PyTorch gathers ahead in tables without messages only: remove one of both",
    ),
    "an-edge-per-communicator-under-torch-2.13": (
        "--pp 4 --schedule 1f1b --microbatches 8 --p2p torch --set p2p.options.p2p_per_edge=true",
        "--set p2p.options.p2p_per_edge=true: needs version 2.15",
    ),
    "a-limit-of-sends-that-deadlocks": (
        f"--schedule turns.csv {SINCE_2_15} --set p2p.options.max_outstanding_sends=1",
        "0SEND_F1 exceeds the limit of 1 pending sends, and no earlier send completes without it: raise the limit",
    ),
    "waits-under-torch-2.13": (
        "--schedule waits.csv --p2p torch",
        "the table has waits, which PyTorch reads from 2.15 on: set p2p.options.version=2.15",
    ),
    "messages-without-waits-under-torch-2.15": (
        f"--schedule own.csv {SINCE_2_15}",
        "PyTorch 2.15 reads a table with messages only if each send has a wait: add them by pptrace convert",
    ),
    "zero-bubble-in-a-v": ("--schedule v.csv --p2p megatron", f"{CANNOT.format('megatron')}it does not loop"),
    "messages-of-its-own": (
        "--schedule own.csv --p2p megatron",
        "--p2p: p2p.policy: megatron inserts messages, but the table already has messages: use ordered",
    ),
    "messages-of-its-own-deepspeed": (
        "--schedule own.csv --p2p deepspeed",
        "--p2p: p2p.policy: deepspeed inserts messages, but the table already has messages: use ordered",
    ),
}  # fmt: skip
TABLES = {
    "v.csv": "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,1I0,2W0,1W0\n",
    "double.csv": "0F0+2,0B0+2\n1F0+2,1B0+2\n",
    "turns.csv": (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0WAIT_SEND_F0,0WAIT_SEND_F1\n"
        "1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n"
    ),
    "waits.csv": "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
    "own.csv": "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_one_line_with_its_key(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pptrace.cli.main import main

    flags, line = CASES[case]
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pptrace", "simulate", *flags.split(), "-o", "step.json"])

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.startswith("pptrace: ")
    assert printed.err.count("\n") == 1
    assert line in printed.err
    assert printed.out == ""
    assert {path.name for path in tmp_path.iterdir()} == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_themselves_are_sound(table: str, tmp_path: Path) -> None:
    (tmp_path / table).write_text(TABLES[table], encoding="utf-8")

    assert pptrace.simulate(schedule=str(tmp_path / table)).metrics.step_ns > 0


def offering(program: Callable[[MessageRequest], Any]) -> Registry:
    """Return a registry with a third party's plugin that offers a program as the policy ``theirs``."""
    plugin: Any = ModuleType("third_party")

    @hookimpl
    def pptrace_message_policies() -> list[MessagePolicyOffer]:
        policy = Policy.of("batched", program=program)
        return [MessagePolicyOffer(name="theirs", summary="Theirs.", build=lambda _table, _options: policy)]

    plugin.pptrace_message_policies = pptrace_message_policies
    return Registry.load(plugins={"third-party": plugin})


def step(program: Callable[[MessageRequest], Any]) -> pptrace.Run:
    return pptrace.simulate(
        {
            "schedule": "1f1b", "parallel": {"pp": 2}, "batch": {"microbatches": 2}, "p2p": "theirs",
            "costs": {"name": "table", "forward": "10 ms", "backward": "20 ms"},
            "network": {"name": "hockney", "bandwidth": "unlimited", "latency": "1 ms"},
        },
        registry=offering(program),
    )  # fmt: skip


def waited_for(request: MessageRequest, **changed: Any) -> MessageCalls:
    send, receive = request.after(request.producer), request.before(request.consumer)
    columns: dict[str, Any] = {
        "send": send, "receive": receive, "send_waited": send, "receive_waited": receive,
        "communicator": np.minimum(request.source, request.target),
    }  # fmt: skip
    return MessageCalls(**{**columns, **changed})


def test_a_third_party_s_program_runs() -> None:
    """On two ranks: F0 to 10, its message to 11; F1 to 21, and again; B0's message; then B1's after 20 more."""
    run = step(waited_for)

    # Rank 0 sends F0 (10-11) and computes F1 (11-21), which rank 1 receives only behind its B0, at 41:
    # F1's message and B0's are one call of each rank (41-42); B0 of rank 0 and F1, B1 of rank 1 follow (42-72),
    # B1's message (72-73), and B1 of rank 0 (73-93).
    assert run.metrics.step_ns == 93_000_000


FAULTS: dict[str, tuple[Callable[[MessageRequest], Any], str]] = {
    "a send before its producer": (
        lambda request: waited_for(request, send=request.before(request.producer)),
        "message policy 'theirs' places the send of 0F0's result on rank 0 where it cannot be: a send is after",
    ),
    "a receive behind its consumer": (
        lambda request: waited_for(request, receive=request.after(request.consumer)),
        "message policy 'theirs' places the receive of 0F0's result on rank 1 where it cannot be: a receive is",
    ),
    "a wait before its call": (
        lambda request: waited_for(request, send_waited=request.before(request.producer)),
        "message policy 'theirs' places the wait for the send of 0F0's result on rank 0 where it cannot be",
    ),
    "a wait behind the step": (
        lambda request: waited_for(request, receive_waited=np.full(4, 10**9)),
        "message policy 'theirs' places the wait for the receive of 0F0's result on rank 1 where it cannot be",
    ),
    "a column that is too short": (
        lambda request: waited_for(request, send=request.after(request.producer)[1:]),
        "message policy 'theirs' returned send of shape (3,), expected (4,)",
    ),
    "communicators that are too few": (
        lambda request: waited_for(request, communicator=np.zeros(1, dtype=int)),
        "message policy 'theirs' returned communicator of shape (1,), expected (4,)",
    ),
    "a communicator below 0": (
        lambda request: waited_for(request, communicator=np.full(4, -1)),
        "message policy 'theirs' returned a communicator below 0",
    ),
    "moments that are no integers": (
        lambda request: waited_for(request, receive=np.full(4, np.nan)),
        "message policy 'theirs' returned receive of float64, expected integers",
    ),
    "nothing": (lambda _request: None, "message policy 'theirs' returned a NoneType without send"),
    "no receives": (
        lambda request: waited_for(request, receive=None),
        "message policy 'theirs' returned a MessageCalls without receive",
    ),
    "an exception": (lambda request: request.nothing, "raised AttributeError: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_third_party_s_mistake_is_one_line_that_names_it(fault: str) -> None:
    program, line = FAULTS[fault]

    with pytest.raises(PluginError) as caught:
        step(program)

    assert str(caught.value).startswith("plugin 'third-party': ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.plugin == "third-party"


def test_communicators_are_distinguished_whatever_their_numbers() -> None:
    far, near = (
        step(lambda request, k=k: waited_for(request, communicator=request.gradient * k)) for k in (2**31 - 2, 1)
    )

    assert far.metrics.step_ns == near.metrics.step_ns


def test_a_setting_of_the_core_s_rules_beside_a_program_is_one_line(tmp_path: Path) -> None:
    step = tmp_path / "step.yaml"
    said = "schedule: 1f1b\nparallel: {pp: 4}\nbatch: {microbatches: 8}\np2p: {policy: megatron, stream: pair}\n"
    step.write_text(said, encoding="utf-8")

    with pytest.raises(
        ConfigError, match=r"step.yaml:4:25: p2p.stream: megatron does not take it: write its options"
    ):
        pptrace.simulate(step)

    step.write_text(said.replace("megatron", "ordered"), encoding="utf-8")
    named = pptrace.simulate(step, p2p="megatron")  # over a file that says how rules run

    assert "pair" not in str(named.prepared.resolved.to_dict())
    assert pptrace.simulate(named.prepared.resolved.to_dict()).metrics.step_ns == named.metrics.step_ns


@pytest.mark.parametrize("policy", [*PolicyName, "megatron", "torch", "deepspeed"])
def test_a_step_s_own_configuration_is_read_back(policy: PolicyName | str, tmp_path: Path) -> None:
    name = policy.value if isinstance(policy, PolicyName) else policy
    given = {"schedule": "1f1b", "parallel": {"pp": 4}, "batch": {"microbatches": 8}}
    once = pptrace.simulate({**given, "network": {"name": "hockney", "bandwidth": "1 GB/s"}}, p2p=name)
    written = once.prepared.resolved.to_dict()
    (tmp_path / "step.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")

    for again in (pptrace.simulate(written), pptrace.simulate(tmp_path / "step.yaml")):
        assert again.prepared.resolved.to_dict() == written
        assert again.metrics.step_ns == once.metrics.step_ns


@pytest.mark.parametrize("switch", [None, "overlap_p2p_comm_warmup_flush", "deallocate_pipeline_outputs"])
@pytest.mark.parametrize(("pp", "vp", "microbatches"), [(2, 2, 8), (4, 2, 16), (4, 3, 8), (8, 2, 16)])
def test_overlapped_pairs_send_behind_them(pp: int, vp: int, microbatches: int, switch: str | None) -> None:
    step = {
        "schedule": "combined-1f1b", "parallel": {"pp": pp, "vp": vp}, "microbatches": microbatches,
        "network": {"name": "hockney", "bandwidth": "unlimited", "latency": "100 ms"},
    }  # fmt: skip
    least = pptrace.simulate(**step, p2p="async").metrics.step_ns
    options = {} if switch is None else {switch: True}

    assert pptrace.simulate(**step, p2p={"policy": "megatron", "options": options}).metrics.step_ns >= least
