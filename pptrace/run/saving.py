"""Export of timelines to the files that a user names."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.files import check_distinct, compress, make_folders, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugins.offers import ExporterOffer
    from pptrace.steps.actions import Form
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.timeline import Timeline

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

    The table has the computations, and copies to the host. Messages and gathers are left out, as the configuration
    of a simulation and PyTorch's runtime insert their own.
    """
    from pptrace.plugins.offers import ExporterOffer
    from pptrace.steps.text_forms import FORMS, Dialect, in_dialect, table_text

    table = in_dialect(schedule, Dialect.COMPUTE)

    def write(form: Form, _timeline: Timeline, path: Path, _options: Mapping[str, Any]) -> None:
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
