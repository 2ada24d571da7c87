"""Copies of ranks that share streams to the host, and what each takes beside others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pptrace
from pptrace.steps.kinds import Kind

pytestmark = pytest.mark.needs_plugins

TABLE = {
    "name": "table", "forward": "2 ms", "backward": "4 ms", "activation": "60 B",
    "offload": "1 ms", "reload": "1 ms",
}  # fmt: skip


def run(name: str = "1f1b", *, pp: int = 8, microbatches: int = 32, **sections: Any) -> pptrace.Run:
    schedule = {"name": name, **({"offload": sections.pop("offload")} if "offload" in sections else {})}
    costs, parallel = sections.pop("costs", {}), sections.pop("parallel", {})
    return pptrace.simulate(
        {"schedule": schedule, "parallel": {"pp": pp, **parallel}, "batch": {"microbatches": microbatches},
         "costs": {**TABLE, **costs}, **sections}
    )  # fmt: skip


def copies(one: pptrace.Run) -> dict[tuple[Kind, int, int], Any]:
    rows = map(one.timeline.__getitem__, range(len(one.timeline)))
    return {
        (row.action.kind, row.action.stage, row.action.microbatch): row
        for row in rows
        if row.action.kind in {Kind.OFFLOAD, Kind.RELOAD}
    }


@pytest.mark.parametrize(("stream", "group"), [("direction", 1), ("pair", 2)])
def test_copies_take_a_share_of_their_time_while_they_cross_none(stream: str, group: int) -> None:
    sizes = {"microbatches": 10, "pp": 4, "costs": {"offload": "3 ms", "reload": "2 ms"}}
    slow, fast = (copies(run(offload={"gap": 0, "stream": stream, "alone": alone}, **sizes)) for alone in (1, 0.7))

    crossing = set()
    for key, one in slow.items():
        beside = sum(
            max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
            for (kind, stage, _), other in slow.items()
            if kind is not key[0] and stage // group == key[1] // group
        )
        took = one.end_ns - one.start_ns
        crossing.add(beside / took)
        assert fast[key].end_ns - fast[key].start_ns == pytest.approx(beside + 0.7 * (took - beside), abs=1)
    assert {0, 1} < crossing


def test_slices_of_unlike_length_keep_their_own_copies_where_none_cross_them() -> None:
    sizes = {"offload": {"gap": 0, "alone": 0.5}, "costs": {"lengths": [1, 2, 1, 1]}, "pp": 2, "microbatches": 4}

    out = [item for key, item in sorted(copies(run(**sizes)).items()) if key[:2] == (Kind.OFFLOAD, 0)]

    # The second crosses the first one's copy back for half of its time, and is as long as two.
    assert [item.end_ns - item.start_ns for item in out] == [500_000, 1_500_000, 1_000_000, 500_000]


def test_copies_back_are_as_late_as_their_shared_stream_leaves_them_time() -> None:
    """Where two ranks' copies take longer than a microbatch, the first ones come back long before."""
    costs = {"offload": "3.5 ms", "reload": "3.5 ms"}  # two ranks': 7 ms, of 6 that a microbatch takes
    steps = {
        ahead: run(offload={"stream": "pair", "ahead": ahead}, costs=costs).metrics.step_ns
        for ahead in (None, 0, 1, 32)
    }

    # On the second switch two forwards come before, 64 copies out follow one another, then the last one comes
    # back and three backwards follow.
    least = (3 * 2 + 64 * 3.5 + 3.5 + 3 * 4) * 1_000_000
    assert steps[None] == min(steps.values())
    assert least <= steps[None] < 1.04 * least < steps[1] < steps[0]


