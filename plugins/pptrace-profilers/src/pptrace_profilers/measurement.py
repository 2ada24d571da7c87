"""Pipelines of a recorded job, and measured steps with their summaries."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.network.cluster import Layout
from pptrace.plugin import (
    ConfigError,
    KernelTotal,
    Measurement,
    Occupied,
    Replica,
    Summary,
    TraceError,
    kinds,
)
from pptrace_profilers.action_inference import infer
from pptrace_profilers.alignment import align
from pptrace_profilers.gpu_spans import totals, union_ns
from pptrace_profilers.naming_rules import read_rules
from pptrace_profilers.recording import (
    MOST_RANKS,
    NO_STAGE,
    list_some,
    members_of,
    pipeline_group,
    read_files,
)
from pptrace_profilers.timeline_assembly import assemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import ImportRequest
    from pptrace_profilers.alignment import Transfers
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Operations, Recording

_SIZE = re.compile(r"([a-z]+)=(\d+)")
_SPAN_KINDS = ("slowest", "median")


def _most_recorded(
    pipelines: dict[str, tuple[int, ...]], by_rank: dict[int, Recording]
) -> dict[str, tuple[int, ...]]:
    """Return the recorded ranks of the pipelines with the most recorded ranks."""
    recorded = {place: tuple(rank for rank in ranks if rank in by_rank) for place, ranks in pipelines.items()}
    most = max(map(len, recorded.values()))
    return {place: ranks for place, ranks in recorded.items() if len(ranks) == most}


def _members(recording: Recording) -> tuple[int, ...]:
    """Return the global ranks of a recording's pipeline, from its group or from the groups of all other axes."""
    rank = max(recording.rank, 0)
    return pipeline_group(recording.groups, rank) or infer_pipeline_group(recording.groups, rank, recording.world)


def _by_rank(recordings: Sequence[Recording]) -> dict[int, Recording]:
    unknown = [recording for recording in recordings if recording.rank < 0]
    if unknown and len(recordings) > 1:
        message = "has no rank: name the files rank0.json, rank1.json and so on"
        raise TraceError(message, file=unknown[0].path)
    by_rank: dict[int, Recording] = {}
    for recording in recordings:
        rank, path = max(recording.rank, 0), recording.path
        if rank in by_rank:
            raise TraceError(f"is of rank {rank}, as {_duplicate_text(by_rank[rank].path, path)}", file=path)
        by_rank[rank] = recording
    return dict(sorted(by_rank.items()))


def _duplicate_text(first: Path, second: Path) -> str:
    """Return the text on a file of the same rank and the remedy."""
    if first.parent == second.parent:
        return f"{first.name} is: leave one out"
    return f"{first.parent.name}/{first.name} is: give the folder of one run"


def _described_pipelines(by_rank: dict[int, Recording], layout: str) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of each pipeline by its place, from the layout or groups; empty without both."""
    if layout:
        return _from_layout(by_rank, layout)
    pipelines = sorted({_members(recording) for recording in by_rank.values()} - {()})
    places = [_place(by_rank, ranks) for ranks in pipelines]
    if len(set(places)) < len(places) or "" in places:
        places = [f"of rank {min(ranks)}" for ranks in pipelines]
    return dict(zip(places, pipelines, strict=True))


def _single_pipeline(by_rank: dict[int, Recording]) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the recorded ranks of a job as one pipeline, and a note on missing ranks."""
    world = max((recording.world for recording in by_rank.values()), default=0) or len(by_rank)
    present = tuple(by_rank)
    # A file may have any number of ranks, so ranks are counted and not listed.
    if len(present) == world or max(present) >= world:
        return {"": present}, ""
    absent = (rank for rank in range(world) if rank not in by_rank)
    missing = list_some(absent, world - len(by_rank))
    return {"": present}, f"no file of rank {missing}: only the recorded ranks are read"


