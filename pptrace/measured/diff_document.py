"""The document, the files and the Python object of a diff."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.quantities import format_rate, format_size, parse_share
from pptrace.files import compress
from pptrace.measured.dependencies import BETWEEN
from pptrace.measured.diff import diff
from pptrace.measured.diff_drawing import part_bars, strips, waterfall
from pptrace.measured.operations_diff import OperationsDiff, PrintedDiff, compare_operations
from pptrace.measured.sides import (
    PART_LABELS,
    NoActionsError,
    notes_on,
    on_common_ranks,
    read_side,
    simulation_of,
    split_step_option,
)
from pptrace.memo import Memo, memoizing
from pptrace.report.document import (
    Cell,
    Document,
    Line,
    Picture,
    Section,
    Table,
)
from pptrace.report.numbers import BARELY_NS, MARK, SIGMAS, Figure, change, ms, several_steps, share
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace.measured.diff import StepDiff
    from pptrace.measured.findings import Divergence, KindRow, Link
    from pptrace.measured.sides import Side
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Block
    from pptrace.report.numbers import Sides
    from pptrace.run.run import Run
    from pptrace.timeline.measurement import ImportRequest, Measurement

_MOST_NAMED = 4
"""The most kinds and stages in a verdict."""


def diff_document(findings: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> Document:
    """Return the document of a diff, with at most ``top`` actions; short for equal steps."""
    first, second = findings.steps
    equal = not findings.step_ns.change.value and first.equals(second)
    equality = f"{len(first)} actions in the same order, {len(first.transfers)} messages, all times equal"
    return Document(
        title=f"{findings.names[0]} and {findings.names[1]}",
        lead=(*_lead(findings), *([f"no difference: {equality}"] if equal else [])),
        sections=() if equal else tuple(_sections(findings, top)), notes=tuple(notes),
        partial=findings.partial, values=_values(findings, top, tuple(notes)),
    )  # fmt: skip


def verdict(findings: StepDiff) -> str:
    """Return whether the steps are equal, and the differences where only their lengths are equal."""
    if findings.same:
        return f"equal within {findings.tolerance:.1%}"
    if abs(findings.change) > findings.tolerance:
        quiet = findings.step_ns.change.deviation and findings.step_ns.change.is_noise
        return f"different{', but no more than steps of one side do' if quiet else ''}"
    reasons = (
        [f"{len(findings.orders)} rank{'s' * (len(findings.orders) > 1)} in order"] if findings.orders else []
    )
    changed = [row for row in findings.kinds.values() if not row.is_equal(findings.tolerance)]
    if changed:
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        reasons.append(f"times of {', '.join(f'{row.stage}{row.kind}' for row in changed[:_MOST_NAMED])}{more}")
    if findings.incomparable_reason:
        reasons.append("number of stages")
    if findings.one_sided:
        reasons.append("recorded data")
    return f"different: {' and '.join(reasons)}"


def _lead(findings: StepDiff) -> Iterator[Block]:
    changes = "", f"{change(findings.step_ns.change)} ({findings.change:+.2%})"
    yield Table(rows=tuple(zip(findings.names, map(ms, findings.step_ns), changes, strict=True)))
    yield Line(text=verdict(findings), tone="same" if findings.same else "different")
    if findings.partial:
        yield Line(text=f"partial data: {findings.partial}", tone="different")
    elif findings.ranks[0] != findings.ranks[1]:
        yield f"the first has {findings.ranks[0]} ranks, the second {findings.ranks[1]}"
    for name, spans, pools in zip(findings.names, findings.spans_ns, findings.pools, strict=True):
        if len(spans) > 1:
            used = "; actions and messages are medians over all" if pools else ""
            yield Line(text=f"{name}: {several_steps(spans)}{used}", tone="soft")
    if findings.varies:
        pooled = ", of medians over the steps where those are compared" if any(findings.pools) else ""
        meaning = f"± is one standard deviation from step to step{pooled}; ~ is noise: within {SIGMAS} of them"
        yield Line(text=meaning, tone="soft")
    yield Line(text=_describe_matches(findings), tone="soft")


def _describe_matches(findings: StepDiff) -> str:
    pairs = findings.matched
    if findings.incomparable_reason:
        return f"actions are not compared: {findings.incomparable_reason}"
    parts = [
        f"matched {len(pairs)} actions{f', {pairs.by_order} of them by order alone' if pairs.by_order else ''}"
    ]
    if pairs.only_first or pairs.only_second:
        parts.append(f"{pairs.only_first} are in the first step only, {pairs.only_second} in the second")
    if findings.folded:
        parts.append(
            f"stage {', '.join(map(str, findings.folded))}: input and weight gradient taken as one backward"
        )
    return "; ".join(parts)


def _sections(findings: StepDiff, top: int) -> Iterator[Section]:
    ladder = Table(
        rows=tuple((rung.name, change(rung.change_ns), ms(rung.reached_ns)) for rung in findings.ladder),
        unchanged=_true_indices(abs(rung.change_ns.value) < BARELY_NS for rung in findings.ladder),
    )
    drawn = Picture(draw=lambda: waterfall(findings), instead=ladder)
    yield Section(
        title="effect of each difference, one after another",
        about="The first step is replayed with the durations of the second, then also with its order, its "
        "transfers and so on. The rows sum to the whole difference.",
        blocks=(drawn if findings.ladder else f"not computed: {findings.no_ladder}",),
    )
    yield Section(
        title="effects of order and of times",
        about="The first order runs with the times and the network of the second step. Its difference from "
        "the second step is the effect of order, and the remainder is the effect of times.",
        blocks=order_share(findings), priority=3,
    )  # fmt: skip
    yield Section(
        title="parts of the step, mean over ranks", about="Each side's parts sum to its step.",
        blocks=(part_bars(findings), _comparison_table(findings.parts_ns)),
    )  # fmt: skip
    yield Section(
        title="communication in tp, cp and ep groups, all ranks",
        about="Collectives and exchanges of tokens, and their part that overlaps with computation of the rank.",
        blocks=(_comparison_table(findings.groups_ns),) if findings.groups_ns else (),
    )  # fmt: skip
    yield Section(
        title="time of an action, second over first, by stage",
        about="Ratio of the medians by kind and stage: above 1 is slower.",
        blocks=ratios(findings),
    )
    yield Section(title="times of actions by stage and kind", blocks=kinds(findings))
    picture, note = strips(findings)
    yield Section(
        title="both steps by rank and time",
        about="The first above, the second below, aligned where they start; numbers are microbatches, outlined "
        f"actions are the critical path, and the red frame is the first difference.{note}",
        blocks=(picture,),
    )
    yield Section(title="first difference", blocks=divergence(findings), priority=1)
    yield Section(
        title="slow or fast ranks, stages and links, and outliers", about=blame(findings),
        blocks=causes(findings), priority=2,
    )  # fmt: skip
    count = len(findings.changed)
    changed = f"largest changes, of {count} changed actions" if count else "no action changed"
    yield Section(title=changed, blocks=changes(findings, top))
    yield Section(title="order differs", blocks=orders(findings))
    yield Section(
        title="messages between ranks", about="Transfer times: from both ends ready to arrival.",
        blocks=messages(findings),
    )  # fmt: skip
    yield Section(title="critical path: time by kind and between actions", blocks=paths(findings))
    yield Section(title=_memory_title(findings), blocks=memory(findings))


def _values(findings: StepDiff, top: int, notes: tuple[str, ...]) -> dict[str, Any]:
    pairs = findings.matched
    return {
        "sides": findings.names,
        "same": findings.same,
        "tolerance": findings.tolerance,
        "step_ns": findings.step_ns,
        "change": findings.change,
        "matched": {
            "actions": len(pairs), "by_order": pairs.by_order,
            "only_first": pairs.only_first, "only_second": pairs.only_second,
            "folded_stages": findings.folded,
        },
        "ladder": findings.ladder,
        "no_ladder": findings.no_ladder or None,
        "order_and_times": findings.order_share,
        "parts_ns": findings.parts_ns,
        "groups_ns": findings.groups_ns,
        "kinds": tuple(findings.kinds.values()),
        "actions": findings.largest_changes(top),
        "actions_changed": len(findings.changed),
        "actions_within_noise": findings.within_noise,
        "divergence": findings.divergence,
        "causes": findings.causes,
        "remarks": findings.remarks,
        "orders": findings.orders,
        "messages": tuple(findings.links.values()),
        "critical_path_ns": findings.paths_ns,
        "paths_differ": findings.paths_differ,
        "memory": findings.memory,
        "spans_ns": findings.spans_ns,
        "medians_over_steps": findings.pools,
        "partial": findings.partial or None,
        "notes": notes,
    }  # fmt: skip


_MOST = 32
"""The most kinds, ranks and links in a table."""
_LEAST_SHADE_RANGE = math.log(1.1)
"""The lower bound of the logarithm of a ratio with the darkest shade."""
_COMPARISON_HEAD = ("first", "second", "change")


def _true_indices(values: Iterable[bool]) -> frozenset[int]:
    return frozenset(index for index, value in enumerate(values) if value)


def _comparison_table(times: Mapping[str, Sides]) -> Table:
    listed = {
        name: pair for name, pair in times.items() if any(figure.value for figure in pair) or name == BETWEEN
    }
    rows = tuple(
        (PART_LABELS.get(name, name), ms(pair.first), ms(pair.second), change(pair.change))
        for name, pair in listed.items()
    )
    unchanged = _true_indices(abs(pair.change.value) < BARELY_NS for pair in listed.values())
    return Table(head=("", *_COMPARISON_HEAD), rows=rows, unchanged=unchanged)


def ratios(findings: StepDiff) -> tuple[Block, ...]:
    """Return a heat map of ratios of medians, with a row per kind and a column per stage."""
    if not findings.kinds:
        return ()
    stages = sorted({stage for _, stage in findings.kinds})
    names = [kind.name for kind in Kind if any((kind.name, stage) in findings.kinds for stage in stages)]
    known = [row.ratio.value for row in findings.kinds.values() if row.ratio is not None]
    shade_range = max(_LEAST_SHADE_RANGE, *(abs(math.log(ratio)) for ratio in known), 0)
    rows = tuple(
        (name, *(_ratio_cell(findings.kinds.get((name, stage)), shade_range) for stage in stages))
        for name in names
    )
    unmatched = [f"{row.stage}{row.kind}" for row in findings.kinds.values() if not all(row.count)]
    return (
        Table(head=("", *map(str, stages)), rows=rows, splits=True),
        *([f"!: on one side only ({', '.join(unmatched)})"] if unmatched else []),
    )


def _ratio_cell(row: KindRow | None, shade_range: float) -> str | Cell:
    if row is None:
        return "-"
    title = (
        f"{row.kind} of stage {row.stage}: {row.count[0]} and {row.count[1]} actions, "
        f"median {ms(row.median_ns.first)} and {ms(row.median_ns.second)}"
    )
    ratio = row.ratio
    if ratio is None:
        return Cell(text="!", title=title, shade=0.0)
    text = f"{ratio.value:.3f}"
    if ratio.deviation is not None:
        noise = ratio.deviation and Figure(ratio.value - 1, ratio.deviation).is_noise
        text += f" ±{ratio.deviation:.3f}{MARK if noise else ''}"
    return Cell(text=text, title=title, shade=math.log(ratio.value) / shade_range)


def kinds(findings: StepDiff) -> tuple[Block, ...]:
    """Return numbers, medians and spreads by kind and stage, the largest change first."""
    ordered = sorted(findings.kinds.values(), key=lambda row: -abs(row.median_ns.change.value))
    rows = [
        (
            f"{row.stage}{row.kind}", _counts(row.count), *map(ms, row.median_ns),
            *(ms(median.spread or 0) for median in row.median_ns),
        )
        for row in ordered
    ]  # fmt: skip
    return _bounded_table(
        ("", "count", "median, first", "second", "spread, first", "second"),
        rows,
        "kinds with smaller changes",
        unchanged=_true_indices(row.is_equal(findings.tolerance) for row in ordered),
    )


def divergence(findings: StepDiff) -> tuple[Block, ...]:
    """Return the first divergence and the actions that released it."""
    first = findings.divergence
    if first is None:
        return ()
    releases = ", ".join(
        f"rank {release.rank}: {release.action}"
        f"{'' if release.late_ns is None else f' {ms(release.late_ns, sign=True)}'}"
        for release in first.chain
    )
    return (describe_divergence(first), *([f"released by {releases}"] if releases else []))


def describe_divergence(divergence: Divergence) -> str:
    """Return the first divergence in a sentence."""
    direction = "late" if divergence.late_ns.value > 0 else "early"
    times = [
        (divergence.local_ns, "from its duration"),
        (divergence.message_ns, f"from the transfer of its input from rank {divergence.source}"),
        (divergence.idle_ns, "from the host gap before it"),
        (divergence.released_ns, "from its last dependency"),
    ]
    reasons = ", ".join(f"{ms(time, sign=True)} {part}" for time, part in times if abs(time) >= BARELY_NS)
    ends = f"ends {ms(Figure(abs(divergence.late_ns.value), divergence.late_ns.deviation))} {direction}"
    order = (
        f"; it follows {divergence.predecessors[0]} in the first step, {divergence.predecessors[1]} in the second"
        if any(divergence.predecessors)
        else ""
    )
    place = f"at {ms(divergence.start_ns)}: rank {divergence.rank}, {divergence.action}"
    return f"{place} {ends}{reasons and f': {reasons}'}{order}"


def changes(findings: StepDiff, top: int) -> tuple[Block, ...]:
    """Return the actions with the largest changes."""
    noise = f"{findings.within_noise} further changes are noise between steps" if findings.within_noise else ""
    rows = tuple(
        (f"rank {row.rank}", str(row.action), *map(ms, (row.start_ns, row.first_ns, row.second_ns)),
         change(row.change_ns))
        for index, row in enumerate(findings.largest_changes(top))
        if abs(row.change_ns.value) > BARELY_NS or index == 0
    )  # fmt: skip
    table = Table(head=("", "", "starts at", *_COMPARISON_HEAD), rows=rows, words=2)
    return (*([table] if rows else []), *([Line(text=noise, tone="soft")] if noise else []))


def orders(findings: StepDiff) -> tuple[Block, ...]:
    """Return the first difference of order per rank."""
    rows = [
        (f"rank {order.rank}", order.first or "nothing", order.second or "nothing", str(order.position))
        for order in findings.orders
    ]
    return _bounded_table(("", "first has", "second has", "after equal actions"), rows, "ranks", words=3)


def messages(findings: StepDiff) -> tuple[Block, ...]:
    """Return messages by link: all links, or those with the largest changes."""
    ordered = sorted(
        findings.links.values(),
        key=lambda link: -abs(link.median_ns.change.value) if link.median_ns.change.known else 0.0,
    )
    listed = sorted(ordered[:_MOST], key=lambda link: (link.source, link.target))
    rows, unchanged = [], []
    for link in listed:
        times = [
            (ms(median) if median.known else "not seen", format_rate(round(rate)) if rate else "")
            for median, rate in zip(link.median_ns, link.bytes_per_s, strict=True)
        ]
        rows.append(
            (f"{link.source} to {link.target}", _counts(link.count), link_sizes(link), *times[0], *times[1])
        )
        change_ns = link.median_ns.change
        limit_ns = findings.tolerance * link.median_ns.first.value
        unchanged.append(change_ns.known and abs(change_ns.value) <= limit_ns)
    head = ("", "count", "size", "median, first", "rate", "second", "rate")
    return _bounded_table(
        head, rows, "links with smaller changes", total=len(findings.links),
        unchanged=_true_indices(unchanged),
    )  # fmt: skip


def link_sizes(link: Link) -> str:
    """Return the mean message size of a link, of both sides where they differ."""
    sizes = [size // max(count, 1) for size, count in zip(link.size_bytes, link.count, strict=True)]
    known = dict.fromkeys(format_size(size) if size else "?" for size in sizes)
    return "" if set(known) == {"?"} else ", ".join(known)


def paths(findings: StepDiff) -> tuple[Block, ...]:
    """Return time on both critical paths, and their last difference."""
    differ, table = findings.paths_differ, _comparison_table(findings.paths_ns)
    if differ is None:
        return (table,)
    predecessors = f"{differ.first or 'its start'} in the first, {differ.second or 'its start'} in the second"
    return table, f"differs {differ.common} computations before the end: {predecessors}"


def _memory_title(findings: StepDiff) -> str:
    if not any(rank.peak_bytes is not None for rank in findings.memory):
        return "microbatches whose activations are held, at most, by rank"
    capacities = {int(size) for metrics in findings.metrics for size in metrics.memory.device_bytes} - {0}
    devices = f" (a device has {format_size(capacities.pop())})" if len(capacities) == 1 else ""
    return f"memory at its peak{devices}, by rank"


def memory(findings: StepDiff) -> tuple[Block, ...]:
    """Return a row per rank: bytes where known on both sides, else numbers of activations."""
    rows = []
    for row in findings.memory:
        if row.peak_bytes is not None:
            first, second = row.peak_bytes
            difference = f"{'+' if second >= first else '-'}{format_size(abs(second - first))}"
            rows.append((f"rank {row.rank}", format_size(first), format_size(second), difference))
        else:
            first, second = row.activations
            rows.append((f"rank {row.rank}", str(first), str(second), f"{second - first:+}"))
    unchanged = _true_indices(row[1] == row[2] for row in rows)
    return _bounded_table(("", *_COMPARISON_HEAD), rows, "ranks", unchanged=unchanged)


def _counts(count: tuple[int, int]) -> str:
    return f"{count[0]}, {count[1]}"


def _bounded_table(
    head: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    omitted: str,
    *,
    words: int = 1,
    total: int = 0,
    unchanged: frozenset[int] = frozenset(),
) -> tuple[Block, ...]:
    """Return a table of at most ``_MOST`` rows and a line on omitted rows; nothing without rows."""
    more = max(total, len(rows)) - min(len(rows), _MOST)
    folded = frozenset(row for row in unchanged if row < _MOST)
    table = Table(head=head, rows=tuple(rows[:_MOST]), words=words, unchanged=folded)
    note = Line(text=f"and {more} further {omitted}", tone="soft")
    return (*([table] if rows else []), *([note] if more else []))


def blame(findings: StepDiff) -> str:
    """Return the first cause in a sentence; empty where none contributes in the direction of the change.

    A change within the uncertainty of recordings has no first cause.
    """
    if abs(findings.step_ns.change.value) < findings.uncertainty_ns:
        limit = ms(findings.uncertainty_ns)
        return f"The lengths of the steps are equal within the uncertainty of recordings and clocks, {limit}."
    longer = findings.step_ns.change.value > 0
    cause = next(iter(findings.causes), None)
    known = cause is not None and cause.effect_ns.known
    if cause is None or ((cause.effect_ns.value if known else cause.total_ns) > 0) != longer:
        return ""
    lead = f"Largest {'slowdown' if longer else 'speed-up'}{' of times' if findings.order_share else ''}"
    times = f"durations {share(cause.share, sign=True)}, " if cause.share.value else ""
    kind = cause.kind if cause.kind == "spikes" else f"a {cause.kind}"
    effect = f"; effect on the step {ms(cause.effect_ns, sign=True)}" if known else ""
    return f"{lead}, {kind}: {cause.what}; {times}{ms(cause.total_ns, sign=True)} in total{effect}."


def order_share(findings: StepDiff) -> tuple[Block, ...]:
    """Return the effects of order and times, the larger first."""
    parts = findings.order_share
    if parts is None:
        return ()
    ranks = f"{len(findings.orders)} rank{'s' if len(findings.orders) > 1 else ''}"
    effects = [
        (f"the order of {ranks}, with the second's times and network", parts.order_ns),
        ("times of actions and messages, in the first's order", parts.times_ns),
    ]
    effects.sort(key=lambda effect: -abs(effect[1].value))
    if abs(parts.rest_ns.value) >= BARELY_NS:
        effects.append(("neither: not explained by replays, before and after the pipeline", parts.rest_ns))
    total_ns = findings.step_ns.change.value
    rows = tuple(
        (name, change(part), "" if abs(total_ns) < BARELY_NS else f"{part.value / total_ns + 0.0:.1%}")
        for name, part in effects
    )
    return (Table(head=("", "changes the step by", "of the difference"), rows=rows),)


def causes(findings: StepDiff) -> tuple[Block, ...]:
    """Return the causes, and remarks on changes with little effect on the step."""
    rows = tuple(
        (
            cause.kind,
            cause.what,
            share(cause.share, sign=True) if cause.share.value else "",
            ms(cause.total_ns, sign=True),
            *([ms(cause.effect_ns, sign=True)] if cause.effect_ns.known else []),
        )
        for cause in findings.causes
    )
    head = ("", "", "durations", "in total", "effect on the step")
    table = Table(head=head[: len(rows[0])] if rows else (), rows=rows, words=2)
    remarks = [
        f"{remark.kind} {remark.what} {ms(remark.total_ns, sign=True)}" for remark in findings.remarks[:_MOST]
    ]
    remark = Line(text=f"little effect on the step: {', '.join(remarks)}", tone="soft")
    return (*([table] if rows else []), *([remark] if remarks else []))


class Diff(PrintedDiff, Struct, frozen=True):
    """The diff of two steps; its text is the output of the command line."""

    findings: StepDiff
    sides: tuple[Side, Side]
    notes: tuple[str, ...]
    """Notes of both sides."""

    @property
    def same(self) -> bool:
        """Whether the steps are equal within the tolerance."""
        return self.findings.same

    @property
    def change(self) -> float:
        """The relative change of the length of the step."""
        return self.findings.change

    @property
    def no_gate(self) -> str:
        """The reason why no gate on the length of a step applies; empty where it applies."""
        first, second = self.findings.ranks
        return self.findings.partial or (f"the first has {first}, this one {second}" if first != second else "")

    @property
    def names(self) -> tuple[str, str]:
        """The sides."""
        return self.findings.names

    def document(self, top: int = 10) -> Document:
        """Return the document, with at most ``top`` actions."""
        return diff_document(self.findings, top, self.notes)

    def _write_trace(self, path: Path, target: Path) -> None:
        from pptrace.measured.diff_scene import write_bundle, write_diff_trace

        name = target.name.lower()
        if name.endswith(".tar"):
            write_bundle(path, self.findings, self.sides)
        elif name.endswith(".gz"):
            uncompressed = path.with_suffix(".plain")
            write_diff_trace(uncompressed, self.findings, self.sides)
            compress(uncompressed, path)
        else:
            write_diff_trace(path, self.findings, self.sides)


def compare_steps(
    first: str | Path | Run | Measurement,
    second: str | Path | Run | Measurement,
    tolerance: float | str,
    step: str,
    request: ImportRequest,
    registry: Registry,
) -> Diff | OperationsDiff:
    """Read or simulate two steps and compare them; see :func:`pptrace.api.diff`.

    Of two traces without actions, operations are compared.

    Raises:
        PptraceError: a step cannot be read or simulated.
    """
    equal = parse_share(tolerance, "tolerance")
    steps = split_step_option(step)
    with memoizing(Memo()):  # the analyses of a step share the index of its rows
        try:
            a = read_side(first, steps[0], registry, request)
        except NoActionsError as error:
            with_operators = replace(request, operators=True)
            measurements = (
                _without_actions(first, error, registry, with_operators),
                _without_actions(second, error, registry, with_operators),
            )
            names = [
                str(source) if isinstance(source, str | Path) else "a measurement" for source in (first, second)
            ]
            return compare_operations(measurements, (names[0], names[1]), equal)
        # The clocks of a machine are the same in two runs; fitted again, a link that became slow would move them.
        b = read_side(second, steps[1], registry, replace(request, clocks=a.clock_offsets_ns))
        a, b = on_common_ranks(a, b)
        simulated = not a.measured and not b.measured
        simulations = (simulation_of(a, registry), simulation_of(b, registry)) if simulated else (None, None)
        return Diff(diff(a, b, equal, simulations), (a, b), tuple(notes_on((a, b), step, request)))


def _without_actions(
    source: str | Path | Run | Measurement, of_first: NoActionsError, registry: Registry, request: ImportRequest
) -> Measurement:
    """Return the content of a side without actions.

    Raises:
        NoActionsError: ``of_first``, the error of the first side, where this side has actions or no operation.
    """
    try:
        read_side(source, "median", registry, request)
    except NoActionsError as error:
        if error.measurement.kernels:
            return error.measurement
    raise of_first
