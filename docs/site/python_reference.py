"""Hook of the site: the reference of the Python API and of the API for plugins, from the stubs of both.

The names of ``pptrace.plugin`` have the groups of ``docs/stability.md``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import griffe

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^from (\S+) import (\w+) as \w+$", re.MULTILINE)
GROUP = re.compile(r"^\| ([^|]+) \| (`[^|]+) \|$", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):`~?(?:[\w.]*\.)?(\w+)`")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the documented objects to the two pages."""
    del config, files
    if page.file.src_uri == "python.md":
        shared = stub("pptrace/plugin.pyi").items()
        names = {
            name: module for name, module in stub("pptrace/__init__.pyi").items() if (name, module) not in shared
        }
        functions_first = sorted(names, key=lambda name: (name[0].isupper(), name))
        return markdown + "".join(entry(names[name], name) for name in functions_first if name != "__version__")
    if page.file.src_uri == "plugin-api.md":
        names = stub("pptrace/plugin.pyi")
        parts = [markdown]
        for title, listed in GROUP.findall((ROOT / "docs" / "stability.md").read_text(encoding="utf-8")):
            parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
            members = dict.fromkeys(name for name in re.findall(r"`(\w+)`", listed) if name in names)
            parts += [entry(names[name], name) for name in members]
        return "".join(parts)
    return markdown


def stub(path: str) -> dict[str, str]:
    """Return the module of every name that a stub exports."""
    return {name: module for module, name in IMPORT.findall((ROOT / path).read_text(encoding="utf-8"))}


def entry(module: str, name: str) -> str:
    """Return the directive that documents an object."""
    return f"\n::: {module}.{name}\n"


class MarkdownDocstrings(griffe.Extension):
    """Changes roles, literals and doctests of docstrings to Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
            obj.docstring.value = DOCTEST.sub(r"```python\n\g<0>\n```", text)
