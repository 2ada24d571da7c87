"""What all tests share: where the sources are, and which tests need the in-house plugins."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IN_HOUSE = {"models", "schedules"}
"""Entry points of the plugins that live in this repository."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="Write the recorded outputs of examples and README anew."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = IN_HOUSE - {entry.name for entry in entry_points(group="pptrace")}
    for item in items:
        if missing and item.get_closest_marker("needs_plugins"):
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(sorted(missing))}"))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's folder."""
    return ROOT
