"""Other modules use public names alone; ``__all__`` lists them where a module has one."""

from __future__ import annotations

import ast
import importlib
from typing import TYPE_CHECKING

import pptrace

if TYPE_CHECKING:
    from pathlib import Path

Modules = dict[str, ast.Module]


def test_every_listed_name_is_there(core: Modules) -> None:
    missing = [
        f"{name}.{each}"
        for name, tree in core.items()
        for each in listed(tree) or ()
        if not hasattr(importlib.import_module(name), each)
    ]

    assert missing == []


def test_a_list_has_every_public_function_and_class(core: Modules) -> None:
    unlisted = [
        f"{name}.{node.name}"
        for name, tree in core.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith(("_", "pptrace_"))  # hooks are found by their names
        and node.name not in (listed(tree) or [node.name])
    ]

    assert unlisted == []


def test_what_another_module_imports_is_public(modules: Modules) -> None:
    unlisted = [
        f"{name} imports {node.module}.{each.name}"
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for each in node.names
        if each.name not in (listed(modules[str(node.module)]) or [each.name.lstrip("_")])
        and f"{node.module}.{each.name}" not in modules
    ]

    assert unlisted == []


def test_the_package_exports_what_its_homes_do() -> None:
    for name in pptrace.__all__:
        assert getattr(pptrace, name) is not None
    assert dir(pptrace) == sorted(pptrace.__all__)


def test_every_package_is_typed(root: Path) -> None:
    for package in (root / "pptrace", *(p.parent for p in root.glob("plugins/*/src/*/__init__.py"))):
        assert (package / "py.typed").is_file(), package


def listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    imports = [name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names]
    return [name.name for name in imports if name.name == name.asname] or None  # a stub's
