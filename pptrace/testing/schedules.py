"""Checks for the tests of schedules."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pptrace.config.validation import shown
from pptrace.errors import ConfigError, ConstraintError, ScheduleError
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.guards import guarded
from pptrace.plugins.providers import Provided, Provider
from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.steps.schedule import Schedule

_HERE = Provider(name="under test")


def grid(
    *,
    ranks: Iterable[int] = (1, 2, 3, 4, 8),
    microbatches: Iterable[int] = (1, 2, 3, 4, 5, 8, 12, 16, 24),
    chunks: Iterable[int] = (1,),
    options: Mapping[str, Any] | None = None,
    **fields: object,
) -> tuple[ScheduleRequest, ...]:
    """Return the requests of all combinations of sizes, each with ``options`` and ``fields`` in addition.

    Raises:
        ConfigError: the options are no mapping.

    >>> len(grid(ranks=(2, 4), microbatches=(4, 8), chunks=(1, 2)))
    8
    """
    if not isinstance(options, Mapping | None):
        message = f"must be a mapping such as {{'waves': 2}}, not {shown(options)}: call grid for each mapping"
        raise ConfigError(message, key="options")
    return tuple(
        ScheduleRequest(ranks=p, microbatches=m, chunks=v, options=options or {}, **fields)  # type: ignore[arg-type] # the caller's fields
        for p, m, v in product(ranks, microbatches, chunks)
    )


def assert_schedule_family(
    offer: ScheduleOffer | Provided[ScheduleOffer], *, sizes: Sequence[ScheduleRequest] = (), growth: bool = True
) -> None:
    """Assert that a schedule agrees with its offer for each of ``sizes``, by default :func:`grid`.

    Options that a size does not state have their defaults.

    - Either ``check`` rejects a size with a :class:`~pptrace.errors.ConstraintError`, and ``constraints``
      describes the constraint in words; or its table is valid. At least one size is supported.
    - Two builds of a size are equal.
    - ``bubble`` and ``peak_activations``, where offered, equal the table's figures as exact fractions:
      with a forward of 1, a backward of 2, and messages that take no time. A bubble that is not offered
      as exact only has to be a share.
    - The time to generate a table is about proportional to its size (unless ``growth`` is false).

    Raises:
        AssertionError: a check fails; names the size.
        ConfigError: the schedule does not take the options of a size.
        PluginError: the plugin's code raised another exception.
    """
    if not isinstance(offer, Provided):
        offer = Provided(offer=guarded(_HERE, offer, "schedule"), provider=_HERE)
    provided = offer
    requests = [
        replace(request, options=checked_options(provided, request.options, "options"))
        for request in sizes or grid()
    ]
    supported = [request for request in requests if not _is_rejected(provided, request)]
    if not supported:
        raise AssertionError(f"{provided.offer.name} takes none of the sizes that it was tried with")
    for request in supported:
        schedule = _build(provided, request)
        _assert_repeatable(provided, request, schedule)
        _assert_closed_forms(provided, request, schedule)
    if growth:
        assert_linear_growth(provided.offer, max(supported, key=lambda request: request.ranks))


def _is_rejected(provided: Provided[ScheduleOffer], request: ScheduleRequest) -> bool:
    offer = provided.offer
    if offer.check is None:
        return False
    try:
        offer.check(request)
    except ConstraintError as error:
        if not offer.constraints:
            raise _size_error(offer, request, f"refused ({error}), but the offer states no constraints") from error
        return True
    return False


def _build(provided: Provided[ScheduleOffer], request: ScheduleRequest) -> Schedule:
    try:
        schedule = build_schedule(provided, request)
    except ConstraintError as error:
        raise _size_error(provided.offer, request, f"check takes this size and build does not: {error}") from error
    try:
        assert_valid_schedule(schedule)
    except AssertionError as error:
        raise _size_error(provided.offer, request, str(error)) from error
    return schedule


def _assert_repeatable(provided: Provided[ScheduleOffer], request: ScheduleRequest, schedule: Schedule) -> None:
    second = _build(provided, request)
    if schedule != second:
        difference = schedule.difference(second) or "the placements differ"
        raise _size_error(provided.offer, request, f"two builds differ: {difference}")


def _assert_closed_forms(provided: Provided[ScheduleOffer], request: ScheduleRequest, schedule: Schedule) -> None:
    offer = provided.offer
    bubble = offer.bubble(request) if offer.bubble else None
    peaks = offer.peak_activations(request) if offer.peak_activations else None
    if bubble is None and peaks is None:
        return
    counted = count(schedule)
    if bubble is not None and not 0 <= bubble < 1:
        raise _size_error(offer, request, f"bubble is stated as {bubble}: a share of the step, from 0 and below 1")
    if bubble is not None and offer.bubble_is_exact and bubble != counted.bubble:
        raise _size_error(offer, request, f"bubble is stated as {bubble} and the table's is {counted.bubble}")
    parts = offer.parts(request) if offer.parts else 1
    peak_activations = [count / parts for count in counted.peak_activations]
    if peaks is not None and list(peaks) != peak_activations:
        stated_text, counted_text = _format_list(peaks), _format_list(peak_activations)
        message = f"peak activations are stated as {stated_text} and the table's are {counted_text}"
        raise _size_error(offer, request, message)


def _size_error(offer: ScheduleOffer, request: ScheduleRequest, problem: str) -> AssertionError:
    chunks = f", {request.chunks} chunks" if request.chunks > 1 else ""
    return AssertionError(
        f"{offer.name} with {request.ranks} ranks, {request.microbatches} microbatches{chunks}: {problem}"
    )


def _format_list(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def assert_valid_schedule(schedule: Schedule) -> None:
    """Assert that every action occurs once, on its rank, in an order without deadlock.

    >>> from pptrace.steps.schedule import Schedule
    >>> assert_valid_schedule(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]))

    Raises:
        AssertionError: names the first invalid action, or the cycle.
    """
    try:
        validate(schedule)
    except ScheduleError as error:
        raise AssertionError(str(error)) from error


class Counted(Struct, frozen=True, kw_only=True):
    """Figures of a table for comparison with the schedule's closed forms."""

    bubble: Fraction
    """Idle time over ranks times step time."""
    peak_activations: tuple[Fraction, ...]
    """Peak activations of each rank, in units of one stage and microbatch."""


