"""What the README shows works as it stands: its commands, its rules, and the names of modules."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from pkgutil import resolve_name

import pytest
from click.testing import CliRunner

from pptrace.cli.main import cli
from pptrace_profilers.naming_rules import read_rules

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    pptrace (.+)$", README, re.MULTILINE)
STEP = "schedule: 1f1b\nparallel: {pp: 4}\nbatch: {microbatches: 8}\n"
RUN = Path(__file__).parent / "fixtures" / "sleep-1f1b_csv"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for path in RUN.glob("rank*.json.gz"):
        shutil.copy(path, tmp_path / "run")
    (tmp_path / "step.yaml").write_text(STEP, encoding="utf-8")
    words = [
        part
        for word in command.split()
        for part in (sorted(map(str, tmp_path.glob(word))) if "*" in word else [word])
    ]

    result = CliRunner().invoke(cli, words, catch_exceptions=False)

    assert result.exit_code in ({0, 1} if words[0] == "diff" else {0}), result.output
    assert all((tmp_path / word).exists() for word in words if word.endswith((".yaml", ".pftrace")))


def test_the_readme_shows_commands() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"explain", "diff", "convert", "calibrate"}


def test_names_in_the_readme_are_there() -> None:
    names = re.findall(r"`(pptrace_profilers\.[\w.]+)", README)

    assert names
    assert all(callable(resolve_name(name)) for name in names)


def test_tests_in_the_readme_are_there() -> None:
    paths = re.findall(r"plugins/pptrace-profilers/(\S+\.py)", README)

    assert paths
    assert all((Path(__file__).parents[1] / path).exists() for path in paths)


def test_the_readmes_rules_tell_what_it_says(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")

    outcome = read_rules(path)

    names = ["QQ:0F3", "QQ:(0F3;7B1)OVERLAP_F_B", "bwd_4", "grad_sync 5"]
    assert [str(outcome.action(name)) for name in names] == [
        "0F3",
        "(0F3;7B1)OVERLAP_F_B",
        "2B4",
        "5REDUCE_GRAD",
    ]
    args = {"op": "isend", "dst": 3, "mb": 1, "nbytes": 8, "dir": "F"}
    message = outcome.meaning("p2p", args)
    assert message is not None
    assert (str(message.action), message.peer, message.size_bytes) == ("2SEND_F1", 3, 8)
    assert outcome.rank is not None
    assert outcome.rank.read("worker 12") == 12
    assert outcome.communicate(["a halo_exchange"]).all()
