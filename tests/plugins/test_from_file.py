"""A schedule from a Python file, without packaging."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from pptrace.errors import ConfigError, ConstraintError, PluginError
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.from_file import is_file_reference, schedule_from_file
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = ScheduleRequest(ranks=2, microbatches=3)
ROWS = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F1", "1F2", "1B0", "1B1", "1B2"]]


def write(folder: Path, source: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(dedent(source), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("signature", "ranks", "microbatches"),
    [
        ("request", "request.ranks", "request.microbatches"),
        ("r=None", "r.ranks", "r.microbatches"),
        ("microbatches, ranks", "ranks", "microbatches"),
        ("*, microbatches, ranks, chunks=1", "ranks", "microbatches"),
        ("p, m", "p", "m"),
        ("p, m, /", "p", "m"),
        ("stages, microbatches", "stages", "microbatches"),
        ("ranks, microbatches", "ranks", "microbatches"),
        ("ranks, microbatches, depth=2", "ranks", "microbatches"),
        ("p, m, depth=2, *, width: int = 3", "p", "m"),
        ("request, depth=2", "request.ranks", "request.microbatches"),
    ],
)
def test_a_function_gets_the_request_or_the_fields_that_it_names(
    tmp_path: Path, signature: str, ranks: str, microbatches: str
) -> None:
    file = write(
        tmp_path,
        f"""
        def make({signature}):
            return [[f"{{s}}{{k}}{{u}}" for k in "FB" for u in range({microbatches})] for s in range({ranks})]
        """,
    )

    schedule = build_schedule(schedule_from_file(f"{file}:make"), REQUEST)

    assert schedule.rows() == ROWS


OPTIONS = """
from __future__ import annotations
from typing import TYPE_CHECKING, Annotated, Literal
from pydantic import Field
if TYPE_CHECKING:
    from pptrace.plugin import ScheduleRequest, Size

def make({first}, depth: Annotated[int, Field(ge=1)] = 2, way: Literal["up", "down"] = "up",
         slope=0.5, keep=True, _memory={{}}):
    return [f"0F0 0B0 0F1 0B1" if (depth, way, slope, keep) == {wanted} else "0F0 0B0"]
