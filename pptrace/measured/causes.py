"""Causes of the difference of two steps: slow or fast kinds, ranks, stages and links, and outliers.

Ratios of durations have three factors: common to all ranks, of a kind on all ranks, and of a rank or a part of it.
Each factor is a median over actions, relative to the factors before it. A link is compared by the messages that
both steps observed, because other messages are observed where ranks wait elsewhere.

The effect of a cause is a replay: how much shorter the second step is without it, and without the causes that were
found before. So a cause that only repeats another one has no effect. Small effects are remarks.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import comb, hypot, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.measured.computations import group_quantiles
from pptrace.measured.matching import has_same_stages
from pptrace.report.numbers import SIGMAS, Figure, Sides, ms
from pptrace.steps.kinds import TOWARDS_NEXT, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations
    from pptrace.measured.findings import Link
    from pptrace.measured.matching import MatchedActions
    from pptrace.steps.columns import Int64s

_FEWEST = 3
_OUTLIER_FACTOR = 5
"""Median deviations above the median from which a single action is a spike."""
_MEDIAN_ERROR = 1.858
"""Standard error of a median of n values, as a multiple of their median deviation over the root of n."""
_LEAST_OF_DIFFERENCE = 0.05
"""The effect of a cause is at least this share of the difference of the steps."""
_LEAST_OF_STEP = 0.002
"""The effect of a cause is at least this share of the second step."""
_LEAST_OF_LARGEST = 0.1
"""The effect of a cause is at least this share of the largest effect."""
_NEARLY = 0.1
"""The share by which times may differ that are about the same."""
_MOST_STAGES = 2**20
_MOST_REPLAYED = 24
"""The most candidates whose effect is replayed: those with the largest total change."""

Cell = tuple[int, int, int]
"""Rank, stage and kind."""
Ends = tuple[int, int]
"""Sender and receiver of a link."""


class Cause(Struct, frozen=True, kw_only=True):
    """A slow or fast kind, rank, stage or link, or outliers of a rank."""

    kind: str
    """``drift`` (everything), ``slow kind``, ``slow rank``, ``slow stage``, ``slow network`` (all links), ``slow
    link``; the same with ``fast``; ``host gaps``; ``spikes``."""
    what: str
    """The name of the kind, rank, stage or link."""
    share: Figure
    """The relative change of its times; 0 for spikes."""
    total_ns: int
    """The total change of its times."""
    effect_ns: Figure = field(default_factory=lambda: Figure(nan))
    """Its effect on the length of the second step, without the causes before it; unknown without replays."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A possible cause."""

    cause: Cause
    """The cause, without its effect."""
    without: Callable[[Computations], Computations]
    """Returns a step without it."""
    rank: int | None = None
    """The slow rank; None for another cause."""
    only_replayed: bool = False
    """Whether it changes times of messages or host gaps, which a simulation does not take over."""


class LinkChange(Struct, frozen=True, kw_only=True):
    """The change of the messages of a link."""

    share: Figure
    """The relative change beyond the common change of links."""
    first_ns: float
    """The median in the first step."""
    common_ns: float
    """The part of its change that all links have in common."""
    own_ns: float
    """The median change beyond that part."""
    error_ns: float
    """The standard error of the median change from message to message."""


class Blame(Struct, frozen=True, kw_only=True):
    """Relative slowdowns: medians over actions, divided by the slowdowns that they have in common."""

    common: Figure = Figure(0.0)
    """The common slowdown of ranks: the median; of two middle values, the value nearer to 0."""
    kinds: Mapping[int, Figure] = {}
    """The slowdown of each kind on all ranks beyond the common slowdown; 0 where kinds differ by chance only."""
    ranks: Mapping[int, Figure] = {}
    """The slowdown of each rank beyond the common slowdown and that of kinds."""
    stages: Mapping[tuple[int, int], Figure] = {}
    """The same of each stage of a rank."""
    cells: Mapping[Cell, Figure] = {}
    """The same of each kind of a stage with enough actions."""
    links: Mapping[Ends, LinkChange]
    """Changes of links with enough observed messages, by sender and receiver."""
    network: Figure
    """The common slowdown of links."""
    before_ns: Mapping[Cell, float] = {}
    """The time of each rank, stage and kind in the first step."""


