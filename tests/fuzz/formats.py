"""Every format that pptrace reads: a small file of it, how it is changed, and the commands that read it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import files, mutations, stores
from .configurations import in_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from random import Random

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format."""

    write: Callable[[Path], Path]
    """Write a run into a folder; return the file to change."""
    change: str
    """What its structure is made of, as :data:`CHANGES` calls it."""
    commands: tuple[str, ...]
    """What reads it, in its folder; ``FILE`` is its name, ``*`` all files there."""
    warm: bool = True
    """Whether a process that ran them can fork; not where that left threads, or what is to be read again."""
    environment: Mapping[str, str] = field(default_factory=dict)
    result: Callable[[Path], object] = lambda _: None
    """What is the same of all files, changed or not, wherever a command ends well, read from its folder."""

    def spoil(self, file: Path, random: Random) -> None:
        """Change the file, and sometimes bytes anywhere in it."""
        CHANGES[self.change](file, random)
        if file.is_file() and random.random() < 0.2:
            file.write_bytes(mutations.in_bytes(file.read_bytes(), random))


def content(change: Callable[[bytes, Random], bytes]) -> Callable[[Path, Random], None]:
    """Return what changes a file as a function changes its content, which may be packed."""

    def in_file(file: Path, random: Random) -> None:
        whole = file.read_bytes()
        packed = whole[:2] == b"\x1f\x8b"
        whole = change(gzip.decompress(whole) if packed else whole, random)
        file.write_bytes(gzip.compress(whole, 1) if packed else whole)

    return in_file


def printed(folder: Path) -> str:
    """Return what the command printed."""
    return (folder.parent / "stdout").read_text(encoding="utf-8")


def optimum(folder: Path) -> tuple[object, ...]:
    """Return the step and bound that ``optimize --json`` printed; rows of the same step are as good."""
    values = json.loads(printed(folder))
    return tuple(values[key] for key in ("step_ns", "bound_ns", "proved"))


def table(folder: Path) -> bytes:
    """Return the table that a command wrote."""
    return (folder / "out.csv").read_bytes()


CHANGES: dict[str, Callable[[Path, Random], None]] = {
    "bytes": content(mutations.in_bytes),
    "cache": stores.in_cache,
    "columns": content(mutations.in_columns),
    "configuration": content(in_configuration),
    "database": mutations.in_database,
    "journal": stores.in_journal,
    "json": content(mutations.in_json),
    "lines": content(mutations.in_lines),
    "parquet": mutations.in_parquet,
    "protobuf": content(mutations.in_protobuf),
    "searches": stores.in_searches,
    "table": content(mutations.in_table),
    "yaml": content(mutations.in_yaml),
}
_READ = ("explain *",)
FORMATS = {
    "kineto": Format(write=files.of_profiler("kineto"), change="json", commands=(*_READ, "calibrate *")),
    "chrome": Format(
        write=files.of_profiler("chrome"), change="json", commands=("explain FILE --rules rules.yaml",)
    ),
    "pytorch-perfetto": Format(write=files.of_profiler("pftrace"), change="protobuf", commands=_READ),
    "nsys": Format(write=files.of_profiler("nsys"), change="database", commands=_READ),
    "nccl": Format(write=files.of_profiler("nccl"), change="json", commands=_READ),
    "inspector": Format(write=files.of_profiler("inspector"), change="lines", commands=_READ),
    "pftrace": Format(
        write=files.of_ours("pftrace"), change="protobuf", commands=("convert FILE out.json", "explain FILE")
    ),
    "json": Format(
        write=files.of_ours("json"), change="json", commands=("convert FILE out.pftrace", "explain FILE")
    ),
    "model": Format(
        write=files.of_text("step.yaml", files.MODEL), change="configuration",
        commands=("simulate FILE --json --explain",),
    ),
    "costs": Format(
        write=files.of_text("step.yaml", files.COSTS), change="configuration",
        commands=("simulate FILE -o out.pftrace",),
    ),
    "spans": Format(write=files.spans, change="lines", commands=_READ),
    "job": Format(write=files.job, change="parquet", commands=("explain FILE",), warm=False),
    "mixture": Format(
        write=files.of_text("step.yaml", files.MIXTURE), change="configuration", commands=("simulate FILE --json",)
    ),
    "overlapped": Format(write=files.overlapped, change="configuration", commands=("simulate FILE -o out.json",)),
    "lengths": Format(write=files.lengths, change="bytes", commands=("simulate step.yaml",)),
    "kernel-table": Format(write=files.kernel_table, change="json", commands=("simulate step.yaml",)),
    "rows": Format(write=files.rows, change="columns", commands=("accuracy FILE --executor serial",)),
    "rules": Format(
        write=lambda folder: files.of_profiler("chrome")(folder).with_name("rules.yaml"), change="yaml",
        commands=("explain all.json --rules FILE",),
    ),
    "table": Format(
        write=files.of_text("table.csv", files.TABLE), change="table",
        commands=("validate FILE --p2p ordered", "simulate --schedule FILE", "show FILE"),
    ),
    "results-csv": Format(write=files.results("csv"), change="columns", commands=(f"{files.SWEEP} -o FILE",)),
    "results-parquet": Format(
        write=files.results("parquet"), change="parquet", commands=(f"{files.SWEEP} -o FILE",), warm=False
    ),
    "sweep-journal": Format(
        write=files.sweep_journal, change="journal", commands=(f"{files.SWEEP} -o out.csv",), result=table
    ),
    "plan-journal": Format(
        write=files.plan_journal, change="journal", commands=(f"{files.PLAN} -o out.csv",), result=table
    ),
    "accuracy-journal": Format(
        write=files.accuracy_journal, change="journal", result=table,
        commands=("accuracy own.csv --executor serial -o out.csv",),
    ),
    "kernels": Format(
        write=files.kernels, change="cache", commands=("simulate step.yaml --json",), result=printed, warm=False,
        environment={"PPTRACE_KERNEL_CACHE": "kernels"},
    ),
    "searches": Format(
        write=files.searches, change="searches", result=optimum,
        commands=("optimize step.yaml --memory 8GiB --work 0.2 --json",),
        environment={"PPTRACE_OPTPIPE_CACHE": "searches"},
    ),
}  # fmt: skip
"""By name."""