"""


@pytest.mark.parametrize("first", ["ranks, microbatches", "r, m", "request: ScheduleRequest", "r: Size = None"])
def test_further_parameters_with_a_default_are_options(first: str, tmp_path: Path) -> None:
    file = write(tmp_path, OPTIONS.format(first=first, wanted=(3, "down", 1, True)))
    provided = Registry.load(entry_points=False).schedules[f"{file}:make"]

    def forwards(**given: object) -> int:
        options = checked_options(provided, given, "schedule.options")
        return provided.offer.build(ScheduleRequest(ranks=1, microbatches=1, options=options))[0].count("F")

    assert checked_options(provided, {}, "") == {"depth": 2, "way": "up", "slope": 0.5, "keep": True}
    assert (forwards(), forwards(depth=3, way="down", slope=1)) == (1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deep": 3}, "schedule.options.deep: unknown key"),
        ({"depth": 0}, "schedule.options.depth: must be at least 1, not 0"),
        ({"depth": "two"}, "schedule.options.depth: "),
        ({"way": "left"}, "schedule.options.way: "),
        ({"slope": "steep"}, "schedule.options.slope: "),
        ({"keep": 1}, "schedule.options.keep: "),
    ],
)
def test_options_of_a_file_are_checked_as_a_plugin_s(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    provided = schedule_from_file(f"{write(tmp_path, OPTIONS.format(first='p, m', wanted=()))}:make")

    with pytest.raises(ConfigError) as caught:
        checked_options(provided, given, "schedule.options")

    assert message in str(caught.value)


def test_a_function_without_further_parameters_takes_no_options(tmp_path: Path) -> None:
    provided = schedule_from_file(f"{write(tmp_path, 'def make(ranks, microbatches): pass')}:make")

    with pytest.raises(ConfigError, match=r"options\.depth: mine takes no options"):
        checked_options(provided, {"depth": 3}, "options")


def test_an_annotation_that_cannot_be_read_is_the_file_s_error(tmp_path: Path) -> None:
    file = write(tmp_path, "def make(ranks, microbatches, depth: 'Depth' = 2): pass")

    with pytest.raises(PluginError, match=r"mine\.py:make.*options of schedule 'mine' raised .*Depth"):
        checked_options(schedule_from_file(f"{file}:make"), {}, "options")


def test_the_offer_is_called_after_the_file_and_described_by_the_docstring(tmp_path: Path) -> None:
    file = write(tmp_path, 'def make(request):\n    """All forward.\n\n    More.\n    """\n', "my_best.py")

    offer = schedule_from_file(f"{file}:make").offer

    assert (offer.name, offer.summary) == ("my-best", "All forward.")


def test_a_registry_takes_a_file_where_it_takes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "def make(ranks, microbatches):\n    return ['0F0 0B0', '1F0, 1B0']\n")
    monkeypatch.chdir(tmp_path)

    provided = Registry.load(entry_points=False).schedules["./mine.py:make"]

    assert provided.provider.name == "./mine.py:make"
    rows = build_schedule(provided, ScheduleRequest(ranks=2, microbatches=1)).rows()
    assert rows == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_a_dataclass_in_the_file_works_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    source = """
    from __future__ import annotations
    from dataclasses import dataclass

    @dataclass
    class Plan:
        ranks: int

    def make(ranks, microbatches):
        return [f"{rank}F0 {rank}B0" for rank in range(Plan(ranks).ranks)]
    """
    file = write(tmp_path, source)

    assert build_schedule(schedule_from_file(f"{file}:make"), ScheduleRequest(ranks=2, microbatches=1)).ranks == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    for name in ("make", "took"):
        file = write(tmp_path, f"def {name}(request):\n    return []\n")
        assert schedule_from_file(f"{file}:{name}")


def test_a_constraint_of_a_file_stays_a_constraint(tmp_path: Path) -> None:
    source = """
    from pptrace.errors import ConstraintError
    def make(request):
        raise ConstraintError("microbatches must be even", nearest="2 or 4")
    """
    file = write(tmp_path, source)

    with pytest.raises(ConstraintError, match="microbatches must be even; nearest that work: 2 or 4"):
        build_schedule(schedule_from_file(f"{file}:make"), REQUEST)


@pytest.mark.parametrize(
    ("source", "function", "message"),
    [
        ("def make(request): pass\n", "mak", "has no function 'mak' (did you mean 'make'? known: make)"),
        ("make = 3\n", "make", "is a int, not a function"),
        ("x = 1\ndef make(:\n", "make", "mine.py:2: invalid syntax"),
        ("x = '\0'\n", "make", "source code string cannot contain null bytes"),
        (
            "import no_such_module_anywhere\n",
            "make",
            "ModuleNotFoundError: No module named 'no_such_module_anywhere' at",
        ),
        ("\n\n1 / 0\n", "make", "raised ZeroDivisionError: division by zero at"),
        ("raise SystemExit(3)\n", "make", "raised SystemExit: 3 at"),
        ("def make(): pass\n", "make", "takes (), and may take (request), (ranks, microbatches) or any of "),
        ("def make(a, b, c): pass\n", "make", "takes (a, b, c), and may take (request)"),
        ("def make(ranks, depth, width): pass\n", "make", "takes (ranks, depth, width), and may take"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_and_where(
    tmp_path: Path, source: str, function: str, message: str
) -> None:
    file = write(tmp_path, source)

    with pytest.raises(PluginError) as caught:
        schedule_from_file(f"{file}:{function}")

    assert message in str(caught.value)
    assert "mine.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_missing_function_name_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PluginError, match=r"cannot read gone\.py: No such file or directory"):
        schedule_from_file("gone.py:make")
    with pytest.raises(PluginError, match=r"cannot read folder\.py: Is a directory"):
        schedule_from_file("folder.py:make")
    with pytest.raises(PluginError, match=r"expected FILE\.py:FUNCTION, such as \./mine\.py:make"):
        _ = Registry.load(entry_points=False).schedules["./mine.py"]
    with pytest.raises(PluginError, match=r"expected FILE\.py:FUNCTION, such as \./mine\.py:make"):
        _ = Registry.load(entry_points=False).schedules["./mine.py:"]


def test_a_function_that_raises_names_its_own_line_not_the_librarys(tmp_path: Path) -> None:
    file = write(tmp_path, "import json\n\ndef make(request):\n    return json.loads('{')\n")

    with pytest.raises(PluginError) as caught:
        build_schedule(schedule_from_file(f"{file}:make"), REQUEST)

    assert "build of schedule 'mine' raised JSONDecodeError: " in str(caught.value)
    assert str(caught.value).endswith(f"at {file}:4")


def test_names_of_schedules_and_tables_are_no_file_references() -> None:
    assert [is_file_reference(text) for text in ("1f1b", "table.csv", "mine.py:make", "mine.py")] == [
        False, False, True, True,
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def forget_modules() -> object:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "@" in name:
            del sys.modules[name]
