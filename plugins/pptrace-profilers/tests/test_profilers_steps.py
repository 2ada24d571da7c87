"""Which step an action and a message belong to without marks, which kernel carries what, and how ends match."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pptrace.steps.actions import Action
from pptrace_profilers.alignment import count_payloads, match_ends, split_steps
from pptrace_profilers.recording import Executions, MessageEnds, Recording


@pytest.mark.parametrize("inside", [False, True], ids=["before it", "inside it"])
def test_a_receive_belongs_to_the_step_of_the_action_that_needs_it(*, inside: bool) -> None:
    """The first forward of a later stage waits for its input, which it posts after the step before."""
    actions, ends = [], []
    for step in range(3):
        at = 100 * step
        ends.append((False, 0, at, at + 20))
        actions.append((Action.parse("1F0"), at if inside else at + 20, at + 40))
        actions.append((Action.parse("1B0"), at + 40, at + 80))
        ends.append((True, 0, at + 80, at + 85))
    recording = Recording(
        path=Path("r"), rank=1, world=2,
        executions=Executions.from_rows(("action", "start_ns", "end_ns"), actions),
        ends=MessageEnds.from_rows(("sends", "peer", "start_ns", "end_ns"), ends),
    )  # fmt: skip

    labels, steps, *_ = split_steps([recording])

    assert labels == ["step 0", "step 1", "step 2"]
    for number, (only,) in enumerate(steps):
        assert only.ends.start_ns[~only.ends.sends].tolist() == [100 * number]
        assert only.ends.start_ns[only.ends.sends].tolist() == [100 * number + 80]


@pytest.mark.parametrize(("stream", "carried"), [(20, [2, 2]), (21, [1, 1])], ids=["one stream", "two streams"])
def test_ends_with_the_same_times_are_one_kernel_s_on_one_stream_alone(stream: int, carried: list[int]) -> None:
    """Two kernels that run at once on streams of their own carry one message each."""
    ends = MessageEnds(
        sends=[True, False], peer=-1, start_ns=[5, 5], end_ns=9, posted_ns=1, stream=[20, stream],
        action=[Action.parse("1SEND_F0"), Action.parse("1RECV_F0")],
    )  # fmt: skip
    messages = match_ends([Recording(path=Path("r"), rank=1, world=3, ends=ends)], [])

    assert [count.tolist() for count in count_payloads([messages])] == [carried]


def test_the_work_of_matching_grows_with_the_messages() -> None:
    def calls(count: int) -> int:
        times_ns = np.arange(count)
        recordings = [
            Recording(
                path=Path("r"), rank=rank, world=2,
                ends=MessageEnds(sends=rank == 0, peer=1 - rank, start_ns=times_ns, end_ns=times_ns),
            )
            for rank in (0, 1)
        ]  # fmt: skip
        made = 0

        def trace(*_: Any) -> None:
            nonlocal made
            made += 1

        sys.setprofile(trace)
        try:
            messages = match_ends(recordings, [])
        finally:
            sys.setprofile(None)
        assert messages.sent.tolist() == list(range(count))
        assert messages.received.tolist() == list(range(count, 2 * count))
        return made

    assert calls(800) < 3 * calls(400)


def test_a_table_refuses_columns_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="peers"):
        MessageEnds(start_ns=[1], end_ns=[2], sends=[True], peers=[0])
    with pytest.raises(ValueError, match="broadcast"):
        MessageEnds(start_ns=[1], end_ns=[2])  # whether it sends has no default
