"""``pptrace validate``: check a schedule table in a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from pptrace.cli.options import complete_offers, read_table
from pptrace.cli.output import echo_documents
from pptrace.config.choices import Receive

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule

_EXAMPLES = """\b
pptrace validate table.csv
pptrace validate table.csv --p2p ordered --receive deferred"""


@click.command("validate", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--p2p", metavar="POLICY", shell_complete=complete_offers("message_policies"),
    help="Check for deadlock under this policy too.",
)  # fmt: skip
@click.option(
    "--receive", type=click.Choice(Receive.words()),
    help="Where receives go in a table without messages; by default deferred under batched, else asap.",
)  # fmt: skip
def command(file: Path, p2p: str | None, receive: str | None) -> None:
    """Check the schedule table in FILE (.csv or .txt): every action once and in place, no deadlock.

    Exits with 0 if the table is valid, and with 2 and one line if it is not.
    """
    from pptrace.report.document import Document
    from pptrace.steps.kinds import Kind

    schedule = read_table(file).schedule
    if p2p is not None:
        _simulate(schedule, p2p, receive)
    condition = f", also under p2p {p2p}" if p2p else ""
    kinds = Counter(Kind(kind).name for kind in schedule.kind.tolist())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    sizes = f"{schedule.ranks} ranks, {schedule.stages} stages, {schedule.microbatches} microbatches"
    echo_documents(Document(title="table", lead=[f"{file}: valid{condition}: {sizes} ({counts})"]), as_json=False)


def _simulate(schedule: Schedule, p2p: str, receive: str | None) -> None:
    from pptrace.network.contract import Flat
    from pptrace.plugins.construction import build_policy, checked_options
    from pptrace.plugins.registry import Registry
    from pptrace.sim.simulation import simulate
    from pptrace.steps.workload import Workload

    provided = Registry.load().message_policies[p2p]
    policy = build_policy(provided, schedule, checked_options(provided, {}, "p2p.options"))
    if receive is not None and policy.program is None:
        policy = replace(policy, receive=Receive(receive))
    costs = Workload.uniform(
        schedule.stages, f_ns=1, b_ns=2, boundary_bytes=1, edges=int(schedule.placement.edges.shape[0])
    )
    simulate(schedule, costs, Flat(), policy)
