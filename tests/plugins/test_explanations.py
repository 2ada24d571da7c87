"""Plugins add analyses to ``pptrace explain``: sections, values, pictures and traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pptrace

Install = Callable[..., None]
Run = Callable[..., tuple[Any, str, str]]

ANALYSIS = """
def explain(measurement, step):
    return ExplanationPart(
        sections=(Section(title="what the plugin found", blocks=(f"{step.label}: nothing",)),),
        values={"steps": len(measurement.steps)},
        write_picture=lambda path: path.write_text("a picture"),
        timeline=lambda: step.timeline,
        notes=("the plugin was here",),
    )

@hookimpl
def pptrace_explanations():
    yield ExplanationOffer(name="mine", summary="Find nothing.", explain=explain)
"""
REPLICAS = """
def measure(paths, request):
    from pathlib import Path
    from pptrace.run.trace_files import read_measurement
    from pptrace.plugins.registry import Registry
    from msgspec.structs import replace

    measured, _ = read_measurement([Path("step.json")], Registry.load(entry_points=False))
    replicas = tuple(Replica(name=f"dp={n}", ranks=(n,), steps=measured.steps) for n in range(2))
    return replace(measured, replicas=replicas)

@hookimpl
def pptrace_importers():
    yield ImporterOffer(name="two", summary="Two replicas.", recognises=lambda path, head: head == b"two",
                        measure=measure)
"""


@pytest.fixture
def trace(run: Run) -> Path:
    del run  # in its folder
    pptrace.simulate(schedule="table.csv").save("step.json")
    return Path("step.json")


def test_an_analysis_is_in_text_json_page_picture_and_trace(install: Install, run: Run, trace: Path) -> None:
    install("mine", ANALYSIS)

    code, text, notes = run("explain", str(trace))
    outputs = ("-o", "page.html", "-o", "picture.svg", "-o", "again.json")
    values = json.loads(run("explain", str(trace), "--json", *outputs)[1])

    assert code == 0
    assert text.index("what the plugin found") < text.index("parts of the step")
    assert "note: the plugin was here\n" in notes
    assert values["mine"] == {"steps": 1}
    assert "the plugin found" in Path("page.html").read_text()
    assert Path("picture.svg").read_text() == "a picture"
    assert len(json.loads(Path("again.json").read_text())["traceEvents"]) > 2


def test_an_analysis_that_does_not_apply_adds_nothing(install: Install, run: Run, trace: Path) -> None:
    alone = run("explain", str(trace))
    install("mine", ANALYSIS.replace("    return ExplanationPart(", "    return None and ExplanationPart("))

    assert run("explain", str(trace)) == alone
    code, _, error = run("explain", str(trace), "-o", "again.json")
    assert code == 2
    assert "again.json: needs a job of several replicas" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("return", "return 3 or"), "'mine' returned 3, expected an ExplanationPart or None"),
        (("return", "raise ValueError('bad day')\n    return"), "raised ValueError: bad day"),
        (("lambda: step", "lambda: 1 // 0 or step"), "raised ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_in_an_analysis_names_the_plugin(
    change: tuple[str, str], message: str, install: Install, run: Run, trace: Path
) -> None:
    install("mine", ANALYSIS.replace(*change))

    code, _, error = run("explain", str(trace), "-o", "again.json")

    assert code == 2
    assert "plugin 'mine' (pptrace-mine 1.2): " in error
    assert message in error


def test_where_no_plugin_compares_replicas_its_distribution_is_named(
    install: Install, run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del trace
    install("two", REPLICAS)
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "stragglers")
    Path("two.bin").write_text("two")

    code, _, notes = run("explain", "two.bin")

    assert code == 0
    assert "note: replicas are not compared; " in notes
    assert "pptrace-stragglers" in notes
