"""A plugin of small schedules whose step times are known in closed form, for tests of studies.

On the ideal network, with p ranks, m microbatches, forwards of f and backwards of b:

- ``eager`` runs all forwards, then all backwards: (m + p - 1)(f + b);
- ``lumped`` does the same with all microbatches in one action: p m (f + b);
- ``even`` is ``eager`` for even numbers of microbatches, and its formula only comes near;
- ``quiet`` is ``eager`` with a formula that knows no sizes at all;
- ``chunky`` is ``eager`` on a model in two chunks per rank, laid one behind the other.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pydantic import BaseModel

from pptrace.errors import ConstraintError
from pptrace.plugins.hookspecs import hookimpl
from pptrace.plugins.offers import ScheduleOffer
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugins.requests import ScheduleRequest

__all__ = ["pptrace_schedules", "small_registry"]

Rows = list[list[str]]


class LumpOptions(BaseModel):
    """Options of ``lumped``."""

    parts: int = 1
    """Actions that the microbatches are lumped into."""


def eager(request: ScheduleRequest) -> Rows:
    return [
        _row(rank, [f"{microbatch}" for microbatch in range(request.microbatches)])
        for rank in range(request.ranks)
    ]


def lumped(request: ScheduleRequest) -> Rows:
    size = request.microbatches // request.options["parts"]
    lumps = [f"{first}+{size}" if size > 1 else f"{first}" for first in range(0, request.microbatches, size)]
    return [_row(rank, lumps) for rank in range(request.ranks)]


def chunky(request: ScheduleRequest) -> Rows:
    microbatches = [f"{microbatch}" for microbatch in range(request.microbatches)]
    rows = []
    for rank in range(request.ranks):
        low, high = (_row(2 * rank + chunk, microbatches) for chunk in range(2))
        half = len(microbatches)
        rows.append([*low[:half], *high[:half], *high[half:], *low[half:]])
    return rows


def _row(stage: int, microbatches: list[str]) -> list[str]:
    return [f"{stage}F{microbatch}" for microbatch in microbatches] + [
        f"{stage}B{microbatch}" for microbatch in microbatches
    ]


def even_only(request: ScheduleRequest) -> None:
    if request.microbatches % 2:
        near = f"{request.microbatches - 1} or {request.microbatches + 1}" if request.microbatches > 1 else "2"
        raise ConstraintError(f"{request.microbatches} is odd", nearest=near, key="batch.microbatches")


def one_chunk(request: ScheduleRequest) -> None:
    if request.chunks != 1:
        raise ConstraintError(f"{request.chunks} chunks are not one", nearest="1", key="parallel.vp")


def bubble(request: ScheduleRequest) -> Fraction:
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    yield ScheduleOffer(name="eager", summary="All forwards first.", build=eager, check=one_chunk, bubble=bubble)
    yield ScheduleOffer(name="lumped", summary="All at once.", build=lumped, options=lambda: LumpOptions)
    yield ScheduleOffer(
        name="even", summary="An even number.", build=eager, check=even_only, bubble=lambda _: Fraction(0),
        bubble_is_exact=False,
    )  # fmt: skip
    yield ScheduleOffer(
        name="quiet", summary="No formula.", build=eager, bubble=lambda _: None, peak_activations=lambda _: None
    )
    yield ScheduleOffer(name="chunky", summary="Two chunks.", build=chunky)


class _Plugin:
    pptrace_schedules = staticmethod(pptrace_schedules)


def small_registry() -> Registry:
    """Return a registry of these schedules and the core's own offers."""
    return Registry.load(entry_points=False, plugins={"small": _Plugin()})
