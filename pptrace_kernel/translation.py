"""A kernel and the functions that it calls, translated to LLVM's text.

The language of kernels is a small part of Python's: functions of integers, columns, records and tuples of those;
assignments, ``if``, ``while``, ``for`` over ``range``; arithmetic, comparisons, ``and``, ``or``, ``not``;
``len``, ``min``, ``max``, ``abs``, ``int``; :func:`~pptrace_kernel.prefetch.fetch`; constants of modules; named
tuples that are made and never changed.
Its meaning is Python's, but that integers have 64 bits, and that an index is never checked and never counts from
the end. All else is refused, with its line.
"""

from __future__ import annotations

import ast
import linecache
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from pptrace_kernel.expressions import Expressions
from pptrace_kernel.llvm_text import FETCH, NOTHING, Column, Integer, Value, Writer, of_result, parts_of, words_of
from pptrace_kernel.prefetch import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_kernel.llvm_text import Kind

__all__ = ["ENTRY", "source_of", "translated"]

ENTRY = "entry"
"""The function that takes a kernel's arguments as words and returns what the kernel does."""


def translated(kernel: Callable[..., Any], arguments: Sequence[Kind]) -> str:
    """Return LLVM's text of a module with a kernel's :data:`ENTRY`.

    Raises:
        TypeError: the kernel, or what it calls, is not in the language of kernels.
    """
    module = _Module()
    name, result = module.function(kernel, tuple(arguments))
    entry = Writer()
    given = [entry.of_words("%words", kind, at) for kind, at in _places(arguments)]
    passed = entry.passed(given)
    if result == NOTHING:
        entry.lines += [f"  call void @{name}({passed})", "  ret i64 0"]
    else:
        entry.lines.append(f"  ret i64 {entry.emit(f'call {of_result(result)} @{name}({passed})')}")
    head = f"define i64 @{ENTRY}(ptr %words) nounwind {{"
    return "\n".join([FETCH, *module.texts, head, *entry.lines, "}", "!0 = !{}", ""])


def source_of(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """Return a function's definition; None where no source is installed."""
    code = function.__code__
    return _definitions(code.co_filename).get((code.co_name, code.co_firstlineno))


@cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Return all functions of a file, by name and first line."""
    tree = ast.parse("".join(linecache.getlines(path)))
    return {(node.name, node.lineno): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _places(arguments: Sequence[Kind]) -> list[tuple[Kind, int]]:
    at, places = 0, []
    for kind in arguments:
        places.append((kind, at))
        at += words_of(kind)
    return places


class _Module:
    """The functions that a kernel consists of, each once for each sort of arguments."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.known: dict[tuple[Callable[..., Any], tuple[Kind, ...]], tuple[str, Kind] | None] = {}

    def function(self, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> tuple[str, Kind]:
        """Return a function's name in the module, and what it returns."""
        key = function, kinds
        if key not in self.known:
            self.known[key] = None
            name = f"{function.__name__}.{len(self.known)}"
            body = _Function(self, function, kinds)
            self.texts.append(body.text(name))
            self.known[key] = name, body.result or NOTHING
        found = self.known[key]
        if found is None:
            message = f"{function.__module__}.{function.__name__}: a kernel's functions may not call themselves"
            raise TypeError(message)
        return found


class _Function(Expressions):
    """One function for one sort of arguments."""

    def __init__(self, module: _Module, function: Callable[..., Any], kinds: tuple[Kind, ...]) -> None:
        super().__init__(function.__globals__)
        self.module, self.of, self.kinds = module, function, kinds
        self.loops: list[tuple[str, str]] = []
        self.result: Kind | None = None
        tree = source_of(function)
        if tree is None:
            message = f"{function.__module__}.{function.__name__}: its source cannot be found"
            raise TypeError(message)
        told = tree.args
        if told.vararg or told.kwarg or told.kwonlyargs or told.defaults or len(told.args) != len(kinds):
            self.refuse(tree, "arguments are given one by one")
        self.names = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and not _is_read(name)}
        for number, (argument, kind) in enumerate(zip(told.args, kinds, strict=True)):
            self.names.add(argument.arg)
            parts = tuple(f"%a{number}.{place}" for place in range(len(parts_of(kind))))
            self.assign_name(argument, argument.arg, Value(kind, parts))
        self.run(tree.body)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        where = f"{self.of.__code__.co_filename}:{getattr(node, 'lineno', '')}"
        message = f"{where}: {what}: not in the language of kernels (see pptrace_kernel.translation)"
        raise TypeError(message)

    def text(self, name: str) -> str:
        """Return the function's definition."""
        self.leave(Value(NOTHING, ()))
        result = of_result(self.result or NOTHING)
        given = ", ".join(
            f"{part} %a{number}.{place}"
            for number, kind in enumerate(self.kinds) for place, part in enumerate(parts_of(kind))
        )  # fmt: skip
        head = f"define internal {result} @{name}({given}) nounwind alwaysinline {{"
        return "\n".join([head, *self.slots, *self.lines, "}"])

    def call(self, function: Callable[..., Any], values: Sequence[Value]) -> Value:
        if function is fetch:
            self.fetched(values)
            return Value(NOTHING, ())
        name, kind = self.module.function(function, tuple(value.kind for value in values))
        called = f"call {of_result(kind)} @{name}({self.passed(values)})"
        parts = parts_of(kind)
        if not parts:
            self.line(called)
            return Value(kind, ())
        whole = self.emit(called)
        if len(parts) == 1:
            return Value(kind, (whole,))
        taken = (self.emit(f"extractvalue {of_result(kind)} {whole}, {place}") for place in range(len(parts)))
        return Value(kind, tuple(taken))

    def fetched(self, values: Sequence[Value]) -> None:
        """Have a place of columns brought near."""
        index, *columns = values
        for column in columns:
            if index.kind != Integer() or not isinstance(column.kind, Column):
                self.refuse(source_of(self.of) or ast.Pass(), "fetch takes an index and columns")
            self.fetch(column.kind, column.parts[0], index.parts[0])

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Translate statements, one after the other."""
        for statement in body:
            translate = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if translate is None:
                self.refuse(statement, f"the statement {type(statement).__name__}")
            translate(statement)

    def _pass(self, _node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            before, target = self.value(ast.copy_location(ast.Name(node.target.id), node)), node.target
            self.assign(target, self.binary(node, before, node.op, self.value(node.value)))
        elif isinstance(node.target, ast.Subscript):
            column, place = self.place(node.target)
            value = self.binary(node, self.read(column, place), node.op, self.value(node.value))
            self.write(node, column, place, value)
        else:
            self.refuse(node, "a change of a field")

    def _if(self, node: ast.If) -> None:
        yes, no, behind = self.label(), self.label(), self.label()
        self.jump(node.test, yes, no)
        self.begin(yes)
        self.run(node.body)
        self.go(behind)
        self.begin(no)
        self.run(node.orelse)
        self.go(behind)
        self.begin(behind)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            self.refuse(node, "else behind a loop")
        head, body, behind = self.label(), self.label(), self.label()
        self.go(head)
        self.begin(head)
        self.jump(node.test, body, behind)
        self.begin(body)
        self._looped(node.body, head, behind)
        self.begin(behind)

    def _for(self, node: ast.For) -> None:
        over = node.iter
        if (
            node.orelse
            or not (isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range")
            or not isinstance(node.target, ast.Name)
        ):
            self.refuse(node, "a loop that is not over range")
        given = [self.integer(one) for one in over.args]
        start, stop, by = ["0", *given, "1"] if len(given) == 1 else [*given, "1"][:3]
        (counter,) = self.slot(Integer())
        head, body, behind, following = self.label(), self.label(), self.label(), self.label()
        self.line(f"store i64 {start}, ptr {counter}")
        self.go(head)
        self.begin(head)
        now = self.emit(f"load i64, ptr {counter}")
        self.line(f"br i1 {self._goes_on(now, stop, by)}, label %{body}, label %{behind}", ends=True)
        self.begin(body)
        self.assign_name(node, node.target.id, Value(Integer(), (now,)))
        self._looped(node.body, following, behind)
        self.begin(following)
        self.line(f"store i64 {self.emit(f'add nsw i64 {now}, {by}')}, ptr {counter}")
        self.go(head)
        self.begin(behind)

    def _goes_on(self, now: str, stop: str, by: str) -> str:
        up, down = (f"icmp {how} i64 {now}, {stop}" for how in ("slt", "sgt"))
        if by.lstrip("-").isdigit():
            return self.emit(down if by.startswith("-") else up)
        forward = self.emit(f"icmp sgt i64 {by}, 0")
        return self.emit(f"select i1 {forward}, i1 {self.emit(up)}, i1 {self.emit(down)}")

    def _looped(self, body: Sequence[ast.stmt], again: str, behind: str) -> None:
        self.loops.append((again, behind))
        self.run(body)
        self.go(again)
        self.loops.pop()

    def _continue(self, _node: ast.Continue) -> None:
        self.go(self.loops[-1][0])

    def _break(self, _node: ast.Break) -> None:
        self.go(self.loops[-1][1])

    def _return(self, node: ast.Return) -> None:
        value = Value(NOTHING, ()) if node.value is None else self.value(node.value)
        if self.result not in {None, value.kind}:
            self.refuse(node, "results of two sorts")
        self.leave(value)

    def leave(self, value: Value) -> None:
        """Return a value, or where a function ends, what stands for none."""
        if self.ended:
            return
        if self.result is None:
            self.result = value.kind
        parts = parts_of(self.result)
        given = value.parts or tuple("zeroinitializer" if part != "i64" else "0" for part in parts)
        if not parts:
            self.line("ret void", ends=True)
            return
        if len(parts) == 1:
            self.line(f"ret {parts[0]} {given[0]}", ends=True)
            return
        whole, kind = "undef", of_result(self.result)
        for place, (part, one) in enumerate(zip(parts, given, strict=True)):
            whole = self.emit(f"insertvalue {kind} {whole}, {part} {one}, {place}")
        self.line(f"ret {kind} {whole}", ends=True)


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)
