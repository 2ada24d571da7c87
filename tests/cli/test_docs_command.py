"""``pptrace docs`` lists the pages and shows each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pptrace.cli import docs
from pptrace.cli.main import cli
from pptrace.errors import PptraceError

PAGES = Path(__file__).parents[2] / "docs"


def run(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["docs", *arguments], catch_exceptions=False).stdout


def test_every_page_is_listed_with_its_title() -> None:
    listed = dict(line.split(maxsplit=1) for line in run().splitlines())

    assert listed.keys() == {path.relative_to(PAGES).with_suffix("").as_posix() for path in PAGES.rglob("*.md")}
    assert listed["glossary"] == "Glossary"


@pytest.mark.parametrize("name", ["plan", "plan.md", "tutorials/choose-schedule"])
def test_a_page_is_printed_as_it_is_where_there_is_no_terminal(name: str) -> None:
    assert run(name) == (PAGES / f"{name.removesuffix('.md')}.md").read_text(encoding="utf-8")


def test_an_unknown_page_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(PptraceError, match=r"no page 'plans' \(did you mean 'plan'\? known: .*glossary"):
        run("plans")


def test_installed_pages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "share/doc/pptrace"
    installed.mkdir(parents=True)
    (installed / "index.md").write_text("# Start\n", encoding="utf-8")

    class Installed(str):
        __slots__ = ()

        def as_posix(self) -> str:
            return str(self)

        def locate(self) -> Path:
            return tmp_path / self

    monkeypatch.setattr(docs, "_SOURCE", tmp_path / "none")
    monkeypatch.setattr(docs, "files", lambda name: [Installed(f"share/doc/{name}/index.md")])

    assert run().split() == ["index", "Start"]


def test_missing_pages_are_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "_SOURCE", tmp_path)
    monkeypatch.setattr(docs, "files", lambda _: None)

    with pytest.raises(PptraceError, match="install pptrace from a copy of the repository"):
        run()
