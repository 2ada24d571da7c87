"""A column as compiled kernels see it: an address and a length.

Numba's own arrays carry seven values each, count references, and take a negative index from the end. A kernel
needs none of that, and passing many of them is what takes long to compile and to call.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Column", "unpacker"]


class Column(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of a column of integers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Column({dtype})")


@register_model(Column)
class _Model(models.StructModel):  # type: ignore[misc] # numba has no types
    def __init__(self, manager: Any, column: Column) -> None:
        super().__init__(manager, column, [("data", types.CPointer(column.dtype)), ("size", types.intp)])


@type_callable(operator.getitem)
def _type_of_getting(_context: Any) -> Callable[..., Any]:
    def typer(column: Any, index: Any) -> Any:
        return column.dtype if isinstance(column, Column) and isinstance(index, types.Integer) else None

    return typer


@type_callable(operator.setitem)
def _type_of_setting(_context: Any) -> Callable[..., Any]:
    def typer(column: Any, index: Any, value: Any) -> Any:
        integers = isinstance(index, types.Integer) and isinstance(value, types.Integer)
        return types.none if isinstance(column, Column) and integers else None

    return typer


@type_callable(len)
def _type_of_length(_context: Any) -> Callable[..., Any]:
    def typer(column: Any) -> Any:
        return types.intp if isinstance(column, Column) else None

    return typer


@lower_builtin(operator.getitem, Column, types.Integer)
def _get(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
    return builder.load(_place(context, builder, signature, values))


@lower_builtin(operator.setitem, Column, types.Integer, types.Integer)
def _set(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
    value = context.cast(builder, values[2], signature.args[2], signature.args[0].dtype)
    builder.store(value, _place(context, builder, signature, values))
    return context.get_dummy_value()


@lower_builtin(len, Column)
def _length(_context: Any, builder: Any, _signature: Any, values: Sequence[Any]) -> Any:
    return builder.extract_value(values[0], 1)


def _place(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
    index = context.cast(builder, values[1], signature.args[1], types.intp)
    return builder.gep(builder.extract_value(values[0], 0), [index])


def unpacker(arguments: Sequence[Any]) -> Any:
    """Return what makes a kernel's arguments of words: two for a column, one for an integer."""
    whole = types.Tuple(tuple(arguments))

    @intrinsic
    def unpacked(_context: Any, words: Any) -> tuple[Any, Callable[..., Any]]:
        def built(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            return _value(context, builder, whole, _words(context, builder, data))

        return whole(words), built

    return unpacked


def _words(context: Any, builder: Any, data: Any) -> Iterator[Any]:
    at = 0
    while True:
        yield builder.load(builder.gep(data, [context.get_constant(types.intp, at)]))
        at += 1


def _value(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    if isinstance(kind, types.BaseTuple):
        return context.make_tuple(builder, kind, [_value(context, builder, one, words) for one in kind])
    if isinstance(kind, Column):
        address = builder.inttoptr(next(words), context.get_value_type(types.CPointer(kind.dtype)))
        empty = context.get_constant_undef(kind)
        return builder.insert_value(builder.insert_value(empty, address, 0), next(words), 1)
    return next(words)
