"""Plugins that are installed for one test: a module and its distribution's metadata on ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

Install = Callable[..., None]

HEADER = """
from pptrace.plugin import *
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return ``install(name, source)``: a distribution ``pptrace-NAME`` with one plugin, ``NAME``."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("PPTRACE_DISABLE_PLUGINS", raising=False)
    monkeypatch.delenv("PPTRACE_TRACE_HOOKS", raising=False)
    modules: list[str] = []

    def add(name: str, source: str, version: str = "1.2") -> None:
        module = f"{name}_of_a_test"
        modules.append(module)
        (folder / f"{module}.py").write_text(HEADER + dedent(source), encoding="utf-8")
        metadata = folder / f"pptrace_{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pptrace-{name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[pptrace]\n{name} = {module}\n")

    yield add
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def schedule_source() -> Callable[[str], str]:
    """Return the source of a plugin that offers one schedule of a given name."""

    def source(name: str) -> str:
        return f"""
        @hookimpl
        def pptrace_schedules():
            yield ScheduleOffer(name={name!r}, summary="One stage a rank, one microbatch.", build=build)

        def build(request):
            return [f"{{rank}}F0 {{rank}}B0" for rank in range(request.ranks)]
        """

    return source


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
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
