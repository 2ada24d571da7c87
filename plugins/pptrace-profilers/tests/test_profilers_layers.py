"""The plugin's packages stand in layers: each imports from those below it, and no module in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pptrace_profilers

ROOT = Path(pptrace_profilers.__file__).parent
LAYERS = (
    {"events", "recording"},
    {"rules", "inference"},
    {"pytorch", "assembly"},
    {"formats"},
    {"importers", "annotate"},
    {"plugin"},
)
"""From the bottom; packages of one layer do not know each other."""

LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}


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


def package(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def test_every_module_belongs_to_a_layer() -> None:
    assert {package(module) for module in imports()} == set(LEVEL)


def test_imports_point_down() -> None:
    upward = [
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if package(module) != package(target) and LEVEL[package(target)] >= LEVEL[package(module)]
    ]

    assert upward == []


def test_no_module_imports_in_a_circle() -> None:
    modules = imports()

    assert sum(map(len, modules.values())) > len(modules)
    TopologicalSorter(modules).prepare()


def test_the_packages_say_what_they_are_and_the_plugin_in_which_order() -> None:
    docstrings = {
        path.parent: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for path in ROOT.rglob("__init__.py")
    }
    _, drawing = docstrings.pop(ROOT).split("::\n\n")

    assert all(docstrings.values())
    drawn = [set(line.strip().split("  ")[0].split()) for line in drawing.splitlines()]
    assert drawn[::-1] == list(LAYERS)
