"""Every command and every line of code in the README does what the README says."""

from __future__ import annotations

import re
import shlex
import subprocess
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config.choices import PolicyName
from pptrace.plugins.offers import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

INSTALL, TOUR, CLUSTER, OWN_SCHEDULE, DEVELOP = range(5)
SUMMARY, TABLE = range(2)
SET_UP = "python3 -m venv .venv && .venv/bin/pip install "
"""What the lines of ``INSTALL`` and ``DEVELOP`` begin with; ``test_installation`` and ``.ci/run`` do the rest."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, root: Path, shell: Any) -> Path:
    """Return a folder with the examples."""
    folder = tmp_path_factory.mktemp("readme")
    shell.run(f"cp -r {shlex.quote(str(root / 'examples'))} . && rm -f examples/*.out", folder)
    return folder


@pytest.fixture(scope="module")
def summary(readme: Any, shell: Any, folder: Path) -> str:
    """Return what the README's first line prints at its end; the folder then is as the line leaves it."""
    return str(shell.run(main_job(readme), folder))


@pytest.mark.needs_plugins
def test_the_first_command_prints_what_the_readme_shows(
    readme: Any, summary: str, folder: Path, pytestconfig: pytest.Config
) -> None:
    check(readme, SUMMARY, summary, pytestconfig)
    assert (folder / "step.pftrace").stat().st_size > 0
    assert summary.rstrip().endswith("next: pptrace open step.pftrace")


@pytest.mark.usefixtures("summary")
@pytest.mark.needs_plugins
def test_the_tour_runs_and_draws_what_the_readme_shows(
    readme: Any, shell: Any, folder: Path, pytestconfig: pytest.Config
) -> None:
    printed = ""
    for command in commands(readme, TOUR):
        if not command.startswith("pptrace open"):
            printed = shell.run(command, folder)

    check(readme, TABLE, printed, pytestconfig)


@pytest.mark.usefixtures("summary")
@pytest.mark.needs_plugins
def test_open_serves_the_trace_until_it_is_fetched(readme: Any, shell: Any, folder: Path) -> None:
    (command,) = [line for line in commands(readme, TOUR) if line.startswith("pptrace open")]
    program, *arguments = shlex.split(command)

    with subprocess.Popen(
        [str(shell.programs / program), *arguments, "--no-browser", "--timeout", "60"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as served:  # fmt: skip
        assert served.stdout
        address = urllib.parse.unquote(served.stdout.readline().strip())
        fetched = urllib.request.Request(  # noqa: S310 - our own server
            address.partition("url=")[2].partition("&")[0], headers={"Origin": address.split("/#")[0]}
        )
        with urllib.request.urlopen(fetched) as response:  # noqa: S310 - our own server
            content = response.read()

    assert address.startswith("https://ui.perfetto.dev/")
    assert content == (folder / "step.pftrace").read_bytes()
    assert served.returncode == 0


@pytest.mark.needs_plugins
def test_the_picture_of_a_table_is_what_show_draws(
    root: Path, shell: Any, folder: Path, pytestconfig: pytest.Config
) -> None:
    kept = root / "docs" / "images" / "interleaved-1f1b.svg"

    shell.run(f"pptrace show interleaved-1f1b --pp 4 --vp 2 --microbatches 8 -o {kept.name}", folder)

    drawn = (folder / kept.name).read_text(encoding="utf-8")
    if pytestconfig.getoption("--regenerate"):
        kept.write_text(drawn, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == drawn


def test_the_yaml_is_the_example(readme: Any, root: Path) -> None:
    (shown,) = readme.of("yaml")
    example = (root / "examples" / "llama3-70b.yaml").read_text(encoding="utf-8")

    assert shown == example


@pytest.mark.needs_plugins
def test_the_code_runs(readme: Any, shell: Any, folder: Path) -> None:
    code = readme.of("python")[0]
    (folder / "code.py").write_text(code)

    printed = shell.run("python code.py", folder)

    assert "1f1b" in printed
    assert (folder / "step.json.gz").stat().st_size > 0
    assert len([line for line in code.splitlines() if line]) <= len("five.")


@pytest.mark.needs_plugins
def test_the_commands_about_clusters_run(readme: Any, shell: Any, folder: Path) -> None:
    printed = [shell.run(command, folder) for command in commands(readme, CLUSTER)]

    assert "cluster dgx-h100, 8 nodes of 8" in printed[0]
    assert "cluster pcie-8gpu, 8 nodes of 8" in printed[1]
    assert (folder / "cluster.svg").stat().st_size > 0


@pytest.mark.needs_plugins
def test_a_schedule_of_ones_own_runs_as_written(readme: Any, shell: Any, folder: Path) -> None:
    source = readme.of("python")[1]
    (folder / source.split()[1]).write_text(source)
    shell.run("rm -rf pptrace-mine", folder)

    for command in commands(readme, OWN_SCHEDULE):
        shell.run(command, folder)

    assert (folder / "pptrace-mine" / "pyproject.toml").is_file()


def test_every_command_is_one_that_a_test_runs(readme: Any) -> None:
    assert len(readme.of("bash")) == len((INSTALL, TOUR, CLUSTER, OWN_SCHEDULE, DEVELOP))
    for number in (INSTALL, DEVELOP):
        (line,) = commands(readme, number)
        assert line.startswith(SET_UP)


def test_ci_installs_and_tests_as_the_readme_says(readme: Any, root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    _, install, test = commands(readme, DEVELOP)[0].split(" && .venv/bin/")

    assert "\npip install -e '.[dev]'\n" in script
    assert f" {install.removeprefix('pip ')}\n" in script
    assert f"python -m {test} " in script


def test_the_readme_names_every_command_and_policy(readme: Any) -> None:
    for command in COMMANDS:
        assert f"pptrace {command}" in readme.text
    for policy in PolicyName:
        assert f"| `{policy.value}` |" in readme.text


def commands(readme: Any, number: int) -> list[str]:
    """Return a block's commands without comments."""
    lines = (re.sub(r"\s+# .*", "", line).strip() for line in readme.of("bash")[number].splitlines())
    return [line for line in lines if line]


def main_job(readme: Any) -> str:
    """Return what the first line runs once everything is set up."""
    return str(commands(readme, INSTALL)[0].split(" && .venv/bin/")[-1])


def check(readme: Any, number: int, printed: str, config: pytest.Config) -> None:
    if config.getoption("--regenerate"):
        readme.replace("text", number, printed)
    assert readme.of("text")[number] == printed
