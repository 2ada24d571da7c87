"""Run the command line in this process, as ``main()`` does it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pptrace.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it exited."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of an error."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("pptrace: ")
        return lines[0].removeprefix("pptrace: ")


@pytest.fixture
def pptrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Return a function that runs ``pptrace`` with no plugin but the core's own."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["pptrace", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        code = stop.value.code
        return Answer(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run
