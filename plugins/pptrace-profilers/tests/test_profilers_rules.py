"""A file of rules: what it may say, what each wrong rule gets, and what events it tells."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import ConfigError
from pptrace.steps.actions import Action
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.chrome import read_chrome
from pptrace_profilers.naming_rules import BUILT_IN, read_rules
from pptrace_profilers.plugin import measure_kineto, measure_nsys, measure_pftrace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import Measurement
    from pptrace_profilers.recording import Recording

    Measure = Callable[[Sequence[Path], ImportRequest], Measurement]


def recorded(folder: Path, rules: str, *events: dict[str, Any], name: str = "t.json") -> list[Recording]:
    written, trace = folder / "rules.yaml", folder / name
    written.write_text(rules, encoding="utf-8")
    trace.write_text(json.dumps(events), encoding="utf-8")
    return read_chrome(trace, read_rules(written))


def span(name: str, ts: float = 0, dur: float = 5, pid: int = 1, **args: object) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": 1, "args": args}


NAMES = {
    "a whole action": (r"name: 'QQ:(?P<action>.+)'", "QQ:1SEND_F3", "1SEND_F3"),
    "a pair": (r"name: 'QQ:(?P<action>.+)'", "QQ:(0F3;7B1)OVERLAP_F_B", "(0F3;7B1)OVERLAP_F_B"),
    "parts": (r"name: '(?P<kind>\w+) s(?P<stage>\d+) m(?P<microbatch>\d+)'", "F s2 m3", "2F3"),
    "words": (r"name: '(?P<kind>\w+)_(?P<microbatch>\d+)', stage: 4", "backward_7", "4B7"),
    "constants": ("name: head, kind: W, stage: 1, microbatch: 2", "head", "1W2"),
    "a stage's own": (r"name: 'zero(?P<stage>.)', kind: REDUCE_GRAD", "zero3", "3REDUCE_GRAD"),
    "a stream of replicas": (r"name: 'all(?P<stage>.)', stream: data-parallel", "all3", "3REDUCE_GRAD"),
}


@pytest.mark.parametrize(("rule", "name", "action"), NAMES.values(), ids=NAMES.keys())
def test_a_name_says_an_action(rule: str, name: str, action: str, tmp_path: Path) -> None:
    rules = tmp_path / "r.yaml"
    rules.write_text(f"actions: [{{{rule}}}]\n", encoding="utf-8")

    assert str(read_rules(rules).action(name)) == action


def test_built_in_rules_stand_behind_a_files_own(tmp_path: Path) -> None:
    rules = tmp_path / "r.yaml"
    rules.write_text("actions: [{name: 'PP:0F1', kind: F, stage: 9, microbatch: 9}]\n", encoding="utf-8")

    found = read_rules(rules)

    assert [str(found.action(name)) for name in ("PP:0F1", "PP:0F2", "Other")] == ["9F9", "0F2", "None"]
    assert read_rules(None) is BUILT_IN


def test_patterns_of_communication_are_added_to_the_built_in_ones(tmp_path: Path) -> None:
    rules = tmp_path / "r.yaml"
    rules.write_text("communication: ['^my_bus', exchange]\n", encoding="utf-8")

    names = ["my_bus_send", "halo_exchange", "ncclDevKernel_SendRecv(x)", "gemm"]
    assert read_rules(rules).communicate(names).tolist() == [True, True, True, False]


MESSAGE = r"""
actions:
  - name: p2p
    args: {op: isend, dst: '(?P<peer>\d+)', mb: '(?P<microbatch>\d+)', n: '(?P<bytes>\d+)'}
    kind: B
    stage: 3
    stream: send
  - {name: wait, args: {src: '(?P<peer>\d+)'}, stream: receive}
