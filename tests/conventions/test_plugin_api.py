"""Third-party plugins and the code on pages import the API for plugins alone; built-in plugins may import more."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pptrace.plugin

ROOT = Path(__file__).parents[2]
API = {"pptrace.plugin"}
TESTS = {"pptrace.plugin", "pptrace.testing"}

SOURCES = [
    *ROOT.glob("examples/third-party-*/*.py"),
    *ROOT.glob("pptrace/cli/skeleton/**/*.py.txt"),
    ROOT / "examples" / "mine.py",
]
PAGES = [*ROOT.glob("plugins/*/README.md"), *ROOT.glob("examples/third-party-*/README.md"),
         ROOT / "docs" / "plugins.md", ROOT / "docs" / "sweep.md"]  # fmt: skip


def test_the_source_of_third_party_plugins_imports_the_api_alone() -> None:
    foreign = {}
    for file in SOURCES:
        source = re.sub(r"\$(\w+)", r"\1", file.read_text(encoding="utf-8"))  # a template's name
        doctests = re.findall(r">>> (?:from|import) (pptrace[.\w]*)", source)
        allowed = TESTS if file.name.startswith("test") else API
        foreign[str(file.relative_to(ROOT))] = {*imported(source), *doctests} - allowed

    assert len(foreign) >= 5
    assert {file: modules for file, modules in foreign.items() if modules} == {}


def test_built_in_plugins_import_names_of_the_api_from_the_api() -> None:
    """They require the same version of the core, so they may import other names from their modules."""
    bypassing = [
        f"{file.relative_to(ROOT)}: {node.module}.{name.name}"
        for file in ROOT.glob("plugins/*/src/**/*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pptrace.")
        for name in node.names
        if (name.name in pptrace.plugin.__all__) != (node.module == "pptrace.plugin")
    ]

    assert bypassing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_a_page_about_plugins_imports_the_api_alone(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    assert {name for block in blocks for name in imported(block)} - TESTS - {"pptrace"} == set()


def test_the_page_about_stability_names_the_whole_api() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")

    assert [name for name in pptrace.plugin.__all__ if f"`{name}`" not in page] == []


def test_every_name_of_the_api_is_what_its_module_has() -> None:
    for name in pptrace.plugin.__all__:
        assert getattr(pptrace.plugin, name) is not None
    assert dir(pptrace.plugin) == sorted(pptrace.plugin.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pptrace.plugin.nothing


def imported(source: str) -> set[str]:
    """Return the modules of the core that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return {name for name in found if name.split(".")[0] == "pptrace"}
