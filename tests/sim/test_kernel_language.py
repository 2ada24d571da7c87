"""Compiled, a kernel's source means what Python means by it; what means nothing is refused with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pptrace_kernel
from pptrace_kernel import compiled, machine
from pptrace_kernel.prefetch import fetch

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
"""What a file may hold in place of its content, from that and another file's."""


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
    out[1] = a - b


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


def called(function: Callable[..., Any], *words: int) -> tuple[list[int], list[int]]:
    by_list, by_array = [0] * 10, np.zeros(10, dtype=np.int64)
    function(*words, by_list)
    compiled.call(function, [*words, by_array])
    return list(map(int, by_list)), by_array.tolist()


@pytest.mark.parametrize("function", [arithmetic, flow, near, records], ids=lambda one: one.__name__)
@given(a=WORDS, b=WORDS, c=WORDS)
def test_compiled_means_what_python_means(function: Callable[..., Any], a: int, b: int, c: int) -> None:
    by_list, by_array = called(function, a, b, c)

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


def no_place_of_a_number(a: int, out: Any) -> None:
    out[0] = a
    fetch(a, out[0])


def no_two_sorts(a: int, out: Any) -> None:
    a = out
    out[0] = len(a)


def no_recursion(a: int, out: Any) -> None:
    no_recursion(a, out)


def no_text(a: int, out: Any) -> None:
    out[a] = "a"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (no_list, "the expression \\[a\\]"),
        (no_power, "the operator Pow"),
        (no_loop_over_columns, "a loop that is not over range"),
        (no_place_of_a_number, "fetch takes an index and columns"),
        (no_two_sorts, "a with values of two sorts"),
        (no_recursion, "may not call themselves"),
        (no_text, "'a' is no integer"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_its_place(function: Callable[..., Any], told: str) -> None:
    where = "no_recursion" if function is no_recursion else r"test_kernel_language.py:\d+: "
    with pytest.raises(TypeError, match=f"{where}.*{told}"):
        compiled.call(function, [1, np.zeros(3, dtype=np.int64)])


def test_a_kernel_without_source_is_interpreted() -> None:
    made: dict[str, Any] = {}
    exec("def put(out):\n    out[0] = 7\n", made)  # noqa: S102 - a function without a file
    out = np.zeros(1, dtype=np.int64)
    with pptrace_kernel.always_compiled():
        pptrace_kernel.run(made["put"], (), (out,), work=1)

    assert out.tolist() == [7]
    assert not compiled.can_be(made["put"])


def test_code_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    machine.keep("some.o", b"code")

    assert (machine.kept("some.o"), machine.kept("other.o")) == (b"code", None)
    assert [path.name for path in tmp_path.iterdir()] == ["some.o"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_of_code_is_not_there(
    damage: Callable[[bytes, bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    some, other = tmp_path / "some.o", tmp_path / "other.o"
    for file in (some, other):
        machine.keep(file.name, b"code of " + file.name.encode())

    some.write_bytes(damage(some.read_bytes(), other.read_bytes()))

    assert machine.kept("some.o") is None
    assert machine.kept("other.o") == b"code of other.o"
