"""Tables of pptrace in Megatron-LM's training loop (experimental).

Source: Megatron-LM, core 0.17 (April 2026) to 0.20 (main of 22 August 2026):
``megatron/core/pipeline_parallel/schedules.py`` and ``p2p_communication.py``.

Each message is an unbatched operation of ``P2PCommunicator``. Sends follow their producers. Receives are posted in
the order of PyTorch's runtime, so that both ranks of a pair have their messages in the same order.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.profiler import record_function

from pptrace.plugin import ConfigError, Kind, Schedule, ScheduleError, compute_only, insert_messages
from pptrace.steps.text_forms import unsupported_by_megatron
from pptrace_torch.manifest import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Action

__all__ = ["megatron_schedule"]

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_GETTER = "get_forward_backward_func"
_SWITCHES = (
    "overlap_moe_expert_parallel_comm", "defer_embedding_wgrad_compute", "variable_seq_lengths", "mtp_standalone",
    "use_ring_exchange_p2p", "hybrid_context_parallel", "fine_grained_activation_offloading", "moe_paged_stash",
    "num_microbatches_with_partial_activation_checkpoints",
)  # fmt: skip
"""Settings whose code is in Megatron-LM's own loops."""


@contextmanager
def megatron_schedule(table: Schedule | Path | str) -> Iterator[None]:
    """Run a table in Megatron-LM's training loop inside this block (experimental).

    In the block, ``get_forward_backward_func`` of Megatron-LM returns a function that runs the table with
    ``forward_step``, ``backward_step`` and ``P2PCommunicator``. Evaluation runs Megatron-LM's own schedule.

    Args:
        table: a table, or its file (.csv or .txt); stage s is on rank s mod p. Its messages are omitted.

    Raises:
        ScheduleError: Megatron-LM cannot run the table; in the block also: the model or a setting does not fit.
        ConfigError: Megatron-LM is missing, or older than core 0.17.

    >>> with megatron_schedule("best.csv"):  # doctest: +SKIP
    ...     pretrain(...)
    """
    schedule = compute_only(table if isinstance(table, Schedule) else read_table(Path(table)))
    _check_table(schedule)
    schedules = _megatron()
    rows = insert_messages(schedule)
    original = getattr(schedules, _GETTER)

    @functools.wraps(original)
    def get_forward_backward_func(*sizes: Any, **options: Any) -> Callable[..., list[Any]]:
        run_megatron: Callable[..., list[Any]] = original(*sizes, **options)

        @functools.wraps(run_megatron)
        def run(**arguments: Any) -> list[Any]:
            if arguments.get("forward_only"):
                return run_megatron(**arguments)
            return _Step(schedules, rows, arguments).run()

        return run

    _replace(original, get_forward_backward_func)
    try:
        yield
    finally:
        _replace(get_forward_backward_func, original)


def _check_table(schedule: Schedule) -> None:
    """Refuse a table that Megatron-LM cannot run.

    Raises:
        ScheduleError: the first reason.
    """
    for part in unsupported_by_megatron(schedule):
        raise ScheduleError(f"Megatron-LM cannot run {part}")
    if schedule.has_pairs:
        raise ScheduleError("Megatron-LM cannot run overlapped pairs in a table: take a schedule without pairs")


def _megatron() -> Any:
    """Return the module of Megatron-LM's schedules.

    Raises:
        ConfigError: it is missing, too old, or annotated.
    """
    try:
        schedules = import_module(_SCHEDULES)
    except ModuleNotFoundError as error:
        raise ConfigError(f"Megatron-LM cannot be imported: there is no module {error.name}") from None
    parameters = inspect.signature(schedules.backward_step).parameters
    if not hasattr(schedules, "P2PCommunicator") or "model_type" in parameters:
        raise ConfigError("this Megatron-LM is too old: core 0.17 or later runs tables")
    if hasattr(schedules.forward_step, "marks"):
        raise ConfigError("pptrace_annotate.annotate() is in use: omit it, a table names its own actions")
    return schedules