def count(schedule: Schedule) -> Counted:
    """Return a table's figures with a forward of 1, both halves of a backward of 1, and an ideal network."""
    from pptrace.sim.simulation import simulate
    from pptrace.timeline.metrics import measure

    workload = Workload.uniform(
        schedule.stages,
        edges=len(schedule.placement.edges),
        f_ns=1,
        i_ns=1,
        w_ns=1,
        activation_bytes=1,
        weight_activation_bytes=1,
    )
    metrics = measure(simulate(schedule, workload), workload)
    return Counted(
        bubble=metrics.bubble,
        peak_activations=tuple(map(Fraction, metrics.memory.peak_activations.tolist())),
    )


_FEW, _MANY = 8, 128
"""Microbatches per rank of the two sizes that are timed."""
_SLACK = 4
"""Tolerated ratio of the growth of the time to that of the table; quadratic growth has a ratio of 16."""
_NEGLIGIBLE_S = 0.1
"""Time to generate a table below which its growth is ignored."""


def assert_linear_growth(offer: ScheduleOffer, request: ScheduleRequest) -> None:
    """Assert that 16 times the microbatches take at most 64 times the processor time, or under 0.1 s.

    Does nothing if the schedule does not support such sizes.

    Raises:
        AssertionError: the time grows faster; names both times.
    """
    sizes = [replace(request, microbatches=request.ranks * factor) for factor in (_FEW, _MANY)]
    try:
        for size in sizes:
            if offer.check is not None:
                offer.check(size)
    except ConstraintError:
        return
    small_s, large_s = (_seconds(offer, size) for size in sizes)
    if large_s > _NEGLIGIBLE_S and large_s > small_s * (_MANY // _FEW) * _SLACK:
        raise AssertionError(
            f"{offer.name}: {sizes[1].microbatches} microbatches take {large_s:.2f} s to generate and "
            f"{sizes[0].microbatches} take {small_s:.4f} s: the time grows faster than the table"
        )


def _seconds(offer: ScheduleOffer, request: ScheduleRequest) -> float:
    """Return the lowest processor time of three builds, which is insensitive to other processes."""
    times_s = []
    for _ in range(3):
        start_s = time.process_time()
        built = offer.build(request)
        if not hasattr(built, "row_ptr"):
            list(built)
        times_s.append(time.process_time() - start_s)
    return min(times_s)
