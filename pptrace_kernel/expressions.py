"""Expressions of the language of kernels, translated to LLVM's text; see :mod:`pptrace_kernel.translation`."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from pptrace_kernel.llvm_text import Column, Integer, Record, Several, Value, Writer, items_of, several

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace_kernel.llvm_text import Kind

__all__ = ["Expressions"]

_COMPARED = {ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne"}
_PLAIN = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_INTEGER = Integer()


class Expressions(Writer, ABC):
    """What expressions add to a function's text."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__()
        self.known = known
        """What its module's names are."""
        self.names: set[str] = set()
        """Its variables."""
        self.variables: dict[str, tuple[Kind, tuple[str, ...]]] = {}
        """What each is, and where its parts are."""

    @abstractmethod
    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        """Say that something is not in the language."""

    @abstractmethod
    def call(self, function: Callable[..., Any], values: Sequence[Value]) -> Value:
        """Call another function."""

    def assign(self, target: ast.expr, value: Value) -> None:
        """Give a variable, variables, or a column's place a value."""
        if isinstance(target, ast.Name):
            self.assign_name(target, target.id, value)
        elif isinstance(target, ast.Subscript):
            self.write(target, *self.place(target), value)
        elif isinstance(target, ast.Tuple) and isinstance(value.kind, Several):
            items = items_of(value)
            if len(items) != len(target.elts):
                self.refuse(target, "as many names as values are meant")
            for one, item in zip(target.elts, items, strict=True):
                self.assign(one, item)
        else:
            self.refuse(target, f"an assignment to {ast.unparse(target)}")

    def assign_name(self, node: ast.AST, name: str, value: Value) -> None:
        """Give a variable a value, of the sort that it always has."""
        if name not in self.variables:
            self.variables[name] = value.kind, self.slot(value.kind)
        kind, slots = self.variables[name]
        if kind != value.kind:
            self.refuse(node, f"{name} with values of two sorts")
        self.keep(value, slots)

    def place(self, node: ast.Subscript) -> tuple[Column, str]:
        """Return what a place of a column holds, and its address."""
        return self._place(node, self.value(node.value))

    def _place(self, node: ast.Subscript, column: Value) -> tuple[Column, str]:
        index = self.integer(node.slice)
        if not isinstance(column.kind, Column):
            self.refuse(node, f"{ast.unparse(node.value)} is no column")
        return column.kind, self.emit(f"getelementptr {column.kind.element}, ptr {column.parts[0]}, i64 {index}")

    def write(self, node: ast.AST, column: Column, address: str, value: Value) -> None:
        """Put an integer in a column."""
        if value.kind != _INTEGER:
            self.refuse(node, "columns hold integers")
        (word,) = value.parts
        if column.dtype == "bool":
            word = self.emit(f"zext i1 {self.emit(f'icmp ne i64 {word}, 0')} to i8")
        elif column.element != "i64":
            word = self.emit(f"trunc i64 {word} to {column.element}")
        self.line(f"store {column.element} {word}, ptr {address}")

    def value(self, node: ast.expr) -> Value:
        """Return an expression's value."""
        translate = getattr(self, f"_{type(node).__name__.lower()}", None)
        if translate is None:
            self.refuse(node, f"the expression {ast.unparse(node)}")
        found: Value = translate(node)
        return found

    def integer(self, node: ast.expr) -> str:
        """Return an integer expression's value."""
        value = self.value(node)
        if value.kind != _INTEGER:
            self.refuse(node, f"{ast.unparse(node)} is no integer")
        return value.parts[0]

    def _constant(self, node: ast.Constant) -> Value:
        return self._known(node, node.value)

    def _known(self, node: ast.expr, value: Any) -> Value:
        if isinstance(value, tuple):
            return several(self._known(node, item) for item in value)
        if not isinstance(value, int):  # a truth value is one
            self.refuse(node, f"{ast.unparse(node)} is no integer")
        return Value(_INTEGER, (str(int(value)),))

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.variables:
            return self.kept(*self.variables[node.id])
        if node.id in self.names or node.id not in self.known:
            self.refuse(node, f"{node.id} before it has a value")
        return self._known(node, self.known[node.id])

    def _attribute(self, node: ast.Attribute) -> Value:
        of = self.value(node.value)
        if isinstance(of.kind, Record):
            found = of.kind.field(node.attr)
            if found is not None:
                at, kind = found
                return self.of_words(of.parts[0], kind, at)
        elif isinstance(of.kind, Several) and node.attr in of.kind.names:
            return items_of(of)[of.kind.names.index(node.attr)]
        return self.refuse(node, f"{ast.unparse(node)} is no field")

    def _subscript(self, node: ast.Subscript) -> Value:
        of = self.value(node.value)
        if not isinstance(of.kind, Several):
            return self.read(*self._place(node, of))
        if set(of.kind.items) != {_INTEGER}:
            self.refuse(node, f"{ast.unparse(node)} of more than integers")
        index, found = self.integer(node.slice), of.parts[0]
        for number, part in enumerate(of.parts[1:], 1):
            is_it = self.emit(f"icmp eq i64 {index}, {number}")
            found = self.emit(f"select i1 {is_it}, i64 {part}, i64 {found}")
        return Value(_INTEGER, (found,))

    def _tuple(self, node: ast.Tuple) -> Value:
        return several(map(self.value, node.elts))

    def _binop(self, node: ast.BinOp) -> Value:
        return self.binary(node, self.value(node.left), node.op, self.value(node.right))

    def binary(self, node: ast.AST, left: Value, operator: ast.operator, right: Value) -> Value:
        """Return what an operator makes of two integers."""
        if left.kind != _INTEGER or right.kind != _INTEGER:
            self.refuse(node, "arithmetic with other things than integers")
        (one,), (other,) = left.parts, right.parts
        if isinstance(operator, ast.FloorDiv | ast.Mod):
            return Value(_INTEGER, (self._divided(one, other, rest=isinstance(operator, ast.Mod)),))
        plain = _PLAIN.get(type(operator))
        if plain is None:
            self.refuse(node, f"the operator {type(operator).__name__}")
        return Value(_INTEGER, (self.emit(f"{plain} i64 {one}, {other}"),))

    def _divided(self, one: str, other: str, *, rest: bool) -> str:
        """Return the quotient, rounded down as Python does, or what is left of it."""
        if other.isdigit() and int(other).bit_count() == 1:
            power = int(other)
            plain = f"and i64 {one}, {power - 1}" if rest else f"ashr i64 {one}, {power.bit_length() - 1}"
            return self.emit(plain)
        # A processor stops at a division by 0; kernels never divide by it.
        by = self.emit(f"select i1 {self.emit(f'icmp eq i64 {other}, 0')}, i64 1, i64 {other}")
        left = self.emit(f"srem i64 {one}, {by}")
        crosses = self.emit(f"icmp slt i64 {self.emit(f'xor i64 {left}, {by}')}, 0")
        down = self.emit(f"and i1 {self.emit(f'icmp ne i64 {left}, 0')}, {crosses}")
        if rest:
            return self.emit(f"add i64 {left}, {self.emit(f'select i1 {down}, i64 {by}, i64 0')}")
        return self.emit(f"sub i64 {self.emit(f'sdiv i64 {one}, {by}')}, {self.emit(f'zext i1 {down} to i64')}")

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self._truth(node)
        one = self.integer(node.operand)
        if isinstance(node.op, ast.USub):
            negative = f"-{one}" if one.isdigit() else self.emit(f"sub i64 0, {one}")
            return Value(_INTEGER, (negative,))
        return Value(_INTEGER, (one if isinstance(node.op, ast.UAdd) else self.emit(f"xor i64 {one}, -1"),))

    def _compare(self, node: ast.Compare) -> Value:
        return self._truth(node)

    def _truth(self, node: ast.expr) -> Value:
        """Return 1 or 0."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return Value(_INTEGER, (self.emit(f"zext i1 {self._compared(node)} to i64"),))
        return self._either(node, lambda: Value(_INTEGER, ("1",)), lambda: Value(_INTEGER, ("0",)))

    def _compared(self, node: ast.Compare) -> str:
        return self._is(node, self.integer(node.left), node.ops[0], self.integer(node.comparators[0]))

    def _is(self, node: ast.expr, left: str, how: ast.cmpop, right: str) -> str:
        if type(how) not in _COMPARED:
            self.refuse(node, f"the comparison {ast.unparse(node)}")
        return self.emit(f"icmp {_COMPARED[type(how)]} i64 {left}, {right}")

    def jump(self, node: ast.expr, yes: str, no: str) -> None:
        """Go on where a condition leads."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.jump(node.operand, no, yes)
        elif isinstance(node, ast.BoolOp):
            for one in node.values[:-1]:
                following = self.label()
                both = isinstance(node.op, ast.And)
                self.jump(one, following if both else yes, no if both else following)
                self.begin(following)
            self.jump(node.values[-1], yes, no)
        elif isinstance(node, ast.Compare):
            self._jump_compared(node, yes, no)
        else:
            truth = self.emit(f"icmp ne i64 {self.integer(node)}, 0")
            self.line(f"br i1 {truth}, label %{yes}, label %{no}", ends=True)

    def _jump_compared(self, node: ast.Compare, yes: str, no: str) -> None:
        left = self.integer(node.left)
        for number, (how, other) in enumerate(zip(node.ops, node.comparators, strict=True), 1):
            right = self.integer(other)
            following = yes if number == len(node.ops) else self.label()
            self.line(f"br i1 {self._is(node, left, how, right)}, label %{following}, label %{no}", ends=True)
            if following != yes:
                self.begin(following)
            left = right

    def _ifexp(self, node: ast.IfExp) -> Value:
        return self._either(node.test, lambda: self.value(node.body), lambda: self.value(node.orelse))

    def _either(self, test: ast.expr, first: Callable[[], Value], second: Callable[[], Value]) -> Value:
        yes, no, behind = self.label(), self.label(), self.label()
        self.jump(test, yes, no)
        self.begin(yes)
        value = first()
        slots = self.slot(value.kind)
        self.keep(value, slots)
        self.go(behind)
        self.begin(no)
        other = second()
        if other.kind != value.kind:
            self.refuse(test, "two results of two sorts")
        self.keep(other, slots)
        self.begin(behind)
        return self.kept(value.kind, slots)

    def _boolop(self, node: ast.BoolOp) -> Value:
        """Return the value that decides: the first that is false of ``and``, the first that is true of ``or``."""
        (slot,) = self.slot(_INTEGER)
        behind = self.label()
        for number, one in enumerate(node.values, 1):
            value = self.integer(one)
            self.line(f"store i64 {value}, ptr {slot}")
            if number < len(node.values):
                following = self.label()
                yes, no = (following, behind) if isinstance(node.op, ast.And) else (behind, following)
                truth = self.emit(f"icmp ne i64 {value}, 0")
                self.line(f"br i1 {truth}, label %{yes}, label %{no}", ends=True)
                self.begin(following)
        self.begin(behind)
        return self.kept(_INTEGER, (slot,))

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or not isinstance(node.func, ast.Name) or node.func.id in self.names:
            self.refuse(node, f"the call {ast.unparse(node)}")
        name, called = node.func.id, self.known.get(node.func.id)
        values = [self.value(one) for one in node.args]
        if isinstance(called, FunctionType):
            return self.call(called, values)
        if isinstance(called, type) and len(values) == len(getattr(called, "_fields", ())):
            return several(values, called._fields)  # type: ignore[attr-defined]  # a named tuple
        if name == "len" and len(values) == 1 and isinstance(values[0].kind, Column):
            return Value(_INTEGER, (values[0].parts[1],))
        word = None
        if values and all(value.kind == _INTEGER for value in values):
            word = self._of_words(name, [value.parts[0] for value in values])
        return Value(_INTEGER, (word,)) if word else self.refuse(node, f"the call {ast.unparse(node)}")

    def _of_words(self, name: str, words: Sequence[str]) -> str | None:
        """Return what Python's own functions make of integers; None where there is no such function."""
        if name in {"min", "max"} and len(words) > 1:
            return self._least(words, "slt" if name == "min" else "sgt")
        if name == "abs" and len(words) == 1:
            return self._least([*words, self.emit(f"sub i64 0, {words[0]}")], "sgt")
        return words[0] if name == "int" and len(words) == 1 else None

    def _least(self, words: Sequence[str], how: str) -> str:
        least = words[0]
        for word in words[1:]:
            least = self.emit(f"select i1 {self.emit(f'icmp {how} i64 {word}, {least}')}, i64 {word}, i64 {least}")
        return least
