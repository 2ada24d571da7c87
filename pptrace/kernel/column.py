"""Columns and records as compiled kernels see them: an address and a length, and an address of those.

Numba's own arrays carry seven values each, count references, and take a negative index from the end; its tuples
travel by value. A kernel needs none of that, and passing so many values is what takes long to compile and to call.
Whatever a column's own width, what is read from it is a word of the machine: parts are compiled for one width.
"""

from __future__ import annotations

import operator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
    type_callable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Column", "Record", "unpacker"]


class Column(types.Type):
    """The type of a column of integers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.address = types.CPointer(dtype)
        super().__init__(name=f"Column({dtype})")


@register_model(Column)
class _Model(models.StructModel):
    def __init__(self, manager: Any, column: Column) -> None:
        super().__init__(manager, column, [("data", column.address), ("size", types.intp)])


@type_callable(operator.getitem)
def _type_of_getting(_context: Any) -> Callable[..., Any]:
    def typer(column: Any, index: Any) -> Any:
        return types.intp if isinstance(column, Column) and isinstance(index, types.Integer) else None

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
    value = builder.load(_place(context, builder, signature, values))
    return context.cast(builder, value, signature.args[0].dtype, types.intp)


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


class Record(types.Type):
    """The type of a record: where the words of its fields are, one after the other."""

    def __init__(self, of: str, fields: dict[str, Any]) -> None:
        self.fields = fields
        told = ", ".join(f"{name}: {kind}" for name, kind in fields.items())
        super().__init__(name=f"Record({of}, {told})")


@register_model(Record)
class _RecordModel(models.PrimitiveModel):
    def __init__(self, manager: Any, record: Record) -> None:
        super().__init__(manager, record, manager.lookup(types.CPointer(types.int64)).get_value_type())


@infer_getattr
class _TypeOfField(AttributeTemplate):
    key = Record

    def generic_resolve(self, record: Record, name: str) -> Any:
        return record.fields.get(name)


@lower_getattr_generic(Record)
def _get_field(context: Any, builder: Any, record: Record, words: Any, name: str) -> Any:
    before = list(record.fields)[: list(record.fields).index(name)]
    at = sum(_width(record.fields[one]) for one in before)
    return _value(context, builder, record.fields[name], words, at)


def unpacker(arguments: Sequence[Any]) -> Any:
    """Return what makes a kernel's arguments of words: two for a column, one for an integer."""
    whole = types.Tuple(tuple(arguments))

    @intrinsic
    def unpacked(_context: Any, words: Any) -> tuple[Any, Callable[..., Any]]:
        def built(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            starts = accumulate((_width(kind) for kind in arguments), initial=0)
            made = [_value(context, builder, kind, data, at) for kind, at in zip(arguments, starts, strict=False)]
            return context.make_tuple(builder, whole, made)

        return whole(words), built

    return unpacked


def _width(kind: Any) -> int:
    """Return how many words a column, a record or an integer takes."""
    if isinstance(kind, Record):
        return sum(_width(field) for field in kind.fields.values())
    return 2 if isinstance(kind, Column) else 1


def _value(context: Any, builder: Any, kind: Any, words: Any, at: int) -> Any:
    """Make a value of the words from ``at``."""
    if isinstance(kind, Record):
        return builder.gep(words, [context.get_constant(types.intp, at)])
    if isinstance(kind, Column):
        address = builder.inttoptr(_word(context, builder, words, at), context.get_value_type(kind.address))
        empty = context.get_constant_undef(kind)
        return builder.insert_value(
            builder.insert_value(empty, address, 0), _word(context, builder, words, at + 1), 1
        )
    return _word(context, builder, words, at)


def _word(context: Any, builder: Any, words: Any, at: int) -> Any:
    loaded = builder.load(builder.gep(words, [context.get_constant(types.intp, at)]))
    # Nothing writes to the words while a kernel runs, so one load serves a whole loop.
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded
