"""``pptrace new-plugin`` writes a whole plugin or nothing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pptrace.cli import new_plugin
from pptrace.cli.new_plugin import command, write_plugin
from pptrace.errors import ConfigError, OutputError
from pptrace.plugin import ScheduleOffer, hookimpl
from pptrace.plugins.registry import Registry
from pptrace.testing import assert_schedule_family, assert_valid_network


def invoke(name: str, into: Path, *options: str, registry: Registry | None = None) -> Result:
    registry = registry or Registry.load(entry_points=False)
    arguments = [name, "--into", str(into), *options]
    return CliRunner().invoke(command, arguments, obj=registry, catch_exceptions=False)


@pytest.mark.parametrize("options", [(), ("--schedule",)])
def test_a_new_plugin_keeps_its_promises(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = invoke("my-2nd-try", tmp_path, *options)

    folder = tmp_path / "pptrace-my-2nd-try"
    assert result.stdout.startswith(f"wrote {folder}\nnext: pip install -e {folder} && pptrace show ")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "pptrace_my_2nd_try.py",
        "pyproject.toml",
        "test_pptrace_my_2nd_try.py",
    ]
    spec = importlib.util.spec_from_file_location("made", folder / "pptrace_my_2nd_try.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry = Registry.load(entry_points=False, plugins={"made": module})
    assert_schedule_family(registry.schedules["my-2nd-try"])


def test_a_new_network_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("my-wires", tmp_path, "--network")

    folder = tmp_path / "pptrace-my-wires"
    assert result.stdout.startswith(f"wrote {folder}\nnext: pip install -e {folder} && pptrace simulate ")
    assert result.stdout.endswith(" --network my-wires\n")
    monkeypatch.syspath_prepend(folder)
    module, own = map(importlib.import_module, ("pptrace_my_wires", "test_pptrace_my_wires"))
    for name in (module.__name__, own.__name__):
        del sys.modules[name]
    own.test_routes_are_valid_and_have_the_bisection()
    registry = Registry.load(entry_points=False, plugins={"made": module})
    assert_valid_network(registry.networks["my-wires"])


@pytest.mark.parametrize("kind", ["schedule", "network"])
def test_the_project_file_names_the_entry_point_and_needs_this_core(tmp_path: Path, kind: str) -> None:
    folder = write_plugin("mine", tmp_path, kind=kind)

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]

    assert project["name"] == "pptrace-mine"
    assert project["description"] == f"The {kind} mine for pptrace."
    assert project["entry-points"] == {"pptrace": {"mine": "pptrace_mine"}}
    assert project["dependencies"] == ["pptrace>=0.1,<2"]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("Mine", "mine"), ("a_b", "a-b"), ("../x", "x"), ("-", "my-schedule"), ("", "my-schedule")],
)
def test_a_bad_name_is_refused_with_a_better_one(tmp_path: Path, name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"; try {suggestion}$"):
        CliRunner().invoke(
            command,
            ["--into", str(tmp_path), "--", name],
            obj=Registry.load(entry_points=False),
            catch_exceptions=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_a_plugin_offers_is_refused(tmp_path: Path) -> None:
    class Mine:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name="taken", summary="Taken.", build=lambda _: [])]

    registry = Registry.load(entry_points=False, plugins={"inline": Mine()})

    with pytest.raises(ConfigError, match="plugin 'inline' offers a schedule named 'taken' already"):
        invoke("taken", tmp_path, registry=registry)
    with pytest.raises(ConfigError, match=r"plugin 'builtin' .* offers a network named 'hockney' already"):
        invoke("hockney", tmp_path, "--network", registry=registry)
    assert invoke("taken", tmp_path, "--network", registry=registry).exit_code == 0


def test_a_bad_name_of_a_network_is_refused_with_one_of_a_network(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"; try my-network$"):
        invoke("_", tmp_path, "--network")


def test_a_broken_plugin_does_not_stop_a_new_one(tmp_path: Path) -> None:
    class Broken:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            raise ValueError

    registry = Registry.load(entry_points=False, plugins={"inline": Broken()})

    assert invoke("mine", tmp_path, registry=registry).exit_code == 0


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_stands_there_is_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "pptrace-mine"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("precious")
    else:
        target.symlink_to(tmp_path / "nowhere")

    with pytest.raises(OutputError, match="pptrace-mine: it exists already"):
        write_plugin("mine", tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["pptrace-mine"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="gone: cannot write here: No such file or directory"):
        write_plugin("mine", tmp_path / "gone")


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(new_plugin.tempfile, "mkdtemp", refuse)

    with pytest.raises(OutputError, match="cannot write here: Permission denied"):
        write_plugin("mine", tmp_path)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, text: str, encoding: str) -> int:
        if path.name == "README.md":
            raise OSError(28, "No space left on device")
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(new_plugin.Path, "write_text", full)

    with pytest.raises(OutputError, match="pptrace-mine: cannot write the plugin: No space left on device"):
        write_plugin("mine", tmp_path)

    assert list(tmp_path.iterdir()) == []
