"""Schedules as studies name them, with settings behind colons."""

from __future__ import annotations

import pytest

from pptrace.errors import ConfigError
from pptrace.search.basis import parse_entries


def settings(text: str) -> list[tuple[str, dict[str, str]]]:
    return [(entry.name, dict(entry.settings)) for entry in parse_entries([text], "--schedules")]


def test_names_are_separated_by_commas_and_settings_by_colons() -> None:
    assert settings("gpipe, interleaved-1f1b:vp=2,hanayo:waves=2:p2p.policy=ordered") == [
        ("gpipe", {}),
        ("interleaved-1f1b", {"parallel.vp": "2"}),
        ("hanayo", {"schedule.options.waves": "2", "p2p.policy": "ordered"}),
    ]


def test_a_file_keeps_the_colon_of_its_function() -> None:
    assert settings("./mine.py:make,./mine.py:make:vp=2,table.csv") == [
        ("./mine.py:make", {}),
        ("./mine.py:make", {"parallel.vp": "2"}),
        ("table.csv", {}),
    ]


def test_brackets_keep_commas_and_colons() -> None:
    assert settings("chimera:partition=[1,2],hanayo:x={a: 1, b: 2}") == [
        ("chimera", {"schedule.options.partition": "[1,2]"}),
        ("hanayo", {"schedule.options.x": "{a: 1, b: 2}"}),
    ]


def test_several_lists_are_one() -> None:
    assert [entry.label for entry in parse_entries(["a,b", "c"], "--schedules")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--schedules: a schedule has no name: write them as gpipe,1f1b"),
        ("gpipe,,1f1b", "--schedules: a schedule has no name: write them as gpipe,1f1b"),
        (":vp=2", "--schedules: a schedule has no name: write them as gpipe,1f1b"),
        ("gpipe,1f1b,gpipe", "--schedules: gpipe is given twice: write each schedule once"),
        ("a:x=1:vp=2,a:vp=2:x=1", "--schedules: a:vp=2:x=1 is given twice: write each schedule once"),
        ("a:vp=2:vp=3", "--schedules a:vp=2:vp=3: sets parallel.vp twice"),
        ("a:vp=2:parallel.vp=2", "--schedules a:vp=2:parallel.vp=2: sets parallel.vp twice"),
        ("a:vp=", "--schedules a:vp=: vp has no value: write vp=VALUE"),
        ("a:vp=2:x", "--schedules a:vp=2:x: 'x' is not a setting: write key=value, such as vp=2"),
        ("a:schedule=b", "--schedules a:schedule=b: an entry begins with the name of its schedule"),
        ("a:x=[1", "--schedules a:x=[1: "),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entries([text], "--schedules")

    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
