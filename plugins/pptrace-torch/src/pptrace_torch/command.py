"""``pptrace torch run`` and ``pptrace torch export``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from pptrace.plugin import (
    ConfigError,
    OutputError,
    Registry,
    compute_comms,
    compute_only,
    load,
    megatron_arguments,
    prepare,
    torchtitan_arguments,
    write_table,
)
from pptrace_torch.manifest import NAME, Manifest, StageTimes, check_table, require_torch
from pptrace_torch.scaled_model import ScaledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Prepared, Schedule, Workload

__all__ = ["command"]

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
    from pptrace_torch.processes import run_ranks
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
              help="Write the messages and other actions too that PyTorch inserts (compute_comms).")  # fmt: skip
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


def _prepared(source: str, sets: Sequence[str], earlier: Manifest | None, **sizes: int | None) -> Prepared:
    """Return the step of a configuration, of a table, or of a schedule's name; ``sizes`` are flags."""
    registry = Registry.load()
    if source.lower().endswith((".yaml", ".yml")):
        return prepare(load(Path(source), sets, sizes), registry)
    if earlier is not None and not source.lower().endswith((".csv", ".txt")):
        earlier_sizes = (f"parallel.pp={len(earlier.table)}", f"batch.microbatches={earlier.microbatches}")
        sets = (*earlier_sizes, *sets)
    return prepare(load(None, sets, {"schedule": source, **sizes}), registry)


def _configured_times(prepared: Prepared) -> dict[str, Any]:
    """Return the times of stages, as fields of a manifest; one unit of costs without times takes 10 ms."""
    workload = prepared.workload
    stages, *classes = (
        _stage_times(prepared, costs, workload.unit_time_ns) for costs in (workload, *workload.classes)
    )
    numbers = tuple(workload.microbatch_class.tolist())
    return {"stages": stages, "classes": tuple(classes), "microbatch_class": numbers if classes else ()}


def _stage_times(prepared: Prepared, workload: Workload, unit: int) -> tuple[StageTimes, ...]:
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
