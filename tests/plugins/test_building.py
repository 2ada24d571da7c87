"""What plugins build is checked, and what they raise is told in one line."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import ConfigError, PluginError
from pptrace.network.contract import Links, Paths
from pptrace.plugin import CostModelOffer, ExporterOffer, ImporterOffer, NetworkOffer, ScheduleOffer, hookimpl
from pptrace.plugins.construction import build_network, build_schedule, build_workload
from pptrace.plugins.guards import call_plugin, guarded, one_line
from pptrace.plugins.providers import Provided, Provider
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import CostRequest, NetworkRequest, ScheduleRequest
from pptrace.steps.actions import Action
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHO = Provider(name="odd", distribution="pptrace-odd", version="3")
REQUEST = ScheduleRequest(ranks=2, microbatches=1)
ROWS = [["0F0", "0B0"], ["1F0", "1B0"]]


def schedule_of(built: object) -> Schedule:
    offer = ScheduleOffer(name="odd", summary="Odd.", build=lambda _: built)
    return build_schedule(Provided(offer=offer, provider=WHO), REQUEST)


@pytest.mark.parametrize(
    "built",
    [
        ROWS,
        ["0F0 0B0", "1F0, 1B0"],
        (tuple(row) for row in ROWS),
        [[Action.parse(cell) for cell in row] for row in ROWS],
        [["0F0", None, "", "0B0"], [None, "1F0", "1B0"]],
        Schedule.from_rows(ROWS),
    ],
    ids=["lists", "texts", "generator", "actions", "idle cells", "schedule"],
)
def test_a_schedule_may_return_rows_in_any_form(built: object) -> None:
    assert schedule_of(built).rows() == ROWS


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "schedule 'odd' returned None (NoneType), expected a Schedule or one row of actions per rank"),
        (7, "schedule 'odd' returned 7 (int), expected a Schedule"),
        ("0F0 0B0", "schedule 'odd' returned '0F0 0B0' (str), expected a Schedule"),
        ([1, 2], "returned 1 (int) as the row of rank 0, expected a list of actions"),
        ([["0F0", 0.5]], "returned 0.5 (float) as action 1 of rank 0, expected text such as 0F3"),
        ([["0F0", "0X0"], ["1F0"]], "cannot be read: rank 0, action 1, cell '0X0': not an action"),
        ([["0F0", "0B0"]], "has 1 ranks, but 2 were requested"),
        ([[], []], "has 0 microbatches, but 1 were requested"),
    ],
)
def test_a_schedule_that_returns_nonsense_is_the_plugins_error(built: object, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        schedule_of(built)

    assert str(caught.value).startswith("plugin 'odd' (pptrace-odd 3): ")
    assert message in str(caught.value)
    assert (caught.value.plugin, caught.value.distribution) == ("odd", "pptrace-odd")


def test_a_schedule_with_pairs_says_so_in_its_offer() -> None:
    rows = [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]
    request = ScheduleRequest(ranks=1, microbatches=2)
    silent = ScheduleOffer(name="odd", summary="Odd.", build=lambda _: rows)

    with pytest.raises(PluginError, match="schedule 'odd' has overlapped pairs: its offer needs has_pairs=True"):
        build_schedule(Provided(offer=silent, provider=WHO), request)

    table = build_schedule(Provided(offer=replace(silent, has_pairs=True), provider=WHO), request)
    assert table.rows() == rows


def test_rows_that_raise_while_they_are_read_are_the_plugins_error() -> None:
    def rows() -> Iterator[list[str]]:
        yield ["0F0", "0B0"]
        raise KeyError("one")

    with pytest.raises(PluginError, match=r"raised KeyError: 'one' at .*test_building\.py:\d+"):
        schedule_of(rows())


def test_a_network_without_paths_is_the_plugins_error() -> None:
    offer = NetworkOffer(name="odd", summary="Odd.", build=lambda _: "cable")

    with pytest.raises(
        PluginError, match=r"network 'odd' returned 'cable' \(str\), expected an object with links"
    ):
        build_network(Provided(offer=offer, provider=WHO), NetworkRequest(endpoints=2))


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ({"f_ns": 1}, "cost model 'odd' returned {'f_ns': 1} (dict), expected a Workload"),
        (Workload.uniform(stages=3, f_ns=1, b_ns=2), "returned costs of 3 stages, but 2 were requested"),
        (
            Workload.uniform(stages=2, microbatch_class=[0, 0, 0]),
            "returned classes of 3 microbatches where there are 4",
        ),
    ],
)
def test_a_cost_model_that_returns_nonsense_is_the_plugins_error(built: Any, message: str) -> None:
    offer = CostModelOffer(name="odd", summary="Odd.", build=lambda _: built)

    with pytest.raises(PluginError) as caught:
        build_workload(
            Provided(offer=guarded(WHO, offer, "cost model"), provider=WHO),
            CostRequest(ranks=2, stages=2, microbatches=4),
        )

    assert message in str(caught.value)


def guard(**fields: Any) -> Any:
    class Odd:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name="odd", summary="Odd.", build=lambda _: [], **fields)]

    return Registry.load(entry_points=False, plugins={"odd": Odd()}).schedules["odd"].offer


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "options",
            lambda: dict,
            "options of schedule 'odd' returned <class 'dict'>, expected a pydantic model class",
        ),
        ("bubble", lambda _: 0.5, "bubble of schedule 'odd' returned 0.5, expected a Fraction"),
        (
            "peak_activations",
            lambda _: [1.5],
            "peak_activations of schedule 'odd' returned [1.5], expected one Fraction",
        ),
        ("check", lambda _: {}["x"], "check of schedule 'odd' raised KeyError: 'x' at "),
    ],
)
def test_whoever_calls_an_offer_gets_the_plugins_error(field: str, value: Any, message: str) -> None:
    function = getattr(guard(**{field: value}), field)

    with pytest.raises(PluginError) as caught:
        function(*([] if field == "options" else [REQUEST]))

    assert str(caught.value).startswith(f"plugin 'odd': {message}")


def test_a_reader_that_returns_nonsense_is_the_plugins_error_and_a_full_disk_is_not(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    class Odd:
        @hookimpl
        def pptrace_importers(self) -> list[ImporterOffer]:
            return [ImporterOffer(name="odd", summary="Odd.", recognises=lambda *_: True, read=lambda _: 3)]

        @hookimpl
        def pptrace_exporters(self) -> list[ExporterOffer]:
            return [ExporterOffer(name="odd", summary="Odd.", suffixes=(".odd",), write=full)]

    registry = Registry.load(entry_points=False, plugins={"odd": Odd()})

    with pytest.raises(PluginError, match="read of importer 'odd' returned 3, expected a Timeline"):
        registry.importers["odd"].offer.read([tmp_path])
    with pytest.raises(OSError, match="No space left on device"):
        registry.exporters["odd"].offer.write(None, tmp_path, {})


def test_an_error_of_ours_that_a_plugin_raises_passes_as_it_is() -> None:
    def refuse() -> None:
        raise ConfigError("no", key="k")

    with pytest.raises(ConfigError, match=r"^k: no$"):
        call_plugin(WHO, refuse)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_an_interruption_is_no_fault_of_the_plugin(handler: Any) -> None:
    """Background jobs ignore Ctrl-C, but Python code in them can raise it."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    original = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_plugin(WHO, interrupted)
    finally:
        signal.signal(signal.SIGINT, original)


