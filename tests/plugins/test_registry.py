"""Loading plugins, and what becomes of those that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from pptrace.errors import PluginError
from pptrace.plugin import ScheduleOffer, hookimpl
from pptrace.plugins.providers import Provider
from pptrace.plugins.registry import Registry

Install = Callable[..., None]
Source = Callable[[str], str]


def test_an_installed_plugin_offers_its_schedule_with_its_distribution(
    install: Install, schedule_source: Source
) -> None:
    install("good", schedule_source("my-schedule"))

    provided = Registry.load().schedules["my-schedule"]

    assert isinstance(provided.offer, ScheduleOffer)
    assert provided.provider == Provider(name="good", distribution="pptrace-good", version="1.2")


def test_a_plugin_that_fails_to_import_is_one_warning_line_and_the_rest_works(
    install: Install, schedule_source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", "import no_such_module_anywhere\n")
    install("good", schedule_source("my-schedule"))

    registry = Registry.load()

    assert "my-schedule" in registry.schedules
    who, why = "plugin 'bad' (pptrace-bad 1.2)", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"
    assert capsys.readouterr().err == f"pptrace: warning: {who} is skipped: {why}\n"
    assert [str(failure) for failure in registry.failures] == [f"{who}: {why}"]


def test_a_plugin_that_exits_while_it_is_imported_is_left_out(install: Install) -> None:
    install("quitter", "raise SystemExit('no licence')\n")
    warnings: list[str] = []

    Registry.load(warn=warnings.append)

    assert warnings == ["plugin 'quitter' (pptrace-quitter 1.2) is skipped: SystemExit: no licence"]


def test_a_misspelt_hook_leaves_its_plugin_out_and_names_the_nearest(install: Install) -> None:
    install("misspelt", "@hookimpl\ndef pptrace_scheduls():\n    return []\n")
    warnings: list[str] = []

    registry = Registry.load(warn=warnings.append)

    assert len(warnings) == 1
    assert "plugin 'misspelt' (pptrace-misspelt 1.2)" in warnings[0]
    assert "hook 'pptrace_scheduls' does not exist (did you mean 'pptrace_schedules'?" in warnings[0]
    assert all(provider.name != "misspelt" for provider in registry.providers)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def pptrace_schedules():\n    return []\n", "pptrace_schedules is not marked; write @hookimpl"),
        ("@hookimpl\ndef pptrace_schedules(ranks):\n    return []\n", "takes no arguments"),
        ("x = 1\n", "it implements no hook (known: pptrace_clusters, "),
    ],
)
def test_a_plugin_that_does_not_fit_says_why(install: Install, source: str, reason: str) -> None:
    install("odd", source)

    registry = Registry.load(warn=lambda _: None)

    (failure,) = [f for f in registry.failures if f.provider.name == "odd"]
    assert reason in failure.reason


def test_disabled_plugins_are_not_even_imported(
    install: Install, schedule_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("first", "raise RuntimeError\n")
    install("second", schedule_source("second-schedule"))
    install("third", schedule_source("third-schedule"))
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "first, pptrace-third")

    registry = Registry.load()

    assert {"first", "third"} <= {provider.name for provider in registry.disabled}
    assert "second-schedule" in registry.schedules
    assert "third-schedule" not in registry.schedules
    assert not registry.failures
    with pytest.raises(PluginError, match="no installed plugin offers a schedule named 'third-schedule'"):
        _ = registry.schedules["third-schedule"]


def test_all_disables_every_entry_point_and_leaves_the_core(
    install: Install, schedule_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("good", schedule_source("my-schedule"))
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")

    registry = Registry.load()

    assert [provider.name for provider in registry.providers] == ["builtin"]
    assert not registry.schedules


def test_a_name_to_disable_that_no_plugin_has_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "no-such-plugin")
    warnings: list[str] = []

    Registry.load(warn=warnings.append)

    assert warnings == ["PPTRACE_DISABLE_PLUGINS names 'no-such-plugin', which no installed plugin is called"]


def test_hook_calls_are_printed_with_their_results(
    install: Install,
    schedule_source: Source,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("good", schedule_source("my-schedule"))
    monkeypatch.setenv("PPTRACE_TRACE_HOOKS", "1")

    schedules = Registry.load().schedules

    assert "my-schedule" in schedules
    assert "pptrace: pptrace_schedules() of pptrace-good:good -> my-schedule\n" in capsys.readouterr().err


def test_a_hook_that_raises_is_printed_and_still_an_error_of_the_plugin(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("thrower", "@hookimpl\ndef pptrace_schedules():\n    raise KeyError('gone')\n    yield\n")
    monkeypatch.setenv("PPTRACE_TRACE_HOOKS", "1")

    with pytest.raises(PluginError, match="KeyError: 'gone'"):
        _ = Registry.load().schedules

    assert "pptrace_schedules() of pptrace-thrower:thrower -> KeyError: 'gone'" in capsys.readouterr().err


def test_each_hook_is_called_once(capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry.load(entry_points=False, trace=sys.stderr)

    for _ in range(3):
        assert registry.networks is registry.networks

    assert capsys.readouterr().err.count("pptrace_networks()") <= 1


def test_an_object_can_be_a_plugin_without_any_installation() -> None:
    class Mine:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name="mine", summary="Mine.", build=lambda _: [])]

    registry = Registry.load(entry_points=False, plugins={"inline": Mine()})

    assert registry.schedules["mine"].provider.name == "inline"
    assert registry.schedules["mine"].provider.distribution == ""


def test_a_plugin_that_is_listed_twice_takes_part_once() -> None:
    class Mine:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name="mine", summary="Mine.", build=lambda _: [])]

    plugin, warnings = Mine(), []
    registry = Registry.load(entry_points=False, plugins={"one": plugin, "two": plugin}, warn=warnings.append)

    assert warnings == ["plugin 'two' is skipped: it is registered already"]
    assert registry.schedules["mine"].provider.name == "one"


def test_two_registries_share_nothing() -> None:
    first = Registry.load(entry_points=False)
    first.providers.clear()

    assert Registry.load(entry_points=False).providers


def test_importing_the_hooks_loads_no_plugin_and_nothing_heavy() -> None:
    code = (
        "import sys, pptrace.plugins, pptrace.plugins.registry as r; r.Registry.load(entry_points=False);"
        "print(sorted({'numpy', 'llvmlite', 'pydantic', 'yaml', 'rich', 'perfetto', 'google.protobuf',"
        " 'pptrace_schedules', 'pptrace_models'} & set(sys.modules)))"
    )

    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert result.stdout.strip() == "[]"
