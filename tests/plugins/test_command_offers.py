"""Plugins bring commands: listed beside the core's, loaded when they run, and never in their place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from pptrace.cli.main import main
from pptrace.errors import PluginError
from pptrace.plugins.providers import COMMANDS
from pptrace.plugins.registry import Registry

Install = Callable[..., None]
Run = Callable[..., tuple[int, str, str]]

COMMAND = """
import click

@hookimpl
def pptrace_commands():
    yield CommandOffer(name={name!r}, summary="Say hello.", load=load)

def load():
    print("loaded")
    return click.Command({name!r}, callback=lambda: print("hello"))
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs ``pptrace`` with what is installed: its code, output and errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pptrace", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return command


def test_a_plugin_s_command_is_listed_without_being_loaded_and_runs_by_its_name(
    install: Install, run: Run
) -> None:
    install("greeter", COMMAND.format(name="hello"))

    code, listed, _ = run("--help")

    assert code == 0
    assert re.search(r"^  hello +Say hello\.$", listed, re.MULTILINE)
    assert "loaded" not in listed
    assert run("hello") == (0, "hello\n", "loaded\n")


def test_a_command_of_the_core_s_name_is_an_error_that_names_both_and_costs_no_other(
    install: Install, run: Run
) -> None:
    install("greeter", COMMAND.format(name="validate"))
    message = (
        "plugin 'greeter' (pptrace-greeter 1.2): pptrace_commands yielded CommandOffer 'validate': "
        "pptrace has a command of that name itself; give it another"
    )

    code, listed, warned = run("--help")
    refused = run("no-such-command")

    assert (code, warned) == (0, f"pptrace: warning: {message}\n")
    assert all(f"  {name} " in listed for name in COMMANDS)
    assert refused == (2, "", f"pptrace: {message}\n")
    assert "loaded" not in run("validate", "--help")[1]


def test_a_command_that_two_plugins_bring_is_an_error_that_names_both(install: Install) -> None:
    install("alpha", COMMAND.format(name="hello"))
    install("beta", COMMAND.format(name="hello"))

    with pytest.raises(PluginError, match=r"'beta' \(pptrace-beta.*'hello', which plugin 'alpha' \(pptrace-alpha"):
        _ = Registry.load().commands


def test_what_is_no_command_or_cannot_be_loaded_is_the_plugin_s_error(install: Install, run: Run) -> None:
    source = COMMAND.format(name="hello")
    install("greeter", source.replace("return", "return str or"))

    code, _, said = run("hello")

    assert code == 2
    wrong = "pptrace: plugin 'greeter' (pptrace-greeter 1.2): load of command 'hello' returned "
    assert said.startswith(f"loaded\n{wrong}")
    assert said.endswith(", expected a click command\n")


def test_an_unknown_command_names_the_nearest_of_all_and_where_more_come_from(
    install: Install, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("greeter", COMMAND.format(name="hello"))

    assert "no such command 'helo' (did you mean 'hello'? known: " in run("helo")[2]
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")
    code, _, said = run("annotate")
    assert code == 2
    assert said.startswith("pptrace: no such command 'annotate' (")
    assert "pptrace-profilers" in said


def test_completion_lists_commands_and_keeps_quiet_about_broken_ones(
    install: Install, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("greeter", COMMAND.format(name="hello"))
    install("broken", "raise RuntimeError\n")
    monkeypatch.setenv("_PPTRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pptrace hel")
    monkeypatch.setenv("COMP_CWORD", "1")

    _, listed, said = run()

    assert listed.endswith("plain,hello\n")
    assert "broken" not in said
