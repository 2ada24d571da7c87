"""Translation of expressions to LLVM assembly; ``README.md`` describes the language."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from pptrace_kernel.llvm_text import Column, Integer, Record, Tuple, Value, Writer, items_of, tuple_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace_kernel.llvm_text import Kind

_COMPARISONS = {ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne"}
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_INTEGER = Integer()


class Expressions(Writer, ABC):
    """A writer of a function's expressions and assignments."""

    def __init__(self, module_globals: Mapping[str, Any]) -> None:
        super().__init__()
        self.globals = module_globals
        self.local_names: set[str] = set()
        """The parameters and variables of the function."""
        self.variables: dict[str, tuple[Kind, tuple[str, ...]]] = {}
        """The kind and the stack slots of each variable that has a value."""

    @abstractmethod
    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        """Raise an error about code that the language does not have."""

    @abstractmethod
    def call(self, function: Callable[..., Any], values: Sequence[Value]) -> Value:
        """Call a function of the language, and return its result."""

    def assign(self, target: ast.expr, value: Value) -> None:
        """Assign a value to a variable, to several variables, or to an element of a column."""
        if isinstance(target, ast.Name):
            self.assign_name(target, target.id, value)
        elif isinstance(target, ast.Subscript):
            self.store_element(target, *self.element_address(target), value)
        elif isinstance(target, ast.Tuple) and isinstance(value.kind, Tuple):
            items = items_of(value)
            if len(items) != len(target.elts):
                self.refuse(target, "a different number of names and values")
            for name, item in zip(target.elts, items, strict=True):
                self.assign(name, item)
        else:
            self.refuse(target, f"an assignment to {ast.unparse(target)}")

    def assign_name(self, node: ast.AST, name: str, value: Value) -> None:
        """Assign a value to a variable, whose values are all of one kind."""
        if name not in self.variables:
            self.variables[name] = value.kind, self.allocate(value.kind)
        kind, slots = self.variables[name]
        if kind != value.kind:
            self.refuse(node, f"{name} with values of two kinds")
        self.store(value, slots)

    def element_address(self, node: ast.Subscript) -> tuple[Column, str]:
        """Return the column and the address of an element."""
        return self._element_address(node, self.evaluate(node.value))

    def _element_address(self, node: ast.Subscript, column: Value) -> tuple[Column, str]:
        index = self.evaluate_integer(node.slice)
        if not isinstance(column.kind, Column):
            self.refuse(node, f"{ast.unparse(node.value)} is no column")
        return column.kind, self.emit(f"getelementptr {column.kind.element}, ptr {column.parts[0]}, i64 {index}")

    def store_element(self, node: ast.AST, column: Column, address: str, value: Value) -> None:
        """Store an integer in a column."""
        if value.kind != _INTEGER:
            self.refuse(node, "columns hold integers")
        (element,) = value.parts
        if column.dtype == "bool":
            element = self.emit(f"zext i1 {self.emit(f'icmp ne i64 {element}, 0')} to i8")
        elif column.element != "i64":
            element = self.emit(f"trunc i64 {element} to {column.element}")
        self.line(f"store {column.element} {element}, ptr {address}")

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        translate = getattr(self, f"_{type(node).__name__.lower()}", None)
        if translate is None:
            self.refuse(node, f"the expression {ast.unparse(node)}")
        value: Value = translate(node)
        return value

    def evaluate_integer(self, node: ast.expr) -> str:
        """Return the value of an integer expression."""
        value = self.evaluate(node)
        if value.kind != _INTEGER:
            self.refuse(node, f"{ast.unparse(node)} is no integer")
        return value.parts[0]

    def _constant(self, node: ast.Constant) -> Value:
        return self._constant_value(node, node.value)

    def _constant_value(self, node: ast.expr, value: Any) -> Value:
        if isinstance(value, tuple):
            return tuple_of(self._constant_value(node, item) for item in value)
        if not isinstance(value, int):  # a truth value is an integer
            self.refuse(node, f"{ast.unparse(node)} is no integer")
        return Value(_INTEGER, (str(int(value)),))

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.variables:
            return self.load(*self.variables[node.id])
        if node.id in self.local_names or node.id not in self.globals:
            self.refuse(node, f"{node.id} before it has a value")
        return self._constant_value(node, self.globals[node.id])

    def _attribute(self, node: ast.Attribute) -> Value:
        record = self.evaluate(node.value)
        if isinstance(record.kind, Record):
            field = record.kind.field(node.attr)
            if field is not None:
                offset, kind = field
                return self.load_argument(record.parts[0], kind, offset)
        elif isinstance(record.kind, Tuple) and node.attr in record.kind.names:
            return items_of(record)[record.kind.names.index(node.attr)]
        return self.refuse(node, f"{ast.unparse(node)} is no field")

    def _subscript(self, node: ast.Subscript) -> Value:
        indexed = self.evaluate(node.value)
        if not isinstance(indexed.kind, Tuple):
            return self.load_element(*self._element_address(node, indexed))
        if set(indexed.kind.items) != {_INTEGER}:
            self.refuse(node, f"{ast.unparse(node)} of more than integers")
        index, selected = self.evaluate_integer(node.slice), indexed.parts[0]
        for number, part in enumerate(indexed.parts[1:], 1):
            is_equal = self.emit(f"icmp eq i64 {index}, {number}")
            selected = self.emit(f"select i1 {is_equal}, i64 {part}, i64 {selected}")
        return Value(_INTEGER, (selected,))

    def _tuple(self, node: ast.Tuple) -> Value:
        return tuple_of(map(self.evaluate, node.elts))

    def _binop(self, node: ast.BinOp) -> Value:
        return self.binary(node, self.evaluate(node.left), node.op, self.evaluate(node.right))

    def binary(self, node: ast.AST, left: Value, operator: ast.operator, right: Value) -> Value:
        """Return the result of a binary operator on integers."""
        if left.kind != _INTEGER or right.kind != _INTEGER:
            self.refuse(node, "arithmetic on values that are no integers")
        (first,), (second,) = left.parts, right.parts
        if isinstance(operator, ast.FloorDiv | ast.Mod):
            return Value(_INTEGER, (self._divide(first, second, remainder=isinstance(operator, ast.Mod)),))
        instruction = _OPERATORS.get(type(operator))
        if instruction is None:
            self.refuse(node, f"the operator {type(operator).__name__}")
        return Value(_INTEGER, (self.emit(f"{instruction} i64 {first}, {second}"),))

    def _divide(self, dividend: str, divisor: str, *, remainder: bool) -> str:
        """Return the quotient, rounded down as in Python, or the remainder."""
        if divisor.isdigit() and int(divisor).bit_count() == 1:
            power = int(divisor)
            if remainder:
                return self.emit(f"and i64 {dividend}, {power - 1}")
            return self.emit(f"ashr i64 {dividend}, {power.bit_length() - 1}")
        # A division by 0 would end the process, so the divisor is replaced by 1.
        by = self.emit(f"select i1 {self.emit(f'icmp eq i64 {divisor}, 0')}, i64 1, i64 {divisor}")
        rest = self.emit(f"srem i64 {dividend}, {by}")
        differs = self.emit(f"icmp slt i64 {self.emit(f'xor i64 {rest}, {by}')}, 0")
        down = self.emit(f"and i1 {self.emit(f'icmp ne i64 {rest}, 0')}, {differs}")
        if remainder:
            return self.emit(f"add i64 {rest}, {self.emit(f'select i1 {down}, i64 {by}, i64 0')}")
        quotient = self.emit(f"sdiv i64 {dividend}, {by}")
        return self.emit(f"sub i64 {quotient}, {self.emit(f'zext i1 {down} to i64')}")

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self._truth(node)
        operand = self.evaluate_integer(node.operand)
        if isinstance(node.op, ast.USub):
            negative = f"-{operand}" if operand.isdigit() else self.emit(f"sub i64 0, {operand}")
            return Value(_INTEGER, (negative,))
        result = operand if isinstance(node.op, ast.UAdd) else self.emit(f"xor i64 {operand}, -1")
        return Value(_INTEGER, (result,))

    def _compare(self, node: ast.Compare) -> Value:
        return self._truth(node)

    def _truth(self, node: ast.expr) -> Value:
        """Return a condition as 1 or 0."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.evaluate_integer(node.left), self.evaluate_integer(node.comparators[0])
            condition = self._compare_integers(node, left, node.ops[0], right)
            return Value(_INTEGER, (self.emit(f"zext i1 {condition} to i64"),))
        return self._select(node, lambda: Value(_INTEGER, ("1",)), lambda: Value(_INTEGER, ("0",)))

    def _compare_integers(self, node: ast.expr, left: str, operator: ast.cmpop, right: str) -> str:
        if type(operator) not in _COMPARISONS:
            self.refuse(node, f"the comparison {ast.unparse(node)}")
        return self.emit(f"icmp {_COMPARISONS[type(operator)]} i64 {left}, {right}")

    def branch_on(self, node: ast.expr, yes: str, no: str) -> None:
        """Branch to one of two blocks by a condition."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.branch_on(node.operand, no, yes)
        elif isinstance(node, ast.BoolOp):
            for operand in node.values[:-1]:
                following = self.new_label()
                is_and = isinstance(node.op, ast.And)
                self.branch_on(operand, following if is_and else yes, no if is_and else following)
                self.begin_block(following)
            self.branch_on(node.values[-1], yes, no)
        elif isinstance(node, ast.Compare):
            self._jump_compared(node, yes, no)
        else:
            self.branch_if(self.emit(f"icmp ne i64 {self.evaluate_integer(node)}, 0"), yes, no)

    def _jump_compared(self, node: ast.Compare, yes: str, no: str) -> None:
        left = self.evaluate_integer(node.left)
        for number, (operator, comparator) in enumerate(zip(node.ops, node.comparators, strict=True), 1):
            right = self.evaluate_integer(comparator)
            following = yes if number == len(node.ops) else self.new_label()
            self.branch_if(self._compare_integers(node, left, operator, right), following, no)
            if following != yes:
                self.begin_block(following)
            left = right

    def _ifexp(self, node: ast.IfExp) -> Value:
        return self._select(node.test, lambda: self.evaluate(node.body), lambda: self.evaluate(node.orelse))

    def _select(self, test: ast.expr, first: Callable[[], Value], second: Callable[[], Value]) -> Value:
        yes, no, after = self.new_label(), self.new_label(), self.new_label()
        self.branch_on(test, yes, no)
        self.begin_block(yes)
        value = first()
        slots = self.allocate(value.kind)
        self.store(value, slots)
        self.branch(after)
        self.begin_block(no)
        second_value = second()
        if second_value.kind != value.kind:
            self.refuse(test, "two results of two kinds")
        self.store(second_value, slots)
        self.begin_block(after)
        return self.load(value.kind, slots)

    def _boolop(self, node: ast.BoolOp) -> Value:
        """Return the deciding operand: the first false operand of ``and``, the first true operand of ``or``."""
        (slot,) = self.allocate(_INTEGER)
        after = self.new_label()
        for number, operand in enumerate(node.values, 1):
            value = self.evaluate_integer(operand)
            self.line(f"store i64 {value}, ptr {slot}")
            if number < len(node.values):
                following = self.new_label()
                yes, no = (following, after) if isinstance(node.op, ast.And) else (after, following)
                self.branch_if(self.emit(f"icmp ne i64 {value}, 0"), yes, no)
                self.begin_block(following)
        self.begin_block(after)
        return self.load(_INTEGER, (slot,))

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or not isinstance(node.func, ast.Name) or node.func.id in self.local_names:
            self.refuse(node, f"the call {ast.unparse(node)}")
        name, called = node.func.id, self.globals.get(node.func.id)
        values = [self.evaluate(argument) for argument in node.args]
        if isinstance(called, FunctionType):
            return self.call(called, values)
        if isinstance(called, type) and len(values) == len(getattr(called, "_fields", ())):
            return tuple_of(values, called._fields)  # type: ignore[attr-defined]  # a named tuple
        if name == "len" and len(values) == 1 and isinstance(values[0].kind, Column):
            return Value(_INTEGER, (values[0].parts[1],))
        word = None
        if values and all(value.kind == _INTEGER for value in values):
            word = self._call_builtin(name, [value.parts[0] for value in values])
        return Value(_INTEGER, (word,)) if word else self.refuse(node, f"the call {ast.unparse(node)}")

    def _call_builtin(self, name: str, words: Sequence[str]) -> str | None:
        """Return the result of a Python builtin; None if the language does not have it."""
        if name in {"min", "max"} and len(words) > 1:
            return self._extremum(words, "slt" if name == "min" else "sgt")
        if name == "abs" and len(words) == 1:
            return self._extremum([*words, self.emit(f"sub i64 0, {words[0]}")], "sgt")
        return words[0] if name == "int" and len(words) == 1 else None

    def _extremum(self, words: Sequence[str], comparison: str) -> str:
        best = words[0]
        for word in words[1:]:
            is_better = self.emit(f"icmp {comparison} i64 {word}, {best}")
            best = self.emit(f"select i1 {is_better}, i64 {word}, i64 {best}")
        return best
