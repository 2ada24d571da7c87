"""The diff of two traces without actions of a pipeline: operations of GPUs by kernel, stream and operator."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pptrace.errors import OutputError
from pptrace.files import check_targets, replace_file
from pptrace.report.document import PAGES, Cell, Document, Line, Printed, Section, Table, plain, write_page
from pptrace.report.numbers import ms, ranks_text, unique_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace.report.document import Block
    from pptrace.timeline.measurement import KernelTotal, Measurement

_LONGEST = 64
"""The length of a short name."""
_NAMESPACES = re.compile(r"\b\w+::")
_LAMBDAS = re.compile(r"::(?:\{[^{}]*\}|operator\b)(?: const)?")
_SPACES = re.compile(r"\s+(?=[>,])|(?<=<)\s+")


def without_parameters(name: str) -> str:
    """Return a kernel's name without its parameters.

    >>> without_parameters("void at::native::(anonymous namespace)::fill<int, (kind)2>(int*, long)")
    'at::native::fill<int, (kind)2>'
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for index, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            return plain[:index] or plain
    return plain


def readable(name: str) -> str:
    """Return a kernel's name without namespaces, parameters, casts and lambdas.

    >>> readable("void at::native::fill<at::native::Add<float> >(at::Iterator&)::{lambda(int)#1}")
    'fill<Add<float>>'
    """
    kept, depth = [], 0
    for letter in without_parameters(name):
        depth += letter == "("
        if not depth:
            kept.append(letter)
        depth -= letter == ")" and depth > 0
    short = _NAMESPACES.sub("", _LAMBDAS.sub("", "".join(kept)))
    return _SPACES.sub("", short).strip() or name


def _without_arguments(name: str) -> str:
    """Return a readable name, a long one without template arguments."""
    short = readable(name)
    return short.partition("<")[0] if len(short) > _LONGEST else short


def kernel_cells(names: Iterable[str]) -> dict[str, Cell]:
    """Return a cell with a short, unique name per kernel, and with the whole name as its tooltip."""
    listed = list(dict.fromkeys(names))
    shorts = {name: name for name in listed}
    for shorten in (without_parameters, readable, _without_arguments):
        shortened = {name: shorten(name) for name in listed}
        counts = Counter(shortened.values())
        shorts |= {name: short for name, short in shortened.items() if counts[short] == 1}
    cut = unique_names(shorts.values(), _LONGEST)
    return {
        name: Cell(text=cut[short], title=name if cut[short] != name else "") for name, short in shorts.items()
    }


DIFF_SUFFIXES = (*PAGES, ".pftrace", ".pftrace.gz", ".tar")


class TotalChange(Struct, frozen=True, kw_only=True):
    """Operations of one name, stream or operator on both sides."""

    what: str
    """The name."""
    count: tuple[int, int]
    """Their number."""
    total_ns: tuple[int, int]
    """Their total time."""
    change_ns: int
    """The second total minus the first."""


class PrintedDiff(Printed):
    """Mixin of diffs, whose outputs have at most ``top`` rows per list."""

    __slots__ = ()

    @abstractmethod
    def document(self, top: int = 10) -> Document:
        """Return the output of the command line as a document."""

    def save(self, *targets: str | Path, top: int = 10) -> list[Path]:
        """Write a report (.html or .md), both steps as one trace (.pftrace), or all traces in one archive (.tar).

        Raises:
            OutputError: a file cannot be written, or its format needs actions, which the traces lack; then no file
                has changed.
        """
        check_targets(targets, DIFF_SUFFIXES, "a diff")
        paths = [Path(target) for target in targets]
        with ExitStack() as pending:
            for path in paths:
                temporary = pending.enter_context(replace_file(path))
                if (suffix := path.suffix.lower()) in PAGES:
                    write_page(temporary, suffix, self.document(top))
                else:
                    self._write_trace(temporary, path)
        return paths

    @abstractmethod
    def _write_trace(self, path: Path, target: Path) -> None:
        """Write to a path in the format of the suffix of the target."""

    def summary(self, top: int = 10) -> str:
        """Return the output of the command line as plain text."""
        return str(self.document(top))

    def to_dict(self, top: int = 10) -> dict[str, Any]:
        """Return plain JSON values, times in nanoseconds."""
        values: dict[str, Any] = plain(self.document(top))
        return values

    __repr__ = summary


