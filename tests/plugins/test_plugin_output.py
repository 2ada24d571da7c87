"""What plugins do to the standard output costs neither our results nor the standard error."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Install

STEP = ("simulate", "--schedule", "odd", "--set", "costs.name=odd", "--pp", "1", "--microbatches", "1", "--json")
PLACES = ["import", "hook", "build", "costs"]
PLUGIN = """
import ctypes, os, subprocess, sys

def harm(where):
    {harm}
    sys.stderr.write(where + "\\n")

harm("import")

@hookimpl
def pptrace_schedules():
    harm("hook")
    yield ScheduleOffer(name="odd", summary="One microbatch.", build=build)

@hookimpl
def pptrace_cost_models():
    yield CostModelOffer(name="odd", summary="Nothing.", build=costs)

def build(request):
    harm("build")
    return ["0F0 0B0"]

def costs(request):
    harm("costs")
    return Workload.uniform(request.stages)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs pptrace with installed plugins in a process of its own."""

    def called(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        code = "from pptrace.cli.main import main; main()"
        path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, text=True, check=False, **streams)

    return called


@pytest.mark.parametrize("harm", ["sys.stdout.close(); os.close(1)", "sys.stdout.detach(); sys.stdout = None"])
def test_a_plugin_that_closes_the_output_costs_no_result_and_no_error(
    run: Any, install: Install, harm: str
) -> None:
    install("odd", PLUGIN.format(harm=harm))

    ran = run(*STEP)

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["step_ns"] == 0
    assert ran.stderr.splitlines() == PLACES


def test_whatever_a_plugin_prints_goes_to_the_standard_error(run: Any, install: Install) -> None:
    prints = [
        "print('print')",
        "print('original', file=sys.__stdout__)",
        "sys.stdout.buffer.write(b'bytes\\n')",
        "os.write(1, b'descriptor\\n')",
        "subprocess.run(['echo', 'program'])",
        "subprocess.run(['echo', 'stream'], stdout=sys.stdout)",
        "ctypes.CDLL(None).puts(b'c')",
        "ctypes.CDLL(None).fflush(None)",
    ]
    install("odd", PLUGIN.format(harm="; ".join(prints)))

    ran = run(*STEP)

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["step_ns"] == 0
    printed = ["print", "original", "bytes", "descriptor", "program", "stream", "c"]
    assert ran.stderr.splitlines() == [line for place in PLACES for line in (*printed, place)]


def test_what_c_code_holds_back_until_the_end_goes_to_the_standard_error(run: Any, install: Install) -> None:
    install("odd", PLUGIN.format(harm="ctypes.CDLL(None).puts(b'noise')"))

    ran = run(*STEP)

    assert json.loads(ran.stdout)["step_ns"] == 0
    assert ran.stderr.splitlines() == [*PLACES, *["noise"] * len(PLACES)]


def test_no_file_gets_the_descriptor_that_a_plugin_closed(run: Any, install: Install) -> None:
    install("odd", PLUGIN.format(harm="(os.close(1) if where == 'import' else os.write(1, b'noise\\n'))"))

    ran = run(*STEP, "-o", "step.json")

    noise = [line for place in PLACES[1:] for line in ("noise", place)]
    assert ran.stderr.splitlines() == ["import", *noise, "wrote step.json"]


def test_a_plugin_s_command_prints_on_the_standard_output(run: Any, install: Install) -> None:
    install(
        "odd",
        """
        import click, subprocess, sys

        @hookimpl
        def pptrace_commands():
            yield CommandOffer(name="greet", summary="Say hello.", load=load)

        def load():
            return click.Command("greet", callback=greet)

        def greet():
            print("hello", flush=True)
            subprocess.run(["echo", "there"], stdout=sys.stdout)
        """,
    )

    assert run("greet").stdout == "hello\nthere\n"


def test_where_nobody_reads_errors_what_a_plugin_prints_goes_nowhere(run: Any, install: Install) -> None:
    install("odd", PLUGIN.format(harm="os.write(1, b'noise\\n')").replace("sys.stderr.write", "str"))

    ran = run(*STEP, stderr=None, preexec_fn=lambda: os.close(2))

    assert ran.returncode == 0
    assert json.loads(ran.stdout)["step_ns"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [STEP, STEP[:-1], ("--help",)])
def test_a_full_output_is_one_line(run: Any, install: Install, arguments: tuple[str, ...]) -> None:
    install("odd", PLUGIN.format(harm="return"))

    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ran = run(*arguments, stdout=full)

    assert ran.returncode == 2
    assert ran.stderr.startswith("pptrace: ")
    assert ran.stderr.count("\n") == 1


def test_the_terminal_of_the_standard_error_does_not_set_the_width_of_results(run: Any, install: Install) -> None:
    install("odd", PLUGIN.format(harm="return"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))

    beside = run(*STEP[:-1], stderr=theirs).stdout
    os.close(ours)
    os.close(theirs)

    assert beside == run(*STEP[:-1]).stdout
    assert max(map(len, beside.splitlines())) > 30
