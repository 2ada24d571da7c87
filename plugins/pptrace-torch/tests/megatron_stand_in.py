"""Interfaces of Megatron-LM's pipeline parallelism, on CPUs over gloo.

Names, parameters and results are those of Megatron-LM, core 0.17 to 0.20: ``megatron/core/parallel_state.py``,
``process_groups_config.py``, ``transformer/transformer_config.py``, ``pipeline_parallel/schedules.py`` and
``pipeline_parallel/p2p_communication.py``. There is no data, tensor or context parallelism.
"""

# ruff: noqa: ARG001, C901, FBT001, FBT002, N815 - names and parameters are Megatron-LM's

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

parallel_state = ModuleType("megatron.core.parallel_state")
p2p_communication = ModuleType("megatron.core.pipeline_parallel.p2p_communication")
schedules = ModuleType("megatron.core.pipeline_parallel.schedules")
_sizes: dict[str, int | None] = {"chunks": None}


def install() -> None:
    """Register the modules under Megatron-LM's names."""
    core, parallel = ModuleType("megatron.core"), ModuleType("megatron.core.pipeline_parallel")
    transformer = ModuleType("megatron.core.transformer")
    model_config = ModuleType("megatron.core.transformer.transformer_config")
    vars(parallel_state).update(
        initialize_model_parallel=initialize_model_parallel,
        get_pipeline_model_parallel_rank=dist.get_rank,
        get_pipeline_model_parallel_world_size=dist.get_world_size,
        get_virtual_pipeline_model_parallel_rank=lambda: None,
        get_virtual_pipeline_model_parallel_world_size=lambda: _sizes["chunks"],
    )
    vars(model_config).update(TransformerConfig=TransformerConfig)
    vars(p2p_communication).update(P2PCommunicator=P2PCommunicator)
    vars(schedules).update(
        get_forward_backward_func=get_forward_backward_func,
        forward_step=forward_step, backward_step=backward_step,
        deallocate_output_tensor=deallocate_output_tensor, get_tensor_shapes=get_tensor_shapes,
        get_model_config=lambda model: model.config, P2PCommunicator=P2PCommunicator,
        ProcessGroupCollection=ProcessGroupCollection, parallel_state=parallel_state,
    )  # fmt: skip
    vars(parallel).update(
        schedules=schedules, p2p_communication=p2p_communication,
        get_forward_backward_func=get_forward_backward_func,
    )  # fmt: skip
    vars(core).update(parallel_state=parallel_state, pipeline_parallel=parallel, transformer=transformer)
    modules = (core, parallel, transformer, model_config, parallel_state, p2p_communication, schedules)
    for module in (ModuleType("megatron"), *modules):
        sys.modules[module.__name__] = module


def initialize_model_parallel(
    pipeline_model_parallel_size: int = 1, virtual_pipeline_model_parallel_size: int | None = None
) -> None:
    """Set the sizes of the pipeline, which takes all ranks."""
    assert pipeline_model_parallel_size == dist.get_world_size()
    _sizes["chunks"] = virtual_pipeline_model_parallel_size


@dataclass
class TransformerConfig:
    """Settings that pipelines read."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    pipeline_dtype: Any = None
    sequence_parallel: bool = False
    variable_seq_lengths: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    overlap_p2p_comm: bool = False
    batch_p2p_comm: bool = True
    batch_p2p_sync: bool = True
    deallocate_pipeline_outputs: bool = False
    calculate_per_token_loss: bool = False
    barrier_with_L1_time: bool = True
    timers: Any = None
    grad_scale_func: Any = None
    finalize_model_grads_func: Any = None
    no_sync_func: Any = None
    grad_sync_func: Any = None
    param_sync_func: Any = None


class ProcessGroupCollection(SimpleNamespace):
    """The pipeline's group, and groups of one rank."""

    @classmethod
    def use_mpu_process_groups(cls) -> ProcessGroupCollection:
        alone = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
        return cls(pp=dist.group.WORLD, tp=alone, cp=alone)


