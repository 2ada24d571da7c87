"""Segments of ``costs: table``: what its user writes of the parts of actions, and what those are on each stage."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from pptrace.config.quantity import Duration, Size
from pptrace.errors import ConfigError
from pptrace.model.kinds import BACKWARD, Kind, Stream
from pptrace.model.segments import Segment, check_segments, problem_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["KindSegments", "SegmentOptions", "lengthened", "segments_of"]

_STREAMS = {
    "compute": Stream.COMPUTE,
    "tensor-parallel": Stream.TENSOR_PARALLEL,
    "expert-parallel": Stream.EXPERT_PARALLEL,
    "context-parallel": Stream.CONTEXT_PARALLEL,
}


class _Brief(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _as_written(self, whole: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Return every key for programs, and for files those that somebody wrote."""
        values: dict[str, Any] = whole(self)
        return {
            key: value for key, value in values.items() if info.mode == "python" or key in self.model_fields_set
        }


class SegmentOptions(_Brief):
    """One part of an action."""

    name: str = Field(min_length=1, description="What it is called in traces.", examples=["attention"])
    time: Annotated[Duration, Field(ge=0)] = Field(default=0, description="What it takes alone.")
    stream: Literal["compute", "tensor-parallel", "expert-parallel", "context-parallel"] = Field(
        default="compute",
        description="Where it runs: compute, or tensor-parallel, expert-parallel or context-parallel, whose "
        "communication may be under way while another action computes.",
    )
    needs: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        description="Places, counted from 0, of the earlier segments of its action that it waits for; the one "
        "before it unless given.",
    )
    result: bool = Field(
        default=False,
        description="Whether at its end the action's message may leave; where no segment says so, that takes all "
        "that no other one needs.",
    )
    size: Annotated[Size, Field(ge=0)] = Field(default=0, description="Bytes that it moves, where known.")
    link: str | None = Field(
        default=None,
        min_length=1,
        description="A link of the network that its bytes go over and share; they say what it takes, not time.",
    )
    takes: Annotated[Size, Field(ge=0)] | None = Field(
        default=None,
        description="Activations that it holds from its start; where no segment says any, a forward's first holds "
        "all of them.",
    )
    frees: Annotated[Size, Field(ge=0)] | None = Field(
        default=None,
        description="Activations that it frees at its end; where no segment says any, a backward's last frees "
        "all of them.",
    )


_OfOne: TypeAlias = Annotated[list[SegmentOptions], Field(min_length=1)]
_Segments: TypeAlias = _OfOne | Annotated[list[_OfOne], Field(min_length=1)] | None


class KindSegments(_Brief):
    """The segments of each kind of action: one list for all stages alike, or a list of them per stage."""

    F: _Segments = Field(
        default=None, description="Segments of a forward, in place of forward: a list for all stages, or one each."
    )
    B: _Segments = Field(default=None, description="Segments of a full backward, in place of backward.")
    I: _Segments = Field(  # noqa: E741 - PyTorch's name
        default=None, description="Segments of a backward for the input gradient, in place of input_gradient."
    )
    W: _Segments = Field(
        default=None, description="Segments of a backward for the weight gradient, in place of weight_gradient."
    )
    RECOMPUTE: _Segments = Field(
        default=None, description="Segments of a forward computed again, in place of recompute."
    )


def segments_of(
    given: Mapping[str, Any], stages: int, slices: int, what: str
) -> dict[Kind, list[tuple[Segment, ...]]]:
    """Return the segments of each stage's actions, by kind.

    Args:
        given: what the user writes, as :class:`KindSegments` dumps it.
        stages: how many stages there are.
        slices: how many slices the lists are for.
        what: what slices are called.

    Raises:
        ConfigError: a list for another number of slices, or segments that no action can consist of.
    """
    found = {}
    for name, written in given.items():
        if written is not None:
            kind, key = Kind[name], f"costs.segments.{name}"
            found[kind] = _spread(_per_slice(written, slices, what, key), stages, last_first=kind in BACKWARD)
    return found


def lengthened(segments: Sequence[Segment], more_ns: int) -> tuple[Segment, ...]:
    """Return segments whose first computation takes longer."""
    place = next(place for place, segment in enumerate(segments) if segment.is_computation)
    longer = replace(segments[place], duration_ns=segments[place].duration_ns + more_ns)
    return (*segments[:place], longer, *segments[place + 1 :])


def _per_slice(written: Sequence[Any], slices: int, what: str, key: str) -> list[tuple[Segment, ...]]:
    if isinstance(written[0], dict):
        return [_read(written, key)] * slices
    if len(written) != slices:
        raise ConfigError(
            f"{len(written)} lists for {slices} {what}: write one each, or a single one for all", key=key
        )
    return [_read(one, f"{key}[{place}]") for place, one in enumerate(written)]


def _read(written: Sequence[Mapping[str, Any]], key: str) -> tuple[Segment, ...]:
    segments = tuple(_segment(one) for one in written)
    for place, segment in enumerate(segments):
        problem = problem_of(segment, place).replace("size_bytes", "size")
        if None not in {written[place]["takes"], written[place]["frees"]}:
            problem = "both takes and frees: it does one of them"
        if problem:
            raise ConfigError(f"segment {segment.name} {problem}", key=f"{key}[{place}]")
    try:
        check_segments(segments, key.rpartition(".")[2])
    except ValueError as error:
        raise ConfigError(str(error).partition(": ")[2], key=key) from None
    return segments


def _segment(written: Mapping[str, Any]) -> Segment:
    takes, frees = written["takes"], written["frees"]
    return Segment(
        name=written["name"], duration_ns=0 if written["link"] else written["time"],
        stream=_STREAMS[written["stream"]], needs=None if written["needs"] is None else tuple(written["needs"]),
        result=written["result"], size_bytes=written["size"], link=written["link"] or "",
        activation_bytes=None if takes is frees is None else (takes or 0) - (frees or 0),
    )  # fmt: skip


def _spread(slices: Sequence[tuple[Segment, ...]], stages: int, *, last_first: bool) -> list[tuple[Segment, ...]]:
    """Return what is on each stage: some slices one after the other, or a part of one."""
    count = len(slices)
    if count <= stages:
        share = Fraction(count, stages)
        return [tuple(one.scaled(share) for one in slices[stage * count // stages]) for stage in range(stages)]
    each = count // stages
    parts = [slices[first : first + each] for first in range(0, count, each)]
    return [_joined(reversed(part) if last_first else part) for part in parts]


def _joined(slices: Iterable[tuple[Segment, ...]]) -> tuple[Segment, ...]:
    """Return one action of several slices, each of which needs the result of the one before."""
    found: list[Segment] = []
    for segments in slices:
        begin = len(found)
        before = tuple(place for place in results_of(found)) if found else ()
        found = [replace(one, result=False) for one in found]
        found += [
            replace(one, needs=tuple(begin + need for need in one.needs_of(place)) if place else before or None)
            for place, one in enumerate(segments)
        ]
    return tuple(found)
