"""Reader of pptrace's own Kineto JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pptrace.config.limits import check_events, gibibytes, memory_key, most_parsed, open_unpacked
from pptrace.errors import TraceError
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Parts, Routes, Timeline
from pptrace.traces.damage import DAMAGE, checked_timeline, named_damage
from pptrace.traces.kineto.writer import FORMAT, process_of
from pptrace.traces.link_slices import routed
from pptrace.traces.scene import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.config.limits import UnpackedFile

__all__ = ["Part", "joined", "read"]

_KINDS = {name: kind for kind, name in enumerate(NAMES)}
_KERNELS = frozenset({"kernel", "gpu_memcpy"})
_KEYS = {
    "stage": "stage",
    "microbatch": "microbatch",
    "span": "span",
    "lag_ns": "lag_ns",
    "uncontended_ns": "uncontended_ns",
    "collective_ns": "collective_ns",
    "size_bytes": "bytes",
    "pair": "pair",
    "cause": "cause",
    "row": "correlation",
    "segment_number": "segment_number",
}
_FORMER = {"pair": "braid"}
"""Keys that files of format 1 had instead."""
_ASSUMED = {"span": 1, "pair": -1, "cause": 0, "segment_number": -1}


_SHARED = ("placement", "provenance", "segments")
"""What files of one run have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file's rows, numbered as in the whole timeline."""

    own: dict[str, Any]
    """What the file says of itself."""
    columns: dict[str, NDArray[np.int64]]
    """Columns of the timeline, and ``row``; ``cause`` is a row too, 0 for none."""
    counters: tuple[Counter, ...]
    """In the order of display."""
    links: tuple[tuple[str, ...], tuple[int, ...]] | None
    """Names and rates of all links; None where no routes are known."""
    hops: NDArray[np.int64]
    """Shape (hops, 3): a message's row, the place along its route, and the link there."""

    @classmethod
    def of(cls, own: dict[str, Any], batches: Iterable[list[dict[str, Any]]]) -> Self:
        """Gather one file's events."""
        keys = _keys(own["placement"])
        pieces: dict[str, list[NDArray[np.int64]]] = {}
        launches: list[NDArray[np.int64]] = []
        steps: dict[tuple[int, str, str], list[tuple[int, int]]] = {
            (process_of(rank, own["placement"]["ranks"]), name, unit): [] for rank, name, unit in own["counters"]
        }
        hops: list[NDArray[np.int64]] = []
        for events in batches:
            slices = [event for event in events if event["ph"] == "X"]
            kernels = [e for e in slices if e["cat"] in _KERNELS]
            for name, values in _kernels(kernels, own.get("segments", ()), keys).items():
                pieces.setdefault(name, []).append(values)
            launches.append(_launches([e for e in slices if e["cat"] == "cuda_runtime"]))
            hops.append(_hops([e["args"] for e in slices if e["cat"] == "link"]))
            for event in events:
                if event["ph"] == "C":
                    ((unit, value),) = event["args"].items()
                    steps[event["pid"], event["name"], unit].append((_ns(event["ts"]), value))
        columns = {name: np.concatenate(values) for name, values in pieces.items()}
        columns["enter_ns"] = _entered(columns["row"], np.concatenate(launches, axis=1))
        counters = zip(own["counters"], steps.values(), strict=True)
        return cls(
            own=own,
            columns=columns,
            counters=tuple(_counter(rank, name, unit, found) for (rank, name, unit), found in counters),
            links=(tuple(map(str, own["routes"][0])), tuple(map(int, own["routes"][1])))
            if "routes" in own
            else None,
            hops=np.concatenate(hops),
        )


def _keys(placement: dict[str, Any]) -> dict[str, str]:
    """Return the keys of a file's slices, and give its placement the names of today."""
    if "unit_route" not in placement:
        return _KEYS
    placement["microbatch_route"] = placement.pop("unit_route")
    return _KEYS | _FORMER