class P2PCommunicator:
    """Messages to and from the neighbours in the ring of ranks."""

    def __init__(self, pp_group: Any, config: TransformerConfig) -> None:
        self.pp_group, self.config = pp_group, config
        rank, ranks = pp_group.rank(), pp_group.size()
        self.next_rank, self.prev_rank = (rank + 1) % ranks, (rank - 1) % ranks

    def _communicate(
        self, *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool, tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Post up to four operations; batched ones are waited for at once."""
        assert wait_on_reqs or not self.config.batch_p2p_comm
        received = [
            torch.empty(tensor_shape, requires_grad=True, dtype=self.config.pipeline_dtype) if receives else None
            for receives in (recv_prev, recv_next)
        ]
        ends = {
            "send_prev": (dist.isend, tensor_send_prev, self.prev_rank),
            "recv_prev": (dist.irecv, received[0], self.prev_rank),
            "send_next": (dist.isend, tensor_send_next, self.next_rank),
            "recv_next": (dist.irecv, received[1], self.next_rank),
        }
        posted = {name: (post, tensor, peer) for name, (post, tensor, peer) in ends.items() if tensor is not None}
        if self.config.batch_p2p_comm:
            operations = [dist.P2POp(*end, self.pp_group) for end in posted.values()]
            for request in dist.batch_isend_irecv(operations) if operations else ():
                request.wait()
            return (*received, None)
        requests = {name: post(tensor, peer, group=self.pp_group) for name, (post, tensor, peer) in posted.items()}
        if wait_on_reqs:
            for request in requests.values():
                request.wait()
        return (*received, None if wait_on_reqs else requests)

    def send_forward_recv_forward(
        self, output_tensor: Any, recv_prev: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        received, _, requests = self._communicate(
            tensor_send_next=output_tensor, tensor_send_prev=None, recv_prev=recv_prev, recv_next=False,
            tensor_shape=tensor_shape, wait_on_reqs=not overlap_p2p_comm,
        )  # fmt: skip
        return (received, requests) if overlap_p2p_comm else received

    def send_backward_recv_backward(
        self, input_tensor_grad: Any, recv_next: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        _, received, requests = self._communicate(
            tensor_send_next=None, tensor_send_prev=input_tensor_grad, recv_prev=False, recv_next=recv_next,
            tensor_shape=tensor_shape, wait_on_reqs=not overlap_p2p_comm,
        )  # fmt: skip
        return (received, requests) if overlap_p2p_comm else received


def get_tensor_shapes(
    *, seq_length: int, micro_batch_size: int, decoder_seq_length: int | None, config: Any, tp_group: Any,
    cp_group: Any,
) -> list[tuple[int, int, int]]:  # fmt: skip
    length = (seq_length if decoder_seq_length is None else decoder_seq_length) // cp_group.size()
    return [
        (length // tp_group.size() if config.sequence_parallel else length, micro_batch_size, config.hidden_size)
    ]


def deallocate_output_tensor(out: Any, deallocate_pipeline_outputs: bool = False) -> None:
    if deallocate_pipeline_outputs:
        out.data = torch.empty(1, dtype=out.dtype)


def forward_step(
    forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, input_tensor: Any,
    forward_data_store: list[Any], config: Any, cp_group_size: int, collect_non_loss_data: bool = False,
    checkpoint_activations_microbatch: Any = None, is_first_microbatch: bool = False,
    current_microbatch: int | None = None, vp_stage: int | None = None, is_last_stage: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    assert vp_stage == model.vp_stage
    model.set_input_tensor([input_tensor])
    output, loss_func = forward_step_func(data_iterator, model)
    tokens = torch.tensor(0, dtype=torch.int)
    if is_last_stage:
        output, tokens, report = loss_func(output)
        if not config.calculate_per_token_loss:
            output = output / tokens / num_microbatches
        forward_data_store.append(report)
    return output, tokens


def backward_step(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, config: Any) -> Any:
    if input_tensor is not None:
        input_tensor.retain_grad()
    if config.deallocate_pipeline_outputs:
        assert output_tensor.numel() == 1
        gradient = torch.ones_like(output_tensor) if output_tensor_grad is None else output_tensor_grad
        # The freed output has another shape than its gradient, which torch.autograd.backward refuses.
        torch.autograd.graph._engine_run_backward(  # noqa: SLF001 - there is no public name
            (output_tensor,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
    else:
        torch.autograd.backward(output_tensor, grad_tensors=output_tensor_grad)
    return None if input_tensor is None else input_tensor.grad


def get_forward_backward_func(
    pp_size: int | None = None, vp_size: int | None = None, schedule_pg_collection: Any = None
) -> Callable[..., list[Any]]:
    return forward_backward_pipelining_without_interleaving


def forward_backward_pipelining_without_interleaving(
    *, forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, seq_length: int,
    micro_batch_size: int, decoder_seq_length: int | None = None, forward_only: bool = False,
    collect_non_loss_data: bool = False, first_val_step: Any = None, adjust_tensor_shapes_fn: Any = None,
    p2p_communicator: Any = None, pg_collection: Any = None, force_all_reduce: bool = False,
) -> list[Any]:  # fmt: skip
    """Run 1F1B: forwards ahead, then forward and backward in turns, then backwards."""
    (module,), (iterator,) = (value if isinstance(value, list) else [value] for value in (model, data_iterator))
    config, groups = module.config, ProcessGroupCollection.use_mpu_process_groups()
    link = schedules.P2PCommunicator(groups.pp, config)
    rank, ranks = groups.pp.rank(), groups.pp.size()
    (shape,) = get_tensor_shapes(
        seq_length=seq_length, micro_batch_size=micro_batch_size, decoder_seq_length=decoder_seq_length,
        config=config, tp_group=groups.tp, cp_group=groups.cp,
    )  # fmt: skip
    store: list[Any] = []
    waiting: list[tuple[Any, Any]] = []
    ahead = min(ranks - 1 - rank, num_microbatches)
    is_first, is_last = rank == 0, rank == ranks - 1

    def forward(microbatch: int) -> None:
        inputs = None if is_first else link.send_forward_recv_forward(None, recv_prev=True, tensor_shape=shape)
        output, _ = schedules.forward_step(
            forward_step_func, iterator, module, num_microbatches, inputs, store, config, cp_group_size=1,
            current_microbatch=microbatch, is_last_stage=is_last,
        )  # fmt: skip
        waiting.append((inputs, output))

    def send_output() -> None:
        """Send the last output, and take the gradient of the first in the same call."""
        if not is_last:
            link.send_forward_recv_forward(waiting[-1][1], recv_prev=False, tensor_shape=shape)

    for microbatch in range(num_microbatches if forward_only else ahead):
        forward(microbatch)
        send_output()
    if forward_only:
        return store
    for number in range(num_microbatches):
        gradient = None
        if number + ahead < num_microbatches:
            forward(number + ahead)
            if not is_last:
                _, gradient, _ = link._communicate(  # noqa: SLF001 - as Megatron-LM's other helpers
                    tensor_send_next=waiting[-1][1], tensor_send_prev=None, recv_prev=False, recv_next=True,
                    tensor_shape=shape,
                )  # fmt: skip
        elif not is_last:
            gradient = link.send_backward_recv_backward(None, recv_next=True, tensor_shape=shape)
        inputs, output = waiting.pop(0)
        deallocate_output_tensor(output, config.deallocate_pipeline_outputs and not is_last)
        inputs_gradient = schedules.backward_step(inputs, output, gradient, config)
        if not is_first:
            link.send_backward_recv_backward(inputs_gradient, recv_next=False, tensor_shape=shape)
    return store


__all__ = ["install"]
