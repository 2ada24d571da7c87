"""``pptrace replay``: re-simulate measured steps with their order and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pptrace.cli.options import (
    complete_offers,
    json_option,
    measured_options,
    output_option,
    read,
    traces_argument,
)
from pptrace.cli.output import echo_documents, echo_notes, report_written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.steps.message_calls import Policy
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.measurement import ImportRequest, Measurement

_EXAMPLES = """\b
pptrace replay run/
pptrace replay run/ --p2p torch -o replay.pftrace
pptrace replay run/ --p2p torch --p2p-option receive=deferred"""


@click.command("replay", epilog=_EXAMPLES)
@traces_argument("traces")
@measured_options
@click.option(
    "--p2p", metavar="POLICY", shell_complete=complete_offers("message_policies"),
    help="Issue messages as this policy does; by default the nearest policy, or recorded delays.",
)  # fmt: skip
@click.option(
    "--p2p-option",
    "p2p_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of that policy, as under p2p.options; may be repeated.",
)
@output_option("Write the replay of the first step.")
@json_option()
def command(
    traces: tuple[Path, ...],
    request: ImportRequest,
    p2p: str | None,
    p2p_options: tuple[str, ...],
    output: str | None,
    *,
    as_json: bool,
) -> None:
    """Replay the steps in TRACES from their order, durations, transfers and gaps, without their start times."""
    from pptrace.errors import ScheduleError
    from pptrace.measured.explanation import replay_document
    from pptrace.measured.replay import Replayed, replay

    if p2p_options and p2p is None:
        raise click.UsageError("--p2p-option is for a policy: name it with --p2p")
    policy = None if p2p is None else _policy(p2p, _parsed_options(p2p_options))
    measurement, measured = read(traces, request)
    if policy is None:
        policy = _nearest(measurement, measured=measured)
    replays: dict[str, Replayed] = {}
    failed = {}
    for step in measurement.steps:
        try:
            replays[step.label] = replay(step.timeline, policy, lacks_ranks=bool(measurement.numbers))
        except ScheduleError as error:
            failed[step.label] = error
    if not replays:
        raise next(iter(failed.values()))
    echo_notes(f"{label} is skipped: {reason}" for label, reason in failed.items())
    echo_documents(replay_document(replays), as_json=as_json)
    if output is not None:
        from pptrace.measured.dependencies import explain_waits
        from pptrace.plugins.registry import Registry
        from pptrace.run.trace_files import save

        exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
        timeline = explain_waits(next(iter(replays.values())).timeline)
        report_written(save(timeline, [output], exporters, {"color": "kind"}))


def _nearest(measurement: Measurement, *, measured: bool) -> Callable[[Schedule], Policy] | None:
    """Return a factory of the policy nearest to the first step; None if the causes of message delays are known."""
    from pptrace.measured.computations import extract_computations
    from pptrace.measured.replay import nearest_policy
    from pptrace.plugins.registry import Registry

    step = extract_computations(measurement.steps[0].timeline, lacks_ranks=bool(measurement.numbers))
    if step.partial or step.transfers.blocked_ns.any():
        return None
    nearest = nearest_policy(step, Registry.load(), measured=measured, p2p=measurement.p2p)
    label = nearest.policy.label
    reason = "that of the run" if measurement.p2p.get("policy") == label else "the nearest one"
    echo_notes([f"replayed with the message policy {label}, {reason}; --p2p selects another"])
    return _policy(label, nearest.options)


def _parsed_options(option_texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``KEY=VALUE`` options."""
    from pptrace.config.overrides import parse_value

    pairs = [text.partition("=") for text in option_texts]
    incomplete = next((key for key, equals, _ in pairs if not (key and equals)), None)
    if incomplete is not None:
        raise click.UsageError(f"--p2p-option {incomplete}: write KEY=VALUE")
    return {key: parse_value(value, f"--p2p-option {key}") for key, _, value in pairs}


def _policy(name: str, values: Mapping[str, Any]) -> Callable[[Schedule], Policy]:
    """Return a factory that builds a policy with options for an order."""
    from pptrace.plugins.construction import build_policy, checked_options
    from pptrace.plugins.registry import Registry

    provided = Registry.load().message_policies[name]
    options = checked_options(provided, values, "p2p.options")
    return lambda order: build_policy(provided, order, options)
