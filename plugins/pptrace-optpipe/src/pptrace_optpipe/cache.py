"""Cache of search results on disk: one file per problem, written atomically.

A problem's key consists of its shape (stages, ranks and microbatches) and of its normalised costs and limits.
Times and sizes are divided by their greatest common divisors. If normalised times are rounded, the key has the
exact times, as a bound of one problem may not hold for another problem with the same rounded times. A search for
new costs starts from cached results of the same shape with similar costs.

The first line of a file is the digest of its name and content, which detects damaged and renamed files. The
content is a JSON object. Malformed objects, rows of other problems and bounds above the step of the rows are
ignored even if the digest is correct.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct, to_builtins
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

from pptrace.plugin import OutputError, replace_file
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import AWAIT_OF, COMPUTED, Op, OpKind, coarsened, is_exact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace_optpipe.problem import Problem, Rows


VERSION = 6
"""Version of the entries; entries of other versions are ignored."""


_NAMED = "PPTRACE_OPTPIPE_CACHE"
"""The environment variable with the path of the folder."""
_NEAREST = 3
"""The most entries with similar costs that a search starts from."""
_FAR = 0.5
"""The largest sum of differences of similar costs, as shares of a microbatch's work or activations."""


class Entry(Struct, frozen=True, kw_only=True):
    """The result of a search for a problem."""

    rows: Rows
    step: int
    """Length of the rows, in units of the coarse problem."""
    bound: int
    """Lower bound of the step, in units of the coarse problem."""
    seconds: float
    """Total search time."""


class _Content(BaseModel):
    """The JSON object of a file."""

    model_config = ConfigDict(strict=True)

    sizes: str
    costs: list[FiniteFloat]
    step: NonNegativeInt
    bound: NonNegativeInt
    seconds: FiniteFloat
    rows: list[list[Annotated[str, Field(pattern=r"^[0-9]{1,9}[FIWORBACD][0-9]{1,9}$")]]]


def folder() -> Path:
    """Return the folder of entries: ``PPTRACE_OPTPIPE_CACHE``, or a folder in the user's cache folder."""
    named = os.environ.get(_NAMED)
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "pptrace" / "optpipe"


def wrong_folder() -> str:
    """Return an error text if the folder in ``PPTRACE_OPTPIPE_CACHE`` cannot be created; empty if it can."""
    path = Path(os.environ.get(_NAMED, ""))
    for folder_path in (*reversed(path.parents), path):
        if folder_path.exists() and not folder_path.is_dir():
            return f"{folder_path}: is not a folder, so nothing is cached: set {_NAMED} to one"
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
        """Return the rows of entries with the same shape and similar costs, the most similar first."""
        candidates = []
        own_name, costs = self.file_of(problem).name, _costs(problem)
        for file in sorted(self.path.glob(f"v{VERSION}-{_shape(problem)}-*.json")):
            try:
                content = _read(file)
                distance = sum(abs(cost - near) for cost, near in zip(costs, content.costs, strict=True))
                if file.name != own_name:
                    candidates.append((distance, file.name, _rows(content, problem)))
            except (OSError, ValueError):
                continue
        return [rows for distance, _, rows in sorted(candidates)[:_NEAREST] if distance < _FAR]

    def put(self, problem: Problem, entry: Entry) -> None:
        """Write an entry, unless a better entry exists or the folder is not writable."""
        known, _ = self.get(problem)
        if known is not None and (known.step, -known.bound) < (entry.step, -entry.bound):
            return
        file = self.file_of(problem)
        text = json.dumps({
            "sizes": _sizes(problem), "costs": _costs(problem), "step": entry.step, "bound": entry.bound,
            "seconds": round(entry.seconds, 1),
            "rows": [[f"{op.stage}{op.kind.name}{op.microbatch}" for op in row] for row in entry.rows],
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
                summary = f"{content.sizes}, gap {max(gap, 0):.1%}, {content.seconds} s"
            except (OSError, ValueError):
                summary = "damaged"
            yield file.name, summary if file.name.startswith(f"v{VERSION}-") else "of another version"

    def clear(self) -> int:
        """Remove all entries, and return how many there were."""
        files = list(self.path.glob("v*.json"))
        for file in files:
            file.unlink(missing_ok=True)
        return len(files)


def _key(problem: Problem) -> str:
    """Return the digest of normalised costs and limits; of exact times if normalised times are rounded."""
    coarse, unit = coarsened(problem)
    key_problem = coarse if is_exact(problem, coarse, unit) else problem
    text = json.dumps(to_builtins(key_problem), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _shape(problem: Problem) -> str:
    text = json.dumps([problem.microbatches, problem.stage_rank, problem.copies, problem.recomputes])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _costs(problem: Problem) -> list[float]:
    """Return times and limits as shares of a microbatch's work and of its activations."""
    work = sum(problem.f) + sum(problem.i) + sum(problem.w) or 1
    size = sum(problem.activation) or 1
    times = (*problem.f, *problem.i, *problem.w, *problem.offload, *problem.reload, *problem.recompute)
    return [round(value / work, 6) for value in times] + [round(value / size, 6) for value in problem.limit]


def _sizes(problem: Problem) -> str:
    copies = ", copies" * problem.copies + ", recomputation" * problem.recomputes
    return f"{problem.ranks} ranks, {problem.stages} stages, {problem.microbatches} microbatches{copies}"


def _read(file: Path) -> _Content:
    """Return the content of a file.

    Raises:
        OSError: the file is not readable.
        ValueError: the file is damaged, malformed or renamed.
    """
    digest, _, text = file.read_text(encoding="utf-8").partition("\n")
    if digest != _digest(file.name, text):
        msg = "the digest does not match"
        raise ValueError(msg)
    return _Content.model_validate_json(text)


def _digest(name: str, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def _entry(content: _Content, problem: Problem) -> Entry:
    """Return the content of a file as an entry, with the step of its rows. A bound above this step becomes 0.

    Raises:
        ValueError: the rows belong to another problem, or have a deadlock.
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
        ValueError: computations are missing or on other ranks, or an operation does not exist in the problem.
    """
    rows = [[_op(text) for text in row] for row in content.rows]
    ops_with_rank = [(op, rank) for rank, row in enumerate(rows) for op in row]
    halves = {OpKind.B: (OpKind.I, OpKind.W)}
    computed = sorted(
        (op._replace(kind=kind), rank)
        for op, rank in ops_with_rank if op.kind in (*COMPUTED, OpKind.B)
        for kind in halves.get(op.kind, (op.kind,))
    )  # fmt: skip
    expected = sorted((op, problem.stage_rank[op.stage]) for op in problem.ops())
    allowed_kinds = {*COMPUTED, OpKind.B} | ({*AWAIT_OF, *AWAIT_OF.values()} if problem.offload else set())
    allowed_kinds |= {OpKind.C} if problem.recompute else set()
    if len(rows) != problem.ranks or computed != expected or not all(
        op.kind in allowed_kinds and op.stage in problem.stages_of[rank] and op.microbatch < problem.microbatches
        for op, rank in ops_with_rank
    ):  # fmt: skip
        msg = "the rows are not the problem's"
        raise ValueError(msg)
    return rows


def _op(text: str) -> Op:
    kind_index = next(index for index, letter in enumerate(text) if letter.isalpha())
    return Op(OpKind[text[kind_index]], int(text[:kind_index]), int(text[kind_index + 1 :]))
