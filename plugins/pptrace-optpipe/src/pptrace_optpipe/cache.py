"""Schedules that were found before, on disk: one file per problem, written whole or not at all.

A problem's key is made of its shape (stages, ranks and microbatches) and of its normalised costs and limits: times
and sizes are divided by what they have in common; where that leaves times too fine, the problem's own are its key,
since a bound of one that is rounded alike need not hold. What was found for the same shape and near costs is where
the search for others starts.

The first line of a file is the digest of its name and of what follows, so a file that was damaged or renamed is
recognised. What follows is a JSON object. Malformed objects, rows of other problems and bounds above the step of
the rows are ignored whatever the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

from pptrace.plugin import OutputError, replace_file
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import AWAIT_OF, COMPUTED, Op, Part, coarsened, is_exact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["VERSION", "Cache", "Entry", "folder", "wrong_folder"]

VERSION = 5
"""Of the entries; those of another one are neither read nor in the way."""


_NAMED = "PPTRACE_OPTPIPE_CACHE"
"""The environment variable that names the folder."""
_NEAREST = 3
"""Entries for near costs that a search starts from."""
_FAR = 0.5
"""What costs may differ by, in all, as shares of a microbatch's work and activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What was found for a problem."""

    rows: Rows
    step: int
    """In the coarse problem's units."""
    bound: int
    seconds: float
    """How long was searched, in all."""


class _Content(BaseModel):
    """What the JSON object of a file holds."""

    model_config = ConfigDict(strict=True)

    sizes: str
    costs: list[FiniteFloat]
    step: NonNegativeInt
    bound: NonNegativeInt
    seconds: FiniteFloat
    rows: list[list[Annotated[str, Field(pattern=r"^[0-9]{1,9}[FIWORACD][0-9]{1,9}$")]]]


def folder() -> Path:
    """Return where entries are: ``PPTRACE_OPTPIPE_CACHE``, or in the user's folder of caches."""
    named = os.environ.get(_NAMED)
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "pptrace" / "optpipe"


def wrong_folder() -> str:
    """Return why nothing can be kept in the folder that ``PPTRACE_OPTPIPE_CACHE`` names; empty where it can."""
    path = Path(os.environ.get(_NAMED, ""))
    for part in (*reversed(path.parents), path):
        if part.exists() and not part.is_dir():
            return f"{part}: is not a folder, so nothing is cached: set {_NAMED} to one"
    return ""


class Cache:
    """A folder of entries; many processes may read and write it at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder()

    def file_of(self, problem: Problem) -> Path:
        """Return the file of a problem's entry."""
        return self.path / f"v{VERSION}-{_shape(problem)}-{_key(problem)}.json"

    def get(self, problem: Problem) -> tuple[Entry | None, str]:
        """Return the cached result of a problem, if any, and the fault of its file, if any."""
        file = self.file_of(problem)
        try:
            return _entry(_read(file), problem), ""
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        except (OSError, ValueError):
            return None, f"{file}: is damaged, and is solved anew"

    def near(self, problem: Problem) -> list[Rows]:
        """Return rows that were found for other costs of the same shape, the nearest first."""
        found = []
        own, costs = self.file_of(problem).name, _costs(problem)
        for file in sorted(self.path.glob(f"v{VERSION}-{_shape(problem)}-*.json")):
            try:
                content = _read(file)
                apart = sum(abs(one - other) for one, other in zip(costs, content.costs, strict=True))
                if file.name != own:
                    found.append((apart, file.name, _rows(content, problem)))
            except (OSError, ValueError):
                continue
        return [rows for apart, _, rows in sorted(found)[:_NEAREST] if apart < _FAR]

    def put(self, problem: Problem, entry: Entry) -> None:
        """Keep what was found, unless something shorter is there, or the folder cannot be written."""
        known, _ = self.get(problem)
        if known is not None and (known.step, -known.bound) < (entry.step, -entry.bound):
            return
        file = self.file_of(problem)
        text = json.dumps({
            "sizes": _sizes(problem), "costs": _costs(problem), "step": entry.step, "bound": entry.bound,
            "seconds": round(entry.seconds, 1),
            "rows": [[f"{op.stage}{op.part.name}{op.microbatch}" for op in row] for row in entry.rows],
        })  # fmt: skip
        with suppress(OSError, OutputError):
            self.path.mkdir(parents=True, exist_ok=True)
            with replace_file(file) as temporary:
                temporary.write_text(f"{_digest(file.name, text)}\n{text}", encoding="utf-8")

    def entries(self) -> Iterator[tuple[str, str]]:
        """Yield the name and a summary of each cache entry."""
        for file in sorted(self.path.glob("v*.json")):
            try:
                content = _read(file)
                gap = 1 - content.bound / max(content.step, 1)
                about = f"{content.sizes}, gap {max(gap, 0):.1%}, {content.seconds} s"
            except (OSError, ValueError):
                about = "damaged"
            yield file.name, about if file.name.startswith(f"v{VERSION}-") else "of another version"

    def clear(self) -> int:
        """Remove all entries, and return how many there were."""
        files = list(self.path.glob("v*.json"))
        for file in files:
            file.unlink(missing_ok=True)
        return len(files)