def lanes(one: pptrace.Run, stream: str) -> list[list[tuple[int, int]]]:
    """Return the times of copies that share a stream, in order."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in copies(one).values():
        key = (row.rank, 0) if stream == "rank" else (row.rank // 2, int(row.action.kind))
        found.setdefault(key, []).append((row.start_ns, row.end_ns))
    return [sorted(times) for times in found.values()]


@pytest.mark.parametrize("stream", ["rank", "pair"])
def test_copies_that_share_a_stream_never_overlap(stream: str) -> None:
    result = lanes(run(offload={"gap": 0, "ahead": 1, "stream": stream}, costs={"offload": "3 ms"}), stream)

    assert len(result) == 8
    for times in result:
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


NAMES = [
    "1f1b", "gpipe", "eager-1f1b", "seq-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-1f1b",
    "looped-bfs", "interleaved-zb", "combined-1f1b", "dualpipe", "dualpipe-v", "chimera", "hanayo",
]  # fmt: skip
CHUNKS = {"interleaved-1f1b", "looped-bfs", "interleaved-zb", "combined-1f1b"}
POLICIES = ["async", "sender-blocking", "blocking", "ordered", "batched", "megatron", "torch", "deepspeed"]


def step_or_refusal(name: str, policy: str, microbatches: int, **modifiers: Any) -> int | str:
    try:
        step = run(
            name, pp=4, microbatches=microbatches, p2p=policy, parallel={"vp": 2} if name in CHUNKS else {},
            costs={"boundary": "1 MB", "offload": "0 ms", "reload": "0 ms"},
            network={"name": "hockney", "bandwidth": "5 GB/s", "latency": "0 s"}, **modifiers,
        )  # fmt: skip
    except pptrace.PptraceError as error:
        return str(error)
    return int(step.metrics.step_ns)


@pytest.mark.parametrize("policy", POLICIES)
@settings(settings.get_profile("few"))
@given(
    name=st.sampled_from(NAMES), microbatches=st.sampled_from([8, 12]), ahead=st.none() | st.integers(0, 9),
    behind=st.none() | st.integers(0, 2), stream=st.sampled_from(["direction", "rank"]),
)  # fmt: skip
@example(name="1f1b", microbatches=8, ahead=1, behind=None, stream="direction")
@example(name="zb-h1", microbatches=8, ahead=None, behind=None, stream="direction")
def test_messages_are_issued_as_without_copies_under_every_policy(
    policy: str, name: str, microbatches: int, ahead: int | None, behind: int | None, stream: str
) -> None:
    pytest.importorskip("pptrace_frameworks")
    given_ones = {key: value for key, value in {"ahead": ahead, "behind": behind}.items() if value is not None}
    sizes = (name, policy, microbatches)

    # Copies that take no time change neither the step nor what is refused, and why.
    assert step_or_refusal(*sizes, offload={"gap": 0, "stream": stream, **given_ones}) == step_or_refusal(*sizes)


@settings(settings.get_profile("few"))
@given(
    name=st.sampled_from(
        ["1f1b", "gpipe", "eager-1f1b", "zb-h1", "interleaved-1f1b", "looped-bfs", "v-half", "chimera"]
    ),
    out=st.integers(0, 9), back=st.integers(0, 9), gap=st.sampled_from([0, 1, 3]),
    ahead=st.none() | st.integers(0, 9), microbatches=st.sampled_from([4, 8]),
)  # fmt: skip
def test_copies_in_turns_never_wait_for_each_other(
    name: str, out: int, back: int, gap: int, ahead: int | None, microbatches: int
) -> None:
    vp = 2 if name in {"interleaved-1f1b", "looped-bfs", "v-half"} else 1
    sizes = {"pp": 4, "microbatches": microbatches, "parallel": {"vp": vp}}
    costs = {"offload": f"{out} ms", "reload": f"{back} ms"}

    step = run(name, offload={"stream": "pair", "gap": gap, "ahead": ahead}, costs=costs, **sizes)

    assert step.metrics.busy_ns.tolist() == run(name, **sizes).metrics.busy_ns.tolist()
    for times in lanes(step, "pair"):
        assert all(end <= start for (_, end), (start, _) in pairwise(times))
