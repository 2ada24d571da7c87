"""``pptrace diff``: compare two steps action by action."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pptrace.cli.options import complete_files, json_option, measured_options, outputs_option, share
from pptrace.cli.output import echo_documents, report_written

if TYPE_CHECKING:
    from pptrace.measured.diff_document import Diff
    from pptrace.measured.operations_diff import OperationsDiff
    from pptrace.timeline.measurement import ImportRequest

_EXAMPLES = """\b
pptrace diff step.yaml run/
pptrace diff yesterday/ today/ --fail-over 3%
pptrace diff run/ run/ --step 1,3
pptrace diff step.yaml run/ -o report.html -o both.pftrace"""

_SAME, _DIFFERENT = 0, 1


@click.command("diff", epilog=_EXAMPLES)
@click.argument("first", shell_complete=complete_files)
@click.argument("second", shell_complete=complete_files)
@click.option(
    "--tolerance", type=share, default="2%", show_default=True, help="Relative difference that counts as equal."
)
@click.option("--fail-over", type=share, help="Gate: fail only where the second step is longer by more than this.")
@click.option(
    "--step", default="median", show_default=True,
    help="Which step of a recording: a number, median, or all (medians over all steps); 1,3 for one per side.",
)  # fmt: skip
@measured_options
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Actions that are listed.")
@outputs_option(
    "Write a report (.html, .md), both steps as one trace (.pftrace), or all files for the viewer (.tar)."
)
@json_option()
def command(
    first: str,
    second: str,
    tolerance: float,
    fail_over: float | None,
    step: str,
    request: ImportRequest,
    top: int,
    outputs: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Compare the steps FIRST and SECOND, each a configuration, a table, a trace or a folder of traces.

    Exits with 0 if the steps are the same, 1 if they differ, and 2 for an error.
    """
    from pptrace.files import check_targets
    from pptrace.measured.diff_document import compare_steps
    from pptrace.measured.operations_diff import DIFF_SUFFIXES
    from pptrace.plugins.registry import Registry

    check_targets(outputs, DIFF_SUFFIXES, "a diff")
    difference = compare_steps(first, second, tolerance, step, request, Registry.load())
    echo_documents(difference.document(top), as_json=as_json)
    report_written(difference.save(*outputs, top=top))
    sys.exit(_exit_code(difference, fail_over))


def _exit_code(difference: Diff | OperationsDiff, fail_over: float | None) -> int:
    from pptrace.errors import TraceError

    if fail_over is None:
        return _SAME if difference.same else _DIFFERENT
    if difference.no_gate:
        raise TraceError(
            f"--fail-over gates whole steps of as many ranks: {difference.no_gate}", file=difference.names[1]
        )
    return _DIFFERENT if difference.change > fail_over else _SAME