def attribute_slowdown(
    a: Computations, b: Computations, matched: MatchedActions, links: Mapping[Ends, Link], tolerance: float
) -> Blame:
    """Return the slowdowns of kinds, ranks, stages and links; kinds that differ by the tolerance are equal."""
    network, link_changes = _network(a, b, links)
    nonzero = a.duration_ns[matched.first] > 0
    i, j = matched.first[nonzero], matched.second[nonzero]
    if i.size < _FEWEST:
        return Blame(links=link_changes, network=network)
    first_ns = a.duration_ns[i].astype(np.float64)
    ratio = b.duration_ns[j] / first_ns
    rank, stage, kind = (column.astype(np.int64) for column in (b.rank[j], b.stage[j], b.kind[j]))
    common, of_kinds = _common_factors(ratio, rank, kind, tolerance)
    residual = ratio / common / np.array([of_kinds[each] for each in kind.tolist()])
    counts = _grouped(np.bincount, rank, stage, kind)
    cells = _shares(residual, rank, stage, kind)
    return Blame(
        common=Figure(common - 1), kinds={each: Figure(factor - 1) for each, factor in of_kinds.items()},
        ranks={number: share for (number,), share in _shares(residual, rank).items()},
        stages=_shares(residual, rank, stage),
        cells={cell: share for cell, share in cells.items() if counts[cell] >= _FEWEST},
        links=link_changes, network=network,
        before_ns=_grouped(lambda index: np.bincount(index, first_ns), rank, stage, kind),
    )  # fmt: skip


def _common_factors(
    ratio: NDArray[np.float64], rank: Int64s, kind: Int64s, tolerance: float
) -> tuple[float, dict[int, float]]:
    """Return the factor that all ranks have in common, and the factor of each kind beyond it."""
    common = _middle(_medians(ratio, rank).values())
    by_kind = _medians(ratio, kind, rank)
    of_kinds = {
        each: _middle([median for (of, _), median in by_kind.items() if of == each])
        for each in np.unique(kind).tolist()
    }
    if all(abs(factor / common - 1) <= tolerance for factor in of_kinds.values()):
        return common, dict.fromkeys(of_kinds, 1.0)
    common = _shared(list(of_kinds.values()))
    return common, {each: factor / common for each, factor in of_kinds.items()}


def _middle(values: Iterable[float]) -> float:
    """Return the median; of two middle values, the value nearer to 1."""
    ordered = sorted(values)
    return min((ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]), key=_distance_from_equal) or 1.0


def _shared(ratios: Sequence[float]) -> float:
    """Return the ratio nearest to 1 where all are on one side of it, else 1."""
    if len(ratios) > 1 and (min(ratios) > 1 or 0 < max(ratios) < 1):
        return min(ratios, key=_distance_from_equal)
    return 1.0


def _distance_from_equal(ratio: float) -> float:
    return abs(ratio - 1)


def _grouped(function: Callable[[Int64s], NDArray[Any]], *columns: Int64s) -> dict[Any, float]:
    """Return a value per group of rows with equal columns; the function takes the number of each row's group."""
    groups, index = np.unique(np.stack(columns), axis=1, return_inverse=True)
    keys = zip(*(column.tolist() for column in groups), strict=True)
    return dict(zip(keys, function(index.reshape(-1)).tolist(), strict=True))


def _medians(values: NDArray[np.float64], *columns: Int64s) -> dict[Any, float]:
    return _grouped(lambda index: group_quantiles(values, index)[0], *columns)


def _shares(values: NDArray[np.float64], *columns: Int64s) -> dict[Any, Figure]:
    return {group: Figure(median - 1) for group, median in _medians(values, *columns).items()}


