"""A layout is a bijection between places and GPUs, and its groups partition the GPUs."""

from __future__ import annotations

import doctest
import itertools
from math import gcd, prod
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import ConfigError
from pptrace.network import cluster
from pptrace.network.cluster import AXES, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPED = ("pp", "tp", "cp", "ep", "dp", "edp")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pp, dp, cp, tp = (draw(st.integers(1, 4)) for _ in range(4))
    ep = draw(st.sampled_from([size for size in range(1, dp * cp + 1) if dp * cp % size == 0]))
    return Layout(pp=pp, dp=dp, cp=cp, ep=ep, tp=tp, order=tuple(draw(st.permutations(AXES))))


@st.composite
def folded(draw: st.DrawFn) -> Layout:
    """Return a layout whose experts are split otherwise than its attention."""
    pp, dp, cp = (draw(st.integers(1, most)) for most in (3, 4, 2))
    tp = draw(st.sampled_from([2, 4]))
    etp = draw(st.sampled_from([size for size in (1, 2, 4) if size < tp]))
    whole = dp * cp * tp // etp
    ep = draw(st.sampled_from([size for size in range(1, whole + 1) if whole % size == 0]))
    return Layout(pp=pp, dp=dp, cp=cp, ep=ep, tp=tp, etp=etp)


def places(job: Layout) -> Iterator[dict[str, int]]:
    for pp, dp, cp, tp in itertools.product(*(range(size) for size in (job.pp, job.dp, job.cp, job.tp))):
        yield {"pp": pp, "dp": dp, "cp": cp, "tp": tp}


def number(job: Layout, place: dict[str, int]) -> int:
    """Count GPUs axis by axis, the first of the order fastest; ``ep`` is the inner part of ``dp``."""
    inner = gcd(job.ep, job.dp)
    index = {**place, "ep": place["dp"] % inner, "dp": place["dp"] // inner}
    size = {"pp": job.pp, "dp": job.dp // inner, "cp": job.cp, "ep": inner, "tp": job.tp}
    return sum(index[axis] * prod(size[before] for before in job.order[:at]) for at, axis in enumerate(job.order))


@given(layouts())
def test_each_place_is_the_gpu_that_one_counts_to(job: Layout) -> None:
    counted = [number(job, place) for place in places(job)]

    assert sorted(counted) == list(range(job.gpus))
    assert [job.gpu(**place) for place in places(job)] == counted
    assert [dict(job.place(gpu)) for gpu in counted] == list(places(job))


@given(layouts())
def test_the_members_of_a_rank_are_its_gpus_replica_after_replica(job: Layout) -> None:
    members = job.members()

    assert members.shape == (job.pp, job.dp * job.cp * job.tp)
    assert members.ravel().tolist() == [number(job, place) for place in places(job)]


@given(layouts(), st.sampled_from(GROUPED))
def test_groups_hold_who_differs_along_their_axis_alone(job: Layout, axis: str) -> None:
    inner = gcd(job.ep, job.dp)
    outer = job.ep // inner
    expected: dict[tuple[int, ...], list[int]] = {}
    for place in places(job):
        pp, dp, cp, tp = place["pp"], place["dp"], place["cp"], place["tp"]
        same = {
            "pp": (dp, cp, tp),
            "tp": (pp, dp, cp),
            "cp": (pp, dp, tp),
            "dp": (pp, tp),
            "ep": (pp, tp, dp // inner, cp // outer),
            "edp": (pp, tp, dp % inner, cp % outer),
        }[axis]
        expected.setdefault(same, []).append(number(job, place))

    groups = job.groups(axis).tolist()

    assert sorted(groups) == sorted(expected.values())
    assert sorted(gpu for group in groups for gpu in group) == list(range(job.gpus))
    sizes = {"dp": job.dp * job.cp, "edp": job.dp * job.cp // job.ep}
    assert {len(group) for group in groups} == {sizes.get(axis) or getattr(job, axis)}


def test_expert_groups_go_on_over_context_parallel_parts_where_replicas_are_too_few() -> None:
    few = Layout(dp=2, cp=4, ep=4, order=("cp", "tp", "ep", "dp", "pp"))
    many = Layout(dp=4, cp=2, ep=2)

    assert few.groups("ep").tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert many.groups("ep").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert many.gpus == Layout(dp=4, cp=2).gpus == 8


def test_the_default_order_keeps_tensor_parallel_members_together_and_pipeline_ranks_apart() -> None:
    job = Layout(pp=2, dp=2, tp=4)

    assert job.groups("tp").tolist() == [[4 * group + gpu for gpu in range(4)] for group in range(4)]
    assert job.members().tolist() == [list(range(8)), list(range(8, 16))]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("tp-cp-ep-dp", "'tp-cp-ep-dp' misses: pp; write each of tp, cp, ep, dp, pp once, inner first"),
        ("tp-cp", "'tp-cp' misses: ep, dp, pp; write"),
        ("tp-cp-ep-dp-pp-tp", "'tp-cp-ep-dp-pp-tp' names twice: tp; write"),
        ("tp-tp-ep-ep-pp", "'tp-tp-ep-ep-pp' names twice: tp, ep; write"),
        ("tp-cp-ep-dp-xp", "'tp-cp-ep-dp-xp' names unknown axes: xp; write"),
        ("TP-cp-ep-dp-pp", "names unknown axes: TP; write"),
        ("tp--cp-ep-dp-pp", "names unknown axes: ''; write"),
        ("", "'' names unknown axes: ''; write"),
    ],
)
def test_an_order_with_a_missing_doubled_or_unknown_axis_is_refused(order: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout(order=tuple(order.split("-")))

    assert caught.value.key == "parallel.order"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_expert_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^parallel\.ep: 4 .* dp x cp = 3 x 2; nearest that work: 3 or 6$"):
        Layout(dp=3, cp=2, ep=4)


def test_there_are_no_groups_along_other_axes() -> None:
    with pytest.raises(ValueError, match="no groups along 'xp': tp, cp, ep, etp, dp, edp or pp"):
        Layout(pp=2).groups("xp")


def test_the_examples_in_the_documentation_are_right() -> None:
    assert doctest.testmod(cluster).failed == 0


@given(folded())
def test_folded_experts_are_split_over_neighbours_first(job: Layout) -> None:
    stage = job.tp * job.cp * job.dp
    rest = stage // (job.etp * job.ep)
    sizes = {"etp": job.etp, "ep": job.ep, "edp": rest}
    strides = {"etp": 1, "ep": job.etp, "edp": job.etp * job.ep}

    for axis, size in sizes.items():
        groups = job.groups(axis)
        assert sorted(groups.ravel().tolist()) == list(range(job.gpus))
        assert groups.shape == (job.gpus // size, size)
        assert (groups - groups[:, :1] == [member * strides[axis] for member in range(size)]).all()


def test_folded_experts_that_do_not_fit_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"8 x etp \(1\) does not divide tp x cp x dp = 4"):
        Layout(tp=2, dp=2, ep=8, etp=1)
    with pytest.raises(ConfigError, match=r"parallel\.etp: 3 does not divide tp x cp x dp = 2 x 1 x 2"):
        Layout(tp=2, dp=2, etp=3)
