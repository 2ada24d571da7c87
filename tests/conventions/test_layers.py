"""The core's areas stand in layers: each imports only from layers below it, type checking included."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS = (
    {"errors", "lazy", "memo", "sanitize", "version"},
    {"files"},
    {"config"},
    {"steps"},
    {"network"},
    {"timeline"},
    {"sim"},
    {"traces"},
    {"report"},
    {"plugins"},
    {"run"},
    {"search", "measured"},
    {"api", "plugin", "testing"},
    {"cli"},
)
"""From the bottom; areas of one layer do not know each other. ``docs/architecture.md`` draws them."""

LEVEL = {area: level for level, areas in enumerate(LAYERS) for area in areas}


def test_every_module_belongs_to_a_layer(core: dict[str, ast.Module]) -> None:
    areas = {area_of(module) for module in core if module != "pptrace"}

    assert areas == set(LEVEL)


def test_imports_point_down(core: dict[str, ast.Module]) -> None:
    upward = [
        f"{module} imports {target}"
        for module, tree in core.items()
        for target in imported(tree, core)
        if "pptrace" not in {module, target} and not may_import(module, target)
    ]

    assert upward == []


def test_no_module_imports_itself_by_way_of_others(modules: dict[str, ast.Module]) -> None:
    """Imports inside functions and for type checking count as well."""
    result = {module: imported(tree, modules) - {module} for module, tree in modules.items()}

    assert any(result.values())
    assert circles(result) == {}


def test_nothing_inside_imports_the_package_s_face(core: dict[str, ast.Module]) -> None:
    assert [module for module, tree in core.items() if "pptrace" in imported(tree, core)] == []


def test_the_core_imports_no_plugin(core: dict[str, ast.Module], root: Path) -> None:
    plugins = {package.name for package in root.glob("plugins/*/src/*/")}

    assert plugins
    assert [module for module, tree in core.items() if set(packages(tree)) & plugins] == []


def test_kernels_know_arrays_only(core: dict[str, ast.Module]) -> None:
    kernels = {module: tree for module, tree in core.items() if "kernels" in module.split(".")}
    outside = {
        module: [
            *(
                name
                for name in packages(tree)
                if name not in {"__future__", "pptrace", "pptrace_kernel", "typing"}
            ),
            *(target for target in imported(tree, core) if target not in {*kernels, "pptrace.steps.kinds"}),
        ]
        for module, tree in kernels.items()
    }

    assert kernels
    assert all(imports == [] for imports in outside.values()), outside


def test_the_page_about_the_architecture_draws_these_layers(root: Path) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"```layers\n(.*?)```", page, re.DOTALL)
    assert drawing

    drawn = [set(line.split("  ")[0].split()) for line in drawing[1].splitlines()]

    assert drawn[::-1] == list(LAYERS)


def test_tests_of_every_area_that_can_know_of_plugins_run_without_them(root: Path) -> None:
    """Those are the areas from the plugins up: below, an import of what finds plugins would point upward.

    Tests of some areas disable all plugins; CI runs others where none is installed.
    """
    script, fixtures = (
        root.joinpath(*path).read_text("utf-8") for path in ((".ci", "run"), ("tests", "conftest.py"))
    )
    installed = re.search(r"^ +tests/\{(.*?)\}", script, re.MULTILINE)
    disabled = re.search(r"^CORE_ALONE = \((.*?)\)", fixtures, re.MULTILINE)
    assert installed
    assert disabled

    areas = {area for level in LAYERS[LEVEL["plugins"] :] for area in level} | {"examples", "readme"}
    tested = {*installed[1].split(","), *re.findall(r"tests/(\w+)/", disabled[1])}

    assert tested == {area for area in areas if (root / "tests" / area).is_dir()}


def test_tests_of_the_core_import_no_plugin_where_it_may_be_missing(root: Path) -> None:
    plugins = {package.name for package in root.glob("plugins/*/src/*/")}
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((root / "tests").rglob("*.py"))}
    naming = {path: text for path, text in texts.items() if any(plugin in text for plugin in plugins)}

    assert naming
    assert [str(path) for path, text in naming.items() if set(packages(ast.parse(text))) & plugins] == []


def test_circles_are_found_and_nothing_else() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == {}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b": {"c"}, "c": {"b"}}


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("pptrace.sim.lowering", "pptrace.timeline.timeline", True),
        ("pptrace.timeline.timeline", "pptrace.sim.lowering", False),
        ("pptrace.plugins.offers", "pptrace.steps.workload", True),
        ("pptrace.search.plan", "pptrace.measured.diff", False),
        ("pptrace.network.contract", "pptrace.sim.streams", False),
    ],
)
def test_the_rule_itself(module: str, target: str, *, allowed: bool) -> None:
    assert may_import(module, target) == allowed


def area_of(module: str) -> str:
    """Return the area of a module: a module or package right below ``pptrace``."""
    return module.removeprefix("pptrace.").split(".")[0]


def may_import(module: str, target: str) -> bool:
    ours, theirs = area_of(module), area_of(target)
    return ours == theirs or LEVEL[theirs] < LEVEL[ours]


def imported(tree: ast.Module, core: dict[str, ast.Module]) -> set[str]:
    """Return the core's modules that a module imports, wherever in it."""
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {name.name for name in node.names if name.name in core}
        elif isinstance(node, ast.ImportFrom) and node.module in core:
            parts = {f"{node.module}.{name.name}" for name in node.names}
            result |= (parts & set(core)) or {str(node.module)}
    return result


def circles(targets: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what each module imports, without the modules that import none of the rest or that none imports."""
    wanted = set[str]().union(*targets.values())
    inner = {module: rest for module in targets if module in wanted and (rest := targets[module] & targets.keys())}
    return inner if inner == targets else circles(inner)


def packages(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
