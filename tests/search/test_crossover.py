"""Where the ranking of two schedules flips, against closed forms and against trying everything."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_schedules import small_registry

from pptrace.api import crossover, simulate
from pptrace.errors import ConfigError, PluginError, PptraceError

if TYPE_CHECKING:
    from pptrace.search.crossover import Crossover

NETWORK = {"name": "hockney", "bandwidth": "1 GB/s", "overhead": "1 ms", "latency": "5 us"}
COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "boundary": "1 MB"}
MESSAGES: dict[str, Any] = {"network": NETWORK, "costs": COSTS, "p2p": "sender-blocking"}


def between(schedules: str, over: str, **values: Any) -> Crossover:
    given: dict[str, Any] = {"pp": 2, "microbatches": 4} | values
    return crossover(between=schedules, over=over, registry=small_registry(), **given)


def sides(found: Crossover) -> list[tuple[int, int]]:
    return [(flip.below.value, flip.above.value) for flip in found.crossovers]


def test_a_flip_over_microbatches_is_where_the_closed_form_says() -> None:
    """3 (m + 15) against 6 (m + 1): equal at m = 13."""
    wide, narrow = "eager:pp=16", "eager:pp=2:costs.forward=2:costs.backward=4"

    crossing = between(f"{wide},{narrow}", "microbatches", costs={"name": "unit"})

    assert sides(crossing) == [(12, 13), (13, 14)]
    below, tie, above = crossing.crossovers[0].below, crossing.crossovers[0].above, crossing.crossovers[1].above
    assert [crossing.name(point) for point in (below, tie, above)] == [narrow, None, wide]
    assert tie == crossing.crossovers[1].below
    assert below.step_ns == (81_000_000, 78_000_000)
    assert above.margin == pytest.approx(90 / 87 - 1)
    assert "faster: eager:pp=2:costs.forward=2:costs.backward=4 up to 12, a tie at 13, eager:pp=16 from 14" in str(
        crossing
    )


@settings(max_examples=settings().max_examples // 3)
@given(ranks=st.integers(3, 40), slower=st.integers(2, 6))
def test_flips_over_microbatches_are_those_of_trying_every_number(ranks: int, slower: int) -> None:
    """m + ranks - 1 against slower (m + 1)."""
    narrow = f"eager:pp=2:costs.forward={slower}:costs.backward={2 * slower}"

    crossing = between(f"eager:pp={ranks},{narrow}", "microbatches=1..64", costs={"name": "unit"})

    first, second = [m + ranks - 1 for m in range(1, 65)], [slower * (m + 1) for m in range(1, 65)]
    signs = [(item > other) - (item < other) for item, other in zip(first, second, strict=True)]
    assert sides(crossing) == [(m, m + 1) for m in range(1, 64) if signs[m - 1] != signs[m]]


def test_a_flip_over_a_quantity_is_where_the_closed_form_says() -> None:
    """m (f + b + 2 s) + f + b against 2 m (f + b) + 2 (o + m t), s = o + t: equal at an overhead of 1.5 ms."""
    crossing = between("eager,lumped", "network.overhead=100 us..100 ms", **MESSAGES)

    below, above = crossing.crossovers[0].below, crossing.crossovers[-1].above
    assert below.value < 1_500_000 < above.value
    assert above.value - below.value <= 2 * 0.01 * above.value
    assert (crossing.name(below), crossing.name(above)) == ("eager", "lumped")


def test_the_tolerance_is_the_user_s() -> None:
    crossing = between("eager,lumped", "network.overhead=100 us..100 ms", tolerance=1e-5, **MESSAGES)

    below, above = crossing.crossovers[0].below, crossing.crossovers[-1].above
    assert 1_500_000 * (1 - 2e-5) < below.value < 1_500_000 < above.value < 1_500_000 * (1 + 2e-5)


def test_what_no_flip_is_says_by_how_much_at_both_ends() -> None:
    """Without overhead, (m - 1) (f + b) is always saved, and the bytes cost both the same."""
    crossing = between("eager,lumped", "bandwidth", **MESSAGES | {"network": NETWORK | {"overhead": "0 s"}})

    assert crossing.crossovers == ()
    assert (crossing.span.key, crossing.span.low, crossing.span.high) == (
        "network.bandwidth",
        31_600_000,
        31_600_000_000,
    )
    low, high = crossing.points[0], crossing.points[-1]
    assert [point.step_ns[1] - point.step_ns[0] for point in (low, high)] == pytest.approx([9e6, 9e6], rel=1e-3)
    assert "eager is faster throughout: by " in str(crossing)


def test_a_tie_throughout_is_called_one() -> None:
    crossing = between("eager,even", "microbatches=2..8")

    assert crossing.crossovers == ()
    assert "a tie throughout" in str(crossing)


def test_sizes_that_one_cannot_take_are_skipped_and_named() -> None:
    wide, narrow = "even:pp=16", "eager:pp=2:costs.forward=2:costs.backward=4"

    crossing = between(f"{wide},{narrow}", "microbatches=1..40", costs={"name": "unit"})

    assert sides(crossing) == [(12, 14)]
    assert all(point.value % 2 == 0 for point in crossing.points)
    assert {entry.value % 2 for entry in crossing.skipped} == {1}
    assert 13 in {entry.value for entry in crossing.skipped}
    text = str(crossing)
    assert "skipped, because even:pp=16 does not support them: 1, 3, " in text
    assert "(batch.microbatches: 1 is odd; nearest that work: 2)" in text


@pytest.mark.needs_plugins
@pytest.mark.parametrize("over", ["bandwidth=1 MB/s..10 GB/s", "microbatches=1..40"])
def test_a_search_on_processes_finds_what_one_in_this_process_does(over: str) -> None:
    def found(**where: Any) -> dict[str, Any]:
        own = crossover(
            between="gpipe:costs.forward=2 ms,1f1b", over=over, pp=2, microbatches=4, costs=COSTS, network=NETWORK,
            p2p="sender-blocking", **where,
        )  # fmt: skip
        return own.to_dict()

    alone = found()
    assert found(executor="serial") == alone
    assert found(workers=2) == alone


def test_plugins_of_the_caller_s_own_need_an_executor_in_this_process() -> None:
    wanted = "eager,even"
    assert sides(between(wanted, "microbatches=2..8", executor="serial")) == sides(
        between(wanted, "microbatches=2..8")
    )
    with pytest.raises(ConfigError, match="executor: processes runs in other processes"):
        between(wanted, "microbatches=2..8", workers=2)


def test_a_single_value_that_both_take_is_no_range() -> None:
    crossing = between("even,eager", "microbatches=3..5")

    assert [point.value for point in crossing.points] == [4]
    assert "a tie at 4, the only value that both support" in str(crossing)


def test_a_value_with_decimals_can_vary() -> None:
    contention = {"links": "fifo", "compute": 0.5}

    crossing = between("eager,lumped", "contention.compute=0.25..1", contention=contention, **MESSAGES)

    assert crossing.points[0].text == "0.25"
    assert crossing.to_dict()["range"] == ["0.25", "1"]


def test_a_value_beyond_what_its_key_takes_is_left_out() -> None:
    contention = {"links": "fifo", "compute": 0.5}

    crossing = between("eager,lumped", "contention.compute", contention=contention, **MESSAGES)

    assert max(point.value for point in crossing.points) <= 10**9
    assert all("must be at most 1" in entry.reason for entry in crossing.skipped)


def test_bandwidth_is_the_fabric_s_where_there_is_a_cluster() -> None:
    cluster = {
        "gpus": 1, "nics": 1, "nodes": 2, "node": {"name": "hockney", "bandwidth": "1 GB/s"},
        "fabric": {"name": "hockney", "bandwidth": "2 GB/s", "latency": "1 us"},
    }  # fmt: skip
    values = {"cluster": cluster, "costs": COSTS}

    assert between("eager,lumped", "bandwidth", **values).span.key == "cluster.fabric.bandwidth"
    assert between("eager,lumped", "latency=0 s..1 ms", **values).span.key == "cluster.fabric.latency"


def test_the_steps_are_those_of_simulate() -> None:
    crossing = between("eager,lumped", "network.overhead=100 us..100 ms", **MESSAGES)

    for point in (crossing.points[0], crossing.points[-1]):
        network = NETWORK | {"overhead": f"{point.value} ns"}
        runs = [
            simulate(
                pp=2, microbatches=4, schedule=name, registry=small_registry(), **MESSAGES | {"network": network}
            )
            for name in ("eager", "lumped")
        ]
        assert point.step_ns == tuple(run.metrics.step_ns for run in runs)


def test_the_document_and_the_table_say_the_same() -> None:
    crossing = between("eager,lumped", "network.overhead=100 us..100 ms", **MESSAGES)
    document = json.loads(json.dumps(crossing.to_dict()))

    assert document["key"] == "network.overhead"
    assert document["between"] == ["eager", "lumped"]
    assert [row["network.overhead"] for row in crossing.table()] == [point.value for point in crossing.points]
    assert [point["faster"] for point in document["points"]] == [row["faster"] for row in crossing.table()]
    assert document["crossovers"][0]["below"] in document["points"]


def test_a_schedule_over_its_memory_is_marked() -> None:
    costs = COSTS | {"activation": "1 GiB", "capacity": "3 GiB"}

    text = str(between("eager,lumped", "microbatches=2..4", **MESSAGES | {"costs": costs}))

    assert "!: eager and lumped need more memory than the device has" in text
    assert " ms !" in text


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_margin_is_what_the_slower_takes_longer(first: int, second: int) -> None:
    from pptrace.search.crossover import ComparedValue

    point = ComparedValue(value=1, text="1", step_ns=(first, second), fits=(True, True))

    assert point.margin == pytest.approx(float(Fraction(max(first, second), min(first, second)) - 1))
    assert (point.sign < 0, point.sign == 0) == (first < second, first == second)


@pytest.mark.parametrize(
    ("schedules", "over", "error", "line"),
    [
        ("eager", "microbatches", ConfigError, "1 is not a pair: name two"),
        ("eager,lumped,even", "microbatches", ConfigError, "3 is not a pair: name two"),
        ("eager,eager", "microbatches", ConfigError, "eager is given twice"),
        ("eagre,lumped", "microbatches", PluginError, "did you mean 'eager'"),
        ("eager,lumped:part=2", "microbatches", ConfigError, "did you mean 'parts'"),
        ("eager,lumped", "microbatchs", ConfigError, "over microbatchs: .*did you mean 'batch.microbatches'"),
        ("eager,lumped", "network.bandwith", ConfigError, "did you mean 'network.bandwidth'"),
        (
            "eager,lumped",
            "network.bandwith=1 GB/s..2 GB/s",
            ConfigError,
            "no simulated value .*did you mean 'bandwidth'",
        ),
        ("eager,lumped", "p2p.policy", ConfigError, "p2p.policy: 'sender-blocking' is not a number"),
        ("eager,lumped", "parallel.sequence_parallel", ConfigError, "False is not a number"),
        ("eager,lumped", "p2p.eager", ConfigError, "p2p.eager: 0 B has no default range: write a range"),
        ("eager,lumped", "microbatches=8", ConfigError, "'8' is not a range: write LOW..HIGH"),
        ("eager,lumped", "microbatches=..8", ConfigError, "'..8' is not a range: write LOW..HIGH"),
        ("eager,lumped", "microbatches=", ConfigError, "'' is not a range: write LOW..HIGH"),
        ("eager,lumped", "microbatches=8..8", ConfigError, "has one value"),
        ("eager,lumped", "microbatches=8..4", ConfigError, "reversed: write 4..8"),
        ("eager,lumped", "microbatches=1.5..4", ConfigError, "'1.5' is not a whole number"),
        ("eager,lumped", "bandwidth=1..4 GB/s", ConfigError, "1 has no unit"),
        ("eager,lumped", "latency=1 us..4 GB/s", ConfigError, "unknown unit 'GB/s'"),
        ("eager,eager:microbatches=3", "microbatches", ConfigError, "eager:microbatches=3 sets the key that"),
        ("even,eager:vp=2", "microbatches=1..8", ConfigError, "no simulated value from 1 to 8 can be run by both"),
        ("eager,lumped", "", ConfigError, "over: no key"),
        ("eager,lumped", "=1..8", ConfigError, "over: no key"),
        ("eager,lumped", "foo=1..8", ConfigError, "over foo: foo is no key of the configuration with a number"),
    ],
)
def test_wrong_input_is_one_line(schedules: str, over: str, error: type[PptraceError], line: str) -> None:
    with pytest.raises(error, match=line) as caught:
        between(schedules, over, **MESSAGES)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [{"points": 1}, {"tolerance": 0.0}, {"tolerance": 1.0}])
def test_a_search_that_cannot_be_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="two points or more, and a tolerance between 0 and 1"):
        between("eager,lumped", "microbatches", **values)


def test_what_is_wrong_with_the_configuration_is_no_skipped_value() -> None:
    with pytest.raises(ConfigError, match=r"network.bandwidth: missing"):
        between("eager,lumped", "microbatches=1..8", network="hockney")
