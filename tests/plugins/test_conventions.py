"""What holds for every hook: it is documented, offered by someone, typed, and reachable."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pptrace.plugin
import pptrace.testing
from pptrace.errors import PluginError
from pptrace.plugins import builtin, discovery, hookspecs, markers, offers
from pptrace.plugins.hookspecs import SORTS, Sort, hook_specs
from pptrace.plugins.markers import hookimpl
from pptrace.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


@cache
def implemented() -> set[str]:
    files = [Path(str(builtin.__file__)), *ROOT.glob("plugins/*/src/**/*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.hook)
def test_every_hook_is_documented_and_offered_by_someone(sort: Sort[Any]) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")

    assert f"`{sort.hook}`" in page
    assert sort.hook in implemented()


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.hook)
def test_every_hook_has_a_place_in_the_registry_and_takes_nothing(sort: Sort[Any]) -> None:
    assert getattr(Registry, sort.plural) is sort
    assert not inspect.signature(getattr(hook_specs(), sort.hook)).parameters


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.hook)
def test_every_offer_is_a_frozen_record_of_this_interface_version(sort: Sort[Any]) -> None:
    assert sort.offer.__dataclass_params__.frozen
    assert sort.offer.__name__ in offers.__all__
    assert inspect.signature(sort.offer).parameters["api"].default == offers.API


def test_a_new_sort_is_one_row() -> None:
    """Hook, checks, guard, registry, messages and list of plugins know a sort by its row alone."""

    @dataclass(frozen=True, kw_only=True)
    class ColourOffer:
        name: str
        summary: str
        mix: Callable[[], str]
        api: int = offers.API

    colours = Sort(hook="pptrace_colours", offer=ColourOffer, source="pptrace-paint")

    class Painter:
        def __init__(self, mix: Any) -> None:
            self.mix = mix

        @hookimpl
        def pptrace_colours(self) -> list[ColourOffer]:
            return [ColourOffer(name="red", summary="Red.", mix=self.mix)]

    def registry(mix: Any) -> Registry:
        with pytest.MonkeyPatch.context() as patch:
            for module in (hookspecs, discovery):
                patch.setattr(module, "SORTS", (*SORTS, colours))
            return Registry.load(entry_points=False, plugins={"painter": Painter(mix)})

    assert not registry(str).failures
    assert registry(str).offered(colours)["red"].offer.mix() == ""
    with pytest.raises(PluginError, match="ColourOffer 'red': its mix is not callable"):
        registry(3).offered(colours)
    with pytest.raises(PluginError, match="mix of colour 'red' raised ZeroDivisionError"):
        registry(lambda: 1 // 0).offered(colours)["red"].offer.mix()
    with pytest.raises(PluginError, match=r"no installed plugin offers a colour named 'blue'.*pptrace-paint"):
        _ = registry(str).offered(colours)["blue"]


@pytest.mark.parametrize("module", [pptrace.plugin, pptrace.testing, offers, markers])
def test_what_a_public_module_exports_is_there(module: object) -> None:
    for name in module.__all__:
        assert hasattr(module, name)


def test_the_core_alone_loads_without_a_warning() -> None:
    warnings: list[str] = []

    registry = Registry.load(entry_points=False, warn=warnings.append)

    assert warnings == []
    for sort in SORTS:
        assert isinstance(len(registry.offered(sort)), int)
