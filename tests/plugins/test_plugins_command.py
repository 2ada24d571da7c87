"""``pptrace plugins`` tells what there is and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from click.testing import CliRunner

from pptrace.cli import output as output_streams
from pptrace.cli.plugins import command
from pptrace.plugin import ScheduleOffer, hookimpl
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    import pytest

Install = Callable[..., None]
Source = Callable[[str], str]

BROKEN = "@hookimpl\ndef pptrace_models():\n    raise ValueError('bad day')\n"


def output(*arguments: str, registry: Registry | None = None) -> str:
    result = CliRunner().invoke(command, arguments, obj=registry, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_plugins_are_listed_with_distribution_version_and_offers(
    install: Install, schedule_source: Source
) -> None:
    install("good", schedule_source("my-schedule"))

    text = output()

    assert "pptrace-good 1.2 (good)\n  schedules: my-schedule\n" in text
    assert "(builtin)\n  networks: hockney, ideal\n" in text


def test_what_failed_and_what_is_disabled_is_listed_with_its_reason(
    install: Install, schedule_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("absent", "import no_such_module_anywhere\n")
    install("misspelt", "@hookimpl\ndef pptrace_model():\n    return []\n")
    install("raises", BROKEN)
    install("off", schedule_source("off-schedule"))
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "off")

    text = output()

    assert "failed: plugin 'absent' (pptrace-absent 1.2): ModuleNotFoundError: No module named" in text
    assert "failed: plugin 'misspelt' (pptrace-misspelt 1.2): hook 'pptrace_model' does not exist (did you" in text
    assert "failed: plugin 'raises' (pptrace-raises 1.2): pptrace_models raised ValueError: bad day at " in text
    assert text.count("bad day") == 1
    assert "disabled: plugin 'off' (pptrace-off 1.2)\n" in text
    assert "off-schedule" not in text


def test_a_clash_is_listed_and_both_plugins_are_too(install: Install, schedule_source: Source) -> None:
    install("alpha", schedule_source("twin"))
    install("beta", schedule_source("twin"))

    text = output()

    assert "pptrace-alpha 1.2 (alpha)\n  schedules: twin\n" in text
    assert "pptrace-beta 1.2 (beta)\n  schedules: twin\n" in text
    assert (
        "failed: plugin 'beta' (pptrace-beta 1.2): pptrace_schedules yielded 'twin', which plugin 'alpha'" in text
    )


def test_json_has_names_summaries_failures_and_what_is_disabled(install: Install, schedule_source: Source) -> None:
    install("good", schedule_source("my-schedule"))
    install("absent", "import no_such_module_anywhere\n")

    document = json.loads(output("--json"))

    good = next(each for each in document["plugins"] if each["plugin"] == "good")
    assert good == {
        "plugin": "good",
        "distribution": "pptrace-good",
        "version": "1.2",
        "offers": {"schedules": [{"name": "my-schedule", "summary": "One stage a rank, one microbatch."}]},
    }
    failed = next(each for each in document["failed"] if each["plugin"] == "absent")
    assert failed["reason"].startswith("ModuleNotFoundError")
    assert isinstance(document["disabled"], list)


def test_in_a_terminal_lines_have_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"mine-{number}" for number in range(12)]

    class Mine:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name=name, summary="Mine.", build=lambda _: []) for name in names]

    monkeypatch.setattr(output_streams.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    registry = Registry.load(entry_points=False, plugins={"inline": Mine()})

    command.main([], obj=registry, standalone_mode=False)

    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 40
    assert text.partition("(inline)")[2].replace(",", "").split() == ["schedules:", *names]
