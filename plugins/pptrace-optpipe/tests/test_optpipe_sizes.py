"""What would outgrow the machine is refused before any of it is made."""

from __future__ import annotations

import pytest

from pptrace.errors import ConfigError
from pptrace.plugins.registry import Registry
from pptrace_optpipe.setting import setting_of


def test_a_step_that_outgrows_the_machine_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "100 MiB")

    with pytest.raises(ConfigError, match="8,388,608 actions on 4 ranks would take about"):
        setting_of(None, ["parallel.pp=4", f"batch.microbatches={1 << 20}"], Registry.load())
