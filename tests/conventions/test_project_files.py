"""Files for contributors agree with ``.ci/run``, the README and the version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pptrace.version import __version__

ROOT = Path(__file__).parents[2]
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
TEST_LINE = "python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt && .venv/bin/pytest"


def test_readme_and_contributing_have_the_same_test_line() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"\n{TEST_LINE}\n" in (ROOT / page).read_text(encoding="utf-8"), page


def test_pages_install_from_the_repository() -> None:
    pages = [page for page in ROOT.rglob("*.md") if ".venv" not in page.parts]

    assert len(pages) > 30
    assert [page for page in pages if re.search(r"pip install '?pptrace", page.read_text(encoding="utf-8"))] == []


def test_the_development_requirements_are_the_core_and_every_plugin_editable() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    plugins = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))

    assert [line.partition("[torch]")[0] for line in lines if not line.startswith("#")] == [
        "-e .[dev]",
        *(f"-e ./plugins/{plugin}" for plugin in plugins),
        "torch==2.13.*",
    ]


def test_pre_commit_and_contributing_have_the_linters_of_ci() -> None:
    function = re.search(r"^lint_and_types\(\) \{\n(.*?)^\}", CI, re.DOTALL | re.MULTILINE)
    assert function
    linters = [line.strip() for line in function[1].splitlines()]
    (repository,) = loaded(".pre-commit-config.yaml")["repos"]

    assert [hook["entry"] for hook in repository["hooks"]] == linters
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    command = " && ".join(f".venv/bin/{linter}" for linter in linters)
    assert f"\n{command}\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_workflow_calls_the_ci_script_on_the_oldest_python() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    python = next(step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/setup-python"))

    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert all(re.fullmatch(r"[\w/-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
    assert python["cache"] == "pip"
    assert f'requires-python = ">={python["python-version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_citation_has_this_version() -> None:
    citation = loaded("CITATION.cff")

    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()


def loaded(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
