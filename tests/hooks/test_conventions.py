"""What holds for every hook: it is documented, offered by someone, typed, and reachable."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest

import pptrace.hooks
import pptrace.testing
from pptrace.hooks import builtin, offers, specs
from pptrace.hooks.provider import HOOKS
from pptrace.hooks.registry import Registry

ROOT = Path(__file__).parents[2]
NAMES = sorted(name for name in vars(specs) if name.startswith("pptrace_"))


@cache
def implemented() -> set[str]:
    files = [Path(str(builtin.__file__)), *ROOT.glob("plugins/*/src/**/*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("hook", NAMES)
def test_every_hook_is_documented_and_offered_by_someone(hook: str) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")

    assert f"`{hook}`" in page
    assert inspect.getdoc(getattr(specs, hook))
    assert hook in implemented()


@pytest.mark.parametrize("hook", NAMES)
def test_every_hook_takes_nothing_and_has_a_place_in_the_registry(hook: str) -> None:
    noun = hook.removeprefix("pptrace_")

    assert not inspect.signature(getattr(specs, hook)).parameters
    assert hook in HOOKS.values()
    assert isinstance(inspect.getattr_static(Registry, noun), object)
    assert callable(getattr(Registry, noun.removesuffix("s")))


def test_every_offer_is_a_frozen_record_of_this_interface_version() -> None:
    for offer in HOOKS:
        assert offer.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert offer.__name__ in offers.__all__
        assert inspect.signature(offer).parameters["api"].default == offers.API


@pytest.mark.parametrize("module", [pptrace.hooks, pptrace.testing, offers, specs])
def test_what_a_public_module_exports_is_there(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        assert hasattr(module, name)


def test_the_core_alone_loads_without_a_warning() -> None:
    warnings: list[str] = []

    registry = Registry.load(entry_points=False, warn=warnings.append)

    assert warnings == []
    for noun in (name.removeprefix("pptrace_") for name in NAMES):
        assert isinstance(len(getattr(registry, noun)), int)
