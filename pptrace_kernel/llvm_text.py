"""Values and basic blocks as LLVM assembly text.

An integer has 64 bits, also if it was read from a narrower column. A column is an address and a length.
A record argument is the address of consecutive words with its fields, which kernels do not change.
A tuple, or a record that a kernel creates, consists of the parts of its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer or a truth value."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of integers."""

    dtype: str
    """The name of the numpy dtype, such as ``int32``."""
    is_uniform: bool = False
    """Whether all elements are in one place."""

    @property
    def element(self) -> str:
        """LLVM's type of an element."""
        return "i8" if self.dtype == "bool" else f"i{self.dtype.removeprefix('u').removeprefix('int')}"

    @property
    def signed(self) -> bool:
        """Whether elements can be negative."""
        return self.dtype.startswith("int")


@dataclass(frozen=True, slots=True)
class Record:
    """A named tuple that is an argument of the kernel."""

    name: str
    """The name of its class."""
    fields: tuple[tuple[str, Kind], ...]
    """The name and kind of each field."""

    def field(self, name: str) -> tuple[int, Kind] | None:
        """Return the offset of a field in words, and its kind."""
        offset = 0
        for field_name, kind in self.fields:
            if field_name == name:
                return offset, kind
            offset += word_count(kind)
        return None


@dataclass(frozen=True, slots=True)
class Tuple:
    """A tuple, or a named tuple that a kernel creates."""

    items: tuple[Kind, ...]
    """The kind of each item."""
    names: tuple[str, ...] = ()
    """The names of the items of a named tuple."""


Kind: TypeAlias = Integer | Column | Record | Tuple

NO_RESULT = Tuple(())
"""The result of a function without a return value."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a function: its kind, and the LLVM names or constants of its parts."""

    kind: Kind
    parts: tuple[str, ...]


def items_of(value: Value) -> list[Value]:
    """Return the items of a tuple."""
    items, start = [], 0
    for kind in value.kind.items if isinstance(value.kind, Tuple) else ():
        end = start + len(llvm_types(kind))
        items.append(Value(kind, value.parts[start:end]))
        start = end
    return items


def tuple_of(values: Iterable[Value], names: tuple[str, ...] = ()) -> Value:
    """Return a tuple of values."""
    items = list(values)
    kind = Tuple(tuple(item.kind for item in items), names)
    return Value(kind, tuple(part for item in items for part in item.parts))


def llvm_types(kind: Kind) -> tuple[str, ...]:
    """Return LLVM's type of each part of a value."""
    if isinstance(kind, Tuple):
        return tuple(part for item in kind.items for part in llvm_types(item))
    if isinstance(kind, Column):
        return ("ptr", "i64")
    return ("ptr",) if isinstance(kind, Record) else ("i64",)


def result_type(kind: Kind) -> str:
    """Return LLVM's type of a function's result."""
    types = llvm_types(kind)
    if len(types) == 1:
        return types[0]
    return f"{{{', '.join(types)}}}" if types else "void"


def word_count(kind: Kind) -> int:
    """Return the words of an argument: two for a column, one for an integer, a sum for a record."""
    if isinstance(kind, Record):
        return sum(word_count(field) for _, field in kind.fields)
    return 2 if isinstance(kind, Column) else 1


PREFETCH_DECLARATION = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


class Writer:
    """The text of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocations: list[str] = []
        """Lines that allocate the stack slots of variables."""
        self.terminated = False
        """Whether the last line ends its basic block."""
        self._count = 0

    def line(self, text: str, *, terminator: bool = False) -> None:
        """Append a line. A line after a terminator starts an unreachable block."""
        if self.terminated:
            self.begin_block(self.new_label())
        self.lines.append(f"  {text}")
        self.terminated = terminator

    def emit(self, text: str) -> str:
        """Append a line that has a result, and return the name of the result."""
        self._count += 1
        name = f"%v{self._count}"
        self.line(f"{name} = {text}")
        return name

    def new_label(self) -> str:
        """Return an unused label."""
        self._count += 1
        return f"b{self._count}"

    def begin_block(self, label: str) -> None:
        """Begin a block. The block before it continues there unless it has a terminator."""
        if not self.terminated:
            self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")
        self.terminated = False

    def branch(self, label: str) -> None:
        """Branch to a block unless the current block has a terminator."""
        if not self.terminated:
            self.line(f"br label %{label}", terminator=True)

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        """Branch to one of two blocks by an ``i1``."""
        self.line(f"br i1 {condition}, label %{yes}, label %{no}", terminator=True)

    def allocate(self, kind: Kind) -> tuple[str, ...]:
        """Allocate a stack slot for each part of a value. LLVM promotes the slots to registers."""
        slots = []
        for part_type in llvm_types(kind):
            self._count += 1
            slots.append(f"%s{self._count}")
            self.allocations.append(f"  {slots[-1]} = alloca {part_type}")
        return tuple(slots)

    def store(self, value: Value, slots: Sequence[str]) -> None:
        """Store a value in its stack slots."""
        for part_type, part, slot in zip(llvm_types(value.kind), value.parts, slots, strict=True):
            self.line(f"store {part_type} {part}, ptr {slot}")

    def load(self, kind: Kind, slots: Sequence[str]) -> Value:
        """Return the value in stack slots."""
        pairs = zip(llvm_types(kind), slots, strict=True)
        return Value(kind, tuple(self.emit(f"load {part_type}, ptr {slot}") for part_type, slot in pairs))

    def load_element(self, column: Column, address: str) -> Value:
        """Return an element of a column, extended to 64 bits."""
        element = self.emit(f"load {column.element}, ptr {address}")
        if column.element != "i64":
            element = self.emit(f"{'sext' if column.signed else 'zext'} {column.element} {element} to i64")
        return Value(Integer(), (element,))

    def address(self, column: Column, first: str, index: str) -> str:
        """Return the address of an element of a column."""
        place = "0" if column.is_uniform else index
        return self.emit(f"getelementptr {column.element}, ptr {first}, i64 {place}")

    def prefetch(self, column: Column, first: str, index: str) -> None:
        """Prefetch an element of a column for writing, into all levels of the data cache."""
        if not column.is_uniform:
            address = self.address(column, first, index)
            self.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 1, i32 3, i32 1)")

    def load_argument(self, words: str, kind: Kind, offset: int) -> Value:
        """Return the value whose words begin at an offset."""
        if isinstance(kind, Record):
            return Value(kind, (self.emit(f"getelementptr i64, ptr {words}, i64 {offset}"),))
        parts = []
        for number, part_type in enumerate(llvm_types(kind)):
            address = self.emit(f"getelementptr i64, ptr {words}, i64 {offset + number}")
            # The words do not change while a kernel runs, so LLVM can move the load out of loops.
            parts.append(self.emit(f"load {part_type}, ptr {address}, !invariant.load !0"))
        return Value(kind, tuple(parts))

    def call_arguments(self, values: Sequence[Value]) -> str:
        """Return values as the arguments of a call."""
        pairs = (pair for value in values for pair in zip(llvm_types(value.kind), value.parts, strict=True))
        return ", ".join(f"{part_type} {part}" for part_type, part in pairs)
