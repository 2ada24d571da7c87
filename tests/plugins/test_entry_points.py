"""What is wrong with one distribution's entry points costs no other."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Install


@pytest.mark.parametrize(
    ("entry_points", "message"),
    [
        (b"[pptrace]\nodd\n", "'odd' (pptrace-odd 1.2) is skipped: its entry point 'odd' is not NAME = MODULE"),
        (b"[pptrace]\nodd = \n", "its entry point 'odd =' is not NAME = MODULE"),
        (b"[pptrace]\n= json\n", "its entry point '= json' is not NAME = MODULE"),
        (b"[pptrace]\nodd = no module\n", "its entry point 'odd = no module' is not NAME = MODULE"),
        (b"[pptrace]\nodd = \xff\n", "(pptrace-odd 1.2) is skipped: its entry_points.txt is not UTF-8 text"),
    ],
)
def test_malformed_entry_points_cost_that_plugin_alone(
    run: Any, install: Install, tmp_path: Path, schedule_source: Any, entry_points: bytes, message: str
) -> None:
    install("fine", schedule_source("fine"))
    install("odd", "")
    (tmp_path / "site/pptrace_odd-1.2.dist-info/entry_points.txt").write_bytes(entry_points)

    code, out, err = run("simulate", "--schedule", "fine", "--pp", "1", "--microbatches", "1", "--json")

    assert code == 0, err
    assert json.loads(out)
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("finder", ["importlib.metadata", "importlib_metadata"])
def test_other_groups_and_metadata_that_cannot_be_read_are_no_trouble(
    run: Any, install: Install, tmp_path: Path, schedule_source: Any, finder: str
) -> None:
    pytest.importorskip(finder)  # the package of that name, once imported, finds what the standard library found
    install("fine", schedule_source("fine"))
    install("odd", schedule_source("odd"))
    (tmp_path / "site/pptrace_fine-1.2.dist-info/entry_points.txt").write_text(
        "[x]\ny\n[pptrace]\nfine=fine_of_a_test"
    )
    (tmp_path / "site/pptrace_fine-1.2.dist-info/METADATA").write_text("Version: 1.2\n")
    (tmp_path / "site/pptrace_odd-1.2.dist-info/METADATA").write_bytes(b"Name: \xff\n")

    for name in ("fine", "odd"):
        code, _, err = run("simulate", "--schedule", name, "--pp", "1", "--microbatches", "1", "--json")

        assert (code, err) == (0, "")


def test_a_plugin_in_an_archive_on_the_path_is_found(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule_source: Any
) -> None:
    monkeypatch.delenv("PPTRACE_DISABLE_PLUGINS", raising=False)
    with ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr(
            "packed_of_a_test.py", f"from pptrace.plugin import *\n{dedent(schedule_source('packed'))}"
        )
        archive.writestr("pptrace_packed-1.2.dist-info/METADATA", "Name: pptrace-packed\nVersion: 1.2\n")
        archive.writestr("pptrace_packed-1.2.dist-info/entry_points.txt", "[pptrace]\npacked = packed_of_a_test\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))

    code, out, err = run("plugins", "--json")

    assert (code, err) == (0, "")
    assert "pptrace-packed" in out


def test_a_plugin_that_is_installed_later_is_found(install: Install, schedule_source: Any) -> None:
    install("early", schedule_source("early"))
    before = set(Registry.load().schedules)
    install("late", schedule_source("late"))

    assert set(Registry.load().schedules) == before | {"late"}
    assert "early" in before
