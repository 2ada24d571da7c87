"""Every format that pptrace reads: a small file of it, how it is changed, and the commands that read it."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import files, mutations
from .configurations import in_configuration

if TYPE_CHECKING:
    from collections.abc import Callable
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
    """Whether a process that ran them can fork; not where that left threads in it."""

    def spoil(self, file: Path, random: Random) -> None:
        """Change the file, and sometimes bytes anywhere in it."""
        CHANGES[self.change](file, random)
        if random.random() < 0.2:
            file.write_bytes(mutations.in_bytes(file.read_bytes(), random))


def content(change: Callable[[bytes, Random], bytes]) -> Callable[[Path, Random], None]:
    """Return what changes a file as a function changes its content, which may be packed."""

    def in_file(file: Path, random: Random) -> None:
        whole = file.read_bytes()
        packed = whole[:2] == b"\x1f\x8b"
        whole = change(gzip.decompress(whole) if packed else whole, random)
        file.write_bytes(gzip.compress(whole, 1) if packed else whole)

    return in_file


CHANGES: dict[str, Callable[[Path, Random], None]] = {
    "bytes": content(mutations.in_bytes),
    "configuration": content(in_configuration),
    "database": mutations.in_database,
    "json": content(mutations.in_json),
    "lines": content(mutations.in_lines),
    "parquet": mutations.in_parquet,
    "protobuf": content(mutations.in_protobuf),
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
    "rows": Format(write=files.rows, change="table", commands=("accuracy FILE --executor serial",)),
    "rules": Format(
        write=lambda folder: files.of_profiler("chrome")(folder).with_name("rules.yaml"), change="yaml",
        commands=("explain all.json --rules FILE",),
    ),
    "table": Format(
        write=files.of_text("table.csv", files.TABLE), change="table",
        commands=("validate FILE --p2p ordered", "simulate --schedule FILE", "show FILE"),
    ),
}  # fmt: skip
"""By name."""
