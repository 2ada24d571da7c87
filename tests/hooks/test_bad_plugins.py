"""What a plugin does wrong costs that plugin alone, and never our output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.cli.main import main
from pptrace.errors import PluginError
from pptrace.hooks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Install

STEP = ("simulate", "--schedule", "table.csv", "--json")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> Callable[..., Any]:
    """Return a function that runs pptrace with installed plugins, and gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0B0\n", encoding="utf-8")

    def called(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["pptrace", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return stop.value.code, printed.out, printed.err

    return called


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
    ("fault", "told"),
    [
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("class Odd(BaseException): pass\n            raise Odd('very')", "raised Odd: very"),
        ("raise GeneratorExit", "raised GeneratorExit"),
        ("while True: yield None", "yields more than 10,000 offers"),
    ],
)
def test_a_hook_that_would_end_or_never_end_us_is_left_out(
    run: Any, install: Install, fault: str, told: str
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
    line = f"pptrace: warning: plugin 'rude' (pptrace-rude 1.2) is left out: pptrace_cost_models {told}\n"
    assert line in err
    code, out, err = run("plugins")
    assert code == 0
    assert f"plugin 'rude' (pptrace-rude 1.2): pptrace_cost_models {told}" in out


def test_an_import_that_would_end_us_is_left_out(run: Any, install: Install) -> None:
    install("fatal", "class Odd(BaseException): pass\nraise Odd('no')")

    code, _, err = run(*STEP)

    assert code == 0
    assert "plugin 'fatal' (pptrace-fatal 1.2) is left out: Odd: no" in err


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while True: yield ['0F0']", "returned more rows than the 2 ranks"),
        ("yield iter(lambda: '0F0', None)", "returned more than 1,000,000 actions of rank 0"),
        ("raise SystemExit", "raised SystemExit"),
        ("raise type('Odd', (BaseException,), {})('no')", "raised Odd: no"),
    ],
)
def test_a_schedule_that_never_ends_is_one_line(run: Any, install: Install, body: str, told: str) -> None:
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
    assert told in err
    assert "pptrace-endless 1.2" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
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
    run: Any, install: Install, tmp_path: Any, arguments: tuple[str, ...], told: str
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
    assert f"plugin 'idle' (pptrace-idle 1.2): {told}" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.csv"]


def test_a_clash_advises_to_disable_the_stranger(install: Install, schedule_source: Callable[[str], str]) -> None:
    install("another", schedule_source("1f1b"))
    from pptrace.hooks import registry

    if "pptrace-schedules" not in {p.distribution for p in registry.Registry.load().providers}:
        pytest.skip("pptrace-schedules is not installed")

    with pytest.raises(PluginError) as caught:
        _ = Registry.load().schedules["1f1b"]

    assert caught.value.distribution == "pptrace-another"
    assert str(caught.value).endswith("uninstall one or set PPTRACE_DISABLE_PLUGINS=another")
