"""The command that feeds readers changed files, for a moment; and that it sees what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROBE = """
import json
import sys
from pathlib import Path
import pptrace.cli.main as program
from tests.fuzz import __main__ as fuzzing

folder = Path(sys.argv[1]) / "changed"
folder.mkdir()
outcomes = {}
for name, code in json.loads(sys.argv[2]).items():
    program.main = lambda: exec(code, {"sys": sys})
    # to end what goes on for ever, and nothing else
    fuzzing.SECONDS = fuzzing.PATIENCE = 1 if name in ("a loop", "a sleep") else 60
    outcomes[name] = fuzzing.run(["explain"], folder)
print(json.dumps(outcomes))
"""
"""Runs code by name as a command, each in a process that is forked from this one, and prints how each ends."""
FAILURES = {
    "a traceback": ("[][0]", "status 70"),
    "a signal": ("import os; os.abort()", "ended by signal 6"),
    "a loop": ("while True: pass", "ended by signal"),
    "a sleep": ("import time; time.sleep(600)", "ended by signal 9 after 0 s"),
    "much memory": ("b'x' * (700 << 20)", "MiB more"),
    "a plugin": (
        "print(\"pptrace: plugin 'x' (x 1): make raised KeyError: 1\", file=sys.stderr); sys.exit(2)",
        "of ours",
    ),
    "a repeated warning": ("print('warning: a\\nwarning: a', file=sys.stderr)", "warns more than once"),
    "two refusals": ("print('a\\nb\\nc\\nd', file=sys.stderr); sys.exit(2)", "refused with more than notes"),
}


FORMATS = ("chrome", "json", "pftrace", "table", "lengths")
"""Two formats of traces, and one each of results, tables and sequences."""


@pytest.mark.needs_plugins
def test_changed_files_are_answered_or_refused(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "3", "--seed", "1", "--keep", str(tmp_path)]
    command += [word for name in FORMATS for word in ("--format", name)]

    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FORMATS)
    assert all("answered" in line and " 0 failed" in line for line in lines)
    assert any("refused" in line for line in lines)


def test_what_may_not_happen_is_reported(root: Path, tmp_path: Path) -> None:
    codes = json.dumps({name: code for name, (code, _) in FAILURES.items()})

    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), codes], cwd=root, capture_output=True, text=True, check=True
    )

    outcomes = json.loads(done.stdout)
    assert list(outcomes) == list(FAILURES)
    assert {name: outcomes[name] for name, (_, message) in FAILURES.items() if message not in outcomes[name]} == {}
