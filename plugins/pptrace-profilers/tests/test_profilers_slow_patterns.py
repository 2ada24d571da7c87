"""A pattern that backtracks for ever ends in one line that says where it stands; others match as always."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from pptrace.errors import ConfigError
from pptrace_profilers import naming_rules
from pptrace_profilers.chrome import read_chrome
from pptrace_profilers.naming_rules import TimedPattern, read_rules

if TYPE_CHECKING:
    from pathlib import Path

NAME = "a" * 60 + "!"
SLOW = {
    "a name's": (r"actions: [{name: '(a+)+', kind: F}]", "actions[0].name"),
    "an argument's": (r"actions: [{kind: F, args: {key: '(a|a)*'}}]", "actions[0].args.key"),
    "of communication": (r"communication: ['(a+)+$']", "communication[0]"),
    "of ranks": (r"rank: {from: args.key, pattern: '(a+)+(?P<rank>\d)$'}", "rank.pattern"),
}


@pytest.mark.parametrize(("rules", "key"), SLOW.values(), ids=SLOW.keys())
def test_a_pattern_that_backtracks_for_ever_is_named(
    rules: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming_rules, "MOST_S", 0.2)
    file, trace = tmp_path / "rules.yaml", tmp_path / "t.json"
    file.write_text(rules, encoding="utf-8")
    trace.write_text(json.dumps([{"ph": "X", "name": NAME, "ts": 0, "dur": 1, "pid": 1, "args": {"key": NAME}}]))
    before, started = signal.getsignal(signal.SIGVTALRM), time.monotonic()

    with pytest.raises(ConfigError, match=re.escape(f"{key}: the pattern ")) as caught:
        read_chrome(trace, read_rules(file))

    assert time.monotonic() - started < 10
    assert str(caught.value).startswith(f"{file}:1")
    assert "takes more than 0.2 s for aaaa" in str(caught.value)
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def pattern(text: str) -> TimedPattern:
    return TimedPattern(compiled=re.compile(text), error=ConfigError)


def test_all_texts_together_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming_rules, "MOST_IN_ALL_S", 0.0)

    with pytest.raises(ConfigError, match="took more than 0 s"):
        pattern("a+").search("aaa")


def test_other_patterns_match_as_they_always_do() -> None:
    found: list[object] = []
    for text in ("ab12", "", "x"):
        ours, usual = pattern(r"(?P<a>\w)\w*").fullmatch(text), re.compile(r"(?P<a>\w)\w*").fullmatch(text)
        assert (ours and ours.groupdict()) == (usual and usual.groupdict())
    thread = threading.Thread(target=lambda: found.append(pattern("a").search("ba")))
    thread.start()
    thread.join()
    assert found != [None]


def test_a_process_that_waits_for_its_turn_ends_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting:
        pattern = "a"

        def search(self, text: str) -> re.Match[str] | None:
            time.sleep(0.1)
            return re.search("a", text)

    monkeypatch.setattr(naming_rules, "MOST_S", 0.02)
    result = TimedPattern(compiled=cast("re.Pattern[str]", Waiting()), error=ConfigError).search("ba")

    assert result
    assert result.start() == 1


def test_a_signal_that_comes_as_the_timer_is_stopped_is_the_pattern_s(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = signal.setitimer

    def late(which: int, seconds: float) -> tuple[float, float]:
        if not seconds:
            signal.raise_signal(signal.SIGVTALRM)
        return stop(which, seconds)

    monkeypatch.setattr(signal, "setitimer", late)
    with pytest.raises(ConfigError, match="takes more than"):
        pattern("a+").search("aaa")
    stop(signal.ITIMER_VIRTUAL, 0)
