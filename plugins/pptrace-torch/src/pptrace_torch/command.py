"""``pptrace torch run`` and ``pptrace torch export``; a run has one process per rank, and none outlives it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from msgspec.structs import replace

from pptrace.plugin import (
    ConfigError,
    OutputError,
    PptraceError,
    Registry,
    compute_only,
    load,
    prepare,
    write_table,
)
from pptrace.search.launch_arguments import megatron_arguments, torchtitan_arguments
from pptrace.steps.pytorch_tables import compute_comms
from pptrace_torch.manifest import NAME, Manifest, StageTimes, check_table, require_torch
from pptrace_torch.scaled_model import ScaledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from pptrace.plugin import Schedule, StepInputs, Workload
    from pptrace_torch.worker import Job

_EXAMPLES = """\b
pptrace torch run step.yaml -o run/
pptrace diff step.yaml run/
pptrace torch run better.csv --costs run/ -o run2/
pptrace torch export step.yaml -o best.csv
pptrace torch export step.yaml -o best.csv --comms --torch 2.15"""

_UNIT_NS = 10_000_000
"""Duration of one unit of costs without times."""
_LARGEST_MESSAGE = 1 << 20
"""Largest message of a run on one machine."""


def _sizes(function: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a pipeline's sizes to a command."""
    for flag, text in (("--microbatches", "Microbatches of a step."), ("--pp", "Pipeline ranks.")):
        function = click.option(flag, type=click.IntRange(min=1), metavar="N", help=text)(function)
    return function


@click.group("torch", epilog=_EXAMPLES)
def command() -> None:
    """Run schedule tables in PyTorch, and export them for it."""


@command.command("run", epilog=_EXAMPLES)
@click.argument("source")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder of the traces, one per rank, and of the manifest.")  # fmt: skip
@click.option("--costs", type=click.Path(path_type=Path), metavar="RUN",
              help="Take the stages from a folder of an earlier run: their times, or their modules.")  # fmt: skip
@click.option("--real", is_flag=True, help="Run the configuration's model, scaled down, in place of sleeps.")
@click.option("--steps", type=click.IntRange(1, 100), default=3, show_default=True,
              help="Recorded steps; one more runs before them.")  # fmt: skip
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="Limit of the whole run.")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True,
              help="CPU processes over gloo, or one GPU per rank over nccl.")  # fmt: skip
@_sizes
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
def run(
    source: str, output: Path, costs: Path | None, steps: int, timeout: str, backend: str, sets: tuple[str, ...],
    *, real: bool, **sizes: int | None,
) -> None:  # fmt: skip
    """Run the table of SOURCE in PyTorch on this machine, a process per rank.

    SOURCE is a configuration (.yaml), a table (.csv, .txt) or the name of a schedule. Stages sleep for the
    configured times; without times a unit takes 10 ms. Messages are real and have at most 1 MiB. Slices of
    sequences run as microbatches.
    """
    require_torch()
    limit_s = _seconds(timeout)
    if real and costs:
        raise click.UsageError("--costs gives the stages of another run: leave --real out")
    earlier = Manifest.read(costs) if costs else None
    prepared = _prepared(source, sets, earlier, **sizes)
    schedule = compute_only(prepared.schedule)
    check_table(schedule)
    slices = prepared.slices
    if earlier is None:
        content = {"model": ScaledModel.of(prepared, source)} if real else _configured_times(prepared)
    else:
        if schedule.microbatches == earlier.microbatches * earlier.slices:
            slices = earlier.slices
        content = _earlier_stages(earlier, schedule, slices, costs or Path())
    manifest = Manifest.of(schedule.rows(), backend=backend, slices=slices, **content)
    if slices > 1:
        sys.stderr.write(f"{manifest.microbatches} microbatches, whose {slices} slices each run as microbatches\n")
    if manifest.model is not None:
        sys.stderr.write(f"{manifest.model}\n")
    if prepared.policy.label == "torch" and prepared.policy.program is not None:
        sys.stderr.write(
            "the runtime of tables runs this order, and p2p: torch simulates Schedule1F1B or ScheduleGPipe: "
            "set p2p.options.table_runtime=true to simulate the run\n"
        )
    with _replaced_folder(output) as folder:
        _run(manifest, steps, limit_s, folder)
        manifest.write(folder)
    sys.stderr.write(f"wrote {output}: {schedule.ranks} traces and {NAME}\nnext: pptrace explain {output}\n")


