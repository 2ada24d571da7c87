"""A ``Range`` header is one part of the file, or the whole where it is of no known form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.cli.viewer import byte_range


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 10)),
        ("bytes=4-", (4, 10)),
        ("bytes=4-99", (4, 10)),
        ("bytes=-4", (6, 10)),
        ("bytes=-99", (0, 10)),
        (" Bytes = 2 - 3 ", (2, 4)),
        (None, None),
        ("", None),
        ("bytes=-", None),
        ("bytes=5-3", None),
        ("bytes=1-2,4-5", None),
        ("bytes=+1-2", None),
        ("bytes=\u0661-\u0662", None),
        ("lines=1-2", None),
    ],
)
def test_a_header_is_read_as_the_standard_says(header: str | None, part: tuple[int, int] | None) -> None:
    assert byte_range(header, 10) == part


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_a_part_outside_the_file_is_an_error(header: str, size: int) -> None:
    with pytest.raises(IndexError):
        byte_range(header, size)


@given(st.integers(0, 50), st.integers(0, 50), st.binary(min_size=1, max_size=40))
def test_a_part_is_the_slice_that_python_takes(first: int, last: int, content: bytes) -> None:
    if first > last or first >= len(content):
        return
    part = byte_range(f"bytes={first}-{last}", len(content))

    assert part is not None
    assert content[slice(*part)] == content[first : last + 1]
