from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Answer

    Pptrace = Callable[..., Answer]


def test_the_schema_takes_what_simulate_takes_and_refuses_the_rest(pptrace: Pptrace) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(pptrace("schema").out))

    good = {
        "schedule": "1f1b",
        "parallel": {"pp": 4},
        "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"},
        "costs": {"name": "table", "forward": "1 ms", "backward": ["2 ms", "2 ms", "2 ms", "3 ms"]},
    }
    assert list(validator.iter_errors(good)) == []
    for key, value in (("parallel", {"pp": "four"}), ("network", {"name": "hockney", "bandwidth": 50}), ("x", 1)):
        assert list(validator.iter_errors(good | {key: value})), key


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(pptrace: Pptrace, shell: str) -> None:
    answer = pptrace("completion", shell)

    assert answer.code == 0
    assert "_PPTRACE_COMPLETE" in answer.out


def test_commands_and_options_are_completed(pptrace: Pptrace) -> None:
    from click.shell_completion import BashComplete

    from pptrace.cli.main import cli

    completed = BashComplete(cli, {}, "pptrace", "_PPTRACE_COMPLETE").get_completions([], "si")

    assert [item.value for item in completed] == ["simulate"]
    options = BashComplete(cli, {}, "pptrace", "_PPTRACE_COMPLETE").get_completions(["simulate"], "--micr")
    assert [item.value for item in options] == ["--microbatches", "--micro"]
    assert pptrace("completion", "cmd").code == 2


def test_the_completion_variable_reaches_main(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PPTRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pptrace sim")
    monkeypatch.setenv("COMP_CWORD", "1")

    assert "simulate" in pptrace().out