def _place(by_rank: dict[int, Recording], pipeline: Sequence[int]) -> str:
    """Return the place of a pipeline, ``dp=0,tp=1``, from its first rank's index in the groups of other axes."""
    rank = next((rank for rank in pipeline if rank in by_rank), -1)
    parts = []
    for axis, described in GROUPED.items():
        groups = by_rank[rank].groups.items()
        ranks = next((ranks for name, ranks in groups if described.search(name) and rank in ranks), ())
        if len(ranks) > 1:
            parts.append(f"{axis}={ranks.index(rank)}")
    return ",".join(parts)


def _from_layout(by_rank: dict[int, Recording], text: str) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        if match is None or match[1] not in Layout().order or not int(match[2]):
            raise ConfigError(f"{part!r} is not a size; write sizes such as pp=4,tp=2,dp=8", file="--layout")
        sizes[match[1]] = int(match[2])
    pp, dp, cp, ep, tp = (sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "ep", "tp"))
    layout = Layout(pp=pp, dp=dp, cp=cp, ep=ep, tp=tp)
    if layout.gpus > MOST_RANKS:
        raise ConfigError(f"{text} has {layout.gpus} ranks; the maximum is {MOST_RANKS}", file="--layout")
    if layout.gpus <= max(by_rank):
        message = f"{text} has ranks 0 to {layout.gpus - 1}, but there is a file of rank {max(by_rank)}"
        raise ConfigError(message, file="--layout")
    pipelines: dict[str, tuple[int, ...]] = {}
    grid = layout.grid()
    for dp, cp, tp in product(range(layout.dp), range(layout.cp), range(layout.tp)):
        coordinates = (("dp", dp, layout.dp), ("cp", cp, layout.cp), ("tp", tp, layout.tp))
        place = ",".join(f"{axis}={index}" for axis, index, size in coordinates if size > 1)
        pipelines[place] = tuple(int(rank) for rank in grid[:, dp, cp, tp])
    return pipelines


