"""The options of commands that read measured traces."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.timeline.measurement import ImportRequest, Measurement

__all__ = ["measured_options", "read"]

_OPTIONS = (
    click.option("--layout", default="", help="Sizes of the job, such as pp=4,tp=2, where its traces do not say."),
    click.option("--replica", default="", help="Which pipeline of the job: dp=0,tp=0, slowest or median."),
    click.option(
        "--rules", type=click.Path(path_type=Path), help="A YAML file of rules by which names are actions."
    ),
)


def measured_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--layout``, ``--replica`` and ``--rules`` to a command, which gets them as one ``request``."""

    @wraps(function)
    def command(layout: str, replica: str, rules: Path | None, **given: Any) -> Any:
        from pptrace.timeline.measurement import ImportRequest

        return function(request=ImportRequest(layout=layout, replica=replica, rules=rules), **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read(
    traces: Sequence[Path], request: ImportRequest, *, without_actions: bool = False
) -> tuple[Measurement, bool]:
    """Read measured traces, or ours; what is noted goes to standard error.

    Returns:
        The measurement, and whether it was recorded, and is no simulation's trace.

    Raises:
        TraceError: they cannot be read, or hold no action of a pipeline and are not taken ``without_actions``.
    """
    from pptrace.analysis.steps.sides import no_actions
    from pptrace.errors import TraceError
    from pptrace.experiment.measured import read_measurement
    from pptrace.hooks.registry import Registry

    measurement, measured = read_measurement(traces, Registry.load(), request)
    if not measurement.steps and not without_actions:
        raise TraceError(no_actions(measurement), file=traces[0])
    for note in measurement.notes:
        click.echo(printable_line(f"note: {note}"), err=True)
    return measurement, measured
