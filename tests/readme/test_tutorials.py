"""Every tutorial prints what it shows (``--regenerate`` writes outputs anew)."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest

from pptrace.testing import assert_schedule_family, grid

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<content>.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/-]+\.(?:py|yaml))\n")
"""The first line of a block that a reader saves as a file."""
PICTURE = re.compile(r"!\[[^\]]*\]\((.*?\.svg)\)")
FIGURE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(%|ns|us|ms|s|G[Bb]/s|GiB|times)(?!\w)")
"""A number and its unit."""
NEEDS_PYTORCH = "pytorch-loop.md"
"""The tutorial that the tests of pptrace-torch run."""

pytestmark = pytest.mark.needs_plugins


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.md") if path.name != NEEDS_PYTORCH))
def test_a_tutorial_prints_what_it_shows(
    name: str, examples: Path, shell: Any, pytestconfig: pytest.Config
) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    printed = ""

    def executed(block: re.Match[str]) -> str:
        nonlocal printed
        language, content = block["language"], block["content"]
        if language == "text":
            return f"```text\n{printed}```"
        if language == "bash":
            printed = shell.run(f"set +o pipefail; {content}", examples)
        elif file := NAMED.match(content):
            (examples / file[1]).write_text(content, encoding="utf-8")
        return block[0]

    run = BLOCK.sub(executed, page)

    if pytestconfig.getoption("--regenerate"):
        (FOLDER / name).write_text(run, encoding="utf-8")
    assert run == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.name)
def test_a_figure_in_the_text_of_a_tutorial_is_one_that_it_shows(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    shown = [block["content"] for block in BLOCK.finditer(page)]
    shown += [(FOLDER / picture).read_text(encoding="utf-8") for picture in PICTURE.findall(page)]
    figures = {(float(number), unit) for text in shown for number, unit in FIGURE.findall(text)}

    for number, unit in FIGURE.findall(BLOCK.sub("", page)):
        digits = len(number.partition(".")[2])
        assert float(number) in {round(figure, digits) for figure, its_unit in figures if its_unit == unit}, unit


def test_the_package_of_a_tutorial_passes_its_test() -> None:
    page = (FOLDER / "schedule-plugin.md").read_text(encoding="utf-8")
    shown = (block["content"] for block in BLOCK.finditer(page))
    (code,) = (content for content in shown if content.startswith("# pptrace-longer-warm-up/"))
    module = types.ModuleType("page")
    exec(compile(code, "page", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - our own page

    assert_schedule_family(module.OFFER)
    assert_schedule_family(module.OFFER, sizes=grid(ranks=(1, 4), microbatches=(1, 6), options={"extra": 3}))


@pytest.mark.parametrize("name", ["llama3-70b-cluster.yaml", "plan-1f1b.yaml"])
def test_a_configuration_of_a_tutorial_is_the_example(name: str, examples: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")]
    shown = [block["content"] for page in pages for block in BLOCK.finditer(page)]
    example = (examples / name).read_text(encoding="utf-8")

    settings = [line for line in example.splitlines() if not line.startswith("#")]
    assert [f"# {name}", *settings] in [block.splitlines() for block in shown]
