"""``pptrace calibrate``: fit costs and network to measured traces."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from pptrace.cli import complete
from pptrace.cli.measured_options import measured_options, read

__all__ = ["command"]

_EXAMPLES = """\b
pptrace calibrate run/ -o costs.yaml
pptrace simulate costs.yaml --schedule interleaved-1f1b --vp 2"""


@click.command("calibrate", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files()
)
@measured_options
@click.option(
    "-o", "--output", metavar="FILE", shell_complete=complete.files(), help="Write a configuration: .yaml."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    traces: tuple[Path, ...], layout: str, replica: str, rules: Path | None, output: str | None, *, as_json: bool
) -> None:
    """Fit times per stage, overhead and network to TRACES, files or a folder, all steps pooled."""
    from pptrace.export.output import replace_file
    from pptrace.stepdiff.calibrated_yaml import calibrated_yaml, calibration_lines
    from pptrace.stepdiff.calibration import calibrate
    from pptrace.stepdiff.times import performed

    if output is not None and not output.lower().endswith((".yaml", ".yml")):
        raise click.UsageError(f"{output}: a calibration is written as .yaml")
    measurement = read(traces, layout, replica, rules)
    fit = calibrate([performed(step.timeline) for step in measurement.steps])
    click.echo(json.dumps(asdict(fit), indent=2) if as_json else "\n".join(calibration_lines(fit)))
    if output is not None:
        with replace_file(Path(output)) as temporary:
            temporary.write_text(calibrated_yaml(fit, traces[0].name), encoding="utf-8")
        sys.stderr.write(f"wrote {output}\n")
