"""Data classes whose methods are made late are what ``dataclasses`` makes, and defining them is cheap."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from pptrace.record import dataclass

RECORDS: Any = dataclass  # its type for checkers is the other's


@RECORDS(frozen=True, slots=True, kw_only=True)
class Point:
    """A point."""

    x: int
    name: str = "p"
    tags: list[str] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(default=7, init=False)
    note: str = dataclasses.field(default="", compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A point."""

    x: int
    name: str = "p"
    tags: list[str] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(default=7, init=False)
    note: str = dataclasses.field(default="", compare=False, repr=False)


@RECORDS(frozen=True, slots=True, kw_only=True)
class Deep(Point):
    """A point with a depth, whose constructor adds to what it got."""

    depth: int = 0

    def __post_init__(self) -> None:
        self.tags.append("deep")


@RECORDS(slots=True)
class Open:
    """A record that may change."""

    low: int
    high: int = 2


def test_it_says_what_a_data_class_says() -> None:
    assert repr(Point(x=1)) == repr(Plain(x=1)).replace("Plain", "Point")
    assert dataclasses.asdict(Point(x=1)) == dataclasses.asdict(Plain(x=1))
    assert str(inspect.signature(Point)) == str(inspect.signature(Plain))
    assert Point.__match_args__ == Plain.__match_args__
    assert not hasattr(Point(x=1), "__dict__")
    assert dataclasses.replace(Point(x=1), x=2) == Point(x=2) != Point(x=1)
    assert [field.name for field in dataclasses.fields(Deep)] == ["x", "name", "tags", "made", "note", "depth"]


def test_equality_and_hash_go_by_the_fields_that_are_compared() -> None:
    assert Point(x=1, note="a") == Point(x=1, note="b")
    assert Point(x=1) != Plain(x=1)
    assert Deep(x=1) != Point(x=1, tags=["deep"])
    one, other = (RECORDS(frozen=True)(type("One", (), {"__annotations__": {"x": int}}))(x) for x in (3, 3))
    assert (hash(one), hash(other)) == (hash((3,)), hash((3,)))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Open(1))


def test_frozen_records_stay_as_they_are() -> None:
    for change in (lambda it: setattr(it, "x", 2), lambda it: delattr(it, "x")):
        for record in (Point(x=1), Deep(x=1)):
            with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
                change(record)
    changed = Open(1)
    changed.low = 5
    assert changed == Open(5, 2)


def test_they_are_copied_and_pickled() -> None:
    for record in (Point(x=1, tags=["a"]), Deep(x=2), Open(1)):
        assert copy.copy(record) == copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record  # noqa: S301 - our own


def test_constructors_take_defaults_and_call_what_follows_them() -> None:
    assert (Point(x=1).tags, Point(x=1).made) == ([], 7)
    assert Point(x=1).tags is not Point(x=1).tags
    assert Deep(x=1, depth=3).tags == ["deep"]
    with pytest.raises(TypeError, match="'x'"):
        Point()
    with pytest.raises(TypeError, match="made"):
        Point(x=1, made=3)
    with pytest.raises(TypeError, match="positional"):
        Point(1)


def test_a_frozen_data_class_of_others_may_be_made_of_one() -> None:
    below: Any = dataclasses.dataclass(frozen=True)(
        type("Below", (Point,), {"__annotations__": {"y": int}, "y": 3})
    )

    assert below(x=1).y == 3
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (Point,), {}))


def test_defining_one_compiles_nothing_and_using_it_compiles_its_constructor_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []

    def counted(code: Any, *spaces: Any) -> None:
        compiled.append(code)
        execute(code, *spaces)

    execute = builtins.exec
    monkeypatch.setattr(builtins, "exec", counted)
    plain = {"__annotations__": {"x": int, "y": int}, "__doc__": "D."}

    dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(type("Usual", (), dict(plain)))
    assert compiled
    compiled.clear()
    made: Any = RECORDS(frozen=True, slots=True, kw_only=True)(type("Late", (), dict(plain)))
    assert not compiled
    assert made(x=1, y=2) == made(x=1, y=2)
    assert len(compiled) == 1
