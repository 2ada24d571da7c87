"""Data classes that cost little to define: a command defines far more of them than it makes objects of.

``dataclasses.dataclass`` compiles up to six methods of each class when the class is defined. Here all methods but
the constructor are shared functions, and the constructor is compiled when it is first asked for. In all else these
are data classes: ``fields``, ``replace``, ``asdict``, matching, pickling, signatures and subclasses work, and type
checkers see ``dataclasses.dataclass`` itself.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from types import FunctionType
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 - dataclasses calls it so
        slots: bool = False,
        kw_only: bool = False,
    ) -> Any:
        """Make a data class, with the arguments of ``dataclasses.dataclass`` that are needed here."""

        def made(plain: type) -> type:
            return _completed(plain, frozen=frozen, eq=eq, shown=repr, slots=slots, kw_only=kw_only)

        return made if cls is None else made(cls)


__all__ = ["dataclass"]


class _Factory:
    """Stands in signatures for a value that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Factory()


def _completed(plain: type, *, frozen: bool, eq: bool, shown: bool, slots: bool, kw_only: bool) -> type:
    own = frozenset(vars(plain))
    unequal = "__hash__" not in own or (vars(plain)["__hash__"] is None and "__eq__" in own)
    below = frozen and any(hasattr(base, "__dataclass_params__") for base in plain.__mro__[1:])
    made: Any = dataclasses.dataclass(
        init=False, repr=False, eq=False, frozen=below, slots=slots, kw_only=kw_only
    )(plain)  # fmt: skip
    told = made.__dataclass_params__  # what subclasses and others ask
    told.init, told.repr, told.eq, told.frozen = True, shown, eq, frozen
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {"__init__": _Init(made)}
    if shown:
        methods["__repr__"] = _shown(tuple(field.name for field in fields if field.repr))
    if eq:
        methods["__eq__"] = _equal(_values(tuple(field.name for field in fields if field.compare)))
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if eq and unequal:
        hashed = tuple(field.name for field in fields if (field.compare if field.hash is None else field.hash))
        made.__hash__ = _hashed(_values(hashed)) if frozen else None
    if frozen:
        _freeze(made, frozenset(field.name for field in fields), own, slots=slots)
    done: type = made
    return done


class _Init:
    """Stands for the constructor of a class until it is first asked for."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        made = _constructor(self.owner)
        if vars(self.owner).get("__init__") is self:
            self.owner.__init__ = made  # of this class, whatever the instance's is
        return made.__get__(instance, kind)


def _constructor(owner: Any) -> FunctionType:
    """Compile the constructor: a parameter per field, those that go by keyword alone behind the others."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body, annotations = [], {}
    for field in dataclasses.fields(owner):
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            space[f"_default_{name}"] = field.default
            given = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            space[f"_make_{name}"] = field.default_factory
            given = f"{name}=_absent"
            value = f"_make_{name}() if {name} is _absent else {name}" if field.init else f"_make_{name}()"
        else:
            given = name
        if field.init:
            parameters[bool(field.kw_only)].append(given)
            annotations[name] = field.type
        elif given == name:
            continue  # whoever makes it sets it
        body.append(
            f"_set(self, {name!r}, {value})" if owner.__dataclass_params__.frozen else f"self.{name} = {value}"
        )
    if hasattr(owner, "__post_init__"):
        body.append("self.__post_init__()")
    listed = ["self", *parameters[False], *(["*", *parameters[True]] if parameters[True] else [])]
    text = f"def __init__({', '.join(listed)}):\n " + "\n ".join(body or ["pass"])
    exec(compile(text, f"<constructor of {owner.__qualname__}>", "exec"), space)  # noqa: S102 - as dataclasses does
    made: FunctionType = space["__init__"]
    made.__qualname__, made.__module__ = f"{owner.__qualname__}.__init__", owner.__module__
    made.__annotations__ = {**annotations, "return": None}
    return made


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the values of some fields, a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equal(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hashed(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


def _shown(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def shown(self: Any) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({told})"

    return shown


def _freeze(made: Any, names: frozenset[str], own: frozenset[str], *, slots: bool) -> None:
    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def remove(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__, made.__delattr__ = assign, remove
    if slots and "__getstate__" not in own:
        made.__getstate__ = _state
    if slots and "__setstate__" not in own:
        made.__setstate__ = _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
