"""Values of recipes that are written in Python, from the syntax tree; no code of a recipe runs.

What is evaluated: constants and arithmetic with them, containers, assignments, ``if``, ``dataclasses.replace``,
and calls of functions and dataclasses in the recipe's file or in files of its repository. An object that other
code makes is a :class:`Fields` without known fields. Calls of all other functions have no effect.
"""

from __future__ import annotations

import ast
import operator
import warnings
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pptrace.plugin import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NEMO_RECIPE = "recipe"
"""The function that returns the recipe in a program of NeMo 2."""
_RECIPE_END = "_config"
"""End of the names of Megatron-Bridge's functions that return recipes."""
_TITAN_RECIPE = "Trainer.Config"
"""End of the returned type of torchtitan's functions that return recipes."""
_MOST_BYTES = 2**20
_DEEPEST_CALL = 40
_MOST_STEPS = 200_000
_MOST_ITEMS = 10_000
_LARGEST = 10**15


class Fields(Struct, eq=False):
    """An object of a configuration: its fields with a known value."""

    values: dict[str, Any] = field(default_factory=dict)
    """Known values by name; those of nested objects are of this class, too."""

    def __bool__(self) -> bool:
        """Return whether a field is known."""
        return bool(self.values)

    def read(self, name: str) -> Any:
        """Return the value of a field; an object without known fields if it is unknown."""
        return self.values.setdefault(name, Fields())

    def leaves(self, section: str = "") -> dict[tuple[str, str], Any]:
        """Return the known values by section and name; the section of a nested field is its object's name."""
        values: dict[tuple[str, str], Any] = {}
        for name, value in self.values.items():
            if isinstance(value, Fields):
                values |= value.leaves(name)
            else:
                values[section, name] = value
        return values


class Function(Struct, frozen=True, eq=False):
    """A function or dataclass of a file."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef

    @property
    def name(self) -> str:
        """Name of the function or dataclass."""
        return self.node.name


class Module:
    """The names of one file, evaluated when they are read."""

    def __init__(self, file: Path, tree: ast.Module) -> None:
        self.file = file
        self._nodes: dict[str, ast.stmt] = {}
        self._values: dict[str, Any] = {}
        for node in tree.body:
            for name in _names(node):
                self._nodes[name] = node

    @property
    def recipes(self) -> list[str]:
        """Names in upper case that have a value, and functions without needed parameters for recipes."""
        return [name for name, node in self._nodes.items() if _is_recipe(name, node)]

    def value(self, name: str, evaluation: Evaluation) -> Any:
        """Return the value of a name; an object without known fields if the file does not define it."""
        if name not in self._values:
            self._values[name] = Fields()  # of a name that is defined by itself
            self._values[name] = self._evaluated(name, evaluation)
        return self._values[name]

    def _evaluated(self, name: str, evaluation: Evaluation) -> Any:
        match self._nodes.get(name):
            case ast.FunctionDef() | ast.ClassDef() as node:
                return Function(self, node)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return _Scope(self, {}, evaluation).visit(value)
            case ast.ImportFrom(module=str(path), names=names, level=level):
                original = next((each.name for each in names if name in {each.asname, each.name}), name)
                module = _imported(self.file, path, level, evaluation)
                return module.value(original, evaluation) if module else Unknown(original)
        return Unknown(name)


class Unknown(Struct, frozen=True):
    """A name that no file of the recipe's repository defines."""

    name: str


class Evaluation(Struct):
    """Bounds on the evaluation of a recipe, and the calls that it left out."""

    taken: int = 0
    """Evaluated statements and expressions."""
    depth: int = 0
    """Nested calls."""
    left_out: dict[str, None] = field(default_factory=dict)
    """Loops, and calls of other recipes or with fields of the recipe whose code was not found, as ``name
    (file:line)``."""
    modules: dict[Path, Module] = field(default_factory=dict)
    """Imported files."""

    def take(self, file: Path) -> None:
        """Count a step.

        Raises:
            ConfigError: the recipe takes too many.
        """
        self.taken += 1
        if self.taken > _MOST_STEPS:
            raise ConfigError("is not a recipe: its values take too long to evaluate", file=file)


def read_module(file: Path) -> Module:
    """Read a Python file.

    Raises:
        ConfigError: it cannot be read, is too large, or is not Python.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file) from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"is larger than {_MOST_BYTES // 2**20} MiB", file=file)
    try:
        return Module(file, _parsed(content, "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ConfigError(f"is not Python: {getattr(error, 'msg', error)}", file=file, line=line) from None


def _parsed(source: bytes | str, mode: str) -> Any:
    """Return the syntax tree of a program, without Python's warnings about it."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source, mode=mode)