def _replace(old: Any, new: Any) -> None:
    """Replace a function in every module that has imported it by its name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_GETTER) is old:
            setattr(module, _GETTER, new)


class _Step:
    """A training step of this rank."""

    def __init__(self, schedules: Any, rows: Schedule, arguments: dict[str, Any]) -> None:
        self._megatron, self._arguments = schedules, arguments
        self._models = _listed(arguments["model"])
        self._iterators = _listed(arguments["data_iterator"])
        self._config = schedules.get_model_config(self._models[0])
        self._groups = arguments.get("pg_collection") or schedules.ProcessGroupCollection.use_mpu_process_groups()
        self._check_settings()
        communicator = arguments.get("p2p_communicator")
        group = communicator.pp_group if communicator else self._groups.pp
        self._check_sizes(rows, group.size())
        self._ranks, self._stages = rows.ranks, rows.stages
        self._row: Sequence[Action] = rows[group.rank()]
        unbatched = copy.copy(self._config)
        unbatched.batch_p2p_comm = False
        self._communicator = schedules.P2PCommunicator(pp_group=group, config=unbatched)
        (self._shape,) = schedules.get_tensor_shapes(
            seq_length=arguments["seq_length"], micro_batch_size=arguments["micro_batch_size"],
            decoder_seq_length=arguments.get("decoder_seq_length"), config=self._config,
            tp_group=self._groups.tp, cp_group=self._groups.cp,
        )  # fmt: skip
        self._synchronization = _Synchronization(self._config, self._models)
        self._backwards_left = Counter(action.stage for action in self._row if action.kind is Kind.B)
        self._tensors: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._gradients: dict[tuple[int, int], Any] = {}
        self._received: dict[tuple[Kind, int, int], tuple[Any, Any]] = {}
        self._sent: dict[tuple[Kind, int, int], tuple[Any, Any]] = {}
        self._losses: list[Any] = []
        device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
        self._tokens = torch.zeros([], dtype=torch.int, device=device)

    def _check_settings(self) -> None:
        """Refuse settings that only Megatron-LM's own loops support.

        Raises:
            ScheduleError: the first setting.
        """
        used = [name for name in _SWITCHES if getattr(self._config, name, None)]
        if getattr(self._config, "cuda_graph_impl", "none") not in {None, "none"}:
            used.append("cuda_graph_impl")
        if self._arguments.get("adjust_tensor_shapes_fn") is not None:
            used.append("adjust_tensor_shapes_fn")
        if not hasattr(self._groups, "tp"):
            used.append("a pipeline of several modules")
        for name in used:
            raise ScheduleError(f"Megatron-LM cannot run a table with {name}: switch it off")

    def _check_sizes(self, rows: Schedule, ranks: int) -> None:
        """Refuse another number of ranks, stages or microbatches than the table's.

        Raises:
            ScheduleError: the numbers.
        """
        microbatches = self._arguments["num_microbatches"]
        for name, expected, count in (
            ("ranks", rows.ranks, ranks), ("stages", rows.stages, ranks * len(self._models)),
            ("microbatches", rows.microbatches, microbatches),
        ):  # fmt: skip
            if count != expected:
                raise ScheduleError(f"the table has {expected} {name} and Megatron-LM {count}: use as many")

    def run(self) -> list[Any]:
        """Run the row of this rank, and return what the last stage's loss function reports."""
        config = self._config
        if config.timers is not None:
            config.timers("forward-backward", log_level=1).start(barrier=config.barrier_with_L1_time)
        functions = {
            Kind.F: self._forward, Kind.B: self._backward, Kind.SEND_F: self._send, Kind.SEND_B: self._send,
            Kind.RECV_F: self._receive, Kind.RECV_B: self._receive,
        }  # fmt: skip
        with self._synchronization:
            self._synchronization.gather(0, 1)
            for action in self._row:
                with record_function(f"PP:{action}"):
                    functions[action.kind](action)
                self._finish_sends(only_completed=True)
            self._finish_sends()
        if config.finalize_model_grads_func is not None:
            config.finalize_model_grads_func(
                self._models,
                self._tokens if config.calculate_per_token_loss else None,
                pg_collection=self._groups,
                force_all_reduce=self._arguments.get("force_all_reduce", False),
            )
        if config.timers is not None:
            config.timers("forward-backward").stop()
        return self._losses

    def _forward(self, action: Action) -> None:
        stage, microbatch, chunk = action.stage, action.microbatch, action.stage // self._ranks
        if microbatch == 0 and chunk > 0:
            self._synchronization.gather(chunk + 1)
        inputs = self._arrived(Kind.RECV_F, action) if stage > 0 else None
        outputs, tokens = self._megatron.forward_step(
            self._arguments["forward_step_func"], self._iterators[chunk], self._models[chunk],
            self._arguments["num_microbatches"], inputs, self._losses, self._config,
            cp_group_size=self._groups.cp.size(),
            collect_non_loss_data=self._arguments.get("collect_non_loss_data", False),
            is_first_microbatch=microbatch == 0, current_microbatch=microbatch,
            vp_stage=chunk if self._config.virtual_pipeline_model_parallel_size is not None else None,
            is_last_stage=stage == self._stages - 1,
        )  # fmt: skip
        self._tokens += tokens
        self._tensors[stage, microbatch] = inputs, outputs

    def _backward(self, action: Action) -> None:
        stage, microbatch, chunk = action.stage, action.microbatch, action.stage // self._ranks
        gradient = self._arrived(Kind.RECV_B, action) if stage < self._stages - 1 else None
        self._finish_send((Kind.SEND_F, stage, microbatch))
        inputs, outputs = self._tensors.pop((stage, microbatch))
        self._backwards_left[stage] -= 1
        is_last = self._backwards_left[stage] == 0
        with self._synchronization.last_backward(chunk) if is_last else nullcontext():
            input_gradient = self._megatron.backward_step(inputs, outputs, gradient, self._config)
        if stage > 0:
            self._gradients[stage, microbatch] = input_gradient

    def _send(self, action: Action) -> None:
        """Post a send, and keep its tensor until it has completed."""
        of_action = action.stage, action.microbatch
        communicator, options = self._communicator, {"tensor_shape": self._shape, "overlap_p2p_comm": True}
        if action.kind is Kind.SEND_F:
            _, tensor = self._tensors[of_action]
            _, handles = communicator.send_forward_recv_forward(tensor, recv_prev=False, **options)
        else:
            tensor = self._gradients.pop(of_action)
            _, handles = communicator.send_backward_recv_backward(tensor, recv_next=False, **options)
        (handle,) = handles.values()
        self._sent[action.kind, *of_action] = handle, tensor

    def _receive(self, action: Action) -> None:
        """Post a receive."""
        communicator, options = self._communicator, {"tensor_shape": self._shape, "overlap_p2p_comm": True}
        if action.kind is Kind.RECV_F:
            tensor, handles = communicator.send_forward_recv_forward(None, recv_prev=True, **options)
        else:
            tensor, handles = communicator.send_backward_recv_backward(None, recv_next=True, **options)
        (handle,) = handles.values()
        self._received[action.kind, action.stage, action.microbatch] = handle, tensor

    def _arrived(self, kind: Kind, action: Action) -> Any:
        """Return a received tensor after its message."""
        handle, tensor = self._received.pop((kind, action.stage, action.microbatch))
        handle.wait()
        return tensor

    def _finish_sends(self, *, only_completed: bool = False) -> None:
        for key, (handle, _) in list(self._sent.items()):
            if not only_completed or handle.is_completed():
                self._finish_send(key)

    def _finish_send(self, key: tuple[Kind, int, int]) -> None:
        """Wait for a send, if any, and free a sent output, of which its backward needs the graph alone."""
        if key in self._sent:
            handle, tensor = self._sent.pop(key)
            handle.wait()
            if key[0] is Kind.SEND_F:
                self._megatron.deallocate_output_tensor(tensor, self._config.deallocate_pipeline_outputs)


