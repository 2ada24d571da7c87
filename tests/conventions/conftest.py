"""The source tree as syntax trees, parsed once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def core(root: Path) -> dict[str, ast.Module]:
    """Return the core's modules by name."""
    return parsed(root, "pptrace")


@pytest.fixture(scope="session")
def modules(root: Path, core: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Return the modules of the core and of every in-house plugin by name."""
    found = dict(core)
    for package in sorted(root.glob("plugins/*/src/*/")):
        if (package / "__init__.py").is_file():
            found |= parsed(package.parent, package.name)
    return found


def parsed(folder: Path, package: str) -> dict[str, ast.Module]:
    files = sorted((folder / package).rglob("*.py"))
    return {module_name(file.relative_to(folder)): ast.parse(source(file)) for file in files}


def source(file: Path) -> str:
    """Return a module's source; the stub of one whose names are imported when they are asked for."""
    stub = file.with_suffix(".pyi")
    return (stub if stub.is_file() else file).read_text(encoding="utf-8")


def module_name(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")
