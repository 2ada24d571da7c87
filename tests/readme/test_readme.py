"""Every command and every line of code in the README does what the README says."""

from __future__ import annotations

import shlex
import subprocess
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

INSTALL, OPEN, *NEXT, DEVELOP = range(7)
"""The numbers of the commands, one per block."""
SET_UP = "python3 -m venv .venv && .venv/bin/pip install "
"""What ``INSTALL`` and ``DEVELOP`` begin with; ``test_installation`` and ``.ci/run`` do the rest."""


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
    check(readme, 0, summary, pytestconfig)
    assert (folder / "step.pftrace").stat().st_size > 0
    assert summary.rstrip().endswith("next: pptrace open step.pftrace")


@pytest.mark.needs_plugins
@pytest.mark.parametrize("number", NEXT)
def test_the_next_commands_run(readme: Any, shell: Any, folder: Path, number: int) -> None:
    assert shell.run(command(readme, number), folder)


@pytest.mark.needs_plugins
def test_the_table_is_what_show_prints(
    root: Path, shell: Any, folder: Path, page: Any, pytestconfig: pytest.Config
) -> None:
    traces = page(root / "docs" / "traces.md")
    shown = "pptrace show 1f1b --pp 4 --microbatches 4"
    assert f"`{shown}` prints the table" in traces.text

    check(traces, 0, shell.run(shown, folder), pytestconfig)


@pytest.mark.needs_plugins
def test_the_advice_on_the_page_on_metrics_is_printed(
    root: Path, shell: Any, folder: Path, page: Any, pytestconfig: pytest.Config
) -> None:
    metrics = page(root / "docs" / "metrics.md")

    check(metrics, 0, shell.run(metrics.of("bash")[0], folder), pytestconfig)


@pytest.mark.usefixtures("summary")
@pytest.mark.needs_plugins
def test_open_serves_the_trace_until_it_is_fetched(readme: Any, shell: Any, folder: Path) -> None:
    program, *arguments = shlex.split(command(readme, OPEN))

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


def test_the_yaml_of_the_page_on_configuration_is_the_example(root: Path, page: Any) -> None:
    shown = page(root / "docs" / "configuration.md").of("yaml")[0]

    assert shown == (root / "examples" / "llama3-70b.yaml").read_text(encoding="utf-8")


@pytest.mark.needs_plugins
def test_the_code_of_the_page_on_configuration_runs(root: Path, page: Any, shell: Any, folder: Path) -> None:
    (code,) = page(root / "docs" / "configuration.md").of("python")
    (folder / "code.py").write_text(code)

    printed = shell.run("python code.py", folder)

    assert "1f1b" in printed
    assert (folder / "step.json.gz").stat().st_size > 0


def test_every_command_is_one_that_a_test_runs(readme: Any) -> None:
    assert len(readme.of("bash")) == len((INSTALL, OPEN, *NEXT, DEVELOP))
    assert command(readme, INSTALL).startswith(SET_UP)
    assert command(readme, OPEN).startswith("pptrace open ")
    assert command(readme, DEVELOP).startswith(SET_UP)


def test_ci_installs_and_tests_as_the_readme_says(readme: Any, root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    _, install, test = command(readme, DEVELOP).split(" && .venv/bin/")

    assert " -e '.[dev]'\n" in script
    assert f" {install.removeprefix('pip ')}\n" in script
    assert f"python -m {test} " in script


def command(readme: Any, number: int) -> str:
    """Return the command of a block, which has one line."""
    (line,) = readme.of("bash")[number].splitlines()
    return str(line)


def main_job(readme: Any) -> str:
    """Return the last command of the first line, after the installation."""
    return command(readme, INSTALL).split(" && .venv/bin/")[-1]


def check(page: Any, number: int, printed: str, config: pytest.Config) -> None:
    if config.getoption("--regenerate"):
        page.replace("text", number, printed)
    assert page.of("text")[number] == printed
