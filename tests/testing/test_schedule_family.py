"""The checks for plugin authors find what is wrong, and find nothing wrong with a sound schedule."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ConfigDict

from pptrace.errors import ConfigError, ConstraintError, PluginError
from pptrace.plugin import ScheduleOffer
from pptrace.plugins.providers import Provided, Provider
from pptrace.steps.schedule import Schedule
from pptrace.testing import assert_schedule_family, assert_valid_schedule, grid
from pptrace.testing.schedules import count

if TYPE_CHECKING:
    from pptrace.plugins.requests import ScheduleRequest

pytest_plugins = ["pptrace.testing.fixtures"]

SMALL = grid(ranks=(2, 3), microbatches=(2, 4))


def build(request: ScheduleRequest) -> list[str]:
    """Every microbatch forward, then every microbatch backward."""
    microbatches = range(request.microbatches)
    forward = [" ".join(f"{rank}F{microbatch}" for microbatch in microbatches) for rank in range(request.ranks)]
    backward = [" ".join(f"{rank}B{microbatch}" for microbatch in microbatches) for rank in range(request.ranks)]
    return [f"{f} {b}" for f, b in zip(forward, backward, strict=True)]


def bubble(request: ScheduleRequest) -> Fraction:
    return Fraction(request.ranks - 1, request.microbatches + request.ranks - 1)


def peak(request: ScheduleRequest) -> list[Fraction]:
    return [Fraction(request.microbatches)] * request.ranks


def even(request: ScheduleRequest) -> None:
    if request.microbatches % 2:
        raise ConstraintError("microbatches must be even", nearest=f"{request.microbatches + 1}")


def offer(**changes: Any) -> ScheduleOffer:
    fields: dict[str, Any] = {"name": "mine", "summary": "Mine.", "build": build}
    return ScheduleOffer(**{**fields, "bubble": bubble, "peak_activations": peak, **changes})


def test_options_of_a_grid_are_one_mapping() -> None:
    with pytest.raises(
        ConfigError, match=r"options: must be a mapping .*, not a list: call grid for each mapping"
    ):
        grid(options=[{"group": 1}, {"group": 2}])  # type: ignore[arg-type] # the mistake


def test_a_sound_schedule_passes_the_whole_grid() -> None:
    assert_schedule_family(offer(check=even, constraints="microbatches are even"))
    assert_schedule_family(Provided(offer=offer(), provider=Provider(name="mine")), sizes=SMALL)


class Options(BaseModel):
    """How many microbatches run at once."""

    model_config = ConfigDict(extra="forbid")

    group: int = 1


def test_options_that_a_size_leaves_out_have_their_defaults() -> None:
    seen = set()

    def grouped(request: ScheduleRequest) -> list[str]:
        seen.add(request.options["group"])
        return build(request)

    optional = offer(build=grouped, options=lambda: Options)

    assert_schedule_family(optional, sizes=SMALL, growth=False)
    assert_schedule_family(optional, sizes=grid(ranks=(2,), microbatches=(2,), options={"group": 3}))

    assert seen == {1, 3}
    with pytest.raises(ConfigError, match=r"options\.grup: unknown key"):
        assert_schedule_family(optional, sizes=grid(ranks=(2,), microbatches=(2,), options={"grup": 3}))
    with pytest.raises(ConfigError, match=r"options\.group: mine takes no options"):
        assert_schedule_family(offer(), sizes=grid(ranks=(2,), microbatches=(2,), options={"group": 3}))


def test_the_count_of_a_table_is_what_one_counts_by_hand() -> None:
    schedule = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])

    counted = count(schedule)

    assert counted.bubble == Fraction(2 * 9 - 12, 2 * 9)
    assert counted.peak_activations == (2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bubble": lambda _: Fraction(1, 2)}, "bubble is stated as 1/2 and the table's is 1/3"),
        (
            {"peak_activations": lambda _: [1, 1]},
            "peak activations are stated as [1, 1] and the table's are [2, 2]",
        ),
        ({"peak_activations": lambda _: [2]}, "peak activations are stated as [2] and the table's are [2, 2]"),
        (
            {"check": even},
            "refused (microbatches must be even; nearest that work: 4), but the offer states no constraints",
        ),
        ({"build": lambda r: [row.replace("0B0", "") for row in build(r)]}, "mine with 2 ranks, 2 microbatches: "),
        ({"build": lambda r: [row + " 1F0" for row in build(r)]}, "mine with 2 ranks, 2 microbatches: "),
    ],
)
def test_a_broken_promise_is_named_with_its_size(changes: dict[str, Any], message: str) -> None:
    sizes = (*SMALL, *grid(ranks=(2,), microbatches=(3,)))

    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_schedule_family(offer(**changes), sizes=sizes)


def test_a_size_that_only_build_refuses_is_a_broken_promise() -> None:
    def picky(request: ScheduleRequest) -> list[str]:
        even(request)
        return build(request)

    with pytest.raises(
        AssertionError, match="3 microbatches: check takes this size and build does not: microbatches must be even"
    ):
        assert_schedule_family(offer(build=picky), sizes=grid(ranks=(2,), microbatches=(2, 3)))


def test_a_schedule_that_changes_between_builds_is_found() -> None:
    turns = itertools.count()

    def fickle(request: ScheduleRequest) -> list[str]:
        rows = build(request)
        return [row.replace("0F0 0F1", "0F1 0F0") for row in rows] if next(turns) % 2 else rows

    with pytest.raises(AssertionError, match="two builds differ: column microbatch, row 0: 0 against 1"):
        assert_schedule_family(offer(build=fickle, bubble=None), sizes=SMALL)


def test_a_schedule_that_takes_no_size_is_found() -> None:
    def never(_: ScheduleRequest) -> None:
        raise ConstraintError("never")

    with pytest.raises(AssertionError, match="mine takes none of the sizes that it was tried with"):
        assert_schedule_family(offer(check=never, constraints="none"), sizes=SMALL)


def test_a_deadlock_is_an_assertion_with_its_cycle() -> None:
    schedule = Schedule.from_rows([["0F0", "0B1", "0F1", "0B0"], ["1F0", "1F1", "1B0", "1B1"]])

    with pytest.raises(AssertionError, match="0F1"):
        assert_valid_schedule(schedule)


def test_generation_that_grows_with_the_square_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def growing(power: int) -> ScheduleOffer:
        def slow(request: ScheduleRequest) -> list[str]:
            clock[0] += request.microbatches**power / 1e4
            return build(request)

        return offer(build=slow)

    assert_schedule_family(growing(1), sizes=SMALL)
    with pytest.raises(AssertionError, match=r"384 microbatches take 14\.75 s to generate and 24 take 0\.0576 s"):
        assert_schedule_family(growing(2), sizes=SMALL)
    assert_schedule_family(growing(2), sizes=SMALL, growth=False)


def test_an_exception_in_the_plugin_is_the_plugins_error_and_no_assertion() -> None:
    def broken(_: ScheduleRequest) -> list[str]:
        raise ZeroDivisionError

    with pytest.raises(PluginError, match=r"raised ZeroDivisionError at .*test_schedule_family"):
        assert_schedule_family(offer(build=broken), sizes=SMALL)


def test_the_fixtures_give_registries_and_requests(
    registry: Any, core_registry: Any, schedule_request: Any
) -> None:
    assert {provider.name for provider in core_registry.providers} == {"builtin"}
    assert registry is not core_registry
    assert schedule_request(microbatches=3, chunks=2).stages == 8


def test_importing_the_checks_needs_no_pytest() -> None:
    code = "import sys, pptrace.testing; print('pytest' in sys.modules, 'llvmlite' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert result.stdout.split() == ["False", "False"]
