"""What a kernel's values are to LLVM: integers, columns, records of those, and tuples, each as a few plain parts.

An integer is one word of the machine, whatever the width of the column that it comes from. A column is an address
and a length. A record that a kernel is given is the address of the words of its fields, one after the other: cheap
to pass, and nothing writes to them while a kernel runs. A tuple, or a record that a kernel makes, is the parts of
its items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "NOTHING", "Column", "Integer", "Kind", "Record", "Several", "Value", "items_of", "of_result", "parts_of",
    "several", "words_of",
]  # fmt: skip


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
