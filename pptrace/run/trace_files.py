"""Trace files: their search in folders, import, and export."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.config.limits import check_regular
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, OutputError, PluginError, PptraceError, TraceError
from pptrace.files import check_distinct, compress, make_folders, replace_file
from pptrace.plugins.registry import installation
from pptrace.run.preparation import build_costs, prepare
from pptrace.steps.actions import FORMS
from pptrace.steps.kinds import COMMUNICATION, TABLE
from pptrace.timeline.trim import step_microbatches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.offers import ExporterOffer, ImporterOffer
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.actions import Form
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.measurement import ImportRequest, Measurement, Step
    from pptrace.timeline.timeline import Timeline

_HEAD = 4096
_MOST_METADATA = 16 << 20
"""Bytes that may precede the events of Chrome JSON."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_ITERATION = re.compile(r"iteration_(\d{1,12})")
_GZIP = b"\x1f\x8b"
_OF_GZIP = 31
"""Asks zlib for gzip's header."""


def read_measurement(
    sources: Sequence[Path], registry: Registry, request: ImportRequest | None = None
) -> tuple[Measurement, bool]:
    """Read the traces of one run, from files and folders; files without an importer become notes.

    Returns:
        The measurement, and whether it was recorded. A trace that pptrace wrote has this in its provenance.

    Raises:
        TraceError: no file, no file with an importer, or files of several formats.
        ConfigError: no folder of the requested iteration.
    """
    from pptrace.timeline.measurement import ImportRequest

    request = request or ImportRequest()
    folders, iteration_note = _choose_iteration(sources, request.iteration)
    files = [file for source in folders for file in _files(source)]
    known: dict[str, tuple[ImporterOffer, list[Path]]] = {}
    unknown = []
    for file in files:
        try:
            head = head_of(file)
        except TraceError as error:
            if len(files) == 1 or not isinstance(error.__cause__, zlib.error):
                raise
            unknown.append(file)
            continue
        offer = find_importer(file, head, registry)
        if offer is None:
            unknown.append(file)
        else:
            known.setdefault(offer.name, (offer, []))[1].append(file)
    if not known:
        raise _unknown(sources[0], unknown, registry)
    most = sorted(known.values(), key=lambda group: -len(group[1]))
    offer, own_files = most[0]
    odd = [(file, other.name) for other, files in most[1:] for file in files]
    if odd and (len(own_files) == len(most[1][1]) or not any(source.is_dir() for source in sources)):
        formats = ", ".join(f"{files[0].name} of {other.name}" for other, files in most)
        raise TraceError(f"holds traces in several formats ({formats}): keep one format", file=sources[0])
    notes: tuple[str, ...] = (iteration_note,) if iteration_note else ()
    notes += tuple(f"{file.name} is a trace of {name}, the others of {offer.name}: skipped" for file, name in odd)
    notes += tuple(f"no importer recognises {file.name}: skipped" for file in unknown[:_LISTED])
    if len(unknown) > _LISTED:
        notes += (f"no importer recognises {len(unknown) - _LISTED} further files: skipped",)
    measurement, is_recorded = _read_by(offer, own_files, request)
    return replace(measurement, notes=(*notes, *measurement.notes)), is_recorded


def _read_by(offer: ImporterOffer, files: Sequence[Path], request: ImportRequest) -> tuple[Measurement, bool]:
    if offer.measure is not None:
        measurement = offer.measure(files, request)
        for step in measurement.steps:
            _check_places(step, files[0])
        steps = tuple(_with_provenance(step, measurement) for step in measurement.steps)
        return replace(measurement, steps=steps), True
    if offer.read is None:
        raise PluginError(f"importer {offer.name!r} has neither read nor measure")
    measurement = _of_timeline(offer.read(files))
    return measurement, _RECORDED in measurement.steps[0].timeline.provenance


_RECORDED = "recorded"
"""Key of the provenance of recorded steps: label, slices, whether the first stage has no input gradient, and the
message policy where the recording names it."""


def _with_provenance(step: Step, measured: Measurement) -> Step:
    recorded = {
        "step": step.label, "slices": measured.slices, "empty_input_gradient": measured.empty_input_gradient,
        **({"p2p": measured.p2p} if measured.p2p else {}),
    }  # fmt: skip
    provenance = {**step.timeline.provenance, _RECORDED: recorded}
    return replace(step, timeline=replace(step.timeline, provenance=provenance))


