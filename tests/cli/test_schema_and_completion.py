from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pptrace.config.choices import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_python import ForkedPython

    from conftest import Answer

    Pptrace = Callable[..., Answer]

HEAVY = ("numpy", "llvmlite", "pydantic", "yaml", "rich", "google.protobuf")
COMPLETE = """
eval "$(_PPTRACE_COMPLETE=bash_source pptrace)"
compopt() { printf '%s %s\\n' "$@"; }
COMP_WORDS=(pptrace TYPED) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_pptrace_completion pptrace
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Calls the function that bash calls at <TAB>, with the variables that bash sets."""


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


@pytest.mark.needs_plugins
def test_the_schema_has_what_cost_models_read_of_models_and_devices(pptrace: Pptrace) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(pptrace("schema").out))
    step = {"schedule": "1f1b", "parallel": {"pp": 4}, "model": {"preset": "llama3-8b"}, "device": "h100-sxm"}

    assert list(validator.iter_errors(step)) == []
    assert list(validator.iter_errors(step | {"model": {"preset": "llama3-8b", "layers": 16}})) == []
    assert list(validator.iter_errors(step | {"model": {"preset": "llama3-8b", "layrs": 16}}))
    assert list(validator.iter_errors(step | {"device": {"preset": "h100-sxm", "memory": 80}}))


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("_PPTRACE_COMPLETE", f"{name}_source")

    assert f"_PPTRACE_COMPLETE={name}_complete" in pptrace().out


def test_the_page_of_commands_has_the_line_for_completion(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text(encoding="utf-8")

    assert '`eval "$(_PPTRACE_COMPLETE=bash_source pptrace)"`' in page
    assert "`zsh_source`" in page
    assert "`fish_source`" in page


def test_commands_and_options_are_completed() -> None:
    assert completed("si") == ["simulate"]
    assert completed("simulate", "--micr") == ["--microbatches", "--micro"]


def test_names_that_plugins_offer_are_completed_beside_files_that_may_stand_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")

    assert completed("simulate", "--network", "") == ["hockney", "ideal"]
    assert completed("simulate", "--costs", "t") == ["table"]
    assert completed("simulate", "--model", "") == []
    for command in (("simulate", "--schedule"), ("show",)):
        assert completed(*command, "")[0] == "file: "


def test_words_are_completed_in_the_order_in_which_they_are_explained() -> None:
    assert completed("simulate", "--contention", "") == [sharing.value for sharing in Sharing]
    assert completed("simulate", "--p2p", "b") == ["batched", "blocking"]


def test_files_are_completed_where_files_are_named() -> None:
    for command in (
        ("simulate",),
        ("simulate", "-o"),
        ("show", "-o"),
        ("convert",),
        ("convert", "a.csv"),
        ("open",),
        ("validate",),
    ):
        assert completed(*command, "st") == ["file: st"]


def test_a_broken_plugin_leaves_the_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pptrace.errors import PluginError
    from pptrace.plugins.registry import Registry

    def broken(**_: object) -> None:
        raise PluginError("broken")

    monkeypatch.setattr(Registry, "load", broken)

    assert completed("simulate", "--network", "") == []


def completed(*words: str) -> list[str]:
    from click.shell_completion import BashComplete

    from pptrace.cli.main import cli

    items = BashComplete(cli, {}, "pptrace", "_PPTRACE_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value if item.type == "plain" else f"{item.type}: {item.value}" for item in items]


@pytest.mark.parametrize(
    ("words", "options", "replies"),
    [
        (["simulate", ""], ["-o default"], []),
        (["simulate", "--network", "h"], [], ["hockney"]),
        (["simulate", "--network", "="], [], ["hockney", "ideal"]),
        (["simulate", "--schedule", "m"], ["-o default"], []),
        (["simulate", "-o", ""], ["-o default"], []),
        (["simulate", "--pp", ""], [], []),
    ],
)
def test_bash_completes_names_and_files(
    forked_python: ForkedPython, tmp_path: Path, words: list[str], options: list[str], replies: list[str]
) -> None:
    forked_python.write_commands(tmp_path)
    script = COMPLETE.replace("TYPED", shlex.join(words))

    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert [line for line in done.stdout.splitlines() if line] == options + replies


def test_completing_a_name_imports_nothing_heavy(tmp_path: Path) -> None:
    asked = {"_PPTRACE_COMPLETE": "bash_complete", "COMP_WORDS": "pptrace simulate --network h", "COMP_CWORD": "3"}
    code = "from pptrace.cli.main import main; main()"

    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], cwd=tmp_path, env={**os.environ, **asked},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert answer.stdout.split() == ["plain,hockney"]
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
    assert "pptrace.plugins.registry" in imported
    assert imported.isdisjoint(HEAVY)


def test_the_completion_variable_reaches_main(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PPTRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pptrace sim")
    monkeypatch.setenv("COMP_CWORD", "1")

    assert "simulate" in pptrace().out