def evaluate_recipe(module: Module, name: str) -> tuple[dict[tuple[str, str], Any], list[str]]:
    """Return the known values of a recipe by section and name, and the calls and loops that were left out.

    Raises:
        ConfigError: the name has no fields.
    """
    evaluation = Evaluation()
    try:
        value = module.value(name, evaluation)
        if isinstance(value, Function):
            value = _Scope(module, {}, evaluation).call(value, [], {})
        known = value.leaves() if isinstance(value, Fields) else {}
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply", file=module.file) from None
    if not isinstance(value, Fields) or not value:
        raise ConfigError(f"{name} is not a recipe: it has no fields with a known value", file=module.file)
    return known, list(evaluation.left_out)


def evaluate_expression(text: str) -> Any:
    """Return the value of an expression of constants, such as ``([0]*3+[1]*58)``; None if it has none."""
    try:
        tree = _parsed(text.strip(), "eval")
        value = _Scope(Module(Path(), ast.Module([], [])), {}, Evaluation()).visit(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if isinstance(value, Fields | Unknown) else value


def _imported(file: Path, path: str, level: int, evaluation: Evaluation) -> Module | None:
    """Return the module of an import: of a package in a folder above the file, or in ``src`` there."""
    parts = path.split(".")
    parents = file.absolute().parents
    folders = [parents[level - 1]] if level else [*parents]
    for folder in (each for parent in folders for each in (parent, parent / "src")):
        place = folder.joinpath(*parts)
        for module_file in (place.with_suffix(".py"), place / "__init__.py"):
            if module_file.is_file():
                if module_file not in evaluation.modules:
                    evaluation.modules[module_file] = read_module(module_file)
                return evaluation.modules[module_file]
    return None


def _names(node: ast.stmt) -> Iterable[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom(names=names):
            return [each.asname or each.name for each in names]
    return []


def _is_recipe(name: str, node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        needed = len(arguments.args) - len(arguments.defaults)
        returns_job = node.returns is not None and ast.unparse(node.returns).endswith(_TITAN_RECIPE)
        return (
            (name.endswith(_RECIPE_END) or name == NEMO_RECIPE or returns_job)
            and not name.startswith("_")
            and not needed
            and not arguments.kwonlyargs
        )
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not name.isupper() or name.startswith("_"):
        return False
    return isinstance(node.value, ast.Call | ast.Name)


def _copied(value: Any) -> Any:
    """Return a copy with the same parts, as ``copy.copy``."""
    return Fields(dict(value.values)) if isinstance(value, Fields) else copy(value)


def _deep_copied(value: Any) -> Any:
    """Return a copy whose parts are copies, as ``copy.deepcopy``."""
    match value:
        case Fields(values=values):
            return Fields(_deep_copied(values))
        case dict():
            return {key: _deep_copied(part) for key, part in value.items()}
        case list() | tuple():
            return type(value)(map(_deep_copied, value))
    return value


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
}  # fmt: skip
_COPIES = frozenset({"replace", "copy", "deepcopy"})
_CONFIG = "Config"
"""The class of the settings of another class, as in torchtitan."""


class _ReturnedError(Exception):
    """The value of a ``return``."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Scope(ast.NodeVisitor):
    """The names of one call; ``visit`` returns the value of an expression, or runs a statement.

    The value of an unknown expression is an object without known fields.
    """

    def __init__(self, module: Module, names: dict[str, Any], evaluation: Evaluation) -> None:
        self.module, self.names, self.evaluation = module, names, evaluation

    def run(self, body: Iterable[ast.stmt]) -> None:
        """Run statements.

        Raises:
            _ReturnedError: one of them returns.
        """
        for statement in body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> Any:
        """Return the value of an expression, or run a statement.

        Raises:
            ConfigError: the recipe takes too many steps.
        """
        self.evaluation.take(self.module.file)
        return super().visit(node)

    def generic_visit(self, node: ast.AST) -> Any:
        """Return the value of an unknown expression; report statements that can change fields."""
        if isinstance(node, ast.For | ast.While | ast.AugAssign):
            self.evaluation.left_out[f"{type(node).__name__} ({self._place(node)})"] = None
        return Fields()

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._assign(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self.visit(node.value))

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        self.run(node.body if self.visit(node.test) else node.orelse)

    def visit_With(self, node: ast.With) -> None:
        self.run(node.body)

    def visit_Try(self, node: ast.Try) -> None:
        try:
            self.run([*node.body, *node.orelse])
        finally:
            self.run(node.finalbody)

    def visit_Return(self, node: ast.Return) -> None:
        raise _ReturnedError(self.visit(node.value) if node.value else None)

    def visit_Raise(self, node: ast.Raise) -> None:
        del node
        raise _ReturnedError(Fields())

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute(value=holder, attr=name):
                owner = self.visit(holder)
                if isinstance(owner, Fields):
                    owner.values[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value if isinstance(value, tuple | list) and len(value) == len(targets) else None
                for index, each in enumerate(targets):
                    self._assign(each, values[index] if values else Fields())

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        return self.names[node.id] if node.id in self.names else self.module.value(node.id, self.evaluation)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        holder = self.visit(node.value)
        if isinstance(holder, Fields):
            return holder.read(node.attr)
        return Unknown(node.attr) if isinstance(holder, Unknown) else Fields()  # such as torch.bfloat16

    def visit_List(self, node: ast.List) -> list[Any]:
        return self._items(node.elts)

    def visit_Set(self, node: ast.Set) -> list[Any]:
        return self._items(node.elts)

    def visit_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._items(node.elts))

    def visit_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.visit(value)
            if key is not None:
                name = self.visit(key)
                items[name if isinstance(name, str | int | tuple) else str(name)] = item
            elif isinstance(item, dict):
                items |= item
        return items

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for operand in node.values:
            value = self.visit(operand)
            if bool(value) == isinstance(node.op, ast.Or):
                break
        return value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        return not value if isinstance(node.op, ast.Not) else self._computed(operator.neg, value)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body if self.visit(node.test) else node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        compute = _BINARY.get(type(node.op))
        return self._computed(compute, self.visit(node.left), self.visit(node.right)) if compute else Fields()

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        for comparison, operand in zip(node.ops, node.comparators, strict=True):
            right = self.visit(operand)
            if not self._computed(_COMPARISONS[type(comparison)], left, right):
                return False
            left = right
        return True

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self._computed(operator.getitem, self.visit(node.value), self.visit(node.slice))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
        values = [self.visit(part) for part in parts]
        return "".join(map(str, values)) if all(isinstance(value, str | int) for value in values) else Fields()

    def visit_Call(self, node: ast.Call) -> Any:
        positional = self._items(node.args)
        named = {each.arg: self.visit(each.value) for each in node.keywords if each.arg}
        for each in node.keywords:
            further = {} if each.arg else self.visit(each.value)
            named |= {str(key): value for key, value in further.items()} if isinstance(further, dict) else {}
        match node.func:
            case ast.Attribute(value=holder, attr=name) if name not in _COPIES or not positional:
                return self._method(self.visit(holder), name, positional, named, node)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._function(name, positional, named, node)
        return Fields()

    def _items(self, nodes: Iterable[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            value = self.visit(node.value if isinstance(node, ast.Starred) else node)
            if isinstance(node, ast.Starred):
                items += value if isinstance(value, list | tuple) else []
            else:
                items.append(value)
        return items

    def _computed(self, compute: Callable[..., Any], *operands: Any) -> Any:
        """Return the result of an operation, or an object without known fields if the operation fails."""
        if compute is operator.mul and _is_large(*operands):
            return Fields()
        try:
            return compute(*operands)
        except (TypeError, ValueError, LookupError, ArithmeticError):
            return Fields()

    def _method(
        self, holder: Any, name: str, positional: list[Any], named: Mapping[str, Any], node: ast.Call
    ) -> Any:
        if name == "copy":
            return _copied(holder)
        if name == "get" and isinstance(holder, dict) and positional:
            return self._computed(lambda: holder.get(*positional[:2]))
        if isinstance(holder, str) and name in {"upper", "lower", "startswith", "endswith"}:
            return self._computed(lambda: getattr(holder, name)(*positional))
        if name == _CONFIG and not positional and isinstance(holder, Unknown | Function):
            return Fields({"class": holder.name, **named})
        self._leave_out(name, [holder, *positional], named, node)
        return Fields()

    def _function(self, name: str, positional: list[Any], named: dict[str, Any], node: ast.Call) -> Any:
        if name in _FUNCTIONS:
            return self._computed(lambda: _FUNCTIONS[name](*positional, **named))
        callee = self.names[name] if name in self.names else self.module.value(name, self.evaluation)
        if isinstance(callee, Function):
            return self.call(callee, positional, named)
        self._leave_out(name, positional, named, node)
        return Fields(dict(named))

    def _leave_out(self, name: str, positional: Iterable[Any], named: Mapping[str, Any], node: ast.Call) -> None:
        has_fields = any(isinstance(value, Fields) and value for value in (*positional, *named.values()))
        if has_fields or name.endswith(_RECIPE_END):
            self.evaluation.left_out[f"{name} ({self._place(node)})"] = None

    def _place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.module.file.name}:{node.lineno}"

    def call(self, function: Function, positional: list[Any], named: dict[str, Any]) -> Any:
        """Return what a function returns, or an object of a dataclass with its defaults."""
        node = function.node
        if self.evaluation.depth >= _DEEPEST_CALL:
            raise ConfigError(f"{node.name} is nested too deeply", file=function.module.file)
        scope = _Scope(function.module, {}, self.evaluation)
        if isinstance(node, ast.ClassDef):
            return scope._object(node, positional, named)
        scope._bind(node.args, positional, named)
        self.evaluation.depth += 1
        try:
            scope.run(node.body)
        except _ReturnedError as returned:
            return returned.value
        finally:
            self.evaluation.depth -= 1
        return None

    def _object(self, node: ast.ClassDef, positional: list[Any], named: dict[str, Any]) -> Fields:
        declared = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        names = [each.target.id for each in declared if isinstance(each.target, ast.Name)]
        defaults = {
            name: self.visit(each.value) for name, each in zip(names, declared, strict=False) if each.value
        }
        return Fields({**defaults, **dict(zip(names, positional, strict=False)), **named})

    def _bind(self, arguments: ast.arguments, positional: list[Any], named: dict[str, Any]) -> None:
        """Set the parameters of a call; a parameter without a value is an object without known fields."""
        parameters = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        offset = len(parameters) - len(arguments.defaults)
        pairs = [*zip(parameters[offset:], arguments.defaults, strict=True)]
        pairs += [
            (each.arg, default)
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
        ]  # fmt: skip
        every = [*parameters, *(each.arg for each in arguments.kwonlyargs)]
        given = {**dict(zip(parameters, positional, strict=False)), **named}
        self.names.update({name: Fields() for name in every})
        self.names.update({name: self.visit(default) for name, default in pairs if name not in given})
        self.names.update(given)
        if arguments.kwarg:
            self.names[arguments.kwarg.arg] = {name: value for name, value in named.items() if name not in every}


def _updated(value: Any, **named: Any) -> Any:
    """Return a copy with other values of some fields, as ``dataclasses.replace``."""
    copied = _copied(value)
    if isinstance(copied, Fields):
        copied.values.update(named)
    return copied


def _declared(default: Any = None, **_: Any) -> Any:
    """Return the default of a dataclass's ``field``."""
    return Fields() if default is None else default


def _has_field(holder: Any, name: str) -> bool:
    return isinstance(holder, Fields) and name in holder.values


def _field(holder: Any, name: str, *default: Any) -> Any:
    """Return the result of ``getattr``."""
    if _has_field(holder, name):
        return holder.values[name]
    return default[0] if default else Fields()


def _set_field(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, Fields):
        holder.values[name] = value


def _is_instance(value: Any, kinds: Any) -> bool:
    """Return the result of ``isinstance``, which is false for objects of unknown classes."""
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    return type(value).__name__ in {kind.name for kind in several if isinstance(kind, Unknown)}


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "bool": bool, "int": int, "float": float, "str": str, "len": len, "list": list, "tuple": tuple, "dict": dict,
    "min": min, "max": max, "replace": _updated, "copy": _updated, "deepcopy": _deep_copied, "field": _declared,
    "hasattr": _has_field, "getattr": _field, "setattr": _set_field, "isinstance": _is_instance,
    "model_registry": lambda flavor, **named: Fields({"flavor": flavor, **named}),
    "set_cuda_graph_modules": lambda holder, modules: _set_field(holder, "cuda_graph_modules", modules),
    "set_full_iteration_cuda_graph": lambda holder: _set_field(holder, "cuda_graph_impl", "full_iteration"),
}  # fmt: skip
"""Functions that recipes call, by name."""


def _is_large(left: Any, right: Any) -> bool:
    """Return whether a product is a long sequence or a huge number."""
    sizes = [len(each) if isinstance(each, list | tuple | str) else 0 for each in (left, right)]
    counts = [each for each in (left, right) if isinstance(each, int)]
    return (any(sizes) and max(counts, default=0) * max(sizes) > _MOST_ITEMS) or any(
        abs(count) > _LARGEST for count in counts
    )