def _network(
    a: Computations, b: Computations, links: Mapping[Ends, Link]
) -> tuple[Figure, dict[Ends, LinkChange]]:
    """Return the common slowdown of links, and the change of each link with enough observed messages."""
    changes = _paired_changes(a, b)
    for ends, link in links.items():
        if ends not in changes and min(link.seen) >= _FEWEST and link.median_ns.first.value > 0:
            change_ns = link.median_ns.change.value
            changes[ends] = [link.median_ns.first.value, change_ns, change_ns, 0.0]
    first_ns, least_ns, most_ns, error_ns = np.array(list(changes.values()), dtype=np.float64).reshape(-1, 4).T
    common_ns = _common_change_ns(first_ns, least_ns, most_ns)
    own_ns = np.clip(common_ns, least_ns, most_ns) - common_ns
    columns = (first_ns, common_ns, own_ns, error_ns)
    return Figure(float(common_ns.sum() / max(first_ns.sum(), 1))), {
        ends: LinkChange(
            share=Figure(own / (first + common)), first_ns=first, common_ns=common, own_ns=own, error_ns=error
        )
        for ends, first, common, own, error in zip(changes, *(column.tolist() for column in columns), strict=True)
    }


def _common_change_ns(
    first_ns: NDArray[np.float64], least_ns: NDArray[np.float64], most_ns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the part of each link's change that all links have in common, shape (links,).

    That is a factor, as of a lower rate, or a time, as of a longer latency. A change with equal bounds is known.
    """
    nearest_ns = np.clip(0, least_ns, most_ns)
    known = least_ns == most_ns
    decided = np.flatnonzero(known | (nearest_ns != 0))
    if decided.size <= 1 or not (np.all(nearest_ns[decided] > 0) or np.all(nearest_ns[decided] < 0)):
        return np.zeros_like(first_ns)
    used = np.flatnonzero(known) if known.any() else decided
    by_factor = first_ns * min((nearest_ns[used] / first_ns[used]).tolist(), key=abs)
    by_time = np.full_like(first_ns, min(nearest_ns[used].tolist(), key=abs))

    def unexplained_ns(common_ns: NDArray[np.float64]) -> float:
        return float(np.abs(np.clip(common_ns, least_ns, most_ns) - common_ns).sum())

    return min(by_factor, by_time, key=unexplained_ns)


def _paired_changes(a: Computations, b: Computations) -> dict[Ends, list[float]]:
    """Return the changes of links in nanoseconds, from messages that both steps observed.

    Each is the median message of the first step, the lower and the upper bound of its change, and their error.

    The time of a message whose receive was posted late is known within bounds; such messages count where others
    are missing or contradict their bounds. Where the first step observed too few messages, because its ranks did
    not wait for them, its transfer times are upper bounds; a change to longer times is then known too.
    """
    first, second, ranks = a.transfers, b.transfers, max(a.placement.ranks, b.placement.ranks)
    microbatches = max(a.placement.microbatches, b.placement.microbatches)
    keys = [
        (((sent.kind.astype(np.int64) * ranks + sent.source) * ranks + sent.target) * _MOST_STAGES + sent.stage)
        * microbatches + sent.microbatch
        for sent in (first, second)
    ]  # fmt: skip
    _, i, j = np.intersect1d(keys[0], keys[1], return_indices=True)
    known = second.observed[j] & (first.duration_ns[i] > 0)
    i, j = i[known], j[known]
    if not i.size or not has_same_stages(a, b):
        return {}
    ends, link = np.unique(second.source[j].astype(np.int64) * ranks + second.target[j], return_inverse=True)
    least_ns = second.duration_ns[j] - first.duration_ns[i] - first.late_ns[i]
    most_ns = second.duration_ns[j] + second.late_ns[j] - first.duration_ns[i]
    paired = first.observed[i]
    rows = np.where(np.bincount(link, paired)[link] >= _FEWEST, paired, True)
    exact = paired & (least_ns == most_ns)
    rows = np.where(_agrees(exact, link, least_ns, most_ns)[link], exact, rows)
    link, is_paired = link[rows], np.bincount(link[rows], ~paired[rows]) == 0
    first_ns, least_ns, most_ns = first.duration_ns[i][rows], least_ns[rows], most_ns[rows]
    medians = [group_quantiles(values, link)[0] for values in (first_ns, least_ns, most_ns)]
    deviations_ns = group_quantiles(np.abs(least_ns - medians[1][link]), link)[0]
    counts = np.bincount(link)
    # The spread of few messages is unknown: at least that of all links' known changes, or of all changes.
    known_ns = least_ns[least_ns == most_ns] if (least_ns == most_ns).any() else least_ns
    all_links_ns = np.median(np.abs(known_ns - np.median(known_ns)))
    deviations_ns = np.where(counts < _FEWEST, np.maximum(deviations_ns, all_links_ns), deviations_ns)
    used = is_paired | (medians[1] > 0)
    columns = np.stack([*medians, _MEDIAN_ERROR * deviations_ns / np.sqrt(counts)])[:, used].T
    pairs = (divmod(pair, ranks) for pair in ends[used].tolist())
    return dict(zip(pairs, columns.tolist(), strict=True))


def _agrees(exact: NDArray[np.bool_], link: Int64s, least_ns: Int64s, most_ns: Int64s) -> NDArray[np.bool_]:
    """Return by link whether the changes of exactly known messages are within the bounds of most messages."""
    (median_ns,) = group_quantiles(least_ns[exact], link[exact], int(link.max()) + 1)
    slack_ns = _NEARLY * np.abs(median_ns)[link]
    within = (least_ns <= median_ns[link] + slack_ns) & (median_ns[link] - slack_ns <= most_ns)
    return np.bincount(link, within) * 2 >= np.bincount(link)


def candidates(
    blame: Blame,
    uncertainty_ns: Mapping[Ends, float],
    links: Mapping[Ends, Link],
    tolerance: float,
    steps: Sequence[Blame] = (),
) -> list[Candidate]:
    """Return kinds, ranks, stages and links whose slowdown exceeds the tolerance and the noise.

    Args:
        blame: the slowdowns.
        uncertainty_ns: by sender and receiver, how much the difference of their clocks may have changed.
        links: messages by sender and receiver.
        tolerance: the relative change that counts as none.
        steps: the slowdowns of each step of the second side; the slowest rank of most steps is no noise.
    """
    changes = [
        candidate
        for candidate in _duration_candidates(blame, tolerance)
        if abs(candidate.cause.share.value) > tolerance
    ]
    changes += _link_candidates(blame, uncertainty_ns, links, tolerance)
    slowest, count = _slowest_of_most(steps)
    kept = []
    for candidate in changes:
        if candidate.rank is not None and candidate.rank == slowest:
            what = f"{candidate.cause.what}, the slowest in {count} of {len(steps)} steps"
            kept.append(replace(candidate, cause=replace(candidate.cause, what=what)))
        elif not candidate.cause.share.is_noise:
            kept.append(candidate)
    return kept


_CHANCE = 0.05
"""The probability by which chance may make one rank the slowest that often."""


def _slowest_of_most(steps: Sequence[Blame]) -> tuple[int | None, int]:
    """Return the rank that is the slowest in more than half of the steps, and their number; None for no rank.

    It must be the slowest more often than chance makes one of the ranks the slowest.
    """
    slowest = [max(step.ranks, key=lambda rank: step.ranks[rank].value) for step in steps if len(step.ranks) > 1]
    if not slowest:
        return None, 0
    rank, count = Counter(slowest).most_common(1)[0]
    ranks, trials = len(steps[0].ranks), len(slowest)
    tail = sum(
        comb(trials, hits) * (ranks - 1) ** (trials - hits) for hits in range(count, trials + 1)
    ) / ranks ** (trials - 1)
    return (rank, count) if 2 * count > trials and tail <= _CHANCE else (None, 0)


def _duration_candidates(blame: Blame, tolerance: float) -> Iterator[Candidate]:
    """Yield all ranks, kinds, and of each rank: the rank, or its slow stages and the kinds of its other stages."""
    yield _slow_actions(blame, "drift", "all ranks", blame.common)
    for kind, share in blame.kinds.items():
        yield _slow_actions(blame, "kind", f"{Kind(kind).word} on all ranks", share, kind=kind)
    for rank, of_rank in blame.ranks.items():
        stages = [place for number, place in blame.stages if number == rank]
        slow = [stage for stage in stages if _is_slow_stage(blame, rank, stage, tolerance)]
        if slow == stages:
            note = "" if len(stages) > 1 else f" (its one stage, {stages[0]})"
            yield _slow_actions(blame, "rank", f"rank {rank}{note}", of_rank, rank)
            continue
        for stage in slow:
            yield _slow_actions(
                blame, "stage", f"stage {stage} on rank {rank}", blame.stages[rank, stage], rank, stage
            )
        for cell, of_cell in blame.cells.items():
            if cell[0] == rank and cell[1] not in slow:
                what = f"{Kind(cell[2]).word} of stage {cell[1]} on rank {rank}"
                yield _slow_actions(blame, "stage", what, of_cell, *cell)


def _slow_actions(
    blame: Blame, category: str, what: str, share: Figure, rank: int | None = None, stage: int | None = None,
    kind: int | None = None,
) -> Candidate:  # fmt: skip
    """Return the candidate of the actions of a rank, stage and kind; None for all."""
    of = rank, stage, kind
    before_ns = sum(
        time
        for cell, time in blame.before_ns.items()
        if all(wanted in {None, value} for wanted, value in zip(of, cell, strict=True))
    )
    return Candidate(
        cause=_cause(category, what, share, share.value * before_ns),
        without=partial(_without_durations, of=of, factor=1 + share.value),
        rank=rank if category == "rank" else None,
    )


def _is_slow_stage(blame: Blame, rank: int, stage: int, tolerance: float) -> bool:
    """Return whether a stage is slow, or fast, in all of its kinds with enough actions."""
    cells = [share for cell, share in blame.cells.items() if cell[:2] == (rank, stage)]
    shares = [share.value for share in cells or [blame.stages[rank, stage]]]
    return min(shares) > tolerance or max(shares) < -tolerance


def _without_durations(
    step: Computations, of: tuple[int | None, int | None, int | None], factor: float
) -> Computations:
    """Return a step in which the actions of a rank, stage and kind take their time divided by a factor."""
    chosen = np.ones(len(step), dtype=np.bool_)
    for column, wanted in zip((step.rank, step.stage, step.kind), of, strict=True):
        if wanted is not None:
            chosen &= column == wanted
    faster_ns = (step.duration_ns / factor).astype(np.int64)
    return replace(step, duration_ns=np.where(chosen, faster_ns, step.duration_ns))


def _link_candidates(
    blame: Blame, uncertainty_ns: Mapping[Ends, float], links: Mapping[Ends, Link], tolerance: float
) -> Iterator[Candidate]:
    if abs(blame.network.value) > tolerance:
        common_ns = sum(change.common_ns * links[ends].count[1] for ends, change in blame.links.items())
        changes_ns = {ends: change.common_ns for ends, change in blame.links.items()}
        yield Candidate(
            cause=_cause("network", f"all {len(blame.links)} links between ranks", blame.network, common_ns),
            without=partial(_without_change, changes_ns=changes_ns),
            only_replayed=True,
        )
    for ends in _directions(blame, uncertainty_ns):
        changes = [blame.links[each] for each in ends]
        own_ns = sum(change.own_ns for change in changes)
        deviation = hypot(*(change.share.deviation or 0.0 for change in changes))
        share = Figure(
            own_ns / sum(change.first_ns + change.common_ns for change in changes),
            None if changes[0].share.deviation is None else deviation,
        )
        error_ns = hypot(*(change.error_ns for change in changes))
        if abs(share.value) <= tolerance or abs(own_ns) <= SIGMAS * error_ns:
            continue
        what = f"rank {ends[0][0]} to rank {ends[0][1]}"
        if len(ends) > 1:
            known = ms(uncertainty_ns[ends[0]])
            what = f"ranks {ends[0][0]} and {ends[0][1]}, direction unknown: clocks are known to ±{known}"
        total_ns = sum(change.own_ns * links[each].count[1] for change, each in zip(changes, ends, strict=True))
        changes_ns = {each: blame.links[each].own_ns for each in ends}
        yield Candidate(
            cause=_cause("link", what, share, total_ns),
            without=partial(_without_change, changes_ns=changes_ns),
            only_replayed=True,
        )


def _directions(blame: Blame, uncertainty_ns: Mapping[Ends, float]) -> Iterator[list[Ends]]:
    """Yield the links of one candidate each: a link whose change exceeds the uncertainty of clocks.

    If no change between two ranks does, both links are one candidate, because the direction is unknown.
    """
    known = {ends for ends, change in blame.links.items() if abs(change.own_ns) > uncertainty_ns.get(ends, 0.0)}
    for ends in blame.links:
        opposite = ends[::-1]
        if ends in known:
            yield [ends]
        elif opposite in blame.links and opposite not in known and ends < opposite:
            yield [ends, opposite]


def _without_change(step: Computations, changes_ns: Mapping[Ends, float]) -> Computations:
    """Return a step in which each message of a link arrives earlier by the change of the link."""
    sent, microbatches = step.transfers, step.placement.microbatches
    ends = zip(sent.source.tolist(), sent.target.tolist(), strict=True)
    change_ns = np.array([changes_ns.get(each, 0.0) for each in ends], dtype=np.float64).astype(np.int64)
    forward = TOWARDS_NEXT.mask(sent.kind)
    consumer = (sent.stage + np.where(forward, 1, -1)).astype(np.int64) * microbatches + sent.microbatch
    cells = (step.stage.astype(np.int64) * microbatches + step.microbatch).tolist()
    late_ns = step.late_ns
    for passes, of_pass in (([Kind.F], forward), ([Kind.B, Kind.I], ~forward)):
        earlier = dict(zip(consumer[of_pass].tolist(), change_ns[of_pass].tolist(), strict=True))
        earlier_ns = np.array([max(earlier.get(cell, 0), 0) for cell in cells], dtype=np.int64)
        late_ns = np.where(np.isin(step.kind, passes), np.maximum(late_ns - earlier_ns, 0), late_ns)
    transfer_ns = np.where(sent.duration_ns >= 0, np.maximum(sent.duration_ns - change_ns, 0), -1)
    return replace(step, transfers=replace(sent, duration_ns=transfer_ns), late_ns=late_ns)


def _cause(kind: str, what: str, share: Figure, total_ns: float) -> Cause:
    speed = "" if kind == "drift" else "slow " if share.value > 0 else "fast "
    return Cause(kind=f"{speed}{kind}", what=what, share=share, total_ns=int(total_ns))


def spikes(
    a: Computations, b: Computations, matched: MatchedActions, tolerance: float, deviations_ns: Int64s
) -> list[Candidate]:
    """Return ranks with outliers among actions of one kind and stage, beyond the tolerance and the noise."""
    i, j = matched.first, matched.second
    if i.size < _FEWEST:
        return []
    change_ns = (b.duration_ns[j] - a.duration_ns[i]).astype(np.float64)
    cells = np.unique(b.kind[j].astype(np.int64) * b.placement.stages + b.stage[j], return_inverse=True)[1]
    deviation_ns = change_ns - group_quantiles(change_ns, cells)[0][cells]
    median_deviation_ns = group_quantiles(np.abs(deviation_ns), cells)[0][cells]
    allowed_ns = np.maximum(tolerance * a.duration_ns[i], SIGMAS * deviations_ns)
    is_spike = deviation_ns > np.maximum(_OUTLIER_FACTOR * np.maximum(median_deviation_ns, 1000), allowed_ns)
    spiking_ranks = []
    for rank in np.unique(b.rank[j][is_spike]).tolist():
        chosen = is_spike & (b.rank[j] == rank)
        count, total_ns = int(np.count_nonzero(chosen)), int(deviation_ns[chosen].sum())
        what = f"{count} action{'s' if count > 1 else ''} of rank {rank}"
        spiking_ranks.append(Candidate(
            cause=Cause(kind="spikes", what=what, share=Figure(0.0), total_ns=total_ns),
            without=partial(_without_excess, column="duration_ns", rows=j[chosen], excess_ns=deviation_ns[chosen]),
        ))  # fmt: skip
    return spiking_ranks


def _without_excess(
    step: Computations, column: str, rows: Int64s, excess_ns: NDArray[np.number[Any]]
) -> Computations:
    """Return a step with shorter durations or gaps of some computations."""
    times_ns = getattr(step, column).copy()
    times_ns[rows] = np.maximum(times_ns[rows] - excess_ns.astype(np.int64), 0)
    return replace(step, **{column: times_ns})


def late_hosts(a: Computations, b: Computations, matched: MatchedActions, tolerance: float) -> list[Candidate]:
    """Return ranks whose host gaps changed by more than the tolerance of their computations."""
    i, j = matched.first, matched.second
    change_ns = b.host_gap_ns[j] - a.host_gap_ns[i]
    late_ranks = []
    for rank in np.unique(b.rank[j]).tolist():
        rows = b.rank[j] == rank
        total_ns = int(change_ns[rows].sum())
        if abs(total_ns) <= tolerance * int(a.duration_ns[i[rows]].sum()):
            continue
        late_ranks.append(Candidate(
            cause=Cause(kind="host gaps", what=f"rank {rank}", share=Figure(0.0), total_ns=total_ns),
            without=partial(_without_excess, column="gap_ns", rows=j[rows], excess_ns=change_ns[rows]),
            only_replayed=True,
        ))  # fmt: skip
    return late_ranks


def rank_causes(
    changes: Sequence[Candidate],
    step_ns: Sides,
    effects_ns: Callable[[Sequence[Candidate], Sequence[Candidate]], list[float]] | None,
) -> tuple[tuple[Cause, ...], tuple[Cause, ...]]:
    """Return the causes, and remarks on changes with little effect; each with the largest first.

    The first cause is the one that contributes most in the direction of the change.

    Args:
        changes: the candidates.
        step_ns: the lengths of the steps.
        effects_ns: returns the effect of each candidate on the length of the second step without other candidates;
            None where steps cannot be replayed, then total changes are ranked.
    """
    change_ns = step_ns.change.value
    left = sorted(changes, key=lambda item: (-abs(item.cause.total_ns), item.cause.kind, item.cause.what))
    if effects_ns is None:
        least_ns = _LEAST_OF_LARGEST * max((abs(item.cause.total_ns) for item in left), default=0)
        causes = [item.cause for item in left if abs(item.cause.total_ns) >= least_ns]
        causes.sort(key=lambda cause: cause.total_ns * change_ns < 0)
        return tuple(causes), tuple(item.cause for item in left if item.cause not in causes)
    left, unranked = left[:_MOST_REPLAYED], left[_MOST_REPLAYED:]
    taken: list[Candidate] = []
    causes = []
    effects = effects_ns(left, taken)
    least_ns = max(
        _LEAST_OF_DIFFERENCE * abs(change_ns), _LEAST_OF_STEP * step_ns.second.value,
        _LEAST_OF_LARGEST * max(map(abs, effects), default=0.0), 1.0,
    )  # fmt: skip
    while eligible := [index for index, effect in enumerate(effects) if abs(effect) >= least_ns]:
        best = max(eligible, key=lambda index: (effects[index] * change_ns > 0, abs(effects[index]), -index))
        causes.append(replace(left[best].cause, effect_ns=Figure(effects[best])))
        taken.append(left.pop(best))
        effects = effects_ns(left, taken)
    remarks = [replace(item.cause, effect_ns=Figure(effect)) for item, effect in zip(left, effects, strict=True)]
    return tuple(causes), (*remarks, *(item.cause for item in unranked))
