"""A compiled kernel computes what Python computes. Code outside of the language is refused with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pptrace_kernel
from pptrace_kernel import compiled, fetch, observe, publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = st.integers(-(2**31), 2**31)
TABLE = (5, 7, 11)
SHIFT = -3
DAMAGE: dict[str, Callable[[bytes, bytes], bytes]] = {
    "cut": lambda content, _: content[:-1],
    "empty": lambda *_: b"",
    "a flipped bit": lambda content, _: content[:-1] + bytes([content[-1] ^ 1]),
    "the code of another kernel": lambda _, other: other,
}
"""Damaged content of a file, made of its content and that of another file."""


class Both(NamedTuple):
    """A column and a number."""

    column: Any
    number: int


class Nested(NamedTuple):
    """A record in a record."""

    name: int
    inner: Both


def arithmetic(a: int, b: int, c: int, out: Any) -> None:
    divisor = b if b != 0 else SHIFT
    out[0] = a // divisor
    out[1] = a % divisor
    out[2] = a // 8 + a % 8 + a // 1 - (a % 3) * (a // -5)
    out[3] = (a & b) | (b ^ c)
    out[4] = (a >> 2) + ~b - -c
    out[5] = min(a, b, c) - max(a, b) + abs(c) + int(a < b)
    out[6] = a < b <= c
    out[7] = not (a == b or not (b != c and c > 0))
    out[8] = (a and b) + (b or c)
    out[9] = TABLE[a % 3] + (a > b) + (True if c else a > 7)


def flow(a: int, b: int, c: int, out: Any) -> None:
    total, steps = 0, 0
    for i in range(abs(a) % 7, -(abs(b) % 5), -2):
        if i == c % 4:
            continue
        total += i * 10
        if total > 40:
            break
    for i in range(abs(c) % 6):
        for j in range(i, abs(b) % 9, 1 + abs(a) % 3):
            steps += 1
            if j > 6:
                break
        total += i * steps
    while True:
        steps += 1
        if steps % 5 == 0 or steps > 20:
            break
    last = first = steps
    first, last = last + 1, first - 1
    out[0] = out[1] = total
    out[2], out[3] = first, last
    out[first % 3 + 4] += 2
    out[first % 3 + 4] *= 3
    out[8], out[9] = _halves(a, b)


def _halves(a: int, b: int) -> tuple[int, int]:
    if a > b:
        return a // 2, b
    return b // 2, a


def near(a: int, b: int, c: int, out: Any) -> None:
    fetch(a, out)
    fetch(b + c, out, Both(out, a).column)
    publish(out, 1, a - b)
    out[2] = observe(out, 1) + 1


def records(a: int, b: int, c: int, out: Any) -> None:
    both = Both(out, a)
    whole = Nested(b, both)
    columns = out if a > b else whole.inner.column
    columns[0] = _put(whole, c)
    out[1] = whole.name + whole.inner.number


def _put(whole: Nested, place: int) -> int:
    whole.inner.column[2 + place % 3] = whole.name
    if place < 0:
        return -1
    return len(whole.inner.column)


def call(function: Callable[..., Any], *words: int) -> tuple[list[int], list[int]]:
    by_list, by_array = [0] * 10, np.zeros(10, dtype=np.int64)
    function(*words, by_list)
    compiled.call(function, [*words, by_array])
    return list(map(int, by_list)), by_array.tolist()


@pytest.mark.parametrize("function", [arithmetic, flow, near, records], ids=lambda function: function.__name__)
@given(a=WORDS, b=WORDS, c=WORDS)
def test_a_compiled_kernel_computes_what_python_computes(
    function: Callable[..., Any], a: int, b: int, c: int
) -> None:
    by_list, by_array = call(function, a, b, c)

    assert by_array == by_list


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "bool"])
def test_columns_of_all_widths_are_read_and_written_as_numpy_does(dtype: str) -> None:
    def copy(values: Any, out: Any) -> None:
        for i in range(len(values)):
            out[i] = values[i] + 1

    values = np.array([0, 1, 100, -1, -7]).astype(dtype)
    out = np.zeros(5, dtype=dtype)
    compiled.call(copy, [values, out])

    assert out.tolist() == (values.astype(np.int64) + 1).astype(dtype).tolist()


def no_list(a: int, out: Any) -> None:
    out[0] = [a]


def no_power(a: int, out: Any) -> None:
    out[0] = a**2


def no_loop_over_columns(a: int, out: Any) -> None:
    for value in out:
        out[a] = value


def no_element_of_an_integer(a: int, out: Any) -> None:
    out[0] = a
    fetch(a, out[0])


def no_narrow_exchange(a: int, out: Any) -> None:
    out[0] = observe(a, out[0])


def no_two_kinds(a: int, out: Any) -> None:
    a = out
    out[0] = len(a)


def no_recursion(a: int, out: Any) -> None:
    no_recursion(a, out)


def no_text(a: int, out: Any) -> None:
    out[a] = "a"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_list, "the expression \\[a\\]"),
        (no_power, "the operator Pow"),
        (no_loop_over_columns, "a loop that is not over range"),
        (no_element_of_an_integer, "fetch takes an index and columns"),
        (no_narrow_exchange, "publish and observe take a column of int64"),
        (no_two_kinds, "a with values of two kinds"),
        (no_recursion, "may not call themselves"),
        (no_text, "'a' is no integer"),
    ],
)
def test_code_outside_of_the_language_is_refused_with_its_line(function: Callable[..., Any], message: str) -> None:
    where = "no_recursion" if function is no_recursion else r"test_language.py:\d+: "
    with pytest.raises(TypeError, match=f"{where}.*{message}"):
        compiled.call(function, [1, np.zeros(3, dtype=np.int64)])


def test_a_kernel_without_source_is_interpreted() -> None:
    names: dict[str, Any] = {}
    exec("def put(out):\n    out[0] = 7\n", names)  # noqa: S102 - a function without a file
    out = np.zeros(1, dtype=np.int64)
    with pptrace_kernel.always_compiled():
        pptrace_kernel.run(names["put"], (), (out,), work=1)

    assert out.tolist() == [7]
    assert not compiled.has_source(names["put"])


def test_the_cache_returns_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_KERNEL_CACHE", str(tmp_path))
    compiled.write_cache("some.o", b"code")

    assert (compiled.read_cache("some.o"), compiled.read_cache("other.o")) == (b"code", None)
    assert [path.name for path in tmp_path.iterdir()] == ["some.o"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_the_cache_ignores_a_damaged_file(
    damage: Callable[[bytes, bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_KERNEL_CACHE", str(tmp_path))
    some, other = tmp_path / "some.o", tmp_path / "other.o"
    for file in (some, other):
        compiled.write_cache(file.name, b"code of " + file.name.encode())

    some.write_bytes(damage(some.read_bytes(), other.read_bytes()))

    assert compiled.read_cache("some.o") is None
    assert compiled.read_cache("other.o") == b"code of other.o"
