"""``pptrace explain``: where the time of a measured step went, and what would shorten it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.cli import complete
from pptrace.cli.measured_options import measured_options, read

if TYPE_CHECKING:
    from pptrace.stepdiff.sides import Side
    from pptrace.stepdiff.what_if import RankBusy, WhatIf
    from pptrace.timeline.measurement import Measurement

__all__ = ["command"]

_EXAMPLES = """\b
pptrace explain run/
pptrace explain run/ --step 2 --json"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), shell_complete=complete.files()
)
@measured_options
@click.option("--step", default="median", show_default=True, help="Which step: a number, median or all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    traces: tuple[Path, ...], layout: str, replica: str, rules: Path | None, step: str, *, as_json: bool
) -> None:
    """Say where the time of a step in TRACES went: parts, causes, ranks, and what would shorten it.

    Where no action of a pipeline is found: communication and computation by rank and name.
    """
    from pptrace.stepdiff.parts import parts_of
    from pptrace.stepdiff.sides import measured_side
    from pptrace.stepdiff.times import performed
    from pptrace.stepdiff.what_if import busy_by_rank, what_if

    measurement = read(traces, layout, replica, rules, without_actions=True)
    if not measurement.steps:
        _summed(measurement, str(traces[0]), as_json=as_json)
        return
    spans = [performed(one.timeline).span_ns for one in measurement.steps]
    steps = [str(number) for number in range(len(spans))] if step == "all" else [step]
    found = []
    for one in steps:
        side = measured_side(measurement, str(traces[0]), one)
        found.append((side, spans, parts_of(side), busy_by_rank(side.performed), what_if(side.performed)))
    if as_json:
        documents = [_document(*one) for one in found]
        click.echo(json.dumps(documents if step == "all" else documents[0], indent=2))
    else:
        click.echo("\n\n".join("\n".join(_lines(*one)) for one in found))


def _summed(measurement: Measurement, name: str, *, as_json: bool) -> None:
    from pptrace.stepdiff.summed import summed_document, summed_lines

    told = (
        json.dumps(summed_document(measurement), indent=2)
        if as_json
        else "\n".join(summed_lines(measurement, name))
    )
    click.echo(told)


def _lines(
    side: Side, spans: list[int], parts: dict[str, int], ranks: tuple[RankBusy, ...], without: WhatIf
) -> list[str]:
    from pptrace.stepdiff.told import ms

    metrics, label = side.metrics, side.steps[side.chosen].label
    lines = [f"{side.name}, {label}: step {ms(metrics.step_ns)}, bubble {float(metrics.bubble):.2%}"]
    if len(spans) > 1:
        middle = sorted(spans)[(len(spans) - 1) // 2]
        lines.append(f"{len(spans)} steps: {ms(min(spans))} to {ms(max(spans))}, median {ms(middle)}")
    whole = max(sum(parts.values()), 1)
    lines += ["", "parts of the step, mean over ranks"]
    lines += [f"  {name:<16}  {ms(time):>14}  {time / whole:6.1%}" for name, time in parts.items() if time]
    lines += ["", "ranks: computing, idle"]
    for one in ranks:
        idle = int(metrics.idle_ns[one.rank].sum())
        lines.append(
            f"  rank {one.rank:<3}  {ms(one.busy_ns):>14}  {ms(idle):>14}  {one.share:+.1%} of the median's work"
        )
    lines += ["", "the pipeline would take", f"  {ms(without.replayed_ns):>14}  as it was, replayed"]
    for text, length in (
        ("with free communication", without.free_communication_ns),
        ("without gaps of the host", without.no_gaps_ns),
        (f"with rank {without.slowest.rank} repaired, the slowest", without.repaired_ns),
        ("without any bubble", without.no_bubble_ns),
    ):
        lines.append(f"  {ms(length):>14}  {text} ({length / max(without.replayed_ns, 1) - 1:+.1%})")
    measurement = side.measurement
    return [
        *lines,
        *(
            f"rank {work.rank}: {work.count} {work.what} belong to no action, {ms(work.total_ns)}"
            for work in (measurement.unattributed if measurement else ())
        ),
    ]


def _document(
    side: Side, spans: list[int], parts: dict[str, int], ranks: tuple[RankBusy, ...], without: WhatIf
) -> dict[str, Any]:
    from dataclasses import asdict

    metrics, measurement = side.metrics, side.measurement
    return {
        "step": side.steps[side.chosen].label,
        "step_ns": metrics.step_ns,
        "bubble": float(metrics.bubble),
        "spans_ns": spans,
        "parts_ns": parts,
        "idle_by_cause_ns": metrics.idle_by_cause_ns,
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "ranks": [asdict(one) for one in ranks],
        "what_if": asdict(without),
        "unattributed": [asdict(one) for one in measurement.unattributed] if measurement else [],
        "notes": list(measurement.notes) if measurement else [],
    }
