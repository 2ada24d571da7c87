"""What ``--over`` says becomes an axis: a key, and values that are set one after another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import ConfigError
from pptrace.search.grid import axes_of, parse_axes


def values(text: str) -> list[list[tuple[str, Any]]]:
    (axis,) = parse_axes([text])
    return [[(".".join(map(str, one.path)), one.value) for one in value.varied] for value in axis.values]


def texts(text: str) -> list[str]:
    (axis,) = parse_axes([text])
    return [value.text for value in axis.values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("microbatches=8, 16", [[("batch.microbatches", 8)], [("batch.microbatches", 16)]]),
        ("network=ideal,hockney", [[("network.name", "ideal")], [("network.name", "hockney")]]),
        ("network.latency=null,1 us", [[("network.latency", None)], [("network.latency", "1 us")]]),
        ("costs.forward=[1 ms, 2 ms],3 ms", [[("costs.forward", ["1 ms", "2 ms"])], [("costs.forward", "3 ms")]]),
        ("model.note='a, b',c", [[("model.note", "a, b")], [("model.note", "c")]]),
        ("network={name: hockney, bandwidth: 1 GB/s}",
         [[("network", {"name": "hockney", "bandwidth": "1 GB/s"})]]),
        ("schedule=gpipe,hanayo:waves=2:vp=4,./my's.py:make",
         [[("schedule.name", "gpipe")],
          [("schedule.name", "hanayo"), ("parallel.vp", 4), ("schedule.options.waves", 2)],
          [("schedule.name", "./my's.py:make")]]),
    ],
)  # fmt: skip
def test_an_axis_sets_its_values_as_set_would(text: str, expected: list[list[tuple[str, Any]]]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pp=4..32*2", ["4", "8", "16", "32"]),
        ("pp=4..33*3", ["4", "12"]),
        ("pp=1..7+3,9", ["1", "4", "7", "9"]),
        ("network.bandwidth=25..100*2 GB/s", ["25 GB/s", "50 GB/s", "100 GB/s"]),
        ("pp=5..5+1", ["5"]),
    ],
)
def test_a_range_multiplies_or_adds_up_to_its_end(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 9))
def test_a_range_that_adds_is_what_counting_gives(first: int, more: int, step: int) -> None:
    counted = list(range(first, first + more + 1, step))

    assert texts(f"pp={first}..{first + more}+{step}") == [str(number) for number in counted]


@given(st.lists(st.sampled_from(["a", "[1, 2]", "{x: 'y,z'}", '"q, r"', "b c"]), min_size=1, unique=True))
def test_commas_within_brackets_and_quotes_part_nothing(words: list[str]) -> None:
    assert texts(f"model.note={','.join(words)}") == words


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("microbatches", "--over: write KEY=VALUE,VALUE"),
        ("=8", "--over: write KEY=VALUE,VALUE"),
        ("pp=", "--over pp: has no value"),
        ("pp=4,,8", "--over pp: has an empty value between its commas"),
        ("pp=4,8,4", "--over pp: 4 is given twice"),
        ("pp=16,0x10", "--over pp: 0x10 is given twice"),
        ("schedule=a:vp=2:x=1,a:x=1:vp=2", "--over schedule: a:x=1:vp=2 is given twice"),
        ("microbatch=4", "--over microbatch: no such key (did you mean 'microbatches'?"),
        ("netwrk.latency=1 us", "--over netwrk.latency: no such key (did you mean 'network'?"),
        ("pp=8..64", "--over pp: 8..64 is not a range: write 8..64*2"),
        ("pp=8..4*2", "--over pp: 8..4*2 is not a range: it must grow"),
        ("pp=0..8*2", "--over pp: 0..8*2 is not a range: it must grow"),
        ("pp=1..8*1", "--over pp: 1..8*1 is not a range: it must grow"),
        ("pp=1..8+0", "--over pp: 1..8+0 is not a range: it must grow"),
        ("pp=1..100000+1", "--over pp: 1..100000+1 has more than 10,000 values"),
        ("costs.forward=[1", "--over costs.forward=[1: broken YAML"),
        ("network..x=1", "is not a key"),
    ],
)
def test_what_is_no_axis_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_axes([text])

    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_axes_from_python_are_those_of_the_command_line() -> None:
    plain = axes_of({"pp": [4, 8], "schedule": ["gpipe", "hanayo:waves=2"], "contention.compute": [0.5, 1]})

    assert plain == parse_axes(["pp=4,8", "schedule=gpipe,hanayo:waves=2", "contention.compute=0.5,1"])


@pytest.mark.parametrize(
    ("over", "complaint"),
    [
        ({"pp": 4}, "--over pp: write a list of values, not 4"),
        ({"schedule": "gpipe"}, "--over schedule: write a list of values"),
        ({"pp": []}, "--over pp: has no value"),
        ({"pp": [object()]}, "--over pp: a value of type object is not a number"),
        (
            {"contention.compute": [float("nan")]},
            "--over contention.compute: a value of type float is not a number",
        ),
    ],
)
def test_what_python_cannot_sweep_is_refused(over: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        axes_of(over)


def test_cells_are_numbers_and_names_where_they_can_be() -> None:
    axes = parse_axes(["pp=4", "schedule=gpipe,hanayo:waves=2", "network={name: ideal}", "network.latency=null"])

    assert [value.cell for axis in axes for value in axis.values] == [
        4, "gpipe", "hanayo:waves=2", "{name: ideal}", "null",
    ]  # fmt: skip
