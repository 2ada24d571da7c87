"""Importing the configuration package, or quantities, brings in nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pptrace.config", ("numpy", "pydantic", "yaml")),
        ("pptrace.config.quantities", ("numpy", "pydantic", "yaml")),
        ("pptrace.config.resolution", ("numpy", "llvmlite")),
        ("pptrace.config.json_schema", ("numpy", "llvmlite", "jsonschema")),
    ],
)
def test_a_module_is_imported_without(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
