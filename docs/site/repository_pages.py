"""Hook of the site: pages from outside of ``docs``, and links to files of the repository.

Pages keep links that work in the repository. The site has the READMEs of plugins as pages, and each other linked
file below ``source/``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PLUGINS = sorted(ROOT.glob("plugins/*/README.md"))
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "pptrace_kernel/README.md": "kernels.md",
    **{path.relative_to(ROOT).as_posix(): f"plugins/{path.parent.name}.md" for path in PLUGINS},
    **{
        path.relative_to(ROOT).as_posix(): f"studies/{path.parent.name}.md"
        for path in sorted(ROOT.glob("examples/*/REPRODUCTION.md"))
    },
}
"""Pages of the site by their path in the repository. The site has an opening page in place of the README."""
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from outside of ``docs``, and the files that pages link to."""
    for source, uri in PAGES.items():
        if uri != "index.md":
            files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    for page in files.documentation_pages():
        for target in LINK.findall(page.content_string):
            linked = linked_file(page.src_uri, target)
            if linked and linked.is_file() and files.get_file_from_path(uri := site_uri(linked)) is None:
                files.append(File.generated(config, uri, abs_src_path=str(linked)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files of the repository to their places in the site."""
    del config, files
    folder = os.path.dirname(page.file.src_uri)  # noqa: PTH120 - of a URI

    def changed(link: re.Match[str]) -> str:
        linked = linked_file(page.file.src_uri, link[1])
        return link[1] if linked is None else os.path.relpath(site_uri(linked), folder or ".")

    return LINK.sub(changed, markdown)


def linked_file(uri: str, target: str) -> Path | None:
    """Return the file that a link of a page names; None for links within ``docs`` and to the web."""
    if "://" in target or target.startswith("mailto:"):
        return None
    sources = {page: ROOT / source for source, page in PAGES.items() if page != "index.md"}
    page = sources.get(uri, DOCS / uri)
    path = Path(os.path.normpath(page.parent / target))
    if path.is_relative_to(DOCS) and page.is_relative_to(DOCS):
        return None
    return path / "README.md" if path.is_dir() else path


def site_uri(path: Path) -> str:
    """Return the place of a file of the repository in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    source = path.relative_to(ROOT).as_posix()
    return PAGES.get(source, f"source/{source}")