def _of_timeline(timeline: Timeline) -> Measurement:
    """Return the measurement of a step that pptrace wrote, recorded or simulated."""
    from pptrace.timeline.measurement import Measurement, Step

    recorded = timeline.provenance.get(_RECORDED, {})
    slices = recorded.get("slices") if recorded else _slices_of(timeline)
    label = str(recorded.get("step", "recorded")) if recorded else "simulated"
    step = Step(label=label, timeline=timeline, gap_ns=np.zeros(len(timeline), dtype=np.int64))
    return Measurement(
        steps=(step,), slices=slices if isinstance(slices, int) and slices > 0 else 1,
        empty_input_gradient=recorded.get("empty_input_gradient") is True,
        p2p=p2p if isinstance(p2p := recorded.get("p2p"), dict) else {},
    )  # fmt: skip


def find_importer(file: Path, head: bytes, registry: Registry) -> ImporterOffer | None:
    """Return the first importer that recognises a file by :func:`head_of` it; None if none does."""
    importers = (provided.offer for provided in registry.importers.values())
    return next((importer for importer in importers if importer.recognises(file, head)), None)


def run_folders(sources: Sequence[Path]) -> list[Path]:
    """Return the folders of runs at and below the sources, the newest first: those with a manifest."""
    manifests = [
        file
        for source in sources
        for file in (sorted(source.rglob(f"*{_MANIFEST}")) if source.is_dir() else [])
        if not any(part.startswith(".") for part in file.relative_to(source).parts)
    ]
    newest = sorted(manifests, key=lambda file: (-file.stat().st_mtime_ns, str(file)))
    return list(dict.fromkeys(file.parent for file in newest))


def _check_places(step: Step, file: Path) -> None:
    """Check that passes and messages have stages and microbatches of the step."""
    timeline, placement = step.timeline, step.timeline.placement
    placed = (TABLE.feeds[timeline.kind] >= 0) | COMMUNICATION.mask(timeline.kind)
    stage, first, last = timeline.stage, timeline.microbatch, timeline.microbatch + timeline.span
    outside = (stage < 0) | (stage >= placement.stages) | (first < 0) | (last > placement.microbatches)
    wrong = np.flatnonzero(placed & outside)
    if wrong.size:
        sizes = f"{placement.stages} stages and {placement.microbatches} microbatches"
        raise TraceError(f"{step.label}: {timeline[int(wrong[0])].action} is not among its {sizes}", file=file)


def _slices_of(timeline: Timeline) -> int:
    """Return the slices of each sequence of a simulated step by its configuration; 1 where they are unknown."""
    batch = (_configuration_of(timeline) or {}).get("batch")
    whole = batch.get("microbatches") if isinstance(batch, dict) else None
    if not isinstance(whole, int) or whole < 1:
        return 1
    slices, cut = divmod(step_microbatches(timeline), whole)
    return 1 if cut else max(slices, 1)


class SimulatedSource(Struct, frozen=True):
    """Costs and policy of a simulated trace."""

    workload: Workload
    """Costs of actions."""
    p2p: Mapping[str, Any]
    """The section ``p2p`` of its configuration."""


def simulated_source(timeline: Timeline, registry: Registry) -> SimulatedSource | None:
    """Return costs and policy of a simulated trace, from its configuration.

    None without a configuration, or if the installed plugins do not take it.
    """
    configuration = _configuration_of(timeline)
    if configuration is None:
        return None
    placement = timeline.placement
    try:
        # The trace has the order, and the file of a table may be missing.
        resolved = load({**configuration, "schedule": {"name": "none"}})
        if not _fits(resolved, placement):
            return None
        workload = build_costs(resolved, registry).workload(
            placement.stages, placement.graph, placement.holders(), has_pairs=timeline.parts is not None
        )
    except PptraceError:
        return None
    return SimulatedSource(workload=workload, p2p=configuration.get("p2p") or {})


def source_inputs(timeline: Timeline, registry: Registry) -> StepInputs | None:
    """Return the inputs of a simulated trace, from its configuration.

    None without a configuration, for plugins that do not take it, another size, or segments.
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
    table = prepared.schedule
    sizes = table.ranks, table.stages, table.microbatches
    return prepared if sizes == (placement.ranks, placement.stages, placement.microbatches) else None


def _configuration_of(timeline: Timeline) -> dict[str, Any] | None:
    """Return the configuration of a trace in readable form; None without one, or with a path in it.

    Traces have all defaults, and the policies of frameworks do not take the switches of rules.
    """
    configuration = timeline.provenance.get("configuration")
    if not isinstance(configuration, dict):
        return None
    # Traces must not cause reads of files.
    for part in configuration.values():
        names = (part.get("name"), part.get("preset")) if isinstance(part, dict) else (part,)
        if any(isinstance(name, str) and ("/" in name or "\\" in name) for name in names):
            return None
    p2p = configuration.get("p2p")
    if isinstance(p2p, dict) and p2p.get("policy") not in {name.value for name in PolicyName}:
        return {**configuration, "p2p": {key: value for key, value in p2p.items() if key not in _OF_RULES}}
    return configuration


def _fits(resolved: Resolved, placement: Placement) -> bool:
    """Return whether a configuration has a trace's size, so that nothing larger is built."""
    parallel, batch = resolved.experiment.parallel, resolved.experiment.batch
    return parallel.pp in {None, placement.ranks} and batch.known_microbatches <= placement.microbatches


