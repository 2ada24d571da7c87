"""Find the traces of a run, in files and folders, and read them by the importer that knows them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import PolicyName
from pptrace.config.limits import check_regular
from pptrace.config.resolution import load
from pptrace.errors import PptraceError, TraceError
from pptrace.run.preparation import build_costs, prepare
from pptrace.steps.kinds import COMMUNICATION, TABLE
from pptrace.timeline.measurement import ImportRequest, Measurement, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.offers import ImporterOffer
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import Prepared
    from pptrace.steps.placement import Placement
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline

_HEAD = 4096
_GZIP = b"\x1f\x8b"
_OF_GZIP = 31
"""Asks zlib for gzip's header."""


def read_measurement(
    sources: Sequence[Path], registry: Registry, request: ImportRequest | None = None
) -> tuple[Measurement, bool]:
    """Read traces that belong together; a folder stands for what is in it, and what no importer knows is noted.

    Returns:
        The measurement, and whether it was recorded (a trace that pptrace wrote of a simulation was not).

    Raises:
        TraceError: nothing there, nothing that an importer knows, or files of several sorts.
    """
    files = [file for source in sources for file in _files(source)]
    known: dict[str, tuple[ImporterOffer, list[Path]]] = {}
    strangers = []
    for file in files:
        try:
            offer = importer_of(file, registry)
        except TraceError as error:
            if len(files) == 1 or not isinstance(error.__cause__, zlib.error):
                raise
            offer = None
        if offer is None:
            strangers.append(file)
        else:
            known.setdefault(offer.name, (offer, []))[1].append(file)
    if not known:
        raise _unknown(sources[0], strangers, registry)
    most = sorted(known.values(), key=lambda one: -len(one[1]))
    offer, own = most[0]
    odd = [(file, other.name) for other, files in most[1:] for file in files]
    if odd and (len(own) == len(most[1][1]) or not any(source.is_dir() for source in sources)):
        told = ", ".join(f"{files[0].name} of {one.name}" for one, files in most)
        raise TraceError(f"holds traces of several sorts ({told}): leave one sort", file=sources[0])
    notes = tuple(f"{file.name} is a trace of {name}, the others of {offer.name}: left out" for file, name in odd)
    notes += tuple(f"{file.name} is no trace that an importer knows: left out" for file in strangers[:_TOLD])
    if len(strangers) > _TOLD:
        notes += (f"{len(strangers) - _TOLD} further files are none either",)
    if offer.measure is None:
        timeline = offer.read(own)
        step = Step(label="simulated", timeline=timeline, gap_ns=np.zeros(len(timeline), dtype=np.int64))
        return Measurement(steps=(step,), notes=notes), False
    measured = offer.measure(own, request or ImportRequest())
    for step in measured.steps:
        _check_places(step, own[0])
    return _with_notes(measured, notes), True


