"""The package of kernels does not depend on the simulator."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELPERS = {"conftest", "interpreted", "markdown"}
ALLOWED = {"hypothesis", "llvmlite", "numpy", "pptrace_kernel", "pytest"} | sys.stdlib_module_names


def imported_packages(file: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages


def test_kernels_import_numpy_and_llvmlite_alone() -> None:
    imports = {file.name: imported_packages(file) for file in (ROOT / "pptrace_kernel").glob("*.py")}

    assert imports
    assert set().union(*imports.values()) - sys.stdlib_module_names == {"llvmlite", "numpy", "pptrace_kernel"}


def test_the_tests_of_kernels_import_nothing_of_the_simulator() -> None:
    for file in (ROOT / "tests" / "kernel").glob("*.py"):
        assert imported_packages(file) <= ALLOWED | HELPERS, file.name


def test_importing_kernels_imports_neither_the_simulator_nor_llvm() -> None:
    code = "import sys, pptrace_kernel; print({'pptrace', 'llvmlite'} & sys.modules.keys())"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed == "set()\n"