def _key(problem: Problem) -> str:
    """Return what problems of one entry share: where normalised times are rounded, all of their own times."""
    coarse, unit = coarsened(problem)
    same = coarse if is_exact(problem, coarse, unit) else problem
    text = json.dumps(asdict(same), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _shape(problem: Problem) -> str:
    text = json.dumps([problem.microbatches, problem.stage_rank, problem.copies, problem.recomputes])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _costs(problem: Problem) -> list[float]:
    """Return times and limits as shares of a microbatch's work and of its activations."""
    work = sum(problem.f) + sum(problem.i) + sum(problem.w) or 1
    size = sum(problem.activation) or 1
    times = (*problem.f, *problem.i, *problem.w, *problem.offload, *problem.reload, *problem.recompute)
    return [round(one / work, 6) for one in times] + [round(one / size, 6) for one in problem.limit]


def _sizes(problem: Problem) -> str:
    copies = ", copies" * problem.copies + ", recomputation" * problem.recomputes
    return f"{problem.ranks} ranks, {problem.stages} stages, {problem.microbatches} microbatches{copies}"


def _read(file: Path) -> _Content:
    """Return what a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, malformed, or was kept under another name.
    """
    digest, _, text = file.read_text(encoding="utf-8").partition("\n")
    if digest != _digest(file.name, text):
        msg = "the digest does not match"
        raise ValueError(msg)
    return _Content.model_validate_json(text)


def _digest(name: str, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def _entry(content: _Content, problem: Problem) -> Entry:
    """Return a file's content as an entry. The step is that of the rows, and a bound above it is none.

    Raises:
        ValueError: the rows are not all that there is to compute, each where it is, or wait for each other.
    """
    rows = _rows(content, problem)
    played = play(coarsened(problem)[0], rows)
    if played is None:
        msg = "the rows wait for each other"
        raise ValueError(msg)
    bound = content.bound if content.bound <= played.step else 0
    return Entry(rows=rows, step=played.step, bound=bound, seconds=content.seconds)


def _rows(content: _Content, problem: Problem) -> Rows:
    """Return the rows of a file's content.

    Raises:
        ValueError: they are not all that there is to compute, each where it is, or hold what cannot be.
    """
    rows = [[_op(text) for text in row] for row in content.rows]
    placed = [(op, rank) for rank, row in enumerate(rows) for op in row]
    computed = sorted((op, rank) for op, rank in placed if op.part in COMPUTED)
    whole = sorted((op, problem.stage_rank[op.stage]) for op in problem.ops())
    timed = {*COMPUTED} | ({*AWAIT_OF, *AWAIT_OF.values()} if problem.offload else set())
    timed |= {Part.C} if problem.recompute else set()
    if len(rows) != problem.ranks or computed != whole or not all(
        op.part in timed and op.stage in problem.stages_of[rank] and op.microbatch < problem.microbatches
        for op, rank in placed
    ):  # fmt: skip
        msg = "the rows are not the problem's"
        raise ValueError(msg)
    return rows


def _op(text: str) -> Op:
    at = next(place for place, letter in enumerate(text) if letter.isalpha())
    return Op(Part[text[at]], int(text[:at]), int(text[at + 1 :]))
