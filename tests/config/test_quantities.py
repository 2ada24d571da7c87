"""Quantities in text become exact integers, and what is no quantity names the forms."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pptrace.config import quantities as q
from pptrace.config.quantities import Duration, Flops, Rate, Size
from pptrace.errors import ConfigError

Parse = Callable[[object], int]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80 GiB", 80 * 2**30),
        ("64MiB", 64 * 2**20),
        ("33.6 MB", 33_600_000),
        ("4096 B", 4096),
        ("0 B", 0),
        ("1e3 kB", 1_000_000),
        ("1.1 GiB", round(Fraction(11, 10) * 2**30)),
        (" 2 KB ", 2000),
    ],
)
def test_a_size_is_read_as_bytes(text: str, size_bytes: int) -> None:
    assert q.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("50 GB/s", 50 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("400 Gbps", 50 * 10**9),
        ("400 Gbit/s", 50 * 10**9),
        ("1.2 TB/s", 1_200_000_000_000),
        ("1 GiB/s", 2**30),
        ("8 b/s", 1),
    ],
)
def test_a_rate_is_read_as_bytes_per_second_and_b_means_bits(text: str, per_second: int) -> None:
    assert q.RATE.parse(text) == per_second


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5 us", 5000),
        ("5 \u00b5s", 5000),
        ("5 \u03bcs", 5000),
        ("12 ms", 12_000_000),
        ("500 ns", 500),
        ("1.5 s", 1_500_000_000),
        ("0 us", 0),
        ("0.1 us", 100),
    ],
)
def test_a_time_is_read_as_nanoseconds(text: str, ns: int) -> None:
    assert q.DURATION.parse(text) == ns


@pytest.mark.parametrize(
    ("text", "flops"), [("989 TFLOP/s", 989 * 10**12), ("1 PFLOP/s", 10**15), ("989.4 TFLOPS", 9894 * 10**11)]
)
def test_a_compute_rate_is_read_as_operations_per_second(text: str, flops: int) -> None:
    assert q.FLOPS.parse(text) == flops


@pytest.mark.parametrize(
    ("parse", "wrong", "message"),
    [
        (q.parse_size, 80, "80 has no unit; write a size as '80 GiB', '64 MiB', '33.6 MB', '4096 B'"),
        (q.parse_size, "80", "80 has no unit"),
        (q.DURATION.parse, 0, "0 has no unit; write a time as '5 us', '12 ms', '500 ns', '1.5 s'"),
        (q.RATE.parse, 1.5, "1.5 has no unit; write a rate as '50 GB/s', '400 Gb/s', '1.2 TB/s'"),
        (q.FLOPS.parse, 10**15, "has no unit; write a compute rate as '989 TFLOP/s', '1 PFLOP/s'"),
        (q.RATE.parse, True, "must be a rate in text"),
        (q.RATE.parse, None, "must be a rate in text"),
        (q.RATE.parse, "50 gb/s", "unknown unit 'gb/s' (did you mean 'GB/s' or 'Gb/s'?)"),
        (q.RATE.parse, "50 GB", "unknown unit 'GB'; write a rate as"),
        (q.parse_size, "fast", "'fast' is not a size"),
        (q.parse_size, "-1 GiB", "'-1 GiB' is not a size"),
        (q.parse_size, "nan GiB", "is not a size"),
        (q.parse_size, "1,000 GiB", "'1,000 GiB' is not a size"),
        (q.parse_size, "", "'' is not a size"),
        (q.RATE.parse, "0 GB/s", "'0 GB/s': a rate must be above zero"),
        (q.FLOPS.parse, "0 TFLOP/s", "must be above zero"),
        (q.DURATION.parse, "0.4 ns", "'0.4 ns' is less than half of the smallest time, 1 ns"),
        (q.parse_size, "1e99 GiB", "'1e99 GiB' is too large; the largest size is 4 EiB"),
        (q.parse_size, "1e999999999 B", "not a size"),
    ],
)
def test_what_is_no_quantity_is_refused_with_the_forms(parse: Parse, wrong: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (q.format_duration(12_345_678), "12.3 ms"),
        (q.format_duration(999_999), "1 ms"),
        (q.format_duration(999), "999 ns"),
        (q.format_duration(0), "0 ns"),
        (q.format_duration(-1_500), "-1.5 us"),
        (q.format_duration(12_345 * 10**9), "12345 s"),
        (q.format_size(80 * 2**30), "80 GiB"),
        (q.format_size(1000 * 2**20), "1000 MiB"),
        (q.format_size(123_456), "121 KiB"),
        (q.format_rate(50 * 10**9), "50 GB/s"),
        (q.FLOPS.rounded(989 * 10**12), "989 TFLOP/s"),
        (q.exact_size(65536), "64 KiB"),
        (q.exact_size(0), "0 B"),
        (q.DURATION.exact(5000), "5 us"),
    ],
)
def test_numbers_are_written_for_people(text: str, value: str) -> None:
    assert text == value


@pytest.mark.parametrize("dimension", [q.SIZE, q.RATE, q.DURATION, q.FLOPS], ids=lambda d: d.name)
@given(value=st.integers(1, 2**62))
def test_exact_text_is_read_back_as_the_same_number(dimension: q.Dimension, value: int) -> None:
    assert dimension.parse(dimension.exact(value)) == value


@pytest.mark.parametrize("dimension", [q.SIZE, q.RATE, q.DURATION, q.FLOPS], ids=lambda d: d.name)
@given(value=st.integers(1, 2**61))
def test_rounded_text_is_within_half_a_percent(dimension: q.Dimension, value: int) -> None:
    assert abs(dimension.parse(dimension.rounded(value)) - value) <= Fraction(value, 200)


@given(text=st.text())
def test_any_text_is_a_quantity_or_one_clear_line(text: str) -> None:
    for parse in (q.parse_size, q.RATE.parse, q.DURATION.parse, q.FLOPS.parse):
        assert line_or_number(parse, text).isprintable()


def line_or_number(parse: Parse, text: str) -> str:
    try:
        return str(parse(text))
    except ConfigError as error:
        return str(error)


class Link(BaseModel):
    bandwidth: Rate
    latency: Duration = 0
    buffer: Size | None = None
    peak: Flops | None = None


def test_a_parameter_model_reads_quantities_and_writes_them_back() -> None:
    link = Link.model_validate({"bandwidth": "400 Gb/s", "buffer": "64 KiB"})

    assert (link.bandwidth, link.latency, link.buffer) == (50 * 10**9, 0, 65536)
    assert link.model_dump(mode="json") == {
        "bandwidth": "50 GB/s",
        "latency": "0 ns",
        "buffer": "64 KiB",
        "peak": None,
    }


def test_integers_are_taken_only_where_the_context_says_so() -> None:
    with pytest.raises(ValidationError, match="50 has no unit"):
        Link.model_validate({"bandwidth": 50})

    assert Link.model_validate({"bandwidth": 50}, context={"integers": True}).bandwidth == 50
    with pytest.raises(ValidationError, match="must be a rate in text"):
        Link.model_validate({"bandwidth": True}, context={"integers": True})
