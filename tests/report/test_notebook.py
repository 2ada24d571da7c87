"""Results in notebooks: tables, code and the chart, without scripts and with escaped names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.api import compare, diff, simulate, sweep
from pptrace.report.document import Code, Document, Printed, Section, Table

if TYPE_CHECKING:
    from pathlib import Path


class Result(Printed):
    def document(self) -> Document:
        table = Table(head=("name", "step"), rows=(("<b>", "8 ms"),))
        section = Section(title="more", blocks=(Code(lines=("# sh", "pptrace plan \\", "  --gpus 8")),))
        return Document(title="step", lead=("a sentence", "", table), sections=[section], notes=["a note"])


def test_a_result_in_a_notebook_has_tables_code_and_notes() -> None:
    html = Result()._repr_html_()

    assert "<p>a sentence</p>" in html
    assert "<p></p>" not in html
    assert '<td class="word">&lt;b&gt;</td><td class="figure">8 ms</td>' in html
    assert "<h4>more</h4>" in html
    assert "<pre># sh\npptrace plan \\\n  --gpus 8</pre>" in html
    assert "<p>a note</p>" in html
    assert str(Result()).splitlines()[-5:] == [
        "more",
        "  # sh",
        "  pptrace plan \\",
        "    --gpus 8",
        "note: a note",
    ]


def test_a_step_in_a_notebook_has_its_chart(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("0F0,0B0\n1F0,1B0\n")

    html = simulate(schedule=str(tmp_path / "table.csv"))._repr_html_()

    assert html.count("<svg") == 1
    assert '<th class="figure">busy</th>' in html
    assert "<script" not in html


def test_results_of_studies_in_a_notebook_are_tables(tmp_path: Path) -> None:
    for name, rows in (("one.csv", "0F0,0B0\n1F0,1B0\n"), ("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")):
        (tmp_path / name).write_text(rows)
    names = [str(tmp_path / name) for name in ("one.csv", "two.csv")]

    swept = sweep(over={"schedule": names, "costs": ["unit"]}, executor="serial")
    results = swept, compare(schedules=names), diff(*names)

    assert all("<table" in result._repr_html_() for result in results)
    assert all("<svg" in result._repr_html_() for result in results[2:])
    assert not any("<script" in result._repr_html_() for result in results)
    assert str(swept).startswith("schedule ")


def test_colors_of_drawings_apply_to_the_result_alone() -> None:
    html = Result()._repr_html_()

    style = html[html.index("<style>") : html.index("</style>")]
    assert style.startswith("<style>.pptrace{")
    assert ":root" not in style
    assert style.count("{") == style.count("}")
