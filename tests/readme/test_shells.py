"""The commands of the README can be pasted into the usual shells."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = {"bash": ("--norc", "-i"), "zsh": ("-f", "-i"), "dash": ("-i",)}
"""Interactive shells without files of users."""
RECORDER = """#!/bin/sh
{python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$0" "$@" >>{log}
"""


@pytest.mark.parametrize("shell_name", SHELLS)
def test_a_shell_runs_each_line_as_one_command(shell_name: str, readme: Any, tmp_path: Path) -> None:
    shell = shutil.which(shell_name)
    if shell is None:
        pytest.skip(f"{shell_name} is not installed")
    blocks = readme.of("bash")
    words = sorted({part.split()[0] for block in blocks for part in block.strip().split(" && ")})
    log = tmp_path / "log"
    for word in words:
        recorder(tmp_path, word, log)
    (tmp_path / "plugins" / "one").mkdir(parents=True)

    done = subprocess.run(
        [shell, *SHELLS[shell_name]], input="".join(blocks), cwd=tmp_path, text=True, capture_output=True,
        timeout=60, check=False, start_new_session=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "PS2": "more"},
    )  # fmt: skip

    ran = [json.loads(line) for line in log.read_text().splitlines()]
    assert [" ".join([program.removeprefix(f"{tmp_path}/"), *rest]) for program, *rest in ran] == [
        part.replace("./plugins/*", "./plugins/one") for block in blocks for part in block.strip().split(" && ")
    ]
    assert "more" not in done.stderr
    assert "not found" not in done.stderr


def recorder(folder: Path, word: str, log: Path) -> None:
    """Write a program that records its arguments."""
    import sys

    program = folder / word
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(RECORDER.format(python=sys.executable, log=log))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
