"""Write files whole or not at all: in a folder beside the target first, then in its place."""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import shutil
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.hooks.offers import ExporterOffer
    from pptrace.timeline.timeline import Timeline

__all__ = ["compress", "exporter_for", "replace_file", "save"]

RANK = "{rank}"
"""What stands for the rank in a target's name."""

_GZ = ".gz"
_LEVEL = 6
_ADVICE = {
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "its folder is a file; choose another path",
    errno.EEXIST: "its folder is a file; choose another path",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.EACCES: "permission denied; choose a folder that you may write to",
    errno.EPERM: "permission denied; choose a folder that you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "no space left; free some, or choose another disk",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another disk",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path in a temporary folder beside ``path``; what the block writes there replaces ``path``.

    The new file has the mode of the one that it replaces, and a symbolic link stays. Whatever the block raises,
    Ctrl-C included, the temporary folder goes and the old file stays. No other user can read that folder.

    Raises:
        OutputError: the file cannot be written; says why and what to do.
    """
    target = Path(os.path.realpath(path))
    folder = target.with_name(f".pptrace.{secrets.token_hex(4)}.tmp")
    try:
        _check(target)
        folder.mkdir(mode=0o700)
        temporary = folder / target.name
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise OutputError(_advice(error), file=path) from error
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:  # once more where a signal ended the first attempt
            shutil.rmtree(folder, ignore_errors=True)


def compress(source: Path, target: Path) -> None:
    """Write ``source`` to ``target`` with gzip; equal bytes give equal bytes, for no name or time is kept."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def save(
    timeline: Timeline, targets: Sequence[str], exporters: Mapping[str, ExporterOffer], options: Mapping[str, Any]
) -> list[Path]:
    """Write a timeline in the formats that the targets' suffixes name, ``.gz`` behind it for compressed.

    ``{rank}`` in a name stands for one file per rank, whose folder is made where it is missing. All
    files are written before the first takes its place, so that a failure leaves every old one.

    Returns:
        The files, target by target and in rank order.

    Raises:
        OutputError: no format has a target's suffix, two targets are one file, or a file cannot be written.
    """
    offers = [exporter_for(target, exporters) for target in targets]
    written: list[Path] = []
    with ExitStack() as pending:
        for target, offer in zip(targets, offers, strict=True):
            for rank in _ranks(timeline, target):
                path = Path(target if rank is None else target.replace(RANK, str(rank)))
                if os.path.realpath(path) in map(os.path.realpath, written):
                    raise OutputError("two outputs are this file; name each file once", file=path)
                if rank is not None:
                    pending.enter_context(_folder(path))
                temporary = pending.enter_context(replace_file(path))
                _write(timeline, rank, temporary, offer, options, packed=target.endswith(_GZ))
                written.append(path)
    return written


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make the folders above ``path`` that are missing; if the block fails, they go again."""
    missing: list[Path] = []
    try:
        try:
            missing = [folder for folder in path.parents if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(_advice(error), file=path) from error
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def _ranks(timeline: Timeline, target: str) -> Sequence[int | None]:
    """Return the ranks that have a file each, or None for one file of all."""
    if RANK not in target:
        return [None]
    ranks = sorted(set(timeline.lane_rank.tolist()))
    if not ranks:
        raise OutputError("the timeline holds no slices, so there is no rank to write", file=target)
    return ranks


def exporter_for(target: str, exporters: Mapping[str, ExporterOffer]) -> ExporterOffer:
    """Return the format that a file name chooses, by the longest suffix that fits.

    Raises:
        OutputError: none does; the known suffixes are named.
    """
    name = Path(target).name.lower().removesuffix(_GZ)
    fitting = [
        (len(suffix), offer) for offer in exporters.values() for suffix in offer.suffixes if name.endswith(suffix)
    ]
    if not fitting:
        known = sorted({suffix for offer in exporters.values() for suffix in offer.suffixes})
        raise OutputError(
            f"no format has this suffix; known: {', '.join(known) or 'none'}, each also with {_GZ}", file=target
        )
    return max(fitting, key=lambda fit: fit[0])[1]


def _write(
    timeline: Timeline,
    rank: int | None,
    path: Path,
    offer: ExporterOffer,
    options: Mapping[str, Any],
    *,
    packed: bool,
) -> None:
    if rank is not None and offer.takes_rank:
        options = {**options, "rank": rank}
    elif rank is not None:
        from pptrace.timeline.trim import trim

        timeline = trim(timeline, [rank], None)
    if not packed:
        offer.write(timeline, path, options)
        return
    plain = path.with_suffix(".plain")
    try:
        offer.write(timeline, plain, options)
        compress(plain, path)
    finally:
        plain.unlink(missing_ok=True)


def _check(target: Path) -> None:
    """Refuse what a file must not replace: folders, and devices such as ``/dev/null``."""
    if target.is_dir():
        raise OSError(errno.EISDIR, "")
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file; name another one")


def _advice(error: OSError) -> str:
    reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return f"cannot be written: {reason}"
