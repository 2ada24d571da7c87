"""Offers are checked before anyone uses them, and names are looked up with advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pptrace.errors import PluginError
from pptrace.plugin import ExporterOffer, ModelOffer, NetworkOffer, ScheduleOffer, hookimpl
from pptrace.plugins.registry import OFFER_KINDS, OfferKind, Registry

Install = Callable[..., None]
Source = Callable[[str], str]


class Yields:
    """A plugin whose schedules hook returns what it is given."""

    def __init__(self, result: object) -> None:
        self.result = result

    @hookimpl
    def pptrace_schedules(self) -> Any:
        return self.result


def schedule(**changes: Any) -> ScheduleOffer:
    fields: Mapping[str, Any] = {"name": "mine", "summary": "Mine.", "build": lambda _: []}
    return ScheduleOffer(**{**fields, **changes})


def refusal(result: object) -> str:
    registry = Registry.load(entry_points=False, plugins={"odd": Yields(result)})
    with pytest.raises(PluginError) as caught:
        _ = registry.schedules
    assert caught.value.plugin == "odd"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_offer_of_another_interface_version_names_what_it_asks_for_and_what_there_is() -> None:
    message = "it asks for plugin interface 2 and this pptrace has 1; update pptrace"

    assert message in refusal([schedule(api=2)])


def test_an_offer_of_a_nonsense_interface_version_blames_the_plugin() -> None:
    assert "interface '1' and this pptrace has 1; update the plugin" in refusal([schedule(api="1")])


@pytest.mark.parametrize("name", ["1F1B", "zb_h1", "-x", "x-", "a b", "", "a--b", 5])
def test_a_name_that_users_could_not_type_is_refused(name: object) -> None:
    assert "a name is lower-case letters and digits" in refusal([schedule(name=name)])


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "llama-3.1-8b", "x"])
def test_names_of_papers_and_models_are_fine(name: str) -> None:
    registry = Registry.load(entry_points=False, plugins={"fine": Yields([schedule(name=name)])})

    assert list(registry.schedules) == [name]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "pptrace_schedules returned None, expected an iterable of offers"),
        (5, "pptrace_schedules returned 5, expected an iterable of offers"),
        ("gpipe", "pptrace_schedules returned 'gpipe', expected an iterable of offers"),
        ({"a": 1}, "pptrace_schedules returned {'a': 1}, expected an iterable of offers"),
        (["gpipe"], "pptrace_schedules yielded a str, expected a ScheduleOffer"),
        ([ScheduleOffer], "pptrace_schedules yielded the class ScheduleOffer, expected a ScheduleOffer"),
        ([schedule(build=3)], "its build is not callable"),
        ([schedule(bubble=0.5)], "its bubble is not callable"),
        ([schedule(summary="")], "its summary is not one line of text"),
        ([schedule(summary="a\nb")], "its summary is not one line of text"),
    ],
)
def test_nonsense_from_a_hook_is_one_line_with_the_plugin(result: object, message: str) -> None:
    assert message in refusal(result)


def test_the_offers_of_the_wrong_hook_are_refused() -> None:
    network = NetworkOffer(name="n", summary="N.", build=lambda _: None)

    assert "yielded a NetworkOffer, expected a ScheduleOffer" in refusal([network])


def test_a_preset_without_a_mapping_and_an_exporter_without_endings_are_refused() -> None:
    class Odd:
        @hookimpl
        def pptrace_models(self) -> Any:
            return [ModelOffer(name="m", summary="M.", values=[1])]

        @hookimpl
        def pptrace_exporters(self) -> Any:
            return [ExporterOffer(name="e", summary="E.", suffixes=("json",), write=print)]

    registry = Registry.load(entry_points=False, plugins={"odd": Odd()})

    with pytest.raises(PluginError, match="its values are not a mapping"):
        _ = registry.models
    with pytest.raises(PluginError, match=r"its suffixes are not a tuple of endings such as '\.json'"):
        _ = registry.exporters


def test_a_name_offered_twice_names_both_distributions(install: Install, schedule_source: Source) -> None:
    install("alpha", schedule_source("twin"))
    install("beta", schedule_source("twin"))

    with pytest.raises(PluginError) as caught:
        _ = Registry.load().schedules

    message = str(caught.value)
    assert "plugin 'beta' (pptrace-beta 1.2)" in message
    assert "plugin 'alpha' (pptrace-alpha 1.2)" in message
    assert "'twin'" in message
    assert caught.value.distribution == "pptrace-beta"


def test_a_clash_among_schedules_leaves_networks_alone(install: Install, schedule_source: Source) -> None:
    install("alpha", schedule_source("twin"))
    install("beta", schedule_source("twin"))

    assert isinstance(Registry.load().networks, Mapping)


@pytest.mark.parametrize("generator", ["", "    yield\n"])
def test_a_hook_that_raises_names_plugin_exception_and_line(install: Install, generator: str) -> None:
    source = f"@hookimpl\ndef pptrace_schedules():\n    raise ValueError('so\\nsad')\n{generator}"
    install("thrower", source)

    with pytest.raises(PluginError) as caught:
        _ = Registry.load().schedules

    message = str(caught.value)
    assert message.startswith(
        "plugin 'thrower' (pptrace-thrower 1.2): pptrace_schedules raised ValueError: so sad at "
    )
    assert message.endswith("thrower_of_a_test.py:5")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_unknown_name_says_which_are_known_which_is_nearest_and_how_to_get_more() -> None:
    offers = [schedule(name="gpipe"), schedule(name="1f1b")]
    registry = Registry.load(entry_points=False, plugins={"two": Yields(offers)})

    with pytest.raises(PluginError) as caught:
        _ = registry.schedules["gpip"]

    assert str(caught.value) == (
        "no installed plugin offers a schedule named 'gpip' (did you mean 'gpipe'? known: 1f1b, gpipe); "
        "more come with `pip install ./plugins/pptrace-schedules` in a copy of the repository, or write "
        "./FILE.py:FUNCTION for your own"
    )


def test_a_name_of_another_section_names_that_section() -> None:
    registry = Registry.load(entry_points=False)

    with pytest.raises(PluginError, match=r"^'hockney' is not a cluster: write it under network$"):
        _ = registry.clusters["hockney"]


def test_several_names_in_place_of_one_are_reported_as_such() -> None:
    registry = Registry.load(entry_points=False, plugins={"two": Yields([schedule(name="a"), schedule(name="b")])})

    with pytest.raises(PluginError, match=r"^'a, b' are several schedules: name one$"):
        _ = registry.schedules["a, b"]
    with pytest.raises(PluginError, match="no installed plugin offers a schedule named 'a,c'"):
        _ = registry.schedules["a,c"]


@pytest.mark.parametrize("kind", OFFER_KINDS, ids=lambda kind: kind.noun)
def test_every_sort_of_name_can_be_unknown(kind: OfferKind[Any]) -> None:
    registry = Registry.load(entry_points=False)

    article = "an" if kind.noun in {"executor", "explanation", "exporter", "importer"} else "a"
    with pytest.raises(PluginError, match=f"offers {article} {kind.noun} named 'no-such-name'"):
        _ = registry.offered(kind)["no-such-name"]


def test_an_unknown_name_of_a_broken_plugin_points_at_the_plugin(install: Install) -> None:
    install("schedules", "import no_such_module_anywhere\n")
    registry = Registry.load(warn=lambda _: None)

    with pytest.raises(PluginError, match="pptrace-schedules failed to load, see `pptrace plugins`"):
        _ = registry.schedules["no-such-schedule"]


def test_an_unknown_name_of_a_disabled_plugin_says_so(install: Install) -> None:
    install("schedules", "x = 1\n")
    registry = Registry.load(disable=["schedules"])

    with pytest.raises(PluginError, match="pptrace-schedules is disabled by PPTRACE_DISABLE_PLUGINS"):
        _ = registry.schedules["no-such-schedule"]
