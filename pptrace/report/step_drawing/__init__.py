"""Gantt charts of a step: a lane per rank, waits coloured by cause, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline


def write_svg(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write a picture of ``timeline`` to ``path``; see :func:`pptrace.report.step_drawing.svg.write`."""
    from pptrace.report.step_drawing import svg

    svg.write(timeline, path, options)


def write_png(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write the same as PNG; see :func:`pptrace.report.step_drawing.figure.write`."""
    from pptrace.report.step_drawing import figure

    figure.write(timeline, path, ".png", options)


def write_pdf(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write the same as PDF; see :func:`pptrace.report.step_drawing.figure.write`."""
    from pptrace.report.step_drawing import figure

    figure.write(timeline, path, ".pdf", options)
