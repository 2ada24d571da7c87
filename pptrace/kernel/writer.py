"""Lines of LLVM's text: blocks, room for variables, and what lies at the words of an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.kernel.values import Integer, Record, Value, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.kernel.values import Column, Kind

__all__ = ["FETCH", "Writer"]

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