def _earlier_stages(earlier: Manifest, schedule: Schedule, slices: int, folder: Path) -> dict[str, Any]:
    """Return the stages of an earlier run for a table, as fields of its manifest.

    Raises:
        ConfigError: the run has other stages, or its manifest has none.
    """
    stages = earlier.schedule.stages
    if not earlier.stages and earlier.model is None:
        message = "has no times of stages: fit them with pptrace calibrate, and run its configuration"
        raise ConfigError(message, file=folder)
    if stages != schedule.stages:
        message = f"the run has {stages} stages and the table {schedule.stages}: take a table of as many"
        raise ConfigError(message, file=folder)
    if earlier.model is not None:
        sequence = max(earlier.model.sequence * earlier.slices // slices, 1)
        return {"model": replace(earlier.model, sequence=sequence)}
    if schedule.microbatches == earlier.microbatches * earlier.slices:
        return {name: getattr(earlier, name) for name in ("stages", "classes", "microbatch_class")}
    return {"stages": earlier.whole_times(slices)}


def _run(manifest: Manifest, steps: int, limit_s: float, folder: Path) -> None:
    from pptrace_torch.worker import Job

    job = Job(manifest=manifest, steps=steps, timeout_s=limit_s, folder=str(folder))
    ranks = len(manifest.table)

    def progress(step: int) -> None:
        name = f"step {step} of {steps}" if step else "warm-up step"
        sys.stderr.write(f"{ranks} ranks: {name}\n")

    run_ranks(job, ranks, limit_s, progress)
    (folder / ".store").unlink(missing_ok=True)


@command.command("export", epilog=_EXAMPLES)
@click.argument("source")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Table, .csv."
)
@click.option("--for", "framework", type=click.Choice(["megatron", "torchtitan"]),
              help="Also print the arguments with which this framework runs the table.")  # fmt: skip
@click.option("--comms", is_flag=True,
              help="Also write the messages and other actions that PyTorch inserts (compute_comms).")  # fmt: skip
@click.option("--torch", "release", type=click.Choice(["2.13", "2.15"]), default="2.13", show_default=True,
              help="With --comms: the release that reads the table; since 2.15 it has waits.")  # fmt: skip
@_sizes
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
def export(
    source: str, output: Path, framework: str | None, release: str, sets: tuple[str, ...], *, comms: bool,
    **sizes: int | None,
) -> None:  # fmt: skip
    """Write the table of SOURCE as PyTorch's pipeline runtime reads it (compute_only)."""
    if output.suffix.lower() != ".csv":
        raise OutputError("PyTorch reads tables that end in .csv", file=output)
    if comms and framework:
        raise click.UsageError(f"{framework} reads tables without messages: leave out --comms")
    prepared = _prepared(source, sets, None, **sizes)
    schedule = compute_only(prepared.schedule)
    check_table(schedule)
    write_table(compute_comms(prepared.schedule, waits=release == "2.15") if comms else schedule, output)
    sys.stderr.write(f"wrote {output}\n")
    if comms:
        sys.stderr.write(f'PyTorch {release} reads it with _load_csv(file, format="compute_comms")\n')
    if prepared.slices > 1:
        count = schedule.microbatches
        sys.stderr.write(f"{prepared.batch_text}: PyTorch runs every slice as a microbatch, {count} in all\n")
    experiment = prepared.resolved.experiment
    if framework == "torchtitan":
        click.echo("\n".join(torchtitan_arguments(experiment, schedule, str(output)).lines))
    elif framework:
        click.echo("\n".join(megatron_arguments(experiment, schedule).lines))


def _prepared(source: str, sets: Sequence[str], earlier: Manifest | None, **sizes: int | None) -> StepInputs:
    """Return the step of a configuration, of a table, or of a schedule's name; ``sizes`` are flags."""
    registry = Registry.load()
    if source.lower().endswith((".yaml", ".yml")):
        return prepare(load(Path(source), sets, sizes), registry)
    if earlier is not None and not source.lower().endswith((".csv", ".txt")):
        earlier_sizes = (f"parallel.pp={len(earlier.table)}", f"batch.microbatches={earlier.microbatches}")
        sets = (*earlier_sizes, *sets)
    return prepare(load(None, sets, {"schedule": source, **sizes}), registry)


def _configured_times(prepared: StepInputs) -> dict[str, Any]:
    """Return the times of stages, as fields of a manifest; one unit of costs without times takes 10 ms."""
    workload = prepared.workload
    stages, *classes = (
        _stage_times(prepared, costs, workload.unit_time_ns) for costs in (workload, *workload.classes)
    )
    numbers = tuple(workload.microbatch_class.tolist())
    return {"stages": stages, "classes": tuple(classes), "microbatch_class": numbers if classes else ()}


def _stage_times(prepared: StepInputs, workload: Workload, unit: int) -> tuple[StageTimes, ...]:
    scale = _UNIT_NS / unit if unit else 1.0
    messages = np.append(workload.boundary_bytes, 0)[: prepared.schedule.stages]
    columns = [
        np.rint(column * scale).astype(np.int64).tolist()
        for column in (workload.f_ns, workload.i_ns, workload.w_ns, workload.b_ns)
    ]
    sizes = np.minimum(messages, _LARGEST_MESSAGE).tolist()
    return tuple(
        StageTimes(forward_ns=f, input_gradient_ns=i, weight_gradient_ns=w, backward_ns=b, message_bytes=size)
        for f, i, w, b, size in zip(*columns, sizes, strict=True)
    )


