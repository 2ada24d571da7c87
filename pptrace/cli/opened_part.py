"""What ``pptrace open`` shows of a trace: all of it, some ranks and microbatches, a GPU's rank, or an overview."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pptrace.experiment.replicas import Replicas
    from pptrace.model.layout import Layout
    from pptrace.timeline.timeline import Timeline

__all__ = ["Wanted", "opened_part"]

_LARGE_BYTES = 300_000_000
"""A trace beyond that has more slices than the UI opens in some seconds, or at all."""
_PACKED = 6
"""How many times smaller gzip makes a trace, about."""
_FEW = 8
_REPLICAS = 64
"""Replicas that an overview shows, of those that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be seen of a trace."""

    only: tuple[str, ...] = ()
    """Ranks and microbatches, as ``--only`` has them."""
    gpu: int | None = None
    """A GPU of the job, whose rank and those it exchanges messages with are shown."""
    replica: int | None = None
    """A replica of a job whose replicas differ, counted from 0; for None that of the GPU, or the trace's own."""
    overview: bool | None = None
    """Whether an overview is; None for where the trace is large."""

    @property
    def all_of_it(self) -> bool:
        """Whether nothing in particular is asked for."""
        return not self.only and self.gpu is None and self.replica is None and not self.overview


@contextmanager
def opened_part(file: Path, wanted: Wanted, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield a trace of what is wanted of a file or of a folder of traces rank by rank, while it is needed.

    Raises:
        PptraceError: a trace that cannot be read, or that has not what is wanted.
    """
    if not file.is_dir():
        if wanted.overview is None and wanted.all_of_it and _is_large(file) and _ours(file):
            megabytes = file.stat().st_size / 1e6
            say(f"{file} has {megabytes:,.0f} MB: here is its overview; --only ranks=0,1 shows ranks,"
                " --whole all of it")  # fmt: skip
        elif wanted.all_of_it:
            yield file
            return
    timeline = _read(file)
    with TemporaryDirectory() as folder:
        trace = Path(folder, f"{file.resolve().name.split('.')[0]}.pftrace")
        _write(timeline, trace, file, wanted, say)
        yield trace


def _write(timeline: Timeline, trace: Path, file: Path, wanted: Wanted, say: Callable[[str], None]) -> None:
    from pptrace.export import perfetto
    from pptrace.timeline.trim import parse_only, trim

    title = file.resolve().name
    kept = parse_only([part for text in wanted.only for part in text.split()])
    ranks = kept.ranks
    job = _replicas(timeline, file)
    timeline = _of_replica(timeline, job, wanted, file, say)
    if wanted.gpu is not None:
        rank, told = _rank_of_gpu(timeline, wanted.gpu, file, job)
        title = f"{title}: {told}"
        say(told)
        ranks = tuple(sorted({rank, *_partners(timeline, rank), *(ranks or ())}))
    if wanted.only or wanted.gpu is not None:
        perfetto.write(trim(timeline, ranks, kept.microbatches), trace, {"title": title})
        return
    if wanted.overview or (wanted.replica is None and not file.is_dir()):
        from pptrace.export.perfetto.overview import write_overview

        write_overview(timeline, trace, f"{title}: overview", _about(timeline), _named(job))
        return
    perfetto.write(timeline, trace, {"title": title})


def _replicas(timeline: Timeline, file: Path) -> Replicas | None:
    """Return the job's replicas as its configuration has them; None where they are alike or were measured."""
    configuration = timeline.provenance.get("configuration")
    if not isinstance(configuration, dict) or _layout(timeline) is None:
        return None
    from pptrace.experiment.replicas import replicas_of

    try:
        return replicas_of(configuration)
    except PptraceError as error:
        message = f"{file}: its replicas differ, and its configuration cannot be simulated here: {error}"
        raise PptraceError(" ".join(message.split())) from error


def _of_replica(
    timeline: Timeline, job: Replicas | None, wanted: Wanted, file: Path, say: Callable[[str], None]
) -> Timeline:
    """Return the replica that is wanted, simulated again; the trace's own where none is."""
    replica, layout = wanted.replica, _layout(timeline)
    if job is None:
        if replica is not None:
            raise PptraceError(f"{file}: --replica {replica}: its replicas do not differ; leave it out")
        return timeline
    if wanted.gpu is not None and layout is not None and wanted.gpu < layout.gpus:
        own = layout.place(wanted.gpu)["dp"]
        if replica not in {None, own}:
            raise PptraceError(f"--replica {replica}: GPU {wanted.gpu} is in replica {own}; name one of them")
        replica = own
    if replica is None:
        return timeline
    if replica >= len(job.kind_of):
        raise PptraceError(f"--replica {replica}: the job has replicas 0 to {len(job.kind_of) - 1}")
    run = job.run(replica)
    say(run.prepared.workload.notes[-1])
    return run.traced()


def _named(job: Replicas | None) -> Iterator[tuple[str, Timeline]]:
    """Yield an overview's replicas, each with the numbers of those that are alike."""
    from pptrace.timeline.why import why

    for numbers, run in job.runs(_REPLICAS) if job else ():
        few = ", ".join(map(str, numbers[:_FEW])) + (f", … {numbers[-1]}" if len(numbers) > _FEW else "")
        yield f"replica{'s' * (len(numbers) != 1)} {few}", replace(run.timeline, why=why(run.timeline))


def _is_large(file: Path) -> bool:
    packed = file.suffix == ".gz"
    return file.is_file() and file.stat().st_size * (_PACKED if packed else 1) > _LARGE_BYTES


def _ours(file: Path) -> bool:
    from pptrace.export import perfetto
    from pptrace.limits.reading import open_unpacked

    with open_unpacked(file) as content:
        return perfetto.recognises(file, content.read(4096))


def _read(file: Path) -> Timeline:
    from pptrace.analysis.steps.path import explained
    from pptrace.analysis.steps.sides import measured_side
    from pptrace.cli.measured_options import read
    from pptrace.timeline.measurement import ImportRequest

    measurement, measured = read([file], ImportRequest())
    return explained(measured_side(measurement, str(file), "median", measured=measured).timeline)


def _layout(timeline: Timeline) -> Layout | None:
    """Return which GPUs the ranks are, as the trace's configuration says; None where it has none."""
    from pptrace.model.layout import Layout

    configuration = timeline.provenance.get("configuration")
    parallel = configuration.get("parallel") if isinstance(configuration, dict) else None
    if not isinstance(parallel, dict) or parallel.get("pp") != timeline.placement.ranks:
        return None
    order = tuple(str(parallel.get("order", "tp-cp-ep-dp-pp")).split("-"))
    with suppress(TypeError, ValueError):  # a trace may say anything
        sizes = {axis: int(parallel.get(axis) or 1) for axis in ("pp", "dp", "cp", "ep", "tp")}
        return Layout(**sizes, etp=int(parallel.get("etp") or 0), order=order)
    return None


def _rank_of_gpu(timeline: Timeline, gpu: int, file: Path, job: Replicas | None) -> tuple[int, str]:
    layout = _layout(timeline)
    if layout is None:
        raise PptraceError(f"{file}: does not say which GPUs its ranks are; name one that pptrace simulate wrote")
    if not 0 <= gpu < layout.gpus:
        raise PptraceError(f"--gpu {gpu}: the job has the GPUs 0 to {layout.gpus - 1}")
    place = layout.place(gpu)
    rank, replicas = place["pp"], layout.gpus // layout.pp
    if job is not None:
        replicas = replicas // layout.dp * job.alike(place["dp"])
    where = ", ".join(f"{axis} {at}" for axis, at in place.items())
    alone = f"GPU {gpu} is {where}: rank {rank}"
    return rank, f"{alone}, which stands for {replicas:,} GPUs that do the same" if replicas > 1 else alone


def _partners(timeline: Timeline, rank: int) -> set[int]:
    """Return the ranks that a rank exchanges messages with."""
    edges = timeline.placement.edges.tolist()
    hosts = timeline.placement.stage_rank
    found = {int(hosts[route, stage]) for route in range(len(hosts)) for edge in edges for stage in edge
             if rank in (hosts[route, edge[0]], hosts[route, edge[1]])}  # fmt: skip
    return found & set(timeline.lane_rank.tolist())


def _about(timeline: Timeline) -> Mapping[int, str]:
    layout, hosts = _layout(timeline), timeline.placement.stage_rank
    about = {}
    for rank in sorted(set(timeline.lane_rank.tolist())):
        stages = sorted({stage for row in hosts.tolist() for stage, host in enumerate(row) if host == rank})
        about[rank] = f"stage{'s' * (len(stages) != 1)} {', '.join(map(str, stages))}"
        if layout is not None:
            members = sorted(layout.members()[rank].tolist())
            few = ", ".join(map(str, members[:_FEW])) + (f", … {members[-1]}" if len(members) > _FEW else "")
            about[rank] += f"; {len(members):,} GPUs: {few}"
    return about
