"""What a plugin does wrong costs that plugin alone, and never our output."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import PluginError
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Install

STEP = ("simulate", "--schedule", "table.csv", "--json")


def test_what_a_plugin_prints_is_no_part_of_our_output(run: Any, install: Install) -> None:
    install(
        "chatty",
        """
        print("imported")
        @hookimpl
        def pptrace_schedules():
            print("asked")
            yield ScheduleOffer(name="chat", summary="One microbatch.", build=build)
        def build(request):
            print("made")
            return ["0F0 0B0"]
        """,
    )

    code, out, err = run("simulate", "--schedule", "chat", "--pp", "1", "--microbatches", "1", "--json")

    assert code == 0
    assert json.loads(out)
    assert list(dict.fromkeys(err.splitlines())) == ["imported", "asked", "made"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("class Odd(BaseException): pass\n            raise Odd('very')", "raised Odd: very"),
        ("raise GeneratorExit", "raised GeneratorExit"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("while True: yield None", "yields more than 10,000 offers"),
    ],
)
def test_a_hook_that_would_end_or_never_end_us_is_left_out(
    run: Any, install: Install, fault: str, message: str
) -> None:
    install(
        "rude",
        f"""
        @hookimpl
        def pptrace_cost_models():
            {fault}
            yield
        """,
    )

    code, out, err = run(*STEP)

    assert code == 0
    assert json.loads(out)
    line = f"pptrace: warning: plugin 'rude' (pptrace-rude 1.2) is skipped: pptrace_cost_models {message}\n"
    assert line in err
    code, out, err = run("plugins")
    assert code == 0
    assert f"plugin 'rude' (pptrace-rude 1.2): pptrace_cost_models {message}" in out


@pytest.mark.parametrize("raised", ["type('Odd', (BaseException,), {})('no')", "KeyboardInterrupt('no')"])
def test_an_import_that_would_end_us_is_left_out(run: Any, install: Install, raised: str) -> None:
    install("fatal", f"raise {raised}")

    code, _, err = run(*STEP)

    assert code == 0
    assert re.search(r"plugin 'fatal' \(pptrace-fatal 1.2\) is skipped: (Odd|KeyboardInterrupt): no", err)


@pytest.mark.parametrize("place", ["", "hook", "build", "costs"])
def test_ctrl_c_in_a_plugin_s_code_is_the_user_s(run: Any, install: Install, place: str) -> None:
    install(
        "slow",
        f"""
        import os, signal
        def pressed(where):
            if where == {place!r}:
                os.kill(os.getpid(), signal.SIGINT)
        pressed("")
        @hookimpl
        def pptrace_schedules():
            pressed("hook")
            yield ScheduleOffer(name="slow", summary="Slow.", build=build)
        @hookimpl
        def pptrace_cost_models():
            yield CostModelOffer(name="slow", summary="Slow.", build=costs)
        def build(request):
            pressed("build")
            return ["0F0 0B0"]
        def costs(request):
            pressed("costs")
            return Workload.uniform(request.stages)
        """,
    )

    code, out, err = run(
        "simulate", "--schedule", "slow", "--set", "costs.name=slow", "--pp", "1", "--microbatches", "1"
    )

    assert (code, out, err.strip()) == (130, "", "pptrace: interrupted")


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("async def pptrace_schedules(): return [OFFER]", "pptrace_schedules is async, and nothing awaits it"),
        ("async def pptrace_schedules(): yield OFFER", "pptrace_schedules is async, and nothing awaits it"),
        ("def pptrace_schedules(): return [later(), later()]", "pptrace_schedules yielded a coroutine, expected"),
        ("def pptrace_schedules(): return later()", "pptrace_schedules returned <coroutine object later"),
    ],
)
def test_an_async_hook_is_one_line(run: Any, install: Install, hook: str, message: str) -> None:
    install("late", f"OFFER = None\nasync def later(): pass\n@hookimpl\n{hook}\n")

    code, _, err = run("simulate", "--schedule", "late", "--pp", "1", "--microbatches", "1")

    lines = [line for line in err.splitlines() if "no installed plugin offers" not in line]
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert "pptrace-late 1.2" in lines[0]


@pytest.mark.parametrize(
    ("offer", "message"),
    [
        ("build=later", "build of schedule 'late' is async, and nothing awaits it: write it without async"),
        ("build=now, check=later", "check of schedule 'late' is async, and nothing awaits it"),
        ("build=lambda request: [later('0F0'), later('0B0')]", "returned <coroutine object later"),
    ],
)
def test_an_async_function_of_an_offer_is_one_line(run: Any, install: Install, offer: str, message: str) -> None:
    install(
        "late",
        f"""
        async def later(request): return now(request)
        def now(request): return ["0F0 0B0"]
        @hookimpl
        def pptrace_schedules():
            yield ScheduleOffer(name="late", summary="Late.", {offer})
        """,
    )

    code, _, err = run("simulate", "--schedule", "late", "--pp", "1", "--microbatches", "1")

    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: yield ['0F0']", "returned more rows than the 2 requested ranks"),
        ("yield iter(lambda: '0F0', None)", "returned more than 1,000,000 actions of rank 0"),
        ("raise SystemExit", "raised SystemExit"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("raise GeneratorExit", "raised GeneratorExit"),
        ("raise type('Odd', (BaseException,), {})('no')", "raised Odd: no"),
    ],
)
def test_a_schedule_that_never_ends_is_one_line(run: Any, install: Install, body: str, message: str) -> None:
    install(
        "endless",
        f"""
        @hookimpl
        def pptrace_schedules():
            yield ScheduleOffer(name="endless", summary="Never ends.", build=build)
        def build(request):
            {body}
            yield
        """,
    )

    code, _, err = run("simulate", "--schedule", "endless", "--pp", "2", "--microbatches", "1")

    assert code == 2
    assert message in err
    assert "pptrace-endless 1.2" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("simulate", "--schedule", "nothing", "--pp", "1", "--microbatches", "1"),
            "chunks of schedule 'nothing' returned None",
        ),
        (
            ("sweep", "--schedule", "nothing", "--pp", "1", "--over", "microbatches=2", "--executor", "nobody"),
            "executor 'nobody' returned None, expected a concurrent.futures.Executor",
        ),
        (("simulate", "--schedule", "table.csv", "-o", "a.never"), "write of exporter 'never' wrote no file"),
    ],
)
def test_what_returns_or_writes_nothing_is_one_line(
    run: Any, install: Install, tmp_path: Any, arguments: tuple[str, ...], message: str
) -> None:
    install(
        "idle",
        """
        def nothing(*given): pass
        @hookimpl
        def pptrace_schedules():
            yield ScheduleOffer(name="nothing", summary="No chunks.", build=nothing, chunks=nothing)
        @hookimpl
        def pptrace_executors():
            yield ExecutorOffer(name="nobody", summary="Nobody.", build=nothing)
        @hookimpl
        def pptrace_exporters():
            yield ExporterOffer(name="never", summary="Nothing.", suffixes=(".never",), write=nothing)
        """,
    )

    code, _, err = run(*arguments)

    assert code == 2
    assert f"plugin 'idle' (pptrace-idle 1.2): {message}" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.csv"]


def test_a_clash_advises_to_disable_the_stranger(install: Install, schedule_source: Callable[[str], str]) -> None:
    install("another", schedule_source("1f1b"))
    from pptrace.plugins import registry

    if "pptrace-schedules" not in {p.distribution for p in registry.Registry.load().providers}:
        pytest.skip("pptrace-schedules is not installed")

    with pytest.raises(PluginError) as caught:
        _ = Registry.load().schedules["1f1b"]

    assert caught.value.distribution == "pptrace-another"
    assert str(caught.value).endswith("uninstall one or set PPTRACE_DISABLE_PLUGINS=another")
