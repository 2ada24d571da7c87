"""Errors of Python functions name arguments, where the command line names flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.api import crossover, diff, simulate, sweep
from pptrace.errors import ConfigError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (simulate, {"pp": 0}, "pp: parallel.pp: must be at least 1, not 0"),
        (simulate, {"pp": 2}, 'schedule: missing: write a schedule, such as schedule="1f1b"'),
        (simulate, {"sets": ["pp"]}, "sets: write sets=[\"key.path=value\"], not 'pp'"),
        (sweep, {"over": {}}, 'over: missing: write an axis to sweep, such as over=["microbatches=8,16,32"]'),
        (sweep, {"over": {"pp": [1]}, "gpus": 0}, "gpus: 0 is not a number of GPUs: write 1 or more"),
        (crossover, {"between": "1f1b", "over": "pp"}, "between: 1 is not a pair: name two, such as gpipe,1f1b"),
    ],
)
def test_an_error_names_the_argument(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        function(**arguments)

    assert str(caught.value) == message


def test_flags_of_other_programs_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "--tp-comm-overlap").mkdir()

    with pytest.raises(PptraceError, match="--tp-comm-overlap"):
        diff(tmp_path / "--tp-comm-overlap", tmp_path / "--tp-comm-overlap")
