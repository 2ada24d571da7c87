"""An explained step as a document, and what a measurement without actions still tells."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from pptrace.analysis.explanation.operations import Total, by_name, by_rank, total_of
from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.path import BETWEEN
from pptrace.config.quantity import format_rate, format_size
from pptrace.present.document import Document, Line, Section, Table
from pptrace.present.figures import ms, several_steps, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.explanation.explanation import Explanation
    from pptrace.present.document import Block
    from pptrace.timeline.measurement import Measurement, Summary

__all__ = ["TO_SEE_ACTIONS", "UNRECORDED", "brief", "explanation_document", "operations_document"]

TO_SEE_ACTIONS = (
    "to see a pipeline's actions, mark them where they run (pptrace annotate prints a module for that), or say in "
    "a file how the annotations that are there name them (--rules FILE)"
)
"""What to do about traces without actions."""
UNRECORDED = "waits for what nobody recorded, {} on all ranks, stay as long as they were"
"""What is said of replays of some ranks alone."""


def explanation_document(
    name: str, one: Explanation, lengths_ns: Sequence[int], measurement: Measurement | None = None
) -> Document:
    """Return where a step's time went.

    Args:
        name: where the step comes from.
        one: the step; its figures have deviations where there are several.
        lengths_ns: how long all of them are.
        measurement: what else was recorded; None of a simulation.
    """
    unattributed = measurement.unattributed if measurement is not None else ()
    lost = (
        f"rank {work.rank}: {work.count} {work.what} belong to no action, {ms(work.total_ns)}"
        for work in unattributed
    )
    notes = measurement.notes if measurement is not None else ()
    return Document(
        title=f"{name}, {one.step}", lead=tuple(_lead(name, one, lengths_ns)),
        sections=(
            Section(title="parts of the step, mean over ranks", blocks=_parts(one)),
            Section(title="ranks", blocks=(_ranks(one),)),
            Section(title="critical path: computations, and what lies between", blocks=(_path(one),)),
            Section(title="the pipeline would take, from its first computation to its last", blocks=_without(one)),
            Section(title="what belongs to no action", blocks=tuple(Line(text=line) for line in lost)),
        ),
        values={
            **{field.name: getattr(one, field.name) for field in fields(one)},
            "lengths_ns": lengths_ns, "unattributed": unattributed, "notes": notes,
        },
    )  # fmt: skip


def _lead(name: str, one: Explanation, lengths_ns: Sequence[int]) -> list[Block]:
    lines = [f"{name}, {one.step}: step {ms(one.step_ns)}, bubble {share(one.bubble, 2)}"]
    if len(lengths_ns) > 1:
        lines.append(f"{several_steps(lengths_ns)}; ± is one standard deviation from step to step")
    return [Line(text=line) for line in lines]


def _parts(one: Explanation) -> tuple[Block, ...]:
    whole = max(sum(time.value for time in one.parts_ns.values()), 1)
    rows = tuple(
        (part, ms(time), f"{time.value / whole:.1%}") for part, time in one.parts_ns.items() if time.value
    )
    exposed, ranks = one.exposed_communication_ns, len(one.ranks)
    mean = Figure(exposed.value / ranks, None if exposed.deviation is None else exposed.deviation / ranks)
    hidden = f"communication that nothing hid: {ms(mean)} ({mean.value / max(one.step_ns.value, 1):.1%})"
    groups = (
        f"{name}: {ms(time)} on all ranks, of it {ms(one.hidden_ns[name])} hidden by computation "
        f"({one.hidden_ns[name].value / max(time.value, 1):.1%})"
        for name, time in one.groups_ns.items()
    )
    return Table(rows=rows), Line(text=hidden), *(Line(text=line) for line in groups)


def _ranks(one: Explanation) -> Table:
    rows = tuple(
        (f"rank {rank.rank}", ms(rank.busy_ns), ms(idle), f"{rank.share.value:+.1%}")
        for rank, idle in zip(one.ranks, one.idle_ns, strict=True)
    )
    return Table(head=("", "computing", "idle", "against the median"), rows=rows)


def _path(one: Explanation) -> Table:
    path = one.critical_path_ns.items()
    return Table(rows=tuple((kind, ms(time)) for kind, time in path if time.value or kind == BETWEEN))


def _without(one: Explanation) -> tuple[Block, ...]:
    without = one.what_if
    if without is None:
        return (Line(text=f"it is not known what less, for it cannot be replayed: {one.no_what_if}"),)
    rows = [("as it was, replayed", ms(without.replayed_ns), "")]
    for text, length in (
        ("with free communication", without.free_communication_ns),
        ("without host gaps", without.no_host_gaps_ns),
        (f"with rank {without.slowest.rank} repaired, the slowest", without.repaired_ns),
        ("without any bubble", without.no_bubble_ns),
    ):
        rows.append((text, ms(length), f"{length.value / max(without.replayed_ns.value, 1) - 1:+.1%}"))
    kept = UNRECORDED.format(ms(one.unrecorded_ns))
    return Table(rows=tuple(rows)), *((Line(text=kept),) if one.unrecorded_ns.value else ())


def operations_document(measurement: Measurement, name: str, top: int = 10) -> Document:
    """Return a table by rank, one by name, and what to do; ``top`` bounds the names of each sort."""
    operations = measurement.summaries
    ranks = by_rank(operations)
    clocks = (
        f"clock of rank {clock.rank}: set by {clock.offset_ns / 1e6:+.3f} (±{clock.bound_ns / 1e6:.3f}) ms"
        for clock in measurement.clocks
        if clock.pairs
    )
    return Document(
        title=name, lead=(Line(text=f"{name}: no action of a pipeline was found; its operations, times in sum"),),
        sections=(
            Section(title="by rank", blocks=(_by_rank(ranks),)),
            Section(title="each GPU from its first operation to its last", blocks=_occupied(measurement)),
            *(
                Section(title=f"{title}, all ranks", blocks=_by_name(operations, top, communicates=communicates))
                for communicates, title in ((True, "communication"), (False, "computation"))
            ),
            Section(title="to go on", blocks=tuple(Line(text=line) for line in (*clocks, TO_SEE_ACTIONS))),
        ),
        values={
            "step": None,
            "ranks": [{"rank": rank, **totals} for rank, totals in ranks.items()],
            "occupied": measurement.occupied,
            "summaries": operations,
            "clocks": measurement.clocks,
            "unattributed": measurement.unattributed,
            "notes": [*measurement.notes, TO_SEE_ACTIONS],
        },
    )  # fmt: skip


def brief(name: str) -> str:
    """Return a kernel's name without its parameters.

    >>> brief("void at::native::(anonymous namespace)::fill<int, (kind)2>(int*, long)")
    'at::native::fill<int, (kind)2>'
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            return plain[:at] or plain
    return plain