def test_a_long_message_is_cut_to_one_readable_line() -> None:
    text = one_line(ValueError("x\n" * 1000))

    assert len(text) < 330
    assert text.endswith("…")


class Cable:
    """A network whose paths are whatever a test says."""

    def __init__(self, paths: Any) -> None:
        self.links = Links(rate_kbps=np.zeros(0, dtype=np.int64))
        self.paths = paths


def paths_of(network: Any) -> Any:
    offer = NetworkOffer(name="odd", summary="Odd.", build=lambda _: network)
    built = build_network(Provided(offer=offer, provider=WHO), NetworkRequest(endpoints=2))
    return built.paths(np.array([0], dtype=np.int32), np.array([1], dtype=np.int32))


def path(**changed: Any) -> Paths:
    columns: dict[str, Any] = {
        "overhead_ns": [0],
        "latency_ns": [5],
        "rate_kbps": [1000],
        "link_ptr": [0, 0],
        "link": [],
    }
    return Paths(**{**columns, **changed})


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (lambda *_: 1 // 0, "paths of network 'odd' raised ZeroDivisionError"),
        (lambda *_: None, "paths of network 'odd' returned None, expected Paths"),
        (lambda *_: path(rate_kbps=[1.5]), "raised ValueError: a column of int64 cannot hold float64 values"),
        (lambda *_: path(rate_kbps=[[1000]]), "raised ValueError: paths are columns of one dimension"),
        (lambda *_: path(rate_kbps=[]), "the network gives 0 rate_kbps for 1 pairs of ranks: one each"),
        (lambda *_: path(latency_ns=[-5]), "the network gives latency_ns of -5 between two ranks"),
    ],
)
def test_paths_that_raise_or_are_nonsense_are_the_plugins_error(paths: Any, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        paths_of(Cable(paths))

    assert str(caught.value).startswith("plugin 'odd' (pptrace-odd 3): ")
    assert message in str(caught.value)


def test_paths_that_are_in_order_pass() -> None:
    assert paths_of(Cable(lambda *_: path())).latency_ns.tolist() == [5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w_ns": [1]}, "w_ns has 1 values for 2 stages: one each"),
        ({"f_ns": [[1, 1]]}, "f_ns has 2 dimensions"),
        ({"b_ns": [1.5, 2.5]}, "b_ns: a column of int64 cannot hold float64 values"),
        ({"b_ns": None}, "b_ns: a column of int64 cannot hold object values"),
        ({"recompute_ns": [1, 2, 3]}, "recompute_ns"),
        ({"capacity_bytes": "80 GiB"}, "capacity_bytes is '80 GiB': a whole number from 0"),
        ({"tokens": -1}, "tokens is -1: a whole number from 0"),
        ({"unit_time_ns": float("nan")}, "unit_time_ns is nan: a whole number from 0"),
    ],
)
def test_costs_of_another_shape_or_sort_are_the_plugins_error(change: dict[str, Any], message: str) -> None:
    offer = CostModelOffer(
        name="odd", summary="Odd.", build=lambda request: replace(Workload.uniform(request.stages), **change)
    )

    with pytest.raises(PluginError) as caught:
        build_workload(
            Provided(offer=guarded(WHO, offer, "cost model"), provider=WHO),
            CostRequest(ranks=2, stages=2, microbatches=4),
        )

    assert str(caught.value).startswith("plugin 'odd' (pptrace-odd 3): ")
    assert message in str(caught.value)
