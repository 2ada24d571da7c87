"""What holds for the tree as a whole: words, links, versions, plugins' project files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pptrace.version import __version__

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
PICTURES = {".gif", ".jpg", ".pdf", ".png", ".svg"}
STUDY = "examples/paper-2605.24006/"
"""Its own test holds its pictures to its page."""
_WORDS = ("work" + "space", "age" + "nt", "ses" + "sion", "py" + "pi.org", "to" + "do", "fix" + "me", "x" * 3)
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(_WORDS)})s?\b|/{'work'}/|/root/", re.IGNORECASE)
MEANT = re.compile(
    r"scope=\"session\"|pytest_session\w*|currentWorkspace|trace\.workspace"  # others' names
    r"|user[- ]agent|DejaVu Sans|attention workspace|context, workspace"  # other meanings
    , re.IGNORECASE,
)  # fmt: skip


def test_every_module_opens_with_a_sentence() -> None:
    opened = re.compile(r'r?"""\S|\s*\Z')

    silent = [str(path) for path in sources("pptrace", "plugins") if not opened.match(text(path))]

    assert silent == []


def test_no_file_speaks_of_what_is_not_its_business() -> None:
    found = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path in tracked()
        if path != Path(__file__).relative_to(ROOT) and FORBIDDEN.search(text(path))
        for number, line in enumerate(text(path).splitlines(), 1)
        if FORBIDDEN.search(MEANT.sub("", line))
    ]

    assert found == []


def test_every_relative_link_leads_somewhere() -> None:
    broken = []
    for page in (path for path in tracked() if path.suffix == ".md"):
        links = re.findall(r"\]\(([^)#\s]+)|src=\"([^\"]+)\"", text(page))
        targets = [a or b for a, b in links if "://" not in (a or b)]
        broken += [f"{page} -> {target}" for target in targets if not (ROOT / page.parent / target).exists()]

    assert broken == []


def test_every_source_path_on_a_page_exists() -> None:
    missing = [
        f"{page} -> {path}"
        for page in tracked()
        if page.suffix == ".md"
        for path in re.findall(r"`((?:pptrace|pptrace_kernel|plugins|benchmarks|examples)/[\w./-]+)`", text(page))
        if not (ROOT / path).exists()
    ]

    assert missing == []


def test_every_name_on_the_page_of_additions_is_in_the_source() -> None:
    words = re.findall(r"`([\w.]+)`", text(Path("docs/additions.md")))
    sources = (path for path in tracked() if path.suffix in {".py", ".pyi", ".yaml", ".yml", ".toml"})
    names = {name for path in sources for name in re.findall(r"\w+", text(path))}
    files = {path.name for path in tracked()}

    unknown = [word for word in words if word not in files and not names.issuperset(word.split("."))]

    assert unknown == []


def test_every_picture_is_shown_by_a_page() -> None:
    shown = {
        (ROOT / page.parent / target).resolve()
        for page in tracked() if page.suffix == ".md"
        for targets in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"", text(page))
        for target in targets if target
    }  # fmt: skip

    unseen = [str(path) for path in files() if path.suffix in PICTURES and (ROOT / path).resolve() not in shown]

    assert [path for path in unseen if not path.startswith(STUDY)] == []


def test_the_changelog_has_this_version_first() -> None:
    headings = re.findall(r"^## (\S+)", text(Path("CHANGELOG.md")), re.MULTILINE)

    assert headings[0] == __version__ == project(ROOT)["version"]


def test_there_are_plugins() -> None:
    assert {plugin.name for plugin in PLUGINS} >= {"pptrace-models", "pptrace-schedules"}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_is_a_distribution_of_its_own(plugin: Path) -> None:
    about, core = project(plugin), project(ROOT)

    assert about["name"] == plugin.name
    assert about["description"].endswith(".")
    assert about["license"] == core["license"]
    assert about["requires-python"] == core["requires-python"]
    assert f"pptrace=={core['version']}" in about["dependencies"]
    assert (plugin / about["readme"]).is_file()
    assert list(plugin.glob("tests/test_*.py"))
    assert (plugin / "src" / plugin.name.replace("-", "_") / "py.typed").is_file()


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_has_one_entry_point_and_the_project_knows_it(plugin: Path) -> None:
    (entry,) = project(plugin)["entry-points"]["pptrace"].items()
    package = plugin.name.replace("-", "_")
    tools = tomllib.loads(text(Path("pyproject.toml")))["tool"]

    assert f"pptrace-{entry[0]}" == plugin.name
    assert entry[1].split(".")[0] == package
    assert package in tools["ruff"]["lint"]["isort"]["known-first-party"]
    assert f"plugins/{plugin.name}/src" in tools["mypy"]["mypy_path"]
    assert package in tools["coverage"]["run"]["source"]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_declares_what_it_imports(plugin: Path) -> None:
    imports = set()
    for path in plugin.rglob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imports.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imports |= {name.name.split(".")[0] for name in node.names}
    extras = (each for extra in project(plugin).get("optional-dependencies", {}).values() for each in extra)
    declared = {
        re.split(r"[^\w-]", each)[0].lower().replace("-", "_")
        for each in (*project(plugin)["dependencies"], *extras)
    }
    declared |= {"google"} if "protobuf" in declared else set()
    declared |= {"pptrace_kernel"} if "pptrace" in declared else set()

    assert imports - sys.stdlib_module_names - {plugin.name.replace("-", "_")} <= declared


def test_every_ignored_rule_says_why() -> None:
    project_file = text(Path("pyproject.toml"))
    ruff = project_file.partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.pydocstyle]")[0]
    lines = [line for line in ruff.splitlines() if re.search(r'^\s+"[A-Z]+\d*"', line)]

    assert lines
    assert [line for line in lines if "#" not in line] == []


def test_every_exception_in_the_code_says_why() -> None:
    bare = re.compile(r"(?:noqa: [A-Z0-9, ]+|type: ignore\[[^\]]*\])\s*$|(?:noqa|type: ignore)\s*$")
    found = [
        f"{path}:{number}"
        for path in sources("pptrace", "plugins", "tests", "examples", "benchmarks")
        for number, line in enumerate(text(path).splitlines(), 1)
        if bare.search(line) and "empty-body" not in line  # a hook's body is its docstring
    ]

    assert found == []


def tracked() -> list[Path]:
    """Return the text files that belong to the project."""
    return [file for file in files() if b"\0" not in (ROOT / file).read_bytes()[:4096]]


def files() -> list[Path]:
    """Return the files that belong to the project."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip("not a git checkout")
    return [Path(line) for line in result.stdout.splitlines() if (ROOT / line).is_file()]


def sources(*folders: str) -> list[Path]:
    return [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