def joined(parts: Sequence[tuple[Path, Part]]) -> Timeline:
    """Return the timeline of files that were written together.

    Raises:
        TraceError: a file tells of another run than the first, repeats a rank, or has lost rows.
    """
    if not parts:
        raise TraceError("no trace file was given")
    first, links = parts[0][1].own, parts[0][1].links
    seen: set[int] = set()
    for path, part in parts:
        ranks = {lane[0] for lane in part.own["lanes"]}
        if part.links != links or any(part.own.get(key) != first.get(key) for key in _SHARED):
            raise TraceError(f"not of the same run as {parts[0][0]}; read them apart", file=path)
        if seen & ranks:
            raise TraceError(f"rank {min(seen & ranks)} is in another of the files too", file=path)
        if sum(lane[3] for lane in part.own["lanes"]) != part.columns["row"].size:
            raise TraceError("slices are missing; was it cut short or edited?", file=path)
        if len(part.hops) != (part.own["routes"][2] if part.links else 0):
            raise TraceError("slices on links are missing; was it cut short or edited?", file=path)
        seen |= ranks
    return _timeline(parts)


def _timeline(files: Sequence[tuple[Path, Part]]) -> Timeline:
    parts = [part for _, part in files]
    lanes = np.array(sorted(lane for part in parts for lane in part.own["lanes"]), dtype=np.int64).reshape(-1, 4)
    columns: dict[str, Any] = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    row = columns.pop("row")
    order = np.argsort(row, kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    columns["cause"] = _found(row[order], columns["cause"])
    segments, number, name = parts[0].own.get("segments"), columns.pop("segment_number"), columns.pop("segment")
    counters = sorted((counter for part in parts for counter in part.counters), key=lambda c: c.rank)
    placement = parts[0].own["placement"]
    return Timeline(
        placement=Placement(
            ranks=placement["ranks"],
            stage_rank=np.array(placement["stage_rank"], dtype=np.int32),
            microbatch_route=np.array(placement["microbatch_route"], dtype=np.int32),
            edges=np.array(placement["edges"], dtype=np.int32).reshape(-1, 2),
        ),
        lane_rank=lanes[:, 0].astype(np.int32),
        lane_stream=lanes[:, 1].astype(np.int8),
        lane_peer=lanes[:, 2].astype(np.int32),
        lane_ptr=np.concatenate([[0], np.cumsum(lanes[:, 3])]),
        counters=tuple(counters),
        routes=_routes(files, row[order]),
        parts=None if segments is None else Parts(number=number, name=name, names=tuple(map(str, segments))),
        provenance=parts[0].own["provenance"],
        **columns,
    )


def _routes(parts: Sequence[tuple[Path, Part]], row: NDArray[np.int64]) -> Routes | None:
    path, first = parts[0]
    if first.links is None:
        return None
    name, rate_kbps = first.links
    transfer, place, link = np.concatenate([part.hops for _, part in parts]).T
    found = routed(row.size, _found(row, transfer), place, link)
    if found is None or not np.isin(link, np.arange(len(name))).all():
        raise TraceError("slices on links lead nowhere; was it edited?", file=path)
    return Routes(name=name, rate_kbps=np.array(rate_kbps, dtype=np.int64), ptr=found[0], link=found[1])


def _hops(args: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    return _integers([[a["transfer"], a["hop"], a["link"]] for a in args]).reshape(-1, 3)


def _kernels(
    events: Sequence[dict[str, Any]], segments: Sequence[str], keys: dict[str, str]
) -> dict[str, NDArray[np.int64]]:
    start, dur = _times(events, "ts"), _times(events, "dur")
    args = [event["args"] for event in events]
    columns = {name: _integers([a.get(key, _ASSUMED.get(name, 0)) for a in args]) for name, key in keys.items()}
    columns["uncontended_ns"] = _integers(
        [a.get("uncontended_ns", usual) for a, usual in zip(args, dur.tolist(), strict=True)]
    )
    kind = _integers([_KINDS[a["kind"]] for a in args])
    place = {name: number for number, name in enumerate(segments)}
    columns["segment"] = _integers([place[a["segment"]] if "segment" in a else -1 for a in args])
    return {**columns, "kind": kind, "start_ns": start, "end_ns": start + dur}


def _launches(events: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    """Return the launched rows and their times, shape (2, launches)."""
    return np.stack([_integers([event["args"]["correlation"] for event in events]), _times(events, "ts")])


def _entered(row: NDArray[np.int64], launches: NDArray[np.int64]) -> NDArray[np.int64]:
    launched, at_ns = launches[:, np.argsort(launches[0], kind="stable")]
    found = np.searchsorted(launched, row)
    if not np.array_equal(launched[np.minimum(found, launched.size - 1)], row):
        msg = "a kernel has lost its launch"
        raise ValueError(msg)
    entered: NDArray[np.int64] = at_ns[found]
    return entered


def _found(row: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each wanted row is among the sorted ones, -1 where it is not."""
    at = np.minimum(np.searchsorted(row, wanted), max(row.size - 1, 0))
    return np.where(row[at] == wanted, at, -1) if row.size else at


def _counter(rank: int, name: str, unit: str, steps: Sequence[tuple[int, int]]) -> Counter:
    table = np.array(steps, dtype=np.int64).reshape(-1, 2)
    return Counter(rank=rank, name=name, unit=unit, at_ns=table[:, 0], value=table[:, 1])


def _times(events: Sequence[dict[str, Any]], key: str) -> NDArray[np.int64]:
    return _integers([_ns(event[key]) for event in events])


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _integers(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


_EVENTS = b'"traceEvents": [\n'
_END = b"]}\n"
_BLOCK, _LONGEST_LINE = 4 << 20, 64 << 20
_TELLING = (
    b'{"ph":"X","cat":"kernel"',
    b'{"ph":"X","cat":"gpu_memcpy"',
    b'{"ph":"X","cat":"cuda_runtime"',
    b'{"ph":"X","cat":"link"',
    b'{"ph":"C"',
)
"""How the lines begin that a timeline is made of."""
_MARKS = [b"\n" + start for start in _TELLING]


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows whose rank is in none of the files are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, is not ours, or does not belong with the others.
    """
    parts = [(path, _read_one(path)) for path in paths]
    with named_damage(paths):
        return checked_timeline(joined(parts), paths[0])


def _read_one(path: Path) -> Part:
    try:
        with open_unpacked(path) as file:
            top, batches = _events(file, path)
            return Part.of(top["metadata"]["pptrace"], batches)
    except json.JSONDecodeError as error:
        raise TraceError(f"{error}; was it cut short?", file=path) from None
    except RecursionError:
        raise TraceError("nests its values too deeply to be a trace that pptrace wrote", file=path) from None
    except DAMAGE as error:
        raise TraceError(f"not a trace that pptrace wrote: {type(error).__name__} {error}", file=path) from None


def _events(file: UnpackedFile, path: Path) -> tuple[dict[str, Any], Iterable[list[dict[str, Any]]]]:
    """Return what stands before the events, and the events in batches, so that memory stays bounded.

    A file that some tool laid out anew is read at one go.
    """
    first = file.readline(most_parsed())
    if first.endswith(_EVENTS):
        top = json.loads(first + _END)
        batches: Iterable[list[dict[str, Any]]] = _batches(file, path)
    else:
        top = json.loads(first + _rest(file, len(first), path))
        check_events(len(top["traceEvents"]), path)
        batches = [top["traceEvents"]]
    if top.get("pptraceFormat") not in range(1, FORMAT + 1):
        msg = f"format {top.get('pptraceFormat')}, and this version reads up to {FORMAT}"
        raise ValueError(msg)
    return top, batches


def _rest(file: UnpackedFile, held: int, path: Path) -> bytes:
    """Return the unread part of a file."""
    parts, most = [], most_parsed()
    while part := file.read(_BLOCK):
        parts.append(part)
        held += len(part)
        if held > most:
            message = f"is larger than {gibibytes(most)} and not laid out as pptrace writes it: {memory_key()}"
            raise TraceError(message, file=path)
    return b"".join(parts)


def _batches(file: UnpackedFile, path: Path) -> Iterator[list[dict[str, Any]]]:
    held, last, count = b"", b"", 0
    while True:
        part = file.read(_BLOCK)
        end = part.rfind(b"\n") + 1
        if not end and part:
            held += part
            if len(held) > _LONGEST_LINE:
                raise TraceError(f"a line is longer than {gibibytes(_LONGEST_LINE)}: not a trace", file=path)
            continue
        lines = (held + part[:end]).splitlines(keepends=True)
        held = part[end:]
        telling = [line for line in lines if line.startswith(_TELLING)]
        count += len(telling)
        check_events(count, path)
        file.expect(count, _MARKS)
        yield json.loads(b"[" + b"".join(telling).rstrip().rstrip(b",") + b"]")
        last = lines[-1] if lines else last
        if not part:
            break
    if last != _END:
        msg = "cannot be read: the end is missing"
        raise TraceError(msg, file=path)
