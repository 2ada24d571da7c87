"""The code on the page about plugins runs."""

from __future__ import annotations

import re
import types
from pathlib import Path

from pptrace.hooks import provider
from pptrace.hooks.build import build_schedule
from pptrace.hooks.registry import Registry
from pptrace.model.request import ScheduleRequest
from pptrace.testing import assert_schedule_family, assert_valid_schedule, grid

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
ONE_FILE, PLUGIN, CHECKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_file_of_the_page_makes_a_valid_schedule(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ONE_FILE)

    provided = Registry.load(entry_points=False).schedule(f"{tmp_path}/mine.py:make")

    assert_valid_schedule(build_schedule(provided, ScheduleRequest(ranks=4, units=8)))


def test_the_plugin_of_the_page_keeps_its_promises() -> None:
    module = types.ModuleType("page")
    exec(PLUGIN, module.__dict__)  # noqa: S102 - our own page

    registry = Registry.load(entry_points=False, plugins={"page": module})

    assert not registry.failures
    assert_schedule_family(registry.schedule("one-at-a-time"), sizes=grid(units=(1, 2)))


def test_the_checks_of_the_page_exist() -> None:
    names = re.findall(r"\w+", CHECKS.partition("import ")[2].partition("\n")[0])

    assert set(names) == {"assert_schedule_family", "grid"}


def test_every_offer_has_a_row_in_the_table_of_hooks() -> None:
    for offer, hook in provider.HOOKS.items():
        assert f"| `{hook}` | `{offer.__name__}` |" in PAGE
