"""The cache's entries: whose they are, which are kept, and which are solved anew."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import asdict, replace
from toy_pipelines import effort, toy

from pptrace_optpipe.cache import VERSION, Cache, Entry, wrong_folder
from pptrace_optpipe.listing import serial_rows
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import Op, OpKind, Problem, Rows, coarsened
from pptrace_optpipe.search import cached_search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAMAGE: dict[str, Callable[[str, str], str]] = {
    "cut": lambda text, _: text[: len(text) // 2],
    "empty": lambda *_: "",
    "deep brackets": lambda *_: "[" * 100_000,
    "a list": lambda *_: "[]",
    "an operation without its kind": lambda text, _: text.replace('"0F0"', '"123"'),
    "an infinite step": lambda text, _: re.sub(r'"step": \d+', '"step": 1e999', text),
    "another bound": lambda text, _: re.sub(r'"bound": \d+', '"bound": 8', text),
    "the entry of another problem": lambda _, other: other,
}
"""What a file may hold in place of its text, from that and another file's."""


def step_of(problem: Problem, rows: Rows) -> int:
    played = play(coarsened(problem)[0], rows)
    assert played is not None
    return played.step


def test_twice_the_times_are_the_same_problem_and_a_shorter_entry_stays(tmp_path: Path) -> None:
    one, other = toy(2, 2, 2, copies=False), toy(2, 2, 1, copies=False)
    kept = Cache(tmp_path)
    rows = serial_rows(one, copied=False)
    entry = Entry(rows=rows, step=step_of(one, rows), bound=7, seconds=1)
    kept.put(one, entry)
    kept.put(one, Entry(rows=rows[::-1], step=entry.step + 1, bound=7, seconds=1))

    twice = type(one)(**{
        **asdict(one),
        **{name: tuple(2 * value for value in getattr(one, name)) for name in ("f", "i", "w")},
    })  # fmt: skip
    assert kept.get(twice) == (entry, "")
    assert kept.get(other) == (None, "")


def test_a_bound_is_of_no_other_problem_that_is_rounded_alike(tmp_path: Path) -> None:
    base = replace(toy(2, 4, 2, copies=False), i=(10_000_801,) * 2, w=(10_000_801,) * 2)
    first, second = (replace(base, f=(time, 10_000_000)) for time in (20_000_799, 20_000_000))
    assert coarsened(first) == coarsened(second)

    kept = Cache(tmp_path)
    before = cached_search(first, effort(1), kept)
    found, alone = (cached_search(second, effort(1), each) for each in (kept, None))

    assert before is not None
    assert found is not None
    assert alone is not None
    assert found.bound == alone.bound < before.bound
    assert found.bound <= found.schedule.played.step


