"""Tests of eager 1F1B over a grid of sizes."""

from pptrace_eager_1f1b import OFFER

from pptrace.plugin import Registry
from pptrace.testing import assert_schedule_family

pytest_plugins = ["pptrace.testing.fixtures"]


def test_tables_are_valid_and_equal_the_closed_forms() -> None:
    assert_schedule_family(OFFER)


def test_pptrace_finds_it(registry: Registry) -> None:
    assert registry.schedules["ahead-1f1b"].distribution == "pptrace-eager-1f1b"  # noqa: S101 - a test asserts
