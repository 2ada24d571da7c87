"""Of a cluster's links a trace names those that carried something; counters are the sums of what went over."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest

from pptrace.api import simulate
from pptrace.timeline.counters import link_counters
from pptrace.timeline.link_use import busiest_links
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.run.run import Run

pytestmark = pytest.mark.needs_plugins


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate({
        "parallel": {"pp": 4, "tp": 8, "dp": 2}, "batch": {"microbatches": 6}, "contention": "max-min",
        "costs": {"name": "table", "forward": "1 ms", "backward": "2 ms", "boundary": "64 MiB"},
        "schedule": "1f1b", "cluster": {"preset": "dgx-h100x64", "spare": True},
    })  # fmt: skip


def test_a_trace_names_the_links_that_messages_went_over_and_those_with_counters(run: Run, tmp_path: Path) -> None:
    assert run.traffic is not None
    everything, kept = run.traffic.routes(), run.traced().routes
    assert kept is not None

    run.save(tmp_path / "job.pftrace")
    again = perfetto.read([tmp_path / "job.pftrace"])

    assert again.routes == kept
    assert [kept.name[link] for link in kept.link] == [everything.name[link] for link in everything.link]
    known = dict(zip(everything.name, everything.rate_kbps.tolist(), strict=True))
    assert {name: known[name] for name in kept.name} == dict(zip(kept.name, kept.rate_kbps.tolist(), strict=True))
    counted = {counter.name for counter in run.traced().counters if counter.rank < 0}
    used = {everything.name[link] for link in everything.link}
    assert counted - used  # links of other flows than the first
    assert list(kept.name) == [name for name in everything.name if name in used | counted]
    assert len(kept.name) < len(everything.name) / 20


def test_a_trace_of_a_few_slices_is_small_on_a_large_cluster(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "part.pftrace", only=["ranks=1", "microbatches=0"])

    assert (tmp_path / "part.pftrace").stat().st_size < 40_000


def test_counters_of_links_are_sums_over_messages_and_their_paths(run: Run) -> None:
    assert run.traffic is not None
    traffic, paths = run.traffic, run.traffic.paths
    moving = traffic.segments(run.timeline.start_ns, run.timeline.end_ns)
    changes: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row, start, end, rate in zip(moving.row, moving.start_ns, moving.end_ns, moving.rate_kbps, strict=True):
        path = traffic.path[row]
        for entry in range(paths.link_ptr[path], paths.link_ptr[path + 1]):
            change = changes[traffic.links.name[paths.link[entry]]]
            change[int(start)] += int(rate) * int(paths.weight[entry]) * 1000
            change[int(end)] -= int(rate) * int(paths.weight[entry]) * 1000

    found = link_counters(run.timeline, traffic, most=5)

    assert {counter.name for counter in found} == {
        use.names[0] for use in busiest_links(run.timeline, traffic, 0)[:5]
    }
    for counter in found:
        steps = sorted((at, by) for at, by in changes[counter.name].items() if by)
        assert counter.at_ns.tolist() == [at for at, _ in steps]
        assert counter.value.tolist() == list(accumulate(by for _, by in steps))
