"""What DeepSpeed's ranks call in one step, written after its source at 0.19.6 (commit edaa7221).

- ``runtime/pipe/schedule.py``, ``TrainSchedule.steps``: ``2 (M + P - 1)`` steps; a stage runs forwards in steps of
  its own parity and backwards in the others. A step sends what the step before it computed: a forward step sends
  the gradient, then receives the activation; a backward step receives the gradient, then sends the activation.
- ``runtime/pipe/engine.py``, ``PipelineEngine._exec_schedule``: the instructions run one after another.
- ``runtime/pipe/p2p.py``: ``send`` and ``recv`` are ``torch.distributed.send`` and ``recv`` of the world's group,
  neither batched nor asynchronous.
- ``comm/torch.py`` gives the world's group its device on CUDA, so that all messages share one communicator.
"""

from __future__ import annotations

from framework_calls import Message, Program, Writer, received, sent

__all__ = ["deepspeed_1f1b"]


def deepspeed_1f1b(ranks: int, microbatches: int, *, eager_init: bool = True) -> list[Program]:
    """``TrainSchedule``; ``eager_init`` False: of a world without its device."""
    return [_stage(Writer(stage, "world", eager_init), ranks, microbatches) for stage in range(ranks)]


def _stage(at: Writer, stages: int, microbatches: int) -> Program:
    before: int | None = None
    for step in range(2 * (microbatches + stages - 1)):
        forward, number = _work(step, at.rank, stages)
        now = number if 0 <= number < microbatches else None
        if forward:
            if at.rank and before is not None:
                at.wait([at.single(sent(Message("B", at.rank, before), at.rank - 1))])
            if at.rank and now is not None:
                at.wait([at.single(received(Message("F", at.rank - 1, now), at.rank - 1))])
        elif at.rank < stages - 1:
            if now is not None:
                at.wait([at.single(received(Message("B", at.rank + 1, now), at.rank + 1))])
            if before is not None:
                at.wait([at.single(sent(Message("F", at.rank, before), at.rank + 1))])
        if now is not None:
            at.compute("F" if forward else "B", at.rank, now)
        before = now
    return at.calls


def _work(step: int, stage: int, stages: int) -> tuple[bool, int]:
    """Whether a step is a forward, and the number of its microbatch, which may be none of the batch's."""
    half = step // 2
    if step % 2 == stage % 2:
        return True, half - stage // 2
    if stage % 2:
        return False, half - stages + (stage + 1) // 2
    return False, half - stages + 1 + stage // 2
