"""Which step an action and a message belong to where the profiler marked none, and which kernel carries what."""

from __future__ import annotations

from pathlib import Path

import pytest

from pptrace.steps.actions import Action
from pptrace_profilers.alignment import Message, kernel_payloads, split_steps
from pptrace_profilers.recording import Execution, MessageEnd, Recording


def ran(text: str, start: int, end: int) -> Execution:
    return Execution(action=Action.parse(text), start_ns=start, end_ns=end)


def end(start: int, stop: int, *, sends: bool = False) -> MessageEnd:
    return MessageEnd(sends=sends, peer=0, start_ns=start, end_ns=stop, size_bytes=8)


@pytest.mark.parametrize("inside", [False, True], ids=["before it", "inside it"])
def test_a_receive_belongs_to_the_step_of_the_action_that_needs_it(*, inside: bool) -> None:
    """The first forward of a later stage waits for its input, which it posts after the step before."""
    actions, ends = [], []
    for step in range(3):
        at = 100 * step
        ends.append(end(at, at + 20))
        actions.append(ran("1F0", at if inside else at + 20, at + 40))
        actions.append(ran("1B0", at + 40, at + 80))
        ends.append(end(at + 80, at + 85, sends=True))
    recording = Recording(path=Path("r"), rank=1, world=2, executions=tuple(actions), ends=tuple(ends))

    labels, steps, *_ = split_steps([recording])

    assert labels == ["step 0", "step 1", "step 2"]
    for number, (only,) in enumerate(steps):
        assert [one.start_ns for one in only.ends if not one.sends] == [100 * number]
        assert [one.start_ns for one in only.ends if one.sends] == [100 * number + 80]


@pytest.mark.parametrize(("stream", "carried"), [(20, [2]), (21, [1, 1])], ids=["one stream", "two streams"])
def test_ends_with_the_same_times_are_one_kernel_s_on_one_stream_alone(stream: int, carried: list[int]) -> None:
    """Two kernels that run at once on streams of their own carry one message each."""
    both = [
        MessageEnd(sends=sends, peer=0, start_ns=5, end_ns=9, size_bytes=8, posted_ns=1, stream=on)
        for sends, on in ((True, 20), (False, stream))
    ]
    messages = [
        Message(source=1, target=2, sent=both[0], received=None),
        Message(source=0, target=1, sent=None, received=both[1]),
    ]

    assert sorted(kernel_payloads(messages).values()) == carried