def _check_places(step: Step, file: Path) -> None:
    """Refuse passes and messages of stages or microbatches that the step does not have.

    Raises:
        TraceError: the first of them.
    """
    timeline, placement = step.timeline, step.timeline.placement
    placed = (TABLE.feeds[timeline.kind] >= 0) | COMMUNICATION.mask(timeline.kind)
    stage, first, last = timeline.stage, timeline.microbatch, timeline.microbatch + timeline.span
    outside = (stage < 0) | (stage >= placement.stages) | (first < 0) | (last > placement.microbatches)
    wrong = np.flatnonzero(placed & outside)
    if wrong.size:
        sizes = f"{placement.stages} stages and {placement.microbatches} microbatches"
        raise TraceError(f"{step.label}: {timeline[int(wrong[0])].action} is not among its {sizes}", file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What a simulation's trace was made with."""

    workload: Workload
    """What actions cost."""
    p2p: Mapping[str, Any]
    """How messages were issued, as its configuration has it."""


def simulation_behind(timeline: Timeline, registry: Registry) -> Behind | None:
    """Return what a simulation's trace was made with, from the configuration that it holds.

    None where it holds none, or what is installed no longer takes it.
    """
    configuration = _configuration_of(timeline)
    if configuration is None:
        return None
    placement = timeline.placement
    parallel, batch = (configuration.get(key) or {} for key in ("parallel", "batch"))
    if not isinstance(parallel, dict) or not isinstance(batch, dict):
        return None
    parallel, batch = {**parallel}, {**batch}
    if parallel.get("pp") is None:  # a table said it
        parallel["pp"] = placement.ranks
    if all(batch.get(key) is None for key in ("microbatches", "global")):
        batch["microbatches"] = placement.microbatches
    edges = tuple((int(a), int(b)) for a, b in placement.edges)
    # The order is known, and a table's file need not be there.
    plain = {**configuration, "schedule": {"name": "none"}, "parallel": parallel, "batch": batch}
    try:
        resolved = load(plain)
        if not _fits(resolved, placement):
            return None
        workload = build_costs(resolved, registry).workload(
            placement.stages, edges, placement.holders(), has_pairs=timeline.parts is not None
        )
    except PptraceError:
        return None
    return Behind(workload=workload, p2p=configuration.get("p2p") or {})


def prepared_behind(timeline: Timeline, registry: Registry) -> Prepared | None:
    """Return what a simulation's trace was simulated on, from the configuration that it holds.

    None where it holds none, what is installed no longer takes it, or it is of a step of another size, or of one
    in segments.
    """
    configuration = _configuration_of(timeline)
    if configuration is None or timeline.parts is not None:
        return None
    placement = timeline.placement
    try:
        resolved = load(configuration)
        if not _fits(resolved, placement):
            return None
        prepared = prepare(resolved, registry)
    except PptraceError:
        return None
    sizes = [(one.ranks, one.stages, one.microbatches) for one in (prepared.schedule, placement)]
    return prepared if sizes[0] == sizes[1] else None


def _configuration_of(timeline: Timeline) -> dict[str, Any] | None:
    """Return the configuration in a trace, as it can be read again; None where there is none.

    It is written with every default filled in, and a policy that is a program takes no switches of the rules. One
    that names a path is not ours.
    """
    configuration = timeline.provenance.get("configuration")
    if not isinstance(configuration, dict) or any(_names_a_path(part) for part in configuration.values()):
        return None
    p2p = configuration.get("p2p")
    if isinstance(p2p, dict) and p2p.get("policy") not in {name.value for name in PolicyName}:
        return {**configuration, "p2p": {key: value for key, value in p2p.items() if key not in _OF_RULES}}
    return configuration


def _fits(resolved: Resolved, placement: Placement) -> bool:
    """Whether a configuration is for a step of a trace's size: nothing larger is to be built for its text."""
    asked = resolved.experiment
    sizes = asked.parallel.pp in {None, placement.ranks}, asked.batch.known_microbatches <= placement.microbatches
    return all(sizes)


def _names_a_path(part: Any) -> bool:
    """Whether a part of a configuration is named by a path: we write none, and a trace is to have no file read."""
    names = (part.get("name"), part.get("preset")) if isinstance(part, dict) else (part,)
    return any(isinstance(name, str) and ("/" in name or "\\" in name) for name in names)


_OF_RULES = frozenset({"stream", "eager"})
_TOLD = 5
"""Files that are named one by one."""


def importer_of(file: Path, registry: Registry) -> ImporterOffer | None:
    """Return the importer that recognises a file.

    Raises:
        TraceError: the file cannot be read.
    """
    head = head_of(file)
    for provided in registry.importers.values():
        if provided.offer.recognises(file, head):
            return provided.offer
    return None


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked.

    Raises:
        TraceError: it cannot be read.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD)
    except OSError as error:
        raise TraceError(error.strerror or "cannot be read", file=path) from error
    try:
        # Of a file that ends in the middle, its beginning tells what it is.
        return zlib.decompressobj(_OF_GZIP).decompress(start, _HEAD) if start[:2] == _GZIP else start
    except zlib.error as error:
        raise TraceError("is no whole gzip file", file=path) from error


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not found:
        raise TraceError("is an empty folder", file=source)
    return found


def _unknown(source: Path, strangers: Sequence[Path], registry: Registry) -> TraceError:
    offers = registry.importers.values()
    known = ", ".join(f"{provided.offer.name} ({provided.offer.summary})" for provided in offers)
    hint = "" if any(p.offer.measure for p in offers) else "; for measured traces pip install pptrace-profilers"
    file = strangers[0] if strangers else source
    return TraceError(f"no importer recognises it; there are {known}{hint}", file=file)


def _with_notes(measured: Measurement, notes: tuple[str, ...]) -> Measurement:
    return replace(measured, notes=(*notes, *measured.notes))
