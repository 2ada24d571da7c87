"""Translation of a kernel, and of the functions that it calls, to LLVM assembly.

``README.md`` describes the language of kernels. Code outside of the language raises a TypeError with its line.
"""

from __future__ import annotations

import ast
import linecache
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from pptrace_kernel.expressions import Expressions
from pptrace_kernel.llvm_text import (
    NO_RESULT,
    PREFETCH_DECLARATION,
    Column,
    Integer,
    Value,
    Writer,
    llvm_types,
    result_type,
    word_count,
)
from pptrace_kernel.prefetch import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_kernel.llvm_text import Kind

ENTRY = "entry"
"""The name of the compiled function, which takes the address of a kernel's arguments as words."""


def translate(kernel: Callable[..., Any], arguments: Sequence[Kind]) -> str:
    """Return an LLVM module that defines :data:`ENTRY` for a kernel and the kinds of its arguments.

    Raises:
        TypeError: the kernel, or a function that it calls, is not in the language of kernels.
    """
    module = _Module()
    name, result = module.function(kernel, tuple(arguments))
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
    head = f"define i64 @{ENTRY}(ptr %words) nounwind {{"
    return "\n".join([PREFETCH_DECLARATION, *module.texts, head, *entry.lines, "}", "!0 = !{}", ""])


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


class _Function(Expressions):
    """One function for one combination of argument kinds."""

    def __init__(self, module: _Module, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
        super().__init__(function.__globals__)
        self.module, self.function, self.kinds = module, function, kinds
        self.loops: list[tuple[str, str]] = []
        """The targets of ``continue`` and ``break`` in each loop around the current statement."""
        self.result: Kind | None = None
        tree = definition_of(function)
        if tree is None:
            message = f"{function.__module__}.{function.__name__}: its source cannot be found"
            raise TypeError(message)
        signature = tree.args
        not_positional = signature.vararg or signature.kwarg or signature.kwonlyargs or signature.defaults
        if not_positional or len(signature.args) != len(kinds):
            self.refuse(tree, "parameters that are not positional, or another number of arguments")
        self.local_names = {
            name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)
        }
        for number, (argument, kind) in enumerate(zip(signature.args, kinds, strict=True)):
            self.local_names.add(argument.arg)
            parts = tuple(f"%a{number}.{place}" for place in range(len(llvm_types(kind))))
            self.assign_name(argument, argument.arg, Value(kind, parts))
        self.translate_body(tree.body)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
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
        if function is fetch:
            self.prefetch_columns(values)
            return Value(NO_RESULT, ())
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
