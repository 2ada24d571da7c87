"""Translation of a kernel, and of the functions that it calls, to LLVM assembly.

``README.md`` describes the language of kernels. Code outside of the language raises a TypeError with its line.
"""

from __future__ import annotations

import ast
import linecache
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pptrace_kernel.llvm_text import (
    NO_RESULT,
    PREFETCH_DECLARATION,
    Column,
    Integer,
    Record,
    Tuple,
    Value,
    Writer,
    items_of,
    llvm_types,
    result_type,
    tuple_of,
    word_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_kernel.llvm_text import Kind


_COMPARISONS = {ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne"}
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_INTEGER = Integer()
_FETCH, _PUBLISH, _OBSERVE = (f"pptrace_kernel.{name}" for name in ("fetch", "publish", "observe"))
"""The functions whose calls become prefetches, and stores and loads that other threads see in order."""


def translate(kernel: Callable[..., Any], layout: Sequence[Any], entry_point: str) -> str:
    """Return an LLVM module whose function ``entry_point`` takes the address of a kernel's arguments as words.

    Raises:
        TypeError: the kernel, or a function that it calls, is not in the language of kernels.
    """
    arguments = tuple(map(_kind, layout))
    module = _Module()
    name, result = module.function(kernel, arguments)
    entry = Writer()
    values, offset = [], 0
    for kind in arguments:
        values.append(entry.load_argument("%words", kind, offset))
        offset += word_count(kind)
    passed = entry.call_arguments(values)
    if result == NO_RESULT:
        entry.lines += [f"  call void @{name}({passed})", "  ret i64 0"]
    else:
        entry.lines.append(f"  ret i64 {entry.emit(f'call {result_type(result)} @{name}({passed})')}")
    head = f"define i64 @{entry_point}(ptr %words) nounwind {{"
    return "\n".join([PREFETCH_DECLARATION, *module.texts, head, *entry.lines, "}", "!0 = !{}", ""])


def _kind(layout: Any) -> Kind:
    """Return the kind of an argument with a layout, as in :mod:`pptrace_kernel.compiled`."""
    if layout is None:
        return Integer()
    if isinstance(layout, tuple):
        fields = zip(layout[0]._fields, map(_kind, layout[1:]), strict=True)
        return Record(layout[0].__name__, tuple(fields))
    is_uniform = isinstance(layout, str)
    dtype = np.dtype(layout)
    if dtype.kind not in "iub" or not dtype.isnative:
        message = f"a kernel's columns hold integers, not {dtype}"
        raise TypeError(message)
    return Column(dtype.name, is_uniform=is_uniform)


def definition_of(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """Return the syntax tree of a function; None if its source is not installed."""
    code = function.__code__
    return _definitions(code.co_filename).get((code.co_name, code.co_firstlineno))


@cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Return the functions of a file, by name and first line."""
    tree = ast.parse("".join(linecache.getlines(path)))
    return {(node.name, node.lineno): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


class _Module:
    """The functions of one kernel, each translated once for each combination of argument kinds."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.translated: dict[tuple[Callable[..., Any], tuple[Kind, ...]], tuple[str, Kind] | None] = {}
        """The name and result of each function; None while it is being translated."""

    def function(self, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> tuple[str, Kind]:
        """Return the name of a function in the module, and the kind of its result."""
        key = function, kinds
        if key not in self.translated:
            self.translated[key] = None
            name = f"{function.__name__}.{len(self.translated)}"
            body = _Function(self, function, kinds)
            self.texts.append(body.text(name))
            self.translated[key] = name, body.result or NO_RESULT
        translated = self.translated[key]
        if translated is None:
            message = f"{function.__module__}.{function.__name__}: a kernel's functions may not call themselves"
            raise TypeError(message)
        return translated


class _Function(Writer):
    """One function for one combination of argument kinds."""

    def __init__(self, module: _Module, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
        super().__init__()
        self.module, self.function, self.kinds = module, function, kinds
        self.loops: list[tuple[str, str]] = []
        """The targets of ``continue`` and ``break`` in each loop around the current statement."""
        self.result: Kind | None = None
        self.variables: dict[str, tuple[Kind, tuple[str, ...]]] = {}
        """The kind and the stack slots of each variable that has a value."""
        tree = definition_of(function)
        if tree is None:
            message = f"{function.__module__}.{function.__name__}: its source cannot be found"
            raise TypeError(message)
        signature = tree.args
        not_positional = signature.vararg or signature.kwarg or signature.kwonlyargs or signature.defaults
        if not_positional or len(signature.args) != len(kinds):
            self.refuse(tree, "parameters that are not positional, or another number of arguments")
        self.local_names = {  # parameters and variables
            name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)
        }
        for number, (argument, kind) in enumerate(zip(signature.args, kinds, strict=True)):
            self.local_names.add(argument.arg)
            parts = tuple(f"%a{number}.{place}" for place in range(len(llvm_types(kind))))
            self.assign_name(argument, argument.arg, Value(kind, parts))
        self.translate_body(tree.body)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        """Raise an error about code that the language does not have."""
        where = f"{self.function.__code__.co_filename}:{getattr(node, 'lineno', '')}"
        message = f"{where}: {what}: not in the language of kernels (see pptrace_kernel/README.md)"
        raise TypeError(message)

    def text(self, name: str) -> str:
        """Return the definition of the function."""
        self.return_value(Value(NO_RESULT, ()))
        result = result_type(self.result or NO_RESULT)
        parameters = ", ".join(
            f"{part_type} %a{number}.{place}"
            for number, kind in enumerate(self.kinds) for place, part_type in enumerate(llvm_types(kind))
        )  # fmt: skip
        head = f"define internal {result} @{name}({parameters}) nounwind alwaysinline {{"
        return "\n".join([head, *self.allocations, *self.lines, "}"])

    def call(self, function: Callable[..., Any], values: Sequence[Value]) -> Value:
        """Call a function of the language, and return its result."""
        name = f"{function.__module__}.{function.__name__}"
        if name == _FETCH:
            self.prefetch_columns(values)
            return Value(NO_RESULT, ())
        if name in {_PUBLISH, _OBSERVE}:
            return self._access_shared(values)
        name, kind = self.module.function(function, tuple(value.kind for value in values))
        call = f"call {result_type(kind)} @{name}({self.call_arguments(values)})"
        count = len(llvm_types(kind))
        if not count:
            self.line(call)
            return Value(kind, ())
        result = self.emit(call)
        if count == 1:
            return Value(kind, (result,))
        parts = (self.emit(f"extractvalue {result_type(kind)} {result}, {place}") for place in range(count))
        return Value(kind, tuple(parts))

    def prefetch_columns(self, values: Sequence[Value]) -> None:
        """Translate a call of ``fetch``."""
        index, *columns = values
        for column in columns:
            if index.kind != Integer() or not isinstance(column.kind, Column):
                self.refuse(definition_of(self.function) or ast.Pass(), "fetch takes an index and columns")
            self.prefetch(column.kind, column.parts[0], index.parts[0])

    def _access_shared(self, values: Sequence[Value]) -> Value:
        """Translate a call of ``observe``, or of ``publish``, which has a value."""
        column, index, *stored = values
        if column.kind != Column("int64") or any(value.kind != Integer() for value in (index, *stored)):
            self.refuse(definition_of(self.function) or ast.Pass(), "publish and observe take a column of int64")
        address = self.address(Column("int64"), column.parts[0], index.parts[0])
        if stored:
            self.line(f"store atomic i64 {stored[0].parts[0]}, ptr {address} release, align 8")
            return Value(NO_RESULT, ())
        return Value(Integer(), (self.emit(f"load atomic i64, ptr {address} acquire, align 8"),))

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
        return column.kind, self.address(column.kind, column.parts[0], index)

    def store_element(self, node: ast.AST, column: Column, address: str, value: Value) -> None:
        """Store an integer in a column."""
        if value.kind != _INTEGER:
            self.refuse(node, "columns hold integers")
        if column.is_uniform:
            return  # the value is that of all elements
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
        if node.id in self.local_names or node.id not in self.function.__globals__:
            self.refuse(node, f"{node.id} before it has a value")
        return self._constant_value(node, self.function.__globals__[node.id])

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
            return self._compare(node)
        operand = self.evaluate_integer(node.operand)
        if isinstance(node.op, ast.USub):
            negative = f"-{operand}" if operand.isdigit() else self.emit(f"sub i64 0, {operand}")
            return Value(_INTEGER, (negative,))
        result = operand if isinstance(node.op, ast.UAdd) else self.emit(f"xor i64 {operand}, -1")
        return Value(_INTEGER, (result,))

    def _compare(self, node: ast.expr) -> Value:
        """Return a condition as 1 or 0."""
        return self._select(node, lambda: Value(_INTEGER, ("1",)), lambda: Value(_INTEGER, ("0",)))

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
            if type(operator) not in _COMPARISONS:
                self.refuse(node, f"the comparison {ast.unparse(node)}")
            right = self.evaluate_integer(comparator)
            following = yes if number == len(node.ops) else self.new_label()
            condition = self.emit(f"icmp {_COMPARISONS[type(operator)]} i64 {left}, {right}")
            self.branch_if(condition, following, no)
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
        name, called = node.func.id, self.function.__globals__.get(node.func.id)
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

    def translate_body(self, body: Sequence[ast.stmt]) -> None:
        """Translate statements in order."""
        for statement in body:
            translate = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if translate is None:
                self.refuse(statement, f"the statement {type(statement).__name__}")
            translate(statement)

    def _pass(self, _node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.evaluate(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            value, target = self.evaluate(ast.copy_location(ast.Name(node.target.id), node)), node.target
            self.assign(target, self.binary(node, value, node.op, self.evaluate(node.value)))
        elif isinstance(node.target, ast.Subscript):
            column, place = self.element_address(node.target)
            value = self.binary(node, self.load_element(column, place), node.op, self.evaluate(node.value))
            self.store_element(node, column, place, value)
        else:
            self.refuse(node, "an augmented assignment to a field")

    def _if(self, node: ast.If) -> None:
        yes, no, after = self.new_label(), self.new_label(), self.new_label()
        self.branch_on(node.test, yes, no)
        self.begin_block(yes)
        self.translate_body(node.body)
        self.branch(after)
        self.begin_block(no)
        self.translate_body(node.orelse)
        self.branch(after)
        self.begin_block(after)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            self.refuse(node, "a loop with else")
        head, body, after = self.new_label(), self.new_label(), self.new_label()
        self.branch(head)
        self.begin_block(head)
        self.branch_on(node.test, body, after)
        self.begin_block(body)
        self._loop_body(node.body, head, after)
        self.begin_block(after)

    def _for(self, node: ast.For) -> None:
        loop = node.iter
        if (
            node.orelse
            or not (isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name) and loop.func.id == "range")
            or not isinstance(node.target, ast.Name)
        ):
            self.refuse(node, "a loop that is not over range")
        limits = [self.evaluate_integer(argument) for argument in loop.args]
        start, stop, step = ["0", *limits, "1"] if len(limits) == 1 else [*limits, "1"][:3]
        (counter,) = self.allocate(Integer())
        head, body, after, following = self.new_label(), self.new_label(), self.new_label(), self.new_label()
        self.line(f"store i64 {start}, ptr {counter}")
        self.branch(head)
        self.begin_block(head)
        current = self.emit(f"load i64, ptr {counter}")
        self.branch_if(self._continues(current, stop, step), body, after)
        self.begin_block(body)
        self.assign_name(node, node.target.id, Value(Integer(), (current,)))
        self._loop_body(node.body, following, after)
        self.begin_block(following)
        self.line(f"store i64 {self.emit(f'add nsw i64 {current}, {step}')}, ptr {counter}")
        self.branch(head)
        self.begin_block(after)

    def _continues(self, current: str, stop: str, step: str) -> str:
        """Return the condition under which a loop over a range continues."""
        up, down = (f"icmp {comparison} i64 {current}, {stop}" for comparison in ("slt", "sgt"))
        if step.lstrip("-").isdigit():
            return self.emit(down if step.startswith("-") else up)
        forward = self.emit(f"icmp sgt i64 {step}, 0")
        return self.emit(f"select i1 {forward}, i1 {self.emit(up)}, i1 {self.emit(down)}")

    def _loop_body(self, body: Sequence[ast.stmt], following: str, after: str) -> None:
        self.loops.append((following, after))
        self.translate_body(body)
        self.branch(following)
        self.loops.pop()

    def _continue(self, _node: ast.Continue) -> None:
        self.branch(self.loops[-1][0])

    def _break(self, _node: ast.Break) -> None:
        self.branch(self.loops[-1][1])

    def _return(self, node: ast.Return) -> None:
        value = Value(NO_RESULT, ()) if node.value is None else self.evaluate(node.value)
        if self.result not in {None, value.kind}:
            self.refuse(node, "results of two kinds")
        self.return_value(value)

    def return_value(self, value: Value) -> None:
        """Return a value from the function, or zeros at the end of a function with a result."""
        if self.terminated:
            return
        if self.result is None:
            self.result = value.kind
        parts = llvm_types(self.result)
        values = value.parts or tuple("zeroinitializer" if part != "i64" else "0" for part in parts)
        if not parts:
            self.line("ret void", terminator=True)
            return
        if len(parts) == 1:
            self.line(f"ret {parts[0]} {values[0]}", terminator=True)
            return
        result, aggregate = "undef", result_type(self.result)
        for place, (part_type, part) in enumerate(zip(parts, values, strict=True)):
            result = self.emit(f"insertvalue {aggregate} {result}, {part_type} {part}, {place}")
        self.line(f"ret {aggregate} {result}", terminator=True)
