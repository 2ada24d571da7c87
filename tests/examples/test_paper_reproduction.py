"""The page on arXiv:2605.24006: its figures come from the recorded tables, and these from the study's command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paper_claims import CELLS
from paper_phrases import PHRASES, VARIANTS, variant
from recorded_study import FOLDER, LEVELS, TABLE_I, recorded

from pptrace.api import sweep
from pptrace.config.quantities import DURATION

if TYPE_CHECKING:
    from pathlib import Path

RESULTS = FOLDER / "results"
PAGE = (FOLDER / "REPRODUCTION.md").read_text(encoding="utf-8")
FLOWING = " ".join(PAGE.split())
"""The page without its line breaks."""
FIGURE = re.compile(r"\b\d[\d.]*(?= (?:%|s\b|points|times|GiB))")
MESSAGES = {"async": "680 MB", "sender-blocking": "630 MB"}
"""What is fitted under each policy."""


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    block = next(part for part in PAGE.split(f"{heading}\n")[1].split("\n\n") if part.startswith("| "))
    return [line.strip("| ").split(" | ") for line in block.splitlines()[2:]]


@pytest.mark.parametrize("claim", CELLS)
def test_what_came_out_for_a_claim_is_on_the_page(claim: str) -> None:
    (row,) = [row for row in rows_of("## Claim by claim") if row[0].startswith(claim)]

    assert row[1] == CELLS[claim]()


def test_every_claim_on_the_page_is_held() -> None:
    assert [row[0] for row in rows_of("## Claim by claim") if not row[0].startswith(tuple(CELLS))] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_of_a_variant_are_on_the_page(name: str) -> None:
    assert variant(name) in PAGE


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.__name__)
def test_a_statement_below_the_claims_is_on_the_page(phrase: Any) -> None:
    said = phrase()

    assert said in FLOWING or said[0].upper() + said[1:] in FLOWING


def test_no_figure_of_the_page_is_left_out() -> None:
    prose = " ".join(" ".join(re.findall(r"^[^|]*$", PAGE.split("\n### ", 1)[1], re.MULTILINE)).split())
    for said in sorted((phrase() for phrase in PHRASES), key=len, reverse=True):
        prose = prose.replace(said, "").replace(said[0].upper() + said[1:], "")

    assert FIGURE.findall(prose) == []


def test_what_is_fitted_is_that_of_table_i_and_of_the_configurations() -> None:
    work = []
    for level in ("fast", "mid", "slow"):
        costs = yaml.safe_load((FOLDER / "compute" / f"{level}.yaml").read_text(encoding="utf-8"))["costs"]
        work.append(8 * sum(DURATION.parse(costs[key]) for key in ("forward", "backward")) / 1e9)
    for (_, compute), cells in TABLE_I.items():
        for idle, step in cells.values():
            assert step * (1 - idle / 100) == pytest.approx(work[LEVELS[::-1].index(compute)], rel=5e-4)
    busy, message, sync = (row[1] for row in rows_of("## What is fitted, and what is not"))

    assert busy.startswith(f"{work[0]:.2f}, {work[1]:.2f}, {work[2]:.2f} s")
    assert all(f"{size} with" in message and policy in message for policy, size in MESSAGES.items())
    assert f"messages of {680 / 50:.1f} ms" in FLOWING  # MB by GB/s
    assert sync == "0.75 s"
    assert "sync: 750 ms" in (FOLDER / "paper.yaml").read_text(encoding="utf-8")


def assert_as_recorded(name: str, over: dict[str, Any], **values: Any) -> None:
    """Simulate some of a table's runs, and find them in it."""
    swept = sweep(FOLDER / "paper.yaml", over=over, executor="serial", **values)
    assert not swept.failed
    for row in swept.rows:
        run = {axis: row[axis] for axis in over}
        for figure in ("step_ns", "idle", "table_bubble", "peak_activation_bytes"):
            assert recorded(name).at(figure, **run) == row[figure], (run, figure)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("policy", MESSAGES)
def test_table_i_comes_out_as_recorded(policy: str) -> None:
    systems = {part: [FOLDER / part / f"{level}.yaml" for level in LEVELS] for part in ("compute", "network")}
    sets = [f"costs.boundary={MESSAGES[policy]}", f"p2p.policy={policy}"]

    assert_as_recorded(f"table-1-{policy}", {**systems, "schedule": ["chimera", "hanayo"]}, sets=sets)


@pytest.mark.needs_plugins
def test_figures_3_and_5_come_out_as_recorded() -> None:
    schedules = ["gpipe", "1f1b", "chimera", "chimera:scale=concatenation"]
    over = {"pp": [4, 8], "microbatches": [8, 16, 32], "schedule": schedules}

    assert_as_recorded("figures-3-5", over)


@pytest.mark.packaging
def test_the_command_of_the_study_writes_the_recorded_tables_and_pictures(
    tmp_path: Path, shell: Any, pytestconfig: pytest.Config
) -> None:
    """Run one of the recorded numbers of microbatches, as each is a row, and one of the policies."""
    if pytestconfig.getoption("--regenerate"):
        shell.run(f"sh {FOLDER / 'run.sh'} {RESULTS}", FOLDER)

    shell.run(f"COUNTS=16 FITS=sender-blocking:630 sh {FOLDER / 'run.sh'} {tmp_path}", FOLDER)

    written = {path.name for path in tmp_path.iterdir()}
    others = {name.replace("-sender-blocking", "-async") for name in written if "4" in name or "table-1" in name}
    assert written | others == {path.name for path in RESULTS.iterdir()}
    for table in sorted(tmp_path.glob("*.csv")):
        whole, rows = (path.read_text(encoding="utf-8").splitlines() for path in (RESULTS / table.name, table))
        assert len(rows) > 1
        assert [row for row in rows if row not in whole] == []


def test_the_page_shows_every_picture_and_names_every_table() -> None:
    shown, named = (set(re.findall(rf"{mark}\[[^]]*]\(results/([^)]*)\)", PAGE)) for mark in ("!", "(?<!!)"))

    assert shown == {path.name for path in RESULTS.glob("*.svg")}
    assert named == {path.name for path in RESULTS.glob("*.csv")}
