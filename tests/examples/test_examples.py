"""Every example prints what is recorded beside it; ``--regenerate`` records anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples"
PROGRAMS = {".sh": "sh", ".py": "python"}
NOT_RUN = {"mine.py"}
"""Read by another example."""
CORE_ALONE = {"overlap.py", "table.sh"}
PARTS = {"stp.py": "h20 offload", "vocabulary.py": "4096"}
"""Parts of a long output that are compared, which are its end."""
WRITTEN = {"quick_start.sh": ["step.pftrace", *(f"ranks/rank{rank}.json.gz" for rank in range(8))]}
"""Traces that an example writes."""

SCRIPTS = sorted(path.name for path in FOLDER.iterdir() if path.suffix in PROGRAMS and path.name not in NOT_RUN)


@pytest.mark.parametrize(
    "name",
    [name if name in CORE_ALONE else pytest.param(name, marks=pytest.mark.needs_plugins) for name in SCRIPTS],
)
def test_an_example_prints_what_is_recorded(
    name: str, examples: Path, shell: Any, pytestconfig: pytest.Config
) -> None:
    recorded = FOLDER / f"{Path(name).stem}.out"

    def printed(*parts: str) -> str:
        return str(shell.run(" ".join([PROGRAMS[Path(name).suffix], name, *parts]), examples))

    if pytestconfig.getoption("--regenerate"):
        recorded.write_text(printed(), encoding="utf-8")
    output = recorded.read_text(encoding="utf-8")
    if name in PARTS:
        assert output.endswith("\n" + printed(PARTS[name]))
    else:
        assert printed() == output
    for trace in WRITTEN.get(name, ()):
        assert (examples / trace).stat().st_size > 0


def test_every_recorded_output_belongs_to_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.out")} == {Path(name).stem for name in SCRIPTS}


def test_every_file_that_is_not_run_is_used_by_one_that_is() -> None:
    scripts = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    others = {path.name for path in FOLDER.iterdir() if path.is_file() and path.suffix != ".out"} - set(SCRIPTS)

    assert [name for name in sorted(others) if name not in scripts] == []


def test_the_page_about_memory_shows_its_example() -> None:
    page = (FOLDER.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    _, *tables = re.findall(r"^```(?:yaml)?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)

    assert (FOLDER / "offload.out").read_text(encoding="utf-8") == "\n".join(tables)


def test_the_page_about_plans_shows_its_example() -> None:
    page = (FOLDER.parent / "docs" / "plan.md").read_text(encoding="utf-8")
    plan, _, best, changes = re.findall(r"^```(?:text|yaml)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)

    recorded = (FOLDER / "plan.out").read_text(encoding="utf-8")
    assert [block in recorded for block in (plan, best, changes)] == [True, True, True]


def test_the_page_about_overlapped_pairs_shows_its_example() -> None:
    page = (FOLDER.parent / "docs" / "overlap.md").read_text(encoding="utf-8")
    costs, table, combined = re.findall(r"^```(?:yaml)?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)

    assert yaml.safe_load(costs) == yaml.safe_load((FOLDER / "overlap.yaml").read_text(encoding="utf-8"))
    assert (FOLDER / "overlap.out").read_text(encoding="utf-8").startswith(table)
    assert (FOLDER / "combined.out").read_text(encoding="utf-8") == combined
