"""Start-up stays light: what is heavy is imported where it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

HEAVY = {
    "google",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "llvmlite",
    "numpy",
    "perfetto",
    "pydantic",
    "rich",
    "yaml",
}
"""``google`` is where protobuf lives."""

FLAGS = ["--schedule", "1f1b", "--pp", "4", "--microbatches", "8"]

FORMATS = {f"pptrace.traces.{name}" for name in ("kineto", "perfetto")}
"""The packages whose offers are listed; what writes and reads is in modules below them."""

SIMULATE = {f"pptrace.cli.{name}" for name in ("main", "options", "output", "simulate")}

MOST_MODULES = 114
"""Of the core, where a small step is simulated, each a fifth of a millisecond: a few more than there are."""

TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_importing_pptrace_loads_nothing_heavy_and_no_plugin(tmp_path: Path) -> None:
    loaded = modules_after("import pptrace", tmp_path)

    assert tops(loaded) & HEAVY == set()
    assert [name for name in loaded if name.startswith("pptrace_")] == []
    assert {name for name in loaded if name.split(".")[0] == "pptrace"} == {"pptrace", "pptrace.lazy"}


def test_importing_the_api_for_plugins_loads_nothing_beside_it(tmp_path: Path) -> None:
    loaded = modules_after("import pptrace.plugin", tmp_path)

    assert tops(loaded) & {*HEAVY, "pluggy", "click"} == set()
    assert {name for name in loaded if name.startswith("pptrace.")} == {"pptrace.lazy", "pptrace.plugin"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plugins", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    loaded = modules_after(command(arguments), tmp_path)

    assert "click" in loaded
    assert tops(loaded) & {*HEAVY, "email"} == set()
    if arguments != ["--help"]:
        assert [name for name in loaded if name.startswith("pptrace_")] == []


def test_help_names_the_commands_of_plugins_without_importing_them(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(PLUGIN)
    (tmp_path / "checks-1.dist-info").mkdir()
    (tmp_path / "checks-1.dist-info/entry_points.txt").write_text("[pptrace]\nchecks = checks\n")

    loaded = modules_after(command(["--help"]), tmp_path)

    assert {"pptrace.plugins.registry", "checks"} <= loaded
    assert "tabnanny" not in loaded
    assert "tabnanny" in modules_after(command(["check"]), tmp_path)


PLUGIN = """
from pptrace.plugin import CommandOffer, hookimpl

@hookimpl
def pptrace_commands():
    yield CommandOffer(name="check", summary="Check.", load=load)

def load():
    import click, tabnanny
    return click.Command("check")
"""
"""A plugin whose command is in a module of its own."""


def test_a_small_simulation_never_loads_llvm_or_what_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE)

    loaded = modules_after(command(["simulate", "--schedule", "table.csv"]), tmp_path)

    assert "numpy" in loaded
    assert tops(loaded) & {"google", "jinja2", "matplotlib", "llvmlite", "perfetto"} == set()


def test_a_small_simulation_imports_only_what_it_uses(tmp_path: Path) -> None:
    loaded = modules_after(command(["simulate", *FLAGS]), tmp_path)

    own = {name for name in loaded if name.split(".")[0] == "pptrace"}
    areas = {".".join(name.split(".")[:2]) for name in own}
    assert "pptrace.sim" in areas
    assert areas & {"pptrace.measured", "pptrace.api", "pptrace.search"} == set()
    assert areas & {"pptrace.testing"} == set()
    assert {name for name in own if name.startswith("pptrace.traces.")} <= FORMATS
    assert {name for name in own if name.startswith("pptrace.cli.")} <= SIMULATE
    assert tops(loaded) & {"asyncio", "multiprocessing", "sqlite3", "http", "logging"} == set()
    assert loaded & {"numpy.ma", "yaml"} == set()
    assert len(own) <= MOST_MODULES


@pytest.mark.needs_plugins
def test_plugins_that_a_command_does_not_use_import_their_plugin_module_alone(tmp_path: Path) -> None:
    loaded = modules_after(command(["simulate", *FLAGS]), tmp_path)

    assert "pptrace_profilers.plugin" in loaded
    assert tops(loaded) & {"dask", "distributed", "ortools"} == set()
    for distribution in ("dask", "frameworks", "profilers"):
        package = f"pptrace_{distribution}"
        assert {name for name in loaded if name.split(".")[0] == package} == {package, f"{package}.plugin"}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux tells them")
def test_a_command_starts_no_threads_for_products_of_floats(tmp_path: Path) -> None:
    counted = "import os\nsys.modules[f\"threads:{len(os.listdir('/proc/self/task'))}\"] = None"
    loaded = modules_after(f"{dedent(command(['simulate', *FLAGS]))}\n{counted}", tmp_path)

    assert "numpy" in loaded
    assert {name for name in loaded if name.startswith("threads:")} == {"threads:1"}


def test_a_small_trace_never_loads_llvm(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE)

    loaded = modules_after(
        command(["simulate", "--schedule", "table.csv", "-o", "a.pftrace", "-o", "a.json.gz"]), tmp_path
    )

    assert {file.name for file in tmp_path.iterdir()} == {"table.csv", "a.pftrace", "a.json.gz"}
    assert tops(loaded) & {"matplotlib", "llvmlite"} == set()


def command(arguments: list[str]) -> str:
    return f"""
        import contextlib
        from pptrace.cli.main import main
        sys.argv = ["pptrace", *{arguments!r}]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
            main()
    """


def modules_after(program: str, folder: Path) -> set[str]:
    """Return the modules loaded after a program ran in a process of its own."""
    source = f"import json, sys\n{dedent(program)}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PPTRACE", "COV"))}
    result = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def tops(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}
