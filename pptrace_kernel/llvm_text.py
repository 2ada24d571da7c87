"""LLVM values and blocks as text.

An integer is one word of the machine, whatever the width of the column that it comes from. A column is an address
and a length. A record that a kernel is given is the address of the words of its fields, one after the other: cheap
to pass, and nothing writes to them while a kernel runs. A tuple, or a record that a kernel makes, is the parts of
its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FETCH",
    "NOTHING",
    "Column",
    "Integer",
    "Kind",
    "Record",
    "Several",
    "Value",
    "Writer",
    "items_of",
    "of_result",
    "parts_of",
    "several",
    "words_of",
]


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number, or a truth value."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of integers."""

    dtype: str
    """As numpy names it: ``int32``."""

    @property
    def element(self) -> str:
        """LLVM's type of what it holds."""
        return "i8" if self.dtype == "bool" else f"i{self.dtype.removeprefix('u').removeprefix('int')}"

    @property
    def signed(self) -> bool:
        """Whether what it holds may be below zero."""
        return self.dtype.startswith("int")


@dataclass(frozen=True, slots=True)
class Record:
    """A named tuple that a kernel is given."""

    of: str
    """Its class."""
    fields: tuple[tuple[str, Kind], ...]
    """Its fields' names and kinds."""

    def field(self, name: str) -> tuple[int, Kind] | None:
        """Return after how many words a field begins, and its kind."""
        at = 0
        for one, kind in self.fields:
            if one == name:
                return at, kind
            at += words_of(kind)
        return None


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple, or a named one that a kernel makes."""

    items: tuple[Kind, ...]
    """Their kinds."""
    names: tuple[str, ...] = ()
    """Their names, where they have names."""


Kind: TypeAlias = Integer | Column | Record | Several

NOTHING = Several(())
"""What a function without a result returns."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a function: what it is, and what LLVM's text calls its parts."""

    kind: Kind
    parts: tuple[str, ...]


def items_of(value: Value) -> list[Value]:
    """Return a tuple's items."""
    items, at = [], 0
    for kind in value.kind.items if isinstance(value.kind, Several) else ():
        count = len(parts_of(kind))
        items.append(Value(kind, value.parts[at : at + count]))
        at += count
    return items


def several(values: Iterable[Value], names: tuple[str, ...] = ()) -> Value:
    """Return a tuple of values."""
    listed = list(values)
    kinds = Several(tuple(value.kind for value in listed), names)
    return Value(kinds, tuple(part for value in listed for part in value.parts))


def parts_of(kind: Kind) -> tuple[str, ...]:
    """Return LLVM's types of a value's parts."""
    if isinstance(kind, Several):
        return tuple(part for item in kind.items for part in parts_of(item))
    if isinstance(kind, Column):
        return ("ptr", "i64")
    return ("ptr",) if isinstance(kind, Record) else ("i64",)


def of_result(kind: Kind) -> str:
    """Return LLVM's type of what a function returns."""
    parts = parts_of(kind)
    if len(parts) == 1:
        return parts[0]
    return f"{{{', '.join(parts)}}}" if parts else "void"


def words_of(kind: Kind) -> int:
    """Return how many words an argument takes: an address and a length, or a number; a record as its fields."""
    if isinstance(kind, Record):
        return sum(words_of(field) for _, field in kind.fields)
    return 2 if isinstance(kind, Column) else 1


FETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
"""What brings an address near the processor: to be written, to be kept in all caches, and data, by its numbers."""


class Writer:
    """One function's text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: list[str] = []
        """Lines that make room for variables."""
        self.ended = False
        """Whether the last line leaves its block."""
        self._count = 0

    def line(self, text: str, *, ends: bool = False) -> None:
        """Write a line; what follows one that leaves its block is in a block that nobody enters."""
        if self.ended:
            self.begin(self.label())
        self.lines.append(f"  {text}")
        self.ended = ends

    def emit(self, text: str) -> str:
        """Write a line that has a result, and return its name."""
        self._count += 1
        name = f"%v{self._count}"
        self.line(f"{name} = {text}")
        return name

    def label(self) -> str:
        """Return a new block's name."""
        self._count += 1
        return f"b{self._count}"

    def begin(self, label: str) -> None:
        """Begin a block; the one before goes on with it unless it was left."""
        if not self.ended:
            self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")
        self.ended = False

    def go(self, label: str) -> None:
        """Go on in another block, unless this one was left."""
        if not self.ended:
            self.line(f"br label %{label}", ends=True)

    def slot(self, kind: Kind) -> tuple[str, ...]:
        """Make room for a value; LLVM makes registers of it."""
        made = []
        for part in parts_of(kind):
            self._count += 1
            made.append(f"%s{self._count}")
            self.slots.append(f"  {made[-1]} = alloca {part}")
        return tuple(made)

    def keep(self, value: Value, slots: Sequence[str]) -> None:
        """Store a value where there is room for it."""
        for part, one, slot in zip(parts_of(value.kind), value.parts, slots, strict=True):
            self.line(f"store {part} {one}, ptr {slot}")

    def kept(self, kind: Kind, slots: Sequence[str]) -> Value:
        """Return a value that was stored."""
        pairs = zip(parts_of(kind), slots, strict=True)
        return Value(kind, tuple(self.emit(f"load {part}, ptr {slot}") for part, slot in pairs))

    def read(self, column: Column, address: str) -> Value:
        """Return what a column holds as a word."""
        found = self.emit(f"load {column.element}, ptr {address}")
        if column.element != "i64":
            found = self.emit(f"{'sext' if column.signed else 'zext'} {column.element} {found} to i64")
        return Value(Integer(), (found,))

    def fetch(self, column: Column, first: str, index: str) -> None:
        """Have a column's place brought near."""
        address = self.emit(f"getelementptr {column.element}, ptr {first}, i64 {index}")
        self.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 1, i32 3, i32 1)")

    def of_words(self, words: str, kind: Kind, at: int) -> Value:
        """Make a value of the words from a place on."""
        if isinstance(kind, Record):
            return Value(kind, (self.emit(f"getelementptr i64, ptr {words}, i64 {at}"),))
        parts = []
        for number, part in enumerate(parts_of(kind)):
            address = self.emit(f"getelementptr i64, ptr {words}, i64 {at + number}")
            # Nothing writes to the words while a kernel runs, so one load serves a whole loop.
            parts.append(self.emit(f"load {part}, ptr {address}, !invariant.load !0"))
        return Value(kind, tuple(parts))

    def passed(self, values: Sequence[Value]) -> str:
        """Return arguments as a call names them."""
        pairs = (pair for value in values for pair in zip(parts_of(value.kind), value.parts, strict=True))
        return ", ".join(f"{part} {one}" for part, one in pairs)