_OF_RULES = frozenset({"stream", "eager"})
_LISTED = 5
"""Limit of named files."""


def head_of(path: Path) -> bytes:
    """Return the first 4096 bytes of a file, unpacked.

    Metadata may precede the events of Chrome JSON. So the head of a JSON object with events reaches 4096 bytes
    beyond the start of the events.

    Raises:
        TraceError: it cannot be read.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            return _read_head(file)
    except OSError as error:
        raise TraceError(f"cannot be read: {(error.strerror or str(error)).lower()}", file=path) from error
    except zlib.error as error:
        raise TraceError("is not a complete gzip file", file=path) from error


def _read_head(file: BinaryIO) -> bytes:
    head, packed = b"", file.read(_HEAD)
    inflate = zlib.decompressobj(_OF_GZIP) if packed[:2] == _GZIP else None
    size = _HEAD
    while packed and len(head) < size:
        # The first bytes are enough for a truncated file. Each part is at most as long as all previous parts.
        part_bytes = max(len(head), _HEAD)
        head += packed if inflate is None else inflate.decompress(packed, part_bytes)
        size = _head_bytes(head)
        packed = (inflate.unconsumed_tail if inflate is not None else b"") or file.read(part_bytes)
    return head[: _HEAD if size == _MOST_METADATA else size]


def _head_bytes(text: bytes) -> int:
    """Return the size of the head of a file that begins with a text."""
    if not text.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return _HEAD
    events = _EVENTS.search(text)
    return _MOST_METADATA if events is None else events.end() + _HEAD


_MANIFEST = ".manifest.json"
"""End of names of files that describe a folder of traces."""


def _choose_iteration(sources: Sequence[Path], iteration: int | None) -> tuple[Sequence[Path], str]:
    """Return the folders of one iteration, by default the last with the most files of a type, and a note on it.

    torchtitan writes the traces of each profiled iteration to a folder ``iteration_N``.

    Raises:
        ConfigError: no folder of the requested iteration.
    """
    folders = {
        int(name[1]): folder
        for source in (sources if len(sources) == 1 and sources[0].is_dir() else ())
        for folder in source.iterdir()
        if (name := _ITERATION.fullmatch(folder.name)) and folder.is_dir()
    }
    if iteration is None and len(folders) <= 1:
        return sources, ""
    known = ", ".join(map(str, sorted(folders))) or "no folders iteration_N"
    note = ""
    if iteration is None:
        types = {
            number: Counter(path.suffix for path in folder.rglob("*") if path.is_file())
            for number, folder in folders.items()
        }
        files = {number: max(counts.values(), default=0) for number, counts in types.items()}
        iteration = max(files, key=lambda number: (files[number], number))
        note = f"reading iteration {iteration} of {known}; --iteration selects another"
    if iteration not in folders:
        raise ConfigError(f"no such iteration in {sources[0]}: there are {known}", file=f"--iteration {iteration}")
    return [folders[iteration]], note


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    paths = sorted(path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
    files = [path for path in paths if not path.name.endswith(_MANIFEST)]
    if not files:
        raise TraceError("is an empty folder", file=source)
    return files


def _unknown(source: Path, files: Sequence[Path], registry: Registry) -> TraceError:
    offers = [provided.offer for provided in registry.importers.values()]
    file = files[0] if files else source
    if file.is_file() and not file.stat().st_size:
        return TraceError("the file is empty", file=file)
    advice = advice_on(file, registry)
    if advice:
        return TraceError(advice, file=file)
    if file.suffix in {".yaml", ".yml"}:
        return TraceError("is a configuration: name the traces of a run, or a folder with them", file=file)
    known = f"{', '.join(offer.name for offer in offers)}; docs/measured.md describes the formats"
    can_measure = any(offer.measure for offer in offers)
    hint = "" if can_measure else f"; measured traces need {installation('pptrace-profilers')}"
    what, place = ("a file of the folder", source) if len(files) > 1 else ("the file", file)
    return TraceError(f"no importer recognises {what}; importers: {known}{hint}", file=place)


def advice_on(file: Path, registry: Registry) -> str:
    """Return what an unreadable file is and what to record or convert instead; empty for other files."""
    offers = (provided.offer for provided in registry.importers.values())
    return next((text for offer in offers if offer.advise is not None and (text := offer.advise(file))), "")


RANK = "{rank}"
"""The placeholder of the rank in file names."""

_GZ = ".gz"


def save(
    timeline: Timeline, targets: Sequence[str], exporters: Mapping[str, ExporterOffer], options: Mapping[str, Any]
) -> list[Path]:
    """Write a timeline in the formats of the targets' suffixes; ``.gz`` compresses.

    ``{rank}`` in a name writes one file per rank, and creates its folder. A format with a file per rank puts the
    rank before its suffix, and takes a folder. All files are written before the first replaces an old file, so a
    failure leaves all old files.

    Returns:
        The files, target by target and in rank order.

    Raises:
        OutputError: no format has a target's suffix, two targets are one file, or a file cannot be written.
    """
    offers = [exporter_for(target, exporters) for target in targets]
    outputs = [
        (Path(target if rank is None else target.replace(RANK, str(rank))), rank, offer)
        for target, offer in zip(map(_with_rank, targets, offers), offers, strict=True)
        for rank in _ranks(timeline, target)
    ]
    paths = [path for path, _, _ in outputs]
    check_distinct(paths)
    with ExitStack() as pending:
        for path, rank, offer in outputs:
            if rank is not None:
                pending.enter_context(make_folders(path))
            _write(timeline, rank, pending.enter_context(replace_file(path)), offer, options)
    return paths


def _with_rank(target: str, offer: ExporterOffer) -> str:
    """Return a target with ``{rank}`` where its format has a file per rank; a folder repeats its name.

    ``step.et`` becomes ``step.{rank}.et``, and the folder ``step.et/`` becomes ``step.et/step.{rank}.et``.
    """
    if not offer.file_per_rank or RANK in target:
        return target
    path = Path(target)
    plain = path.name[: -len(_GZ)] if path.name.lower().endswith(_GZ) else path.name
    stem = Path(plain).stem
    file = f"{stem}.{RANK}{path.name[len(stem) :]}"
    return str(path / file if target.endswith("/") or path.is_dir() else path.with_name(file))


def _ranks(timeline: Timeline, target: str) -> Sequence[int | None]:
    """Return the ranks that have a file each, or None for one file of all."""
    if RANK not in target:
        return [None]
    ranks = sorted(set(timeline.lane_rank.tolist()))
    if not ranks:
        raise OutputError("the timeline holds no slices, so there is no rank to write", file=target)
    return ranks


def exporter_for(target: str, exporters: Mapping[str, ExporterOffer]) -> ExporterOffer:
    """Return the format of a file name, by the longest matching suffix.

    Raises:
        OutputError: no suffix matches; names the known suffixes.
    """
    name = Path(target).name.lower().removesuffix(_GZ)
    matches = [
        (len(suffix), offer) for offer in exporters.values() for suffix in offer.suffixes if name.endswith(suffix)
    ]
    if not matches:
        known = sorted({suffix for offer in exporters.values() for suffix in offer.suffixes})
        raise OutputError(
            f"no format has this suffix; known: {', '.join(known) or 'none'}, each also with {_GZ}", file=target
        )
    return max(matches, key=lambda fit: fit[0])[1]


def table_exporters(schedule: Schedule) -> dict[str, ExporterOffer]:
    """Return the exporters of a schedule's table by suffix; they ignore the timeline.

    The table has the computations, and copies to and from the host. Messages and other gathers are left out, as
    the configuration of a simulation and PyTorch's runtime insert their own.
    """
    from pptrace.plugins.offers import ExporterOffer

    def write(form: Form, _timeline: Timeline, path: Path, _options: Mapping[str, Any]) -> None:
        from pptrace.steps.text_forms import Dialect, in_dialect, table_text

        table = in_dialect(schedule, Dialect.COMPUTE)
        path.write_text(table_text(table, form), encoding="utf-8", newline="\n")

    return {
        suffix: ExporterOffer(name=suffix, summary="The table.", suffixes=(suffix,), write=partial(write, form))
        for suffix, form in FORMS.items()
    }


def _write(
    timeline: Timeline,
    rank: int | None,
    path: Path,
    offer: ExporterOffer,
    options: Mapping[str, Any],
) -> None:
    if rank is not None and offer.takes_rank:
        options = {**options, "rank": rank}
    elif rank is not None:
        from pptrace.timeline.trim import trim

        timeline = trim(timeline, [rank], None)
    if path.suffix != _GZ:
        offer.write(timeline, path, options)
        return
    uncompressed = path.with_suffix(".plain")
    try:
        offer.write(timeline, uncompressed, options)
        compress(uncompressed, path)
    finally:
        uncompressed.unlink(missing_ok=True)
