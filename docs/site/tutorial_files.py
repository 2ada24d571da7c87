"""Hook of the site: pictures and notebooks of the tutorials.

A command of a tutorial that writes a picture runs when the site is built, and the picture follows the command on
the page. Each tutorial is also a Jupyter notebook without outputs.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<content>.*?)^```\n", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/-]+\.(?:py|yaml))\n")
"""The first line of a block that a reader saves as a file."""
PICTURE = re.compile(r" ([\w-]+\.svg)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures and the notebook of every tutorial."""
    for page in [page for page in files.documentation_pages() if page.src_uri.startswith("tutorials/")]:
        for name, content in pictures(page.content_string):
            files.append(File.generated(config, f"tutorials/{name}", content=content))
        notebook = json.dumps(notebook_of(page.content_string), indent=1)
        files.append(File.generated(config, page.src_uri.replace(".md", ".ipynb"), content=notebook))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show pictures after their commands, and link to the notebook."""
    del config, files
    if not page.file.src_uri.startswith("tutorials/"):
        return markdown

    def with_pictures(block: re.Match[str]) -> str:
        names = PICTURE.findall(block["content"]) if block["language"] == "bash" else []
        return block[0] + "".join(f"\n![{name}]({name})\n" for name in names)

    notebook = Path(page.file.src_uri).with_suffix(".ipynb").name
    return f"{BLOCK.sub(with_pictures, markdown)}\nThis page is also a [notebook]({notebook}).\n"


def pictures(page: str) -> Iterator[tuple[str, str]]:
    """Yield name and content of the pictures that the commands of a page write."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "examples"
        shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("paper-*", "*.out"))
        for block in BLOCK.finditer(page):
            if block["language"] == "bash":
                for command in block["content"].replace("\\\n", " ").splitlines():
                    names = PICTURE.findall(command)
                    if names:
                        _run(command, folder)
                        yield from ((name, (folder / name).read_text(encoding="utf-8")) for name in names)
            elif file := NAMED.match(block["content"]):
                (folder / file[1]).parent.mkdir(exist_ok=True)
                (folder / file[1]).write_text(block["content"], encoding="utf-8")


def _run(command: str, folder: Path) -> None:
    """Run a command of pptrace with this Python."""
    _, *arguments = shlex.split(command)
    program = "from pptrace.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S603 - a command of our pages


def notebook_of(page: str) -> dict[str, Any]:
    """Return a page as a notebook of format 4.5: commands and files are cells of code, outputs are left out."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        cell = {"cell_type": kind, "id": f"cell{len(cells)}", "metadata": {}, "source": source.strip()}
        cells.append(cell | ({"outputs": [], "execution_count": None} if kind == "code" else {}))

    end = 0
    for block in BLOCK.finditer(page):
        named = NAMED.match(block["content"])
        if block["language"] != "bash" and block["language"] != "text" and not named:
            continue
        if page[end : block.start()].strip():
            add("markdown", page[end : block.start()])
        if block["language"] == "bash":
            add("code", f"%%bash\n{block['content']}")
        elif named:
            add("code", f"%%writefile {named[1]}\n{block['content']}")
        end = block.end()
    add("markdown", page[end:])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