"""


def test_arguments_say_messages_with_peer_and_size(tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, MESSAGE, span("p2p", op="isend", dst=2, mb=5, n="4096"), span("wait", ts=9, src=1))

    sent, received = zip(one.ends.sends, one.ends.peer, one.ends.action, one.ends.size_bytes, strict=True)
    assert sent == (True, 2, Action.parse("3SEND_B5"), 4096)
    assert (received, one.ends.start_ns[1]) == ((False, 1, None, 0), 9000)


@pytest.mark.parametrize("args", [{}, {"op": "irecv", "dst": 2, "mb": 5, "n": 1}, {"op": "isend", "dst": None}])
def test_an_event_whose_arguments_differ_is_none_of_a_rules(args: dict[str, Any], tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, MESSAGE, span("p2p", **args), span("PP:0F0"))

    assert len(one.ends) == 0
    assert one.notes == ("t.json: 1 of 2 events match no rule",)


@pytest.mark.parametrize("number", ["99999999999", "²", "-1", ""])
def test_what_is_captured_and_no_number_tells_nothing(number: str, tmp_path: Path) -> None:
    (one,) = recorded(
        tmp_path, "actions: [{name: 'F(?P<microbatch>.*)', kind: F}]", span(f"F{number}"), span("F1")
    )

    assert [action.microbatch for action in one.executions.action] == [1]


RANKS = {
    "file": ("{from: file, pattern: 'r(?P<rank>[0-9]+)'}", [0]),
    "pid": (r"{from: pid}", [40, 41]),
    "process_name": (r"{from: process_name, pattern: 'w(?P<rank>\d)'}", [2, 3]),
    "args.who": (r"{from: args.who}", [7, 8]),
}


@pytest.mark.parametrize(("rule", "ranks"), RANKS.values(), ids=RANKS.keys())
def test_ranks_come_from_where_the_rules_say(rule: str, ranks: list[int], tmp_path: Path) -> None:
    names = [{"ph": "M", "name": "process_name", "pid": 40 + at, "args": {"name": f"w{2 + at}"}} for at in (0, 1)]
    events = [span(f"PP:{at}F0", pid=40 + at, who=7 + at) for at in (0, 1)]

    found = recorded(tmp_path, f"rank: {rule}\n", *events, *names, name="r0.json")

    assert [one.rank for one in found] == ranks


def test_events_that_name_no_rank_are_counted(tmp_path: Path) -> None:
    events = [span("PP:0F0", who=0), span("PP:1F0", who=1), span("PP:2F0")]

    found = recorded(tmp_path, "rank: {from: args.who}\n", *events)

    assert [one.rank for one in found] == [0, 1]
    assert found[0].notes == ("t.json: 1 events name no rank: skipped",)


def test_begins_and_ends_are_paired_by_thread_and_what_has_none_is_counted(tmp_path: Path) -> None:
    def half(phase: str, ts: float, tid: int, name: str = "") -> dict[str, Any]:
        return {"ph": phase, "ts": ts, "pid": 1, "tid": tid, "name": name}

    (one,) = recorded(
        tmp_path, "communication: [x]\n",
        half("B", 1, 1, "PP:0F0"), half("B", 2, 2, "PP:0F1"), half("E", 3, 1), half("E", 5, 2),
        half("E", 6, 1), half("B", 7, 1, "PP:0F2"),
    )  # fmt: skip

    assert list(map(str, one.executions.action)) == ["0F0", "0F1"]
    assert (one.executions.start_ns.tolist(), one.executions.end_ns.tolist()) == ([1000, 2000], [3000, 5000])
    assert one.notes == ("t.json: skipped 2 events with a missing or negative time, or no end",)


WRONG = {
    "empty": ("", "rules.yaml: the file is empty; write at least 'actions:'"),
    "a list": ("- a", "rules.yaml:1:1: the top level must be a mapping"),
    "no YAML": ("actions: [", "rules.yaml:1:11: broken YAML"),
    "an unknown key": ("action: []", "rules.yaml:1:1: action: unknown key (did you mean 'actions'?"),
    "an unknown key of a rule": (
        "actions:\n- nam: x",
        "rules.yaml:2:3: actions[0].nam: unknown key (did you mean 'name'?",
    ),
    "no pattern": ("actions: [{kind: F}]", "actions[0]: needs a pattern"),
    "no kind": ("actions: [{name: x}]", "actions[0]: has no kind"),
    "another kind": (
        "actions:\n  - {name: x, kind: X}",
        "rules.yaml:2:5: actions[0]: kind 'X' is none; there are F, B",
    ),
    "no expression": (
        "actions: [{name: '(', kind: F}]",
        "actions[0].name: '(' is not a regular expression: missing )",
    ),
    "a group of no meaning": (
        "actions: [{name: '(?P<mb>.)', kind: F}]",
        "group 'mb' means nothing; there are action,",
    ),
    "a thing said twice": (
        "actions: [{name: '(?P<stage>.)', kind: F, stage: 1}]",
        "actions[0]: 'stage' is given twice",
    ),
    "a negative stage": ("actions: [{name: x, kind: F, stage: -1}]", "actions[0].stage: must be at least 0"),
    "another stream": ("actions: [{name: x, kind: F, stream: up}]", "actions[0].stream"),
    "another source": (
        "rank: {from: host}",
        "rank: 'host' is not a source of ranks; use file, pid, process_name or args.KEY",
    ),
    "no group for the rank": ("rank: {from: pid, pattern: x}", "rank: the pattern needs one group, named rank"),
    "flags": ("communication: ['(?i)x']", "communication[0]: '(?i)x' is not a regular expression: global flags"),
    "a number": ("communication: 3", "communication: must be a list, not 3"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_each_wrong_rule_is_one_line_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_rules(rules)

    assert str(rules) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_of_rules_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_rules(tmp_path / "none.yaml")


READ_BY_NAME = {"pytorch": measure_kineto, "pytorch-perfetto": measure_pftrace, "nsys": measure_nsys}
NOT_BY_NAME = {
    "arguments": (
        "actions:\n- {name: a, kind: F}\n- name: b\n  args: {k: v}\n  kind: B\n",
        "rules.yaml:4: actions[1].args: actions of ",
    ),
    "a rank elsewhere": ("rank:\n  from: pid\n", "rules.yaml:2: rank.from: files of "),
}


@pytest.mark.parametrize("measure", READ_BY_NAME.values(), ids=READ_BY_NAME.keys())
@pytest.mark.parametrize(("text", "message"), NOT_BY_NAME.values(), ids=NOT_BY_NAME.keys())
def test_a_rule_that_cannot_count_for_a_profiler_is_one_line_with_its_place(
    measure: Measure, text: str, message: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        measure([tmp_path / "rank0.json"], ImportRequest(rules=rules))

    assert "\n" not in str(caught.value)


def test_a_file_whose_name_says_its_rank_by_a_rule_is_that_ranks(pipeline: Any, tmp_path: Path) -> None:
    for rank, path in enumerate(pipeline.pftrace(tmp_path)):
        path.rename(tmp_path / f"w{1 - rank}.pftrace")
    rules = tmp_path / "rules.yaml"
    rules.write_text("rank: {from: file, pattern: 'w(?P<rank>\\d)'}\n", encoding="utf-8")

    found = measure_pftrace([tmp_path / "w0.pftrace", tmp_path / "w1.pftrace"], ImportRequest(rules=rules))

    ranks = [{str(one.action)[0] for one in found.steps[0].timeline if one.rank == rank} for rank in (0, 1)]
    assert ranks == [{"1"}, {"0"}]