def test_what_was_found_for_near_costs_is_a_start_and_another_version_is_not(tmp_path: Path) -> None:
    kept, problem = Cache(tmp_path / "own"), toy(2, 2, 2, copies=True)
    rows = serial_rows(problem, copied=False)
    rows[0][1:1] = [Op(kind, 0, 0) for kind in (OpKind.O, OpKind.A, OpKind.R)]
    kept.put(problem, Entry(rows=rows, step=9, bound=7, seconds=1))

    assert kept.near(replace(problem, f=(2, 3))) == [rows]
    assert kept.near(problem) == []
    assert kept.near(replace(problem, f=(2, 30))) == []
    assert kept.near(toy(2, 3, 2, copies=True)) == []
    (file,) = (tmp_path / "own").iterdir()
    file.rename(file.with_name(file.name.replace(f"v{VERSION}-", "v1-")))
    assert kept.near(replace(problem, f=(2, 3))) == []
    assert [about for _, about in kept.entries()] == ["of another version"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_none(damage: Callable[[str, str], str], tmp_path: Path) -> None:
    kept, problem = Cache(tmp_path / "own"), toy(2, 2, 2, copies=False)
    near = replace(problem, f=(2, 3))
    for item in (problem, near):
        rows = serial_rows(item, copied=False)
        kept.put(item, Entry(rows=rows, step=step_of(item, rows), bound=7, seconds=1))
    file, other = kept.file_of(problem), kept.file_of(near)
    text = file.read_text(encoding="utf-8")
    damaged = damage(text, other.read_text(encoding="utf-8"))
    assert damaged != text

    file.write_text(damaged, encoding="utf-8")

    assert kept.get(problem) == (None, f"{file}: is damaged, and is solved anew")
    assert kept.near(near) == []
    assert [about for name, about in kept.entries() if name == file.name] == ["damaged"]


FORGED: dict[str, Callable[[str], str]] = {
    "deep brackets": lambda _: "[" * 100_000,
    "deep rows": lambda text: text.replace('"rows": ', '"rows": ' + "[" * 100_000),
    "a list": lambda _: "[]",
    "no bound": lambda text: text.replace('"bound"', '"other"'),
    "a bound of text": lambda text: re.sub(r'"bound": \d+', '"bound": "7"', text),
    "an infinite bound": lambda text: re.sub(r'"bound": \d+', '"bound": 1e999', text),
    "a negative bound": lambda text: re.sub(r'"bound": \d+', '"bound": -7', text),
    "an infinite step": lambda text: re.sub(r'"step": \d+', '"step": 1e999', text),
    "an infinite time": lambda text: re.sub(r'"seconds": [0-9.]+', '"seconds": 1e999', text),
    "an operation without its kind": lambda text: text.replace('"0F0"', '"123"'),
    "an operation of an unknown kind": lambda text: text.replace('"0F0"', '"0X0"'),
    "an operation without numbers": lambda text: text.replace('"0F0"', '"F"'),
    "rows of text": lambda text: re.sub(r'"rows": .*', '"rows": ["123"]}', text),
    "a copy of no stage": lambda text: text.replace('"0F0"', '"0F0", "9O0"'),
    "a copy of no microbatch": lambda text: text.replace('"0F0"', '"0F0", "0O9"'),
    "a copy of another rank": lambda text: text.replace('"0F0"', '"0F0", "1A0"'),
    "a forward computed again that cannot be": lambda text: text.replace('"0F0"', '"0F0", "0C0"'),
    "a backward twice": lambda text: text.replace('"0I0"', '"0I0", "0B0"'),
}
"""Texts whose digest is right."""


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_malformed_entry_is_none_whatever_its_digest(forge: Callable[[str], str], tmp_path: Path) -> None:
    kept, problem = Cache(tmp_path), toy(2, 2, 2, copies=True)
    rows = serial_rows(problem, copied=False)
    kept.put(problem, Entry(rows=rows, step=step_of(problem, rows), bound=7, seconds=1))
    file = kept.file_of(problem)
    whole = file.read_text(encoding="utf-8").partition("\n")[2]
    text = forge(whole)
    assert text != whole

    digest = hashlib.sha256(f"{file.name}\n{text}".encode()).hexdigest()
    file.write_text(f"{digest}\n{text}", encoding="utf-8")

    assert kept.get(problem) == (None, f"{file}: is damaged, and is solved anew")
    assert kept.near(replace(problem, f=(2, 3))) == []
    assert len(list(kept.entries())) == 1


def test_an_entry_has_the_step_of_its_rows_and_no_bound_above_that(tmp_path: Path) -> None:
    kept, problem = Cache(tmp_path), toy(2, 2, 2, copies=False)
    rows = serial_rows(problem, copied=False)
    step = step_of(problem, rows)

    kept.put(problem, Entry(rows=rows, step=1, bound=step + 1, seconds=1))

    assert kept.get(problem) == (Entry(rows=rows, step=step, bound=0, seconds=1), "")


@pytest.mark.parametrize("rows", [[], [[], []], [[Op(OpKind.F, 0, 0)], [Op(OpKind.F, 1, 0)]]])
def test_an_entry_that_is_not_whole_is_damaged(rows: list[list[Op]], tmp_path: Path) -> None:
    kept, problem = Cache(tmp_path / "own"), toy(2, 2, 2, copies=False)

    kept.put(problem, Entry(rows=rows, step=1, bound=1, seconds=100))

    assert kept.get(problem) == (None, f"{kept.file_of(problem)}: is damaged, and is solved anew")
    assert kept.near(replace(problem, f=(2, 3))) == []


def test_a_cache_that_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    Cache(tmp_path / "file").put(toy(2, 2, 2, copies=False), Entry(rows=[], step=1, bound=1, seconds=1))

    assert not list(Cache(tmp_path / "file").entries())
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("PPTRACE_OPTPIPE_CACHE", str(path))
        assert Cache().get(toy(2, 2, 2, copies=False)) == (None, "")
        assert wrong_folder().startswith(f"{tmp_path / 'file'}: is not a folder, so nothing is cached")
