"""``pptrace docs``: show the installed pages of the documentation."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import click

from pptrace.cli.output import raw
from pptrace.errors import PptraceError, nearest

_INSTALLED = "share/doc/pptrace/index.md"
_SOURCE = Path(__file__).parents[2] / "docs"
_EXAMPLES = """\b
pptrace docs
pptrace docs plan
pptrace docs tutorials/choose-schedule"""


@click.command("docs", epilog=_EXAMPLES)
@click.argument("page", required=False)
def command(page: str | None) -> None:
    """Show PAGE of the documentation, or list the pages.

    The pages are installed with pptrace, so this works offline. In a terminal, they are formatted and paged.
    """
    folder = _folder()
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    if page is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            click.echo(f"{name:{width}}  {_title(path)}")
        return
    name = page.removesuffix(".md")
    if name not in pages:
        raise PptraceError(f"no page {page!r}{nearest(name, pages)}")
    _show(pages[name].read_text(encoding="utf-8"))


def _folder() -> Path:
    """Return the folder of the pages: that of a source tree, or the installed one.

    Raises:
        PptraceError: there are no pages.
    """
    if (_SOURCE / "index.md").is_file():
        return _SOURCE
    try:
        installed = [file for file in files("pptrace") or () if file.as_posix().endswith(_INSTALLED)]
    except PackageNotFoundError:
        installed = []
    if not installed:
        raise PptraceError("the documentation is not installed; install pptrace from a copy of the repository")
    return Path(str(installed[0].locate())).parent


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as page:
        return page.readline().removeprefix("# ").strip()


def _show(text: str) -> None:
    """Print a page: formatted and paged in a terminal, else as Markdown."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=raw(sys.stdout))
    with console.pager(styles=True):
        console.print(Markdown(text))