class _Synchronization(ExitStack):
    """Data-parallel communication of a step: weights before first forwards, gradients after last backwards.

    As a context, it holds back the reduction of gradients.
    """

    def __init__(self, config: Any, models: Sequence[Any]) -> None:
        super().__init__()
        self._models = models
        self._no_sync = _listed(config.no_sync_func or nullcontext)
        self._reduce = _per_chunk(config.grad_sync_func, models)
        # A single chunk gathers its weights by itself.
        self._gather = _per_chunk(config.param_sync_func, models) if len(models) > 1 else []

    def __enter__(self) -> Self:
        """Hold back reductions."""
        for function in self._no_sync:
            self.enter_context(function())
        return self

    def gather(self, *chunks: int) -> None:
        """Gather the weights of chunks; later ones than the last are ignored."""
        for chunk in chunks:
            if chunk < len(self._gather):
                self._gather[chunk](self._models[chunk].parameters())

    @contextmanager
    def last_backward(self, chunk: int) -> Iterator[None]:
        """Reduce the gradients of a chunk in or after its last backward."""
        if not self._reduce:
            self.close()
        yield
        if self._reduce:
            self.close()
            self._reduce[chunk](self._models[chunk].parameters())
        self.__enter__()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _per_chunk(function: Any, models: Sequence[Any]) -> list[Any]:
    """Return a function per chunk; empty without one."""
    return function if isinstance(function, list) else [function] * len(models) * (function is not None)