def _by_rank(ranks: dict[int, dict[str, Total]]) -> Table:
    rows = []
    for rank, totals in ranks.items():
        sent, computed = totals["communication"], totals["computation"]
        size = _size(sent.size_bytes)
        counts = f"{sent.count:,}", f"{computed.count:,}"
        rows.append((f"rank {rank}", ms(sent.total_ns), counts[0], size, ms(computed.total_ns), counts[1]))
    return Table(head=("", "communication", "operations", "bytes", "computation", "operations"), rows=tuple(rows))


def _occupied(measurement: Measurement) -> tuple[Block, ...]:
    rows = []
    for gpu in measurement.occupied:
        parts = (gpu.computing_ns, gpu.exposed_ns, gpu.idle_ns)
        whole = sum(parts)
        shares = (f"{ms(part)} {part / max(whole, 1):6.1%}" for part in parts)
        rows.append((f"rank {gpu.rank}", ms(whole), *shares))
    table = Table(head=("", "in all", "computing", "exposed communication", "idle"), rows=tuple(rows))
    return (table,) if rows else ()


def _by_name(operations: Sequence[Summary], top: int, *, communicates: bool) -> tuple[Block, ...]:
    """Return a row per name, the longest in sum first, and one of the rest; sizes and rates where any is known."""
    totals = by_name([one for one in operations if one.communicates == communicates])
    listed = {brief(what): total for what, total in list(totals.items())[:top]}
    rest = list(totals.values())[top:]
    if rest:
        listed[f"{len(rest)} further names"] = total_of(rest)
    columns = 6 if any(total.size_bytes for total in totals.values()) else 4
    rows = tuple(_operation(name, total)[:columns] for name, total in listed.items())
    head = ("", "how many", "in sum", "each", "bytes", "a second")
    return (Table(head=head[:columns], rows=rows),) if rows else ()


def _operation(name: str, total: Total) -> tuple[str, ...]:
    size, time = total.size_bytes, total.total_ns
    rate = format_rate(round(size * 1e9 / time)) if size and time else ""
    return name, f"{total.count:,}", ms(time), ms(time / max(total.count, 1)), _size(size), rate


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else ""
