"""The page of a run: its figures are the summary's, it stands alone, and names cannot break it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from small_schedules import small_registry

from pptrace.api import simulate
from pptrace.errors import PptraceError
from pptrace.run.summary import main_figures

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.run.run import Run


def stepped() -> Run:
    costs = {"name": "table", "forward": "3 ms", "backward": "6 ms", "boundary": "1 MB", "activation": "1 GiB"}
    return simulate(
        schedule="eager", pp=4, microbatches=6, costs=costs, registry=small_registry(),
        network={"name": "hockney", "bandwidth": "1 GB/s"},
    )  # fmt: skip


def test_it_has_the_summary_s_figures_and_every_rank(tmp_path: Path) -> None:
    run = stepped()

    (path,) = run.save(tmp_path / "report.html")

    text = path.read_text()
    assert all(f"<span>{name}</span><strong>{value}</strong>" in text for name, value in main_figures(run).items())
    assert f"bubble {float(run.metrics.bubble):.2%}" in run.summary()
    for rank in range(4):
        assert text.count(f">rank {rank}</text>") == 3
    assert "peer-compute" in text
    assert '<td class="word">schedule.name</td>' in text


def test_bars_of_time_fill_the_step(tmp_path: Path) -> None:
    text = stepped().save(tmp_path / "report.html")[0].read_text()

    spent = text.split("<h2>time of each rank")[1].split("</section>")[0]
    _, *bars = re.split('height="15" class="row"/>', spent)
    widths = [sum(map(float, re.findall(r' width="([0-9.]+)" height="15" fill', bar))) for bar in bars]
    (whole,) = set(re.findall(r' width="([0-9.]+)" height="15" class="row"', spent))
    assert widths == pytest.approx([float(whole)] * 4, abs=0.05)


def test_the_keys_of_colors_are_those_of_what_is_drawn(tmp_path: Path) -> None:
    text = stepped().save(tmp_path / "report.html")[0].read_text()

    spent, memory = (
        text.split(title)[1].split("</section>")[0] for title in ("<h2>time of each rank", "<h2>peak memory")
    )
    assert "compute" in spent
    assert "collectives" not in spent
    assert "activations" in memory
    assert "optimizer" not in memory


def test_it_fetches_nothing_runs_nothing_and_has_the_same_bytes(tmp_path: Path) -> None:
    one, two = (stepped().save(tmp_path / name)[0].read_bytes() for name in ("a.html", "b.html"))

    assert one == two
    assert b"default-src 'none'" in one
    assert not re.search(rb"<script|https?://(?!www\.w3\.org)|\bsrc=|@import", one)


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PptraceError, match="the folder does not exist"):
        stepped().save(tmp_path / "step.svg", tmp_path / "no" / "report.html")

    assert list(tmp_path.iterdir()) == []


def test_markdown_has_the_figures_the_ranks_and_the_folded_defaults(tmp_path: Path) -> None:
    run = stepped()

    text = run.save(tmp_path / "report.md")[0].read_text()

    assert all(f"| {name} | {value} |\n" in text for name, value in main_figures(run).items())
    assert re.findall(r"^\| (\d) \| [\d.]+% \|", text, re.MULTILINE) == ["0", "1", "2", "3"]
    assert "| schedule.name | eager |" in text.partition("<details>")[0]
    assert "| parallel.sequence\\_parallel | False | default |" in text.partition("<details>")[2]