def _choose(pipelines: dict[str, tuple[int, ...]], by_rank: dict[int, Recording], replica: str) -> str:
    if not replica or replica in pipelines:
        return replica if replica in pipelines else next(iter(pipelines))
    if replica in _SPAN_KINDS:
        # Clocks may differ by rank, so spans are measured per rank.
        spans = sorted((max(_span(by_rank[rank]) for rank in ranks), place) for place, ranks in pipelines.items())
        return spans[-1 if replica == "slowest" else (len(spans) - 1) // 2][1]
    chosen = next((place for place in pipelines if _coordinates(place) == _coordinates(replica)), None)
    if chosen is None:
        known_text = "; ".join([*filter(None, pipelines), "slowest", "median"])
        raise ConfigError(f"no such replica; recorded are: {known_text}", file=f"--replica {replica}")
    return chosen


def _coordinates(place: str) -> set[str]:
    """Return the coordinates of a place that are not 0."""
    return {part for part in place.replace(" ", "").split(",") if part and not part.endswith("=0")}


def _span(recording: Recording) -> int:
    """Return the time from the first to the last action of a rank, by default of its operations."""
    operations = recording.operations
    if len(recording.executions):
        start_ns, end_ns = recording.executions.work_ns
        return int(end_ns.max() - start_ns.min())
    if operations is not None and operations.start_ns.size:
        return int(operations.end_ns.max()) - int(operations.start_ns.min())
    return 0


def _with_local_peers(recordings: Sequence[Recording], ranks: Sequence[int]) -> list[Recording]:
    """Return recordings with pipeline ranks as peers; -1 for peers outside of the pipeline."""
    local = {rank: number for number, rank in enumerate(ranks)}
    peers = ([local.get(peer, -1) for peer in recording.ends.peer.tolist()] for recording in recordings)
    return [
        replace(recording, ends=recording.ends.with_columns(peer=np.array(of_ends)))
        for recording, of_ends in zip(recordings, peers, strict=True)
    ]


GROUPED = {
    "dp": re.compile(r"(?:^|[_\W])dp(?:$|[_\W])|^data_parallel", re.IGNORECASE),
    "cp": re.compile(r"(?:^|[_\W])cp(?:$|[_\W])|^context_parallel", re.IGNORECASE),
    "tp": re.compile(r"(?:^|[_\W])tp(?:$|[_\W])|^tensor_model_parallel", re.IGNORECASE),
}
"""Descriptions of the groups of each axis, in PyTorch's device meshes and in Megatron-LM."""


def infer_pipeline_group(groups: Mapping[str, tuple[int, ...]], rank: int, world: int) -> tuple[int, ...]:
    """Return the ranks of a rank's pipeline from the groups of all other axes, first stage first; else none.

    The ranks of a group have a constant stride: the product of the sizes of all faster axes. A single gap in
    these products is the axis of the pipeline.

    Args:
        groups: the process groups of the rank, by description.
        rank: the global rank.
        world: ranks of the job.
    """
    strides = []
    for described in GROUPED.values():
        candidates = [ranks for name, ranks in groups.items() if described.search(name) and rank in ranks]
        ranks = min(
            candidates, key=len, default=()
        )  # Megatron-LM has data-parallel groups with and without context
        if len(ranks) > 1:
            strides.append((ranks[1] - ranks[0], len(ranks)))
            if ranks != tuple(range(ranks[0], ranks[0] + len(ranks) * strides[-1][0], strides[-1][0] or 1)):
                return ()
    free, faster = [], 1
    for stride, size in [*sorted(strides), (world, 1)] if strides else ():
        if stride < faster or stride % faster:
            return ()
        if stride > faster:
            free.append((faster, stride // faster))
        faster = stride * size
    if len(free) != 1:
        return ()
    ((stride, size),) = free
    first = rank - rank // stride % size * stride
    return tuple(range(first, first + size * stride, stride))


def ranks_by_stages(pipeline: Sequence[Recording], world: int) -> int:
    """Return the number of ranks of a pipeline from the stages of its recorded ranks; 0 if uncertain.

    The distance between the stages of a rank depends on the route: interleaved, or V-shaped. The first stage of a
    rank is its pipeline rank.
    """
    fitting: set[int] | None = None
    for recording in pipeline:
        stages = stages_of(recording)
        if len(stages) <= 1 or stages[0] == NO_STAGE:
            return 0
        candidates = {
            size
            for size in (stages[1] - stages[0], (stages[0] + stages[1] + 1) // 2)
            if size and world % size == 0 and stages in _stages_of_rank(stages[0], size, len(stages))
        }
        fitting = candidates if fitting is None else fitting & candidates
    return next(iter(fitting)) if fitting and len(fitting) == 1 else 0


def stages_of(recording: Recording) -> list[int]:
    """Return the stages of a rank's actions, in order."""
    return sorted({member.stage for action in recording.executions.action for member in members_of(action)})


def _stages_of_rank(number: int, ranks: int, chunks: int) -> tuple[list[int], list[int]]:
    """Return the stages of a rank on an interleaved route, and on a V-shaped route."""
    if number >= ranks:
        return [], []
    interleaved = [chunk * ranks + number for chunk in range(chunks)]
    v_shaped = [chunk * ranks + (ranks - 1 - number if chunk % 2 else number) for chunk in range(chunks)]
    return interleaved, v_shaped


def measure_recordings(
    recordings: Sequence[Recording], request: ImportRequest, notes: Sequence[str] = ()
) -> Measurement:
    """Measure recordings of any profiler, one per process in any order; without actions there are only summaries.

    Without ``request.layout``, the process groups of the trace give the pipelines. Invalid replicas are noted.

    Raises:
        TraceError: two recordings have the same rank, ranks are unknown, or the recordings form no pipeline.
        ConfigError: the layout or replica is invalid.
    """
    by_rank = _by_rank(recordings)
    described = _described_pipelines(by_rank, request.layout)
    pipelines, note = (described, "") if described else _single_pipeline(by_rank)
    complete = {place: ranks for place, ranks in pipelines.items() if all(rank in by_rank for rank in ranks)}
    recorded = complete or _most_recorded(pipelines, by_rank)

    def measure(place: str) -> Measurement:
        ranks, assumed = recorded[place], [note] if note else []
        if missing := [rank for rank in pipelines[place] if rank not in by_rank]:
            assumed.append(f"no file of rank {list_some(missing, len(missing))}: only the recorded ranks are read")
        if len(pipelines) > 1:
            named = list_some(ranks, len(ranks))
            assumed.append(f"replica {place or 'of rank 0'} of {len(pipelines)}: global ranks {named}")
        pipeline = _with_local_peers([by_rank[rank] for rank in ranks], ranks)
        world = max((recording.world for recording in recordings), default=0)
        return _measure_pipeline(pipeline, described.get(place, ()), world, request, (*notes, *assumed))

    measured = measure(_choose(recorded, by_rank, request.replica))
    if not request.every_replica or len(complete) <= 1 or not measured.steps:
        return measured
    replicas, unread = [], []
    for name, ranks in complete.items():
        try:
            replicas.append(Replica(name=name, ranks=ranks, steps=measure(name).steps))
        except (ConfigError, TraceError) as error:
            unread.append(f"replica {name} is not compared: {error}")
    return replace(measured, replicas=tuple(replicas), notes=(*measured.notes, *unread))


def measure_files(
    read: Callable[[Path, Rules], Sequence[Recording]], paths: Sequence[Path], request: ImportRequest,
    profiler: str = "",
) -> Measurement:  # fmt: skip
    """Read the files of a run by rules, and measure their recordings; unreadable files are noted.

    Args:
        read: returns the recordings of a file.
        paths: the files.
        request: options.
        profiler: name of a profiler that identifies actions by the names of annotations alone; empty for others.

    Raises:
        TraceError: no file can be read, or the recordings do not form a pipeline.
        ConfigError: a rule, layout or replica is invalid, or a rule does not apply to these files.
    """
    rules = read_rules(request.rules)
    if profiler:
        rules.check_names_alone(profiler)
    files, unread = read_files(paths, lambda path: read(path, rules))
    recordings = [
        recording
        for contents in files.values()
        for recording in (rules.ranked(contents) if profiler else contents)
    ]
    if not recordings:
        raise TraceError("holds nothing of any rank", file=paths[0])
    return measure_recordings(recordings, request, unread)


def _measure_pipeline(
    pipeline: Sequence[Recording], members: tuple[int, ...], world: int, request: ImportRequest,
    notes: Sequence[str],
) -> Measurement:  # fmt: skip
    """Measure the recorded ranks of a pipeline, first stage first.

    Args:
        pipeline: the recordings; their peers are indices of recordings.
        members: global ranks of the pipeline; empty if they are unknown.
        world: ranks of the job; 0 if unknown.
        request: options.
        notes: notes on files and assumptions.
    """
    has_actions = not all(kinds.COMMUNICATION.mask(recording.executions.kind).all() for recording in pipeline)
    inference_note = ""
    if not has_actions:
        pipeline, inference_note = infer(pipeline)
        has_actions = any(len(recording.executions) for recording in pipeline)
    numbers, ranks = _numbers_of(pipeline, members, world)
    try:
        measurement = assemble(pipeline, numbers, request.clocks) if has_actions else without_actions(pipeline)
    except TraceError as error:
        if error.file:
            raise
        path = pipeline[0].path
        raise TraceError(str(error), file=path if len(pipeline) == 1 else path.parent) from error
    if numbers and has_actions:
        measurement = _with_pipeline_ranks(measurement, numbers)
    return replace(
        measurement,
        notes=(
            *notes,
            *([inference_note] if inference_note else []),
            *(note for recording in pipeline for note in _overlaps(recording)),
            *_memory(pipeline),
            *measurement.notes,
        ),
        numbers=numbers,
        ranks=ranks,
    )


def _numbers_of(
    pipeline: Sequence[Recording], members: tuple[int, ...], world: int
) -> tuple[tuple[int, ...], int]:
    """Return the pipeline ranks if files are missing, else none, and the number of ranks.

    Without members and inferred stages, the pipeline has all ranks of the job.
    """
    ranks = tuple(max(recording.rank, 0) for recording in pipeline)
    if members:
        return tuple(map(members.index, ranks)) if len(ranks) < len(members) else (), len(members)
    if len(ranks) >= world or max(ranks) >= world:
        return (), len(ranks)
    size = ranks_by_stages(pipeline, world)
    numbers = tuple(stages_of(recording)[0] for recording in pipeline) if size else ()
    if numbers and all(a < b for a, b in pairwise(numbers)):
        return numbers if len(numbers) < size else (), size
    return ranks, world


def _with_pipeline_ranks(measurement: Measurement, numbers: Sequence[int]) -> Measurement:
    """Return a measurement whose clocks, files and further work have the numbers of the ranks in the pipeline."""
    return replace(
        measurement,
        clocks=tuple(replace(clock, rank=numbers[clock.rank]) for clock in measurement.clocks),
        sources=tuple(replace(source, rank=numbers[source.rank]) for source in measurement.sources),
        unattributed=tuple(replace(work, rank=numbers[work.rank]) for work in measurement.unattributed),
    )


def _memory(pipeline: Sequence[Recording]) -> Iterator[str]:
    """Yield a note on the peak of allocated memory on each GPU, if recorded."""
    allocated = [recording.allocated_bytes for recording in pipeline]
    if any(allocated):
        sizes = ", ".join(f"{size / 2**30:.1f}" for size in allocated)
        yield f"most memory that PyTorch had allocated on the ranks' GPUs: {sizes} GiB"


def _overlaps(recording: Recording) -> Iterator[str]:
    """Yield a note on the computations of a rank's host that begin before the end of another."""
    executions = recording.executions
    executions = executions.of_rows(kinds.COMPUTE.mask(executions.kind) & ~executions.on_gpu)
    until_ns = np.maximum.accumulate(executions.end_ns)[:-1]
    early = executions.action[1:][until_ns > executions.start_ns[1:]]
    if early.size:
        yield (
            f"{recording.path.name}: {early.size:,} actions begin before another has ended, {early[0]} first: "
            "each is moved to start at that end"
        )


def without_actions(recordings: Sequence[Recording]) -> Measurement:
    """Return a measurement without steps.

    Args:
        recordings: one per pipeline rank, in their order; peers of their messages are pipeline ranks.

    Raises:
        TraceError: the recordings have neither operations nor messages.
    """
    ranks = [max(recording.rank, 0) for recording in recordings]
    summaries = [
        summary
        for rank, recording in zip(ranks, recordings, strict=True)
        for summary in _rank_summaries(rank, recording)
    ]
    if not summaries:
        message = (
            "holds no action of a pipeline, no operation of a GPU and no message: record the GPU too (other "
            "accelerators, such as MTIA, are not read), or mark actions (`pptrace annotate` prints a module)"
        )
        raise TraceError(message, file=recordings[0].path)
    notes = dict.fromkeys(note for recording in recordings for note in recording.notes)
    clocks = align(len(recordings), _transfers(recordings), [recording.host for recording in recordings])
    return Measurement(
        steps=(),
        clocks=tuple(replace(clock, rank=rank) for rank, clock in zip(ranks, clocks, strict=True)),
        summaries=tuple(summaries),
        kernels=tuple(
            total
            for rank, recording in zip(ranks, recordings, strict=True)
            if recording.operations is not None
            for total in _kernel_totals(rank, recording.operations)
        ),
        occupied=tuple(
            _occupied(rank, recording.operations)
            for rank, recording in zip(ranks, recordings, strict=True)
            if recording.operations is not None and recording.operations.name.size
        ),
        notes=(*notes, "no action of a pipeline was found: communication and computation are summed by name"),
    )


def _transfers(recordings: Sequence[Recording]) -> Transfers:
    """Return sender, receiver, post time and arrival time of messages, in order between two ranks.

    If two ranks have different numbers of sends and receives, their messages are left out.
    """
    columns = [(np.zeros(0, dtype=np.int64),) * 4]
    for source, target in product(range(len(recordings)), repeat=2):
        sender, receiver = recordings[source].ends, recordings[target].ends
        posted_ns = sender.start_ns[sender.sends & (sender.peer == target)]
        arrived_ns = receiver.end_ns[~receiver.sends & (receiver.peer == source)]
        if posted_ns.size == arrived_ns.size:
            sources, targets = (np.full(posted_ns.size, rank) for rank in (source, target))
            columns.append((sources, targets, posted_ns, arrived_ns))
    sources, targets, posted_ns, arrived_ns = map(np.concatenate, zip(*columns, strict=True))
    return sources, targets, posted_ns, arrived_ns


def _rank_summaries(rank: int, recording: Recording) -> list[Summary]:
    operations = recording.operations
    summaries = [] if operations is None else _operation_summaries(rank, operations)
    return sorted(
        [*summaries, *_message_summaries(rank, recording), *_untimed_summaries(rank, recording)],
        key=lambda summary: (-summary.total_ns, summary.what),
    )


def _operation_summaries(rank: int, operations: Operations) -> list[Summary]:
    sizes = np.zeros(operations.name.size, dtype=np.int64)
    for position, payloads in operations.payloads.items():
        sizes[position] = sum(payload.size_bytes for payload in payloads)
    key = operations.name * 4 + operations.communicates * 2 + operations.copies
    keys, count, total = totals(key, operations.end_ns - operations.start_ns)
    columns = (keys, count, total, totals(key, sizes)[2])
    return [
        Summary(
            rank=rank, what=operations.names[key // 4], communicates=bool(key & 2), copies=bool(key & 1),
            count=times, total_ns=time, size_bytes=size,
        )
        for key, times, time, size in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip


def _kernel_totals(rank: int, operations: Operations) -> Iterator[KernelTotal]:
    """Yield the totals of a rank's operations by name, stream and operator."""
    operator = np.full(operations.name.size, -1) if operations.operator is None else operations.operator
    keys, index = np.unique(np.stack([operations.name, operations.stream, operator]), axis=1, return_inverse=True)
    _, counts, total_ns = totals(index.reshape(-1), operations.end_ns - operations.start_ns)
    columns = (*keys.tolist(), counts.tolist(), total_ns.tolist())
    for name, stream, of, count, time_ns in zip(*columns, strict=True):
        yield KernelTotal(
            rank=rank, what=operations.names[name], stream=stream, count=count, total_ns=time_ns,
            operator=operations.names[of] if of >= 0 else "",
        )  # fmt: skip


def _occupied(rank: int, operations: Operations) -> Occupied:
    start, end, works = operations.start_ns, operations.end_ns, ~operations.copies
    computes = works & ~operations.communicates
    computing, working = (union_ns(start[rows], end[rows]) for rows in (computes, works))
    busy = union_ns(start, end)
    return Occupied(
        rank=rank, computing_ns=computing, exposed_ns=working - computing, copying_ns=busy - working,
        idle_ns=int(end.max() - start.min()) - busy,
    )  # fmt: skip


_SENT, _RECEIVED = "send", "receive"


def _message_summaries(rank: int, recording: Recording) -> Iterator[Summary]:
    """Yield the sums of messages on the host; those of GPU operations count as operations."""
    operations = recording.operations
    times = () if operations is None else (operations.start_ns.tolist(), operations.end_ns.tolist())
    counted = set(zip(*times, strict=True))
    spans = zip(recording.ends.start_ns.tolist(), recording.ends.end_ns.tolist(), strict=True)
    on_host = np.array([span not in counted for span in spans], dtype=bool)
    for sends, what in ((True, _SENT), (False, _RECEIVED)):
        ends = recording.ends.of_rows(on_host & (recording.ends.sends == sends))
        if len(ends):
            yield Summary(
                rank=rank, what=what, communicates=True, count=len(ends),
                total_ns=int((ends.end_ns - ends.start_ns).sum()), size_bytes=int(ends.size_bytes.sum()),
            )  # fmt: skip


def _untimed_summaries(rank: int, recording: Recording) -> Iterator[Summary]:
    """Yield the sums of messages and collectives of unknown duration."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for payload in recording.untimed:
        sizes[_RECEIVED if payload.operation == "recv" else payload.operation].append(payload.size_bytes)
    for what, of_name in sizes.items():
        yield Summary(
            rank=rank, what=what, communicates=True, count=len(of_name), total_ns=0, size_bytes=sum(of_name),
            untimed=len(of_name),
        )  # fmt: skip