def _seconds(text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    from pptrace.plugin import Duration

    try:
        return float(TypeAdapter(Duration).validate_python(text)) / 1e9
    except ValidationError:
        raise ConfigError(f"{text!r} is not a time such as 60s", key="--timeout") from None


@contextmanager
def _replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``folder`` at the end, if that is a run's, empty or missing.

    Raises:
        OutputError: it holds other files, or cannot be written.
    """
    target = folder.resolve()
    if target.exists() and not target.is_dir():
        raise OutputError("is a file: name a folder", file=folder)
    if not target.parent.is_dir():
        raise OutputError("cannot be written: its folder does not exist; create it first", file=folder)
    try:
        if target.exists() and any(target.iterdir()) and not (target / NAME).exists():
            raise OutputError("is not empty and no run of pptrace torch: name another folder", file=folder)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise OutputError(f"cannot be written: {(error.strerror or str(error)).lower()}", file=folder) from None
    old = part.with_suffix(".old")
    try:
        yield part
        part.chmod(0o755)
        if target.exists():
            target.replace(old)
        part.replace(target)
    finally:
        if old.exists() and not target.exists():
            old.replace(target)
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


_GRACE_S = 1.0
"""Time in which other ranks may report an error after the first."""
_LOST_PEER = (
    "connection reset", "connection closed", "closed by peer", "broken pipe", "socket timeout",
    "timed out waiting", "connection refused", "remote process exited",
)  # fmt: skip
"""Texts of errors that a rank raises because another one ended."""


def run_ranks(job: Job, ranks: int, deadline_s: float, progress: Callable[[int], None]) -> None:
    """Run every rank in a process, and return once all have ended.

    PyTorch is imported once, and CPU ranks are forked from this process. Whatever happens, no process is left.

    Args:
        job: what each rank runs.
        ranks: number of ranks.
        deadline_s: limit of the whole run.
        progress: called with each step that all ranks have ended.

    Raises:
        ConfigError: there are fewer GPUs than ranks, or PyTorch has no NCCL.
        PptraceError: a rank failed, was killed, or the time is over.
    """
    import torch

    from pptrace_torch.worker import run_rank

    if job.manifest.backend == "nccl":
        gpus = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
        if gpus < ranks:
            message = f"nccl needs a GPU per rank, and {ranks} ranks have {gpus}: take gloo"
            raise ConfigError(message, key="--backend")
    context: Any = multiprocessing.get_context("spawn" if job.manifest.backend == "nccl" else "fork")
    with _killed_at_the_end() as (processes, pipes):
        with _blocked_signals():
            for rank in range(ranks):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=run_rank, args=(rank, job, sender, os.getpid()), daemon=True)
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
        _Reports(processes, pipes, progress).follow(time.monotonic() + deadline_s)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM after the block: during a fork, Python ignores exceptions of their handlers."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _killed_at_the_end() -> Iterator[tuple[list[Any], list[Connection]]]:
    """Yield lists of processes and pipes, and kill the processes at the end."""
    processes: list[Any] = []
    pipes: list[Connection] = []
    try:
        yield processes, pipes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


class _Reports:
    """Reports of all ranks: their steps, failures and ends."""

    def __init__(
        self, processes: Sequence[Any], pipes: Sequence[Connection], progress: Callable[[int], None]
    ) -> None:
        self._processes = processes
        self._open: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
        self._progress = progress
        self._steps = [-1] * len(pipes)
        self._failures: dict[int, str] = {}
        self._ended: set[int] = set()

    def follow(self, deadline: float) -> None:
        """Read reports until every rank has ended, or until the grace time after a failure is over.

        Raises:
            PptraceError: a rank failed, or the deadline has passed.
        """
        while self._open:
            ready = wait(list(self._open), max(deadline - time.monotonic(), 0))
            if not ready:
                break
            failed = bool(self._failures)
            for pipe in ready:
                self._take(pipe)
            if self._failures and not failed:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        if self._failures:
            rank = _root(self._failures)
            raise PptraceError(f"rank {rank} {self._failures[rank]}")
        if self._open:
            slowest = min(range(len(self._steps)), key=self._steps.__getitem__)
            number = self._steps[slowest] + 1
            step = f"step {number}" if number else "the warm-up step"
            raise PptraceError(f"rank {slowest} did not end {step} in time: give a longer --timeout")

    def _take(self, pipe: Any) -> None:
        """Take one report of a rank; a closed pipe without an end or an error is a failure."""
        rank = self._open[pipe]
        try:
            kind, *content = pipe.recv()
        except (EOFError, OSError):
            del self._open[pipe]
            if rank not in self._ended and rank not in self._failures:
                self._processes[rank].join()
                code = self._processes[rank].exitcode
                end = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                self._failures[rank] = end
            return
        if kind == "end":
            self._ended.add(rank)
        elif kind == "error":
            self._failures[rank] = content[0]
        else:
            self._steps[rank] = content[0]
            if min(self._steps) == content[0]:
                self._progress(content[0])


def _root(failures: dict[int, str]) -> int:
    """Return the rank whose failure has no failed peer as its cause."""
    killed = [rank for rank, text in failures.items() if text.startswith("was ended")]
    roots = [rank for rank, text in failures.items() if not any(words in text.lower() for words in _LOST_PEER)]
    return (killed or roots or list(failures))[0]
