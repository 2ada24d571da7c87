"""No module of the plugin imports itself by way of others, imports for type checking included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pptrace_profilers

ROOT = Path(pptrace_profilers.__file__).parent


def imports() -> dict[str, set[str]]:
    """Return each module's imports among the plugin's own, wherever in it, for types alone included."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    modules = {name: path for name, path in files.items() if not name.endswith("__init__")}
    return {name: set(imported(path)) & set(modules) for name, path in modules.items()}


def imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == ROOT.name:
            found += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return [name.removeprefix(f"{ROOT.name}.") for name in found]


def test_no_module_imports_in_a_circle() -> None:
    modules = imports()

    assert sum(map(len, modules.values())) > len(modules)
    TopologicalSorter(modules).prepare()