class OperationsDiff(PrintedDiff, Struct, frozen=True):
    """The differences of two traces without actions; each list has the largest change first."""

    names: tuple[str, str]
    """The sides."""
    tolerance: float
    """The share of the total time up to which times count as equal."""
    kernels: tuple[TotalChange, ...]
    """By kernel."""
    streams: tuple[TotalChange, ...]
    """By stream of a GPU."""
    operators: tuple[TotalChange, ...]
    """By operator of the host that launched the operations; empty where no operator is recorded."""
    partial: str = ""
    """The ranks that only one side has; empty for the same ranks."""
    notes: tuple[str, ...] = field(default=())
    """Notes of both sides."""

    @property
    def total_ns(self) -> tuple[int, int]:
        """The total time of all operations of both sides."""
        first, second = (sum(row.total_ns[side] for row in self.kernels) for side in (0, 1))
        return first, second

    @property
    def change(self) -> float:
        """The relative change of the total time."""
        first, second = self.total_ns
        return second / first - 1 if first else 0.0

    @property
    def same(self) -> bool:
        """Whether the numbers of operations are equal, and the sum of all changes is within the tolerance."""
        moved_ns = sum(abs(row.change_ns) for row in self.kernels)
        equal = all(row.count[0] == row.count[1] for row in self.kernels)
        return equal and moved_ns <= self.tolerance * self.total_ns[0] and not self.partial

    @property
    def no_gate(self) -> str:
        """The reason why no gate on the length of a step applies."""
        return "these traces have no action of a pipeline"

    def document(self, top: int = 10) -> Document:
        """Return the document, with at most ``top`` rows per table."""
        first, second = self.total_ns
        rows = (
            (self.names[0], ms(first), ""),
            (self.names[1], ms(second), f"{ms(second - first, sign=True)} ({self.change:+.2%})"),
        )
        one_sided = [row for row in self.kernels if not all(row.count)]
        verdict = f"equal within {self.tolerance:.1%}" if self.same else "different"
        return Document(
            title=f"{self.names[0]} and {self.names[1]}",
            lead=(
                "no action of a pipeline on either side: total times of operations",
                Table(rows=rows),
                Line(text=verdict, tone="same" if self.same else "different"),
                *([f"partial data: {self.partial}"] if self.partial else []),
                *([f"kernels on one side only: {len(one_sided)}"] if one_sided else []),
            ),
            sections=(
                Section(title="by kernel", blocks=_table(self.kernels, top, kernel_cells)),
                Section(title="by stream", blocks=_table(self.streams, top)),
                Section(title="by operator that launched them", blocks=_table(self.operators, top)),
            ),
            notes=self.notes, partial=self.partial,
            values={
                "sides": self.names, "same": self.same, "tolerance": self.tolerance, "total_ns": self.total_ns,
                "change": self.change, "kernels": self.kernels, "streams": self.streams,
                "operators": self.operators, "partial": self.partial or None, "notes": self.notes,
            },
        )  # fmt: skip

    def _write_trace(self, path: Path, target: Path) -> None:
        del path
        raise OutputError("needs actions of a pipeline, which these traces do not have", file=target)


def compare_operations(
    measurements: tuple[Measurement, Measurement], names: tuple[str, str], tolerance: float
) -> OperationsDiff:
    """Compare two traces without actions on the ranks that both have; single ranks are compared as they are."""
    sides = [measurement.kernels for measurement in measurements]
    ranks = [sorted({row.rank for row in side}) for side in sides]
    common = {*ranks[0]} & {*ranks[1]}
    partial = ""
    if ranks[0] != ranks[1] and max(map(len, ranks)) > 1 and common:
        lacks = [
            f"{name} has no data of {ranks_text(missing)}"
            for name, missing in zip(
                names, (sorted({*ranks[1]} - common), sorted({*ranks[0]} - common)), strict=True
            )
            if missing
        ]
        partial = "; ".join([*lacks, f"figures are those of {ranks_text(sorted(common))}"])
        sides = [tuple(row for row in side if row.rank in common) for side in sides]
    changes = [
        _changes(sides, key)
        for key in (
            lambda row: row.what,
            lambda row: f"stream {row.stream}" if row.stream >= 0 else "unknown stream",
            lambda row: row.operator or "no operator",
        )
    ]
    has_operators = any(row.operator for side in sides for row in side)
    notes = dict.fromkeys(note for measurement in measurements for note in measurement.notes)
    return OperationsDiff(
        names=names, tolerance=tolerance, kernels=changes[0], streams=changes[1],
        operators=changes[2] if has_operators else (), partial=partial, notes=tuple(notes),
    )  # fmt: skip


def _changes(sides: Sequence[Iterable[KernelTotal]], key: Callable[[KernelTotal], str]) -> tuple[TotalChange, ...]:
    """Return the totals of both sides by name, the largest change first."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    totals_ns: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for side, rows in enumerate(sides):
        for row in rows:
            counts[key(row)][side] += row.count
            totals_ns[key(row)][side] += row.total_ns
    changes = [
        TotalChange(
            what=what,
            count=(counts[what][0], counts[what][1]),
            total_ns=(first_ns, second_ns),
            change_ns=second_ns - first_ns,
        )
        for what, (first_ns, second_ns) in totals_ns.items()
    ]
    return tuple(sorted(changes, key=lambda row: (-abs(row.change_ns), row.what)))


def _table(
    changes: Sequence[TotalChange], top: int, shorten: Callable[[Iterable[str]], dict[str, Cell]] | None = None
) -> tuple[Block, ...]:
    cells = shorten(row.what for row in changes) if shorten is not None else {}
    rows = tuple(
        (
            cells.get(row.what, row.what), f"{row.count[0]:,}, {row.count[1]:,}", *map(ms, row.total_ns),
            ms(row.change_ns, sign=True),
        )
        for row in changes[:top]
    )  # fmt: skip
    more = len(changes) - len(rows)
    table = Table(head=("", "count", "in total, first", "second", "change"), rows=rows)
    return (*([table] if rows else []), *([f"and {more} further with smaller changes"] if more else []))
