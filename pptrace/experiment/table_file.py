"""A schedule that is a table in a file, and the sizes that a configuration takes from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.assembly import Assembly
    from pptrace.schedule.source import TableFile
    from pptrace.schedule.table import Schedule

__all__ = ["CHUNKS", "table_file"]

CHUNKS = "parallel.vp"
"""The key of chunks per rank."""


def table_file(work: Assembly) -> tuple[Assembly, TableFile | None]:
    """Return the file of a schedule that is a table, and take its sizes."""
    schedule = work.experiment.schedule
    if schedule.kind != "table":
        return work, None
    from pptrace.schedule.text import load_table

    work, _ = work.options("schedule", None)
    file = load_table(Path(schedule.name))
    return work.at(_sized(work.resolved, file.schedule)), file


def _sized(resolved: Resolved, table: Schedule) -> Resolved:
    """Take ranks, chunks and microbatches from a table file; what the configuration says must agree."""
    experiment = resolved.experiment
    uneven = table.stages % table.ranks
    chunks = 1 if uneven else table.stages // table.ranks
    asked_chunks = None if uneven or CHUNKS not in resolved.positions else experiment.parallel.vp
    for key, asked, there, what in (
        ("parallel.pp", experiment.parallel.pp, table.ranks, "rows"),
        (CHUNKS, asked_chunks, chunks, "stages per row"),
        ("batch.microbatches", experiment.batch.microbatches, table.microbatches, "microbatches"),
    ):
        if asked is not None and asked != there:
            raise resolved.error(
                key, f"{experiment.schedule.name} has {there} {what}, not {asked}: remove the key"
            )
    origin = f"table {Path(experiment.schedule.name).name}"
    step = experiment.parallel.dp * experiment.batch.micro
    parallel = experiment.parallel.model_copy(update={"pp": table.ranks, "vp": chunks})
    batch = experiment.batch.model_copy(
        update={"microbatches": table.microbatches, "global_batch": table.microbatches * step}
    )
    sized = ("parallel.pp", CHUNKS, "batch.microbatches", "batch.global")
    origins = {**resolved.origins, **dict.fromkeys(sized, origin)}
    return replace(
        resolved, experiment=experiment.model_copy(update={"parallel": parallel, "batch": batch}), origins=origins
    )
