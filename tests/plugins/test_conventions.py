"""What holds for every hook: it is documented, offered by someone, typed, and reachable."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pptrace.plugin
import pptrace.testing
from pptrace.errors import PluginError
from pptrace.plugins import builtin, hookspecs, offers, providers
from pptrace.plugins.hookspecs import hookimpl, hookspec
from pptrace.plugins.registry import OFFER_KINDS, OfferKind, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


@cache
def implemented() -> set[str]:
    files = [Path(str(builtin.__file__)), *ROOT.glob("plugins/*/src/**/*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("kind", OFFER_KINDS, ids=lambda kind: kind.hook)
def test_every_hook_is_documented_and_offered_by_someone(kind: OfferKind[Any]) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")

    assert f"`{kind.hook}`" in page
    assert kind.hook in implemented()


@pytest.mark.parametrize("kind", OFFER_KINDS, ids=lambda kind: kind.hook)
def test_every_kind_of_offer_has_an_attribute_of_the_registry_and_a_documented_hook(kind: OfferKind[Any]) -> None:
    hook = getattr(hookspecs, kind.hook)
    signature = inspect.signature(hook)

    assert getattr(Registry, kind.plural) is kind
    assert hook.__doc__.startswith("Yield ")
    assert not signature.parameters
    assert signature.return_annotation == f"Iterable[{kind.path.replace(':', '.')}]"


def test_every_hook_has_a_kind_of_offer() -> None:
    hooks = {name for name in vars(hookspecs) if name.startswith("pptrace_")}

    assert hooks == {kind.hook for kind in OFFER_KINDS}


@pytest.mark.parametrize("kind", OFFER_KINDS, ids=lambda kind: kind.hook)
def test_every_offer_is_a_frozen_record_of_this_interface_version(kind: OfferKind[Any]) -> None:
    assert kind.offer.__struct_config__.frozen
    assert kind.offer.__name__ in pptrace.plugin.__all__
    assert issubclass(kind.offer, providers.AnyOffer)
    assert providers.AnyOffer(name="a", summary="A.").api == providers.API


def test_a_new_kind_of_offer_is_a_hook_and_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks, guard, registry and messages hold for a new kind of offer without further code."""

    class ColorOffer(providers.AnyOffer, frozen=True, kw_only=True):
        mix: Callable[[], str]

    monkeypatch.setattr(offers, "ColorOffer", ColorOffer, raising=False)
    colors: OfferKind[ColorOffer] = OfferKind("offers:ColorOffer", "pptrace-paint")
    colors.__set_name__(Registry, "colors")

    @hookspec
    def pptrace_colors() -> None:
        """Yield colors."""

    class Painter:
        def __init__(self, mix: Any) -> None:
            self.mix = mix

        @hookimpl
        def pptrace_colors(self) -> list[ColorOffer]:
            return [ColorOffer(name="red", summary="Red.", mix=self.mix)]

    def registry(mix: Any) -> Registry:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hookspecs, "pptrace_colors", pptrace_colors, raising=False)
            return Registry.load(entry_points=False, plugins={"painter": Painter(mix)})

    assert not registry(str).failures
    assert registry(str).offered(colors)["red"].offer.mix() == ""
    with pytest.raises(PluginError, match="ColorOffer 'red': its mix is not callable"):
        registry(3).offered(colors)
    with pytest.raises(PluginError, match="mix of color 'red' raised ZeroDivisionError"):
        registry(lambda: 1 // 0).offered(colors)["red"].offer.mix()
    with pytest.raises(PluginError, match=r"no installed plugin offers a color named 'blue'.*pptrace-paint"):
        _ = registry(str).offered(colors)["blue"]


@pytest.mark.parametrize("module", [pptrace.plugin, pptrace.testing])
def test_what_a_public_module_exports_is_there(module: object) -> None:
    for name in module.__all__:
        assert hasattr(module, name)


def test_the_core_alone_loads_without_a_warning() -> None:
    warnings: list[str] = []

    registry = Registry.load(entry_points=False, warn=warnings.append)

    assert warnings == []
    for kind in OFFER_KINDS:
        assert isinstance(len(registry.offered(kind)), int)
