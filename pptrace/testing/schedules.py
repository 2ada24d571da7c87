"""Checks for the tests of schedules."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.errors import ConstraintError, ScheduleError
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.offers import Provided, Provider
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
    **fields: object,
) -> tuple[ScheduleRequest, ...]:
    """Return the requests of every combination of sizes, each with ``fields`` besides.

    >>> len(grid(ranks=(2, 4), microbatches=(4, 8), chunks=(1, 2)))
    8
    """
    across, down, deep = tuple(ranks), tuple(microbatches), tuple(chunks)
    return tuple(
        ScheduleRequest(ranks=p, microbatches=m, chunks=v, **fields)  # type: ignore[arg-type] # the caller's fields
        for p in across
        for m in down
        for v in deep
    )


def assert_schedule_family(
    offer: ScheduleOffer | Provided[ScheduleOffer], *, sizes: Sequence[ScheduleRequest] = (), growth: bool = True
) -> None:
    """Assert that a schedule keeps what its offer says, for each of ``sizes``, by default :func:`grid`.

    What a size's ``options`` leave out has its default.

    - A size is refused by ``check`` with a :class:`~pptrace.errors.ConstraintError`, and then
      ``constraints`` says so in words; or its table is valid. At least one size is taken.
    - Two builds of a size are equal.
    - ``bubble`` and ``peak_activations``, where offered, equal the table's figures, as exact
      fractions: with a forward of 1, a backward of 2, and messages that take no time. A bubble that is
      not offered as exact is only a share.
    - The time to generate a table grows about as the table does (unless ``growth`` is false).

    Raises:
        AssertionError: what is broken, for which size.
        ConfigError: options of a size that the schedule does not take.
        PluginError: the plugin's code raised something else.
    """
    provided = offer if isinstance(offer, Provided) else Provided(offer=offer, provider=_HERE)
    requests = [
        replace(request, options=checked_options(provided, request.options, "options"))
        for request in sizes or grid()
    ]
    taken = [request for request in requests if not _refuses(provided, request)]
    if not taken:
        raise AssertionError(f"{provided.offer.name} takes none of the sizes that it was tried with")
    for request in taken:
        schedule = _build(provided, request)
        _assert_repeatable(provided, request, schedule)
        _assert_closed_forms(provided, request, schedule)
    if growth:
        assert_linear_growth(provided.offer, max(taken, key=lambda request: request.ranks))


def _refuses(provided: Provided[ScheduleOffer], request: ScheduleRequest) -> bool:
    offer = provided.offer
    if offer.check is None:
        return False
    try:
        call_plugin(provided.provider, offer.check, request)
    except ConstraintError as error:
        if not offer.constraints:
            raise _broken(offer, request, f"refused ({error}), but the offer states no constraints") from error
        return True
    return False


def _build(provided: Provided[ScheduleOffer], request: ScheduleRequest) -> Schedule:
    try:
        schedule = build_schedule(provided, request)
    except ConstraintError as error:
        raise _broken(provided.offer, request, f"check takes this size and build does not: {error}") from error
    try:
        assert_valid_schedule(schedule)
    except AssertionError as error:
        raise _broken(provided.offer, request, str(error)) from error
    return schedule


def _assert_repeatable(provided: Provided[ScheduleOffer], request: ScheduleRequest, schedule: Schedule) -> None:
    again = _build(provided, request)
    if schedule != again:
        where = schedule.difference(again) or "the placements differ"
        raise _broken(provided.offer, request, f"two builds differ: {where}")


def _assert_closed_forms(provided: Provided[ScheduleOffer], request: ScheduleRequest, schedule: Schedule) -> None:
    offer, provider = provided.offer, provided.provider
    bubble = call_plugin(provider, offer.bubble, request) if offer.bubble else None
    peaks = call_plugin(provider, offer.peak_activations, request) if offer.peak_activations else None
    if bubble is None and peaks is None:
        return
    counted = count(schedule)
    if bubble is not None and not 0 <= bubble < 1:
        raise _broken(offer, request, f"bubble is stated as {bubble}: a share of the step, from 0 and below 1")
    if bubble is not None and offer.bubble_is_exact and bubble != counted.bubble:
        raise _broken(offer, request, f"bubble is stated as {bubble} and the table's is {counted.bubble}")
    parts = call_plugin(provider, offer.parts, request) if offer.parts else 1
    held = [count / parts for count in counted.peak_activations]
    if peaks is not None and list(peaks) != held:
        stated_text, counted_text = _listed(peaks), _listed(held)
        message = f"peak activations are stated as {stated_text} and the table's are {counted_text}"
        raise _broken(offer, request, message)


def _broken(offer: ScheduleOffer, request: ScheduleRequest, what: str) -> AssertionError:
    chunks = f", {request.chunks} chunks" if request.chunks > 1 else ""
    return AssertionError(
        f"{offer.name} with {request.ranks} ranks, {request.microbatches} microbatches{chunks}: {what}"
    )


def _listed(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def assert_valid_schedule(schedule: Schedule) -> None:
    """Assert that every action is there once, on its rank, in an order that no deadlock stops.

    >>> from pptrace.steps.schedule import Schedule
    >>> assert_valid_schedule(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]))

    Raises:
        AssertionError: the first action at fault, or the cycle.
    """
    try:
        validate(schedule)
    except ScheduleError as error:
        raise AssertionError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The figures that a schedule's closed forms state."""

    bubble: Fraction
    """Idle over ranks times length."""
    peak_activations: tuple[Fraction, ...]
    """Per rank, the most activations held, in one stage's of one microbatch."""


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
"""Growth beyond the table's that is put down to noise: quadratic growth is 16 times the table's here."""
_NEGLIGIBLE_S = 0.1
"""A generation faster than this is fast enough, however it grows."""


def assert_linear_growth(offer: ScheduleOffer, request: ScheduleRequest) -> None:
    """Assert that 16 times the microbatches take at most 64 times the processor time, or under 0.1 s.

    Says nothing where the schedule does not take such sizes.

    Raises:
        AssertionError: both times.
    """
    sizes = [replace(request, microbatches=request.ranks * each) for each in (_FEW, _MANY)]
    try:
        for size in sizes:
            if offer.check is not None:
                offer.check(size)
    except ConstraintError:
        return
    few, many = (_seconds(offer, size) for size in sizes)
    if many > _NEGLIGIBLE_S and many > few * (_MANY // _FEW) * _SLACK:
        raise AssertionError(
            f"{offer.name}: {sizes[1].microbatches} microbatches take {many:.2f} s to generate and "
            f"{sizes[0].microbatches} take {few:.4f} s: the time grows faster than the table"
        )


def _seconds(offer: ScheduleOffer, request: ScheduleRequest) -> float:
    """Return the least processor time of three builds, which other processes hardly touch."""
    times = []
    for _ in range(3):
        before = time.process_time()
        built = offer.build(request)
        if not hasattr(built, "row_ptr"):
            list(built)
        times.append(time.process_time() - before)
    return min(times)
