"""Launch arguments of Megatron-LM, torchtitan and PyTorch, and recipes of Megatron-Bridge.

Source: Megatron-LM as of 22 August 2026, ``megatron/training/arguments.py`` and ``argument_utils.py`` with their
checks, and the dataclasses whose fields become arguments (``megatron/core/model_parallel_config.py``,
``megatron/core/transformer/transformer_config.py``, ``megatron/training/config``).

Source: torchtitan 0.3.0: ``torchtitan/config/configs.py``, ``torchtitan/trainer.py``,
``torchtitan/distributed/pipeline_parallel.py``, ``parallel_dims.py``, ``fsdp.py`` and
``activation_checkpoint.py`` in the same folder; schedules of ``torch.distributed.pipelining`` 2.13. Releases 0.2.0
to 0.2.2: ``torchtitan/config/job_config.py``. The main branch counts batches in tokens since commit 73aed7f6c (20
August 2026).

Source: Megatron-Bridge 0.7 as of 22 August 2026: ``src/megatron/bridge/recipes``, ``training/comm_overlap.py``,
``training/mixed_precision.py`` and ``training/flex_dispatcher_backend.py`` beside them, and
``scripts/training/recipe_runner.py``. A recipe has the settings of Megatron-LM's launch arguments.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.choices import Reshard
from pptrace.config.schema import Preset, is_yaml_file
from pptrace.errors import ConfigError
from pptrace.report.document import command_lines
from pptrace.run.neighbourhood import Change
from pptrace.steps.placement import Placement, chain
from pptrace.steps.pytorch_tables import unsupported_parts
from pptrace.steps.text_forms import group_in_megatron, unsupported_by_megatron

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pptrace.config.schema import Experiment
    from pptrace.steps.schedule import Schedule

_ENDS = ("loss", "embedding")
"""Modules that replace a layer where stages outnumber layers."""
TABLE_FILE = "best.csv"
"""The file of a table in launch arguments."""
_TYPED_STATE = ("main-params", "exp-avg", "exp-avg-sq")
"""Optimizer state with a type argument in Megatron-LM."""
_MEGATRON_SHARDS = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
"""Names of ZeRO's stages in Megatron-FSDP."""
_OTHER_MODULES = {"full_attn", "mlp_act", "alternate_products"}
"""Modules that other frameworks recompute, and Megatron-LM does not."""


class Arguments(Struct, frozen=True, kw_only=True):
    """Launch arguments of a framework."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name: true for one without a value, a list for several values."""
    commands: tuple[str, ...] = ()
    """Words after these arguments."""
    without: tuple[str, ...]
    """Parts of the simulated step that the framework does not run with these arguments."""
    notes: tuple[str, ...] = ()
    """What to set besides the arguments."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line."""
        words: list[str] = []
        for name, value in self.values.items():
            items = value if isinstance(value, list) else [value]
            words += [f"--{name}", *([] if value is True else map(str, items))]
        return (*words, *self.commands)

    @property
    def text(self) -> str:
        """The arguments, quoted for a shell."""
        return shlex.join(self.words)

    @property
    def lines(self) -> list[str]:
        """The arguments as lines for a shell, after comments."""
        comments = [*(f"without {part}" for part in self.without), *self.notes]
        return [*(f"# {comment}" for comment in comments), *command_lines(self.words)]


def simulate_command(source: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the command that simulates a configuration file, or none, with other settings by key."""
    files = [source if is_yaml_file(source) else "CONFIG"] if source else []
    return ["pptrace", "simulate", *files, *Change(settings=settings).words]


def megatron_arguments(experiment: Experiment, table: Schedule) -> Arguments:
    """Return the launch arguments of Megatron-LM; without a model, those of the pipeline.

    Arguments of the pipeline are those with which it runs the table. If it cannot, they are omitted.

    Args:
        experiment: the configuration of a step, with all options of its cost model.
        table: the schedule's table.
    """
    parallel, batch = experiment.parallel, experiment.batch
    pipeline, without, notes = _megatron_pipeline(experiment, table)
    settings, further, further_notes = _megatron_settings(experiment) if experiment.model else ({}, [], [])
    values = {
        "tensor-model-parallel-size": parallel.tp, "pipeline-model-parallel-size": table.ranks,
        "context-parallel-size": parallel.cp, "expert-model-parallel-size": parallel.ep,
        "expert-tensor-parallel-size": parallel.etp or None, "micro-batch-size": batch.micro,
        "global-batch-size": batch.global_batch, "seq-length": batch.sequence, **pipeline, **settings,
    }  # fmt: skip
    return Arguments(
        values={name: value for name, value in values.items() if value is not None and value is not False},
        without=(*without, *_without_insertions(experiment), *further),
        notes=(*notes, *further_notes),
    )


def _megatron_pipeline(experiment: Experiment, table: Schedule) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the arguments with which Megatron-LM runs a table, the reason why it does not, and notes.

    Differences of messages are notes: a policy that the user writes is a choice of the simulation.
    """
    for fault in _megatron_faults(experiment, table):
        return {}, [f"schedule {experiment.schedule.name}: {fault}"], []
    ranks, chunks = table.ranks, table.stages // table.ranks
    values, notes = _megatron_layers(values_of(experiment.model), ranks, chunks)
    group = group_in_megatron(table)
    if chunks > 1 and group != ranks:
        values["microbatch-group-size-per-virtual-pipeline-stage"] = group
    if table.has_pairs:
        values["overlap-moe-expert-parallel-comm"] = True
        values["delay-wgrad-compute"] = bool(values_of(experiment.costs).get("delay_wgrad", True))
    messages, differences = _megatron_messages(experiment, chunks) if ranks > 1 else ({}, [])
    return values | messages, [], [*notes, *differences]


_OTHER_ORDER = "the order of actions: it runs 1f1b, interleaved-1f1b and combined-1f1b"


def _megatron_faults(experiment: Experiment, table: Schedule) -> Iterator[str]:
    """Yield the parts of a table that Megatron-LM does not run, or rejects."""
    yield from _megatron_table_faults(experiment.schedule.name, table, experiment.batch.known_microbatches)
    if table.has_pairs:
        model, costs = values_of(experiment.model), values_of(experiment.costs)
        yield from _combined_faults(model, costs, experiment.parallel.ep, table.ranks)


def _megatron_table_faults(schedule: str, table: Schedule, microbatches: int) -> Iterator[str]:
    """Yield the parts of a schedule's table that Megatron-LM runs in no configuration."""
    ranks, chunks = table.ranks, table.stages // table.ranks
    if table.updates > 1:
        yield "updates without a flush between them"
    elif table.microbatches != microbatches:
        yield "slices of sequences"
    placement = table.placement
    if chunks == 1:  # pipelines of several modules have the same loop, with a longest path as their depth
        placement = replace(placement, edges=chain(table.stages))
    parts = list(unsupported_by_megatron(replace(table, placement=placement)))
    yield from parts
    if parts:
        return
    if table.has_pairs and schedule != "combined-1f1b":
        yield "overlapped pairs: it runs those of combined-1f1b"
    group = group_in_megatron(table)
    if group is None:
        yield _OTHER_ORDER
    elif chunks > 1:
        smallest = table.microbatches % group or group
        if smallest < ranks:
            yield f"a group of {smallest} microbatches: it needs {ranks} or more"


def _combined_faults(model: Mapping[str, Any], costs: Mapping[str, Any], ep: int, ranks: int) -> Iterator[str]:
    """Yield what Megatron-LM rejects with overlapped pairs; arguments as for :attr:`Framework.pair_faults`.

    Source: checks of ``overlap_moe_expert_parallel_comm`` in ``transformer_config.py`` and ``combined_1f1b.py``.
    """
    if ep == 1:
        yield "it needs ep above 1"
    if model.get("recompute") == "full":
        yield "it needs another recompute than full"
    if "moe" in (model.get("recompute_modules") or []):
        yield "it needs recompute_modules without moe"
    if int(model.get("mtp") or 0) > 1:
        yield "it needs mtp of 1 or less"
    if ranks > 1 and int(costs.get("zero") or 0) > 1:
        yield "it needs zero of 1 or less in a pipeline"


def _megatron_layers(model: dict[str, Any], ranks: int, chunks: int) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of virtual stages and of the split of layers, and a note on a missing split."""
    layout = model.get("layout") or _layout(model.get("layers_per_stage"), int(model.get("mtp") or 0))
    if layout:
        return {"pipeline-model-parallel-layout": layout}, []
    values: dict[str, Any] = {"num-virtual-stages-per-pipeline-rank": chunks} if chunks > 1 else {}
    layers, stages = int(model.get("layers") or 0), ranks * chunks
    if layers and stages > 1 and 0 < stages - layers <= len(_ENDS):
        ends = {f"account-for-{end}-in-pipeline-split": True for end in _ENDS[: stages - layers]}
        return values | ends, []
    missing = f"{layers} layers on {stages} stages: write --pipeline-model-parallel-layout"
    return values, [missing] if layers % stages else []


def _megatron_messages(experiment: Experiment, chunks: int) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of messages, and differences of its messages from the simulated ones.

    Source: ``core_transformer_config_from_args`` in ``megatron/training/argument_utils.py``: messages are in
    batches unless they overlap, and ``deallocate_pipeline_outputs`` is set.
    """
    policy, options = experiment.p2p.policy, experiment.p2p.options
    if policy != "megatron":
        return {}, [f"p2p {policy}: it issues messages as p2p megatron"]
    overlap = options.get("overlap_p2p_comm")
    overlap = chunks > 1 if overlap is None else overlap
    values = {
        "no-overlap-p2p-communication": chunks > 1 and not overlap,
        "overlap-p2p-communication-warmup-flush": bool(options.get("overlap_p2p_comm_warmup_flush")),
    }
    without = []
    batch = options.get("batch_p2p_comm")
    if batch is not None and batch == overlap:
        without.append("p2p.options.batch_p2p_comm: it is true unless messages overlap")
    if overlap and not options.get("deallocate_pipeline_outputs"):
        without.append("p2p.options.deallocate_pipeline_outputs: it is true")
    return values, without


_FUSED_ROUTING = {"router": "moe-router-fusion", "permutation": "moe-permute-fusion"}


def _megatron_settings(experiment: Experiment) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the arguments of parallelism, optimizer and recomputation, parts without arguments, and notes.

    Arguments that are false are absent.
    """
    parallel, model, costs = experiment.parallel, values_of(experiment.model), values_of(experiment.costs)
    overlap, zero = bool(experiment.data_parallel.overlap), int(costs.get("zero") or 0)
    without: list[str] = []
    values: dict[str, Any] = {"sequence-parallel": parallel.sequence_parallel and parallel.tp > 1}
    if parallel.ep > 1:
        is_deduplicated = costs.get("dispatcher") == "deduplicated"
        values["moe-token-dispatcher-type"] = "flex" if is_deduplicated else "alltoall"
        fused = costs.get("fused_routing", True)
        values |= {name: fused is True or part in (fused or ()) for part, name in _FUSED_ROUTING.items()}
    values["use-distributed-optimizer"] = zero > 0
    state_types = {name: costs.get(name.replace("-", "_")) for name in _TYPED_STATE}
    if any(state_types.values()):
        if "mxfp8" in state_types.values():
            without.append("moments in mxfp8: write fp8 or bf16 in costs.exp_avg and costs.exp_avg_sq")
        values["use-precision-aware-optimizer"] = True
        values |= {
            f"{name}-dtype": kind for name, kind in state_types.items() if kind not in {"remainder", "mxfp8"}
        }
    shards, notes = _megatron_shards(experiment)
    if _has_weight_shards(experiment) and not costs.get("outer_sharding"):
        without.append("costs.outer_sharding false: all replicas share the optimizer state")
    keeps_fp8 = costs.get("fp8_param_gather") and model.get("precision") in {"fp8", "mxfp8"}
    fuses_loss = costs.get("fused_loss") is True
    values |= {
        **shards,
        "overlap-grad-reduce": overlap,
        # Without this argument, gathers of sharded weights are not overlapped.
        "overlap-param-gather": overlap and zero > 1,
        "grad-reduce-in-bf16": costs.get("gradients") == "bf16",
        "tp-comm-overlap": bool(costs.get("overlap_tp")) and parallel.tp > 1,
        "fp8-param-gather": bool(keeps_fp8),
        "reuse-grad-buf-for-mxfp8-param-ag": bool(keeps_fp8) and model["precision"] == "mxfp8",
        "cross-entropy-loss-fusion": fuses_loss,
        "cross-entropy-fusion-impl": "te" if fuses_loss else None,
        **_recompute(model),
        "cpu-offloading-num-layers": model.get("offloaded_layers") or None,
        "fine-grained-activation-offloading": bool(model.get("offload_modules")),
        "offload-modules": model.get("offload_modules") or None,
    }
    if model.get("offloaded_layers") and (parallel.pp or 1) > 1:
        without.append("model.offloaded_layers in a pipeline: it copies model.offload_modules there")
    modules = model.get("recompute_modules") or []
    without += [f"recompute_modules: {module}" for module in modules if module in _OTHER_MODULES]
    return values, without, notes


def _has_weight_shards(experiment: Experiment) -> bool:
    """Whether each matrix is gathered by itself, as with Megatron-LM's generalized tensor parallelism (GTP)."""
    return experiment.data_parallel.units == "weights"


def _megatron_shards(experiment: Experiment) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of sharded gradients and weights, and notes."""
    parallel, reduction, costs = experiment.parallel, experiment.data_parallel, values_of(experiment.costs)
    zero, shard = int(costs.get("zero") or 0), reduction.shard or parallel.dp
    if _has_weight_shards(experiment):
        expert_shards = (parallel.etp or parallel.tp) * (reduction.expert_shard or 1)
        return {
            "tensor-parallel-num-weight-shards": parallel.tp * shard,
            "expert-tensor-parallel-num-weight-shards": expert_shards if parallel.ep > 1 else None,
        }, ["shards of weights need Transformer Engine 2.19"]
    groups = parallel.dp // shard
    return {
        "use-megatron-fsdp": zero > 1,
        "data-parallel-sharding-strategy": _MEGATRON_SHARDS[zero] if zero > 1 else None,
        "ckpt-format": "fsdp_dtensor" if zero > 1 else None,
        "num-distributed-optimizer-instances": groups if groups > 1 else None,
        "outer-dp-sharding-strategy": "optim" if costs.get("outer_sharding") else None,
    }, ["CUDA_DEVICE_MAX_CONNECTIONS: unset it, or above 1"] if zero > 1 else []


def values_of(choice: Any) -> dict[str, Any]:
    """Return the values of a section; empty without one."""
    return choice.values if choice else {}


def _recompute(model: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of recomputation."""
    recompute = model.get("recompute")
    if recompute == "full":
        method, layers = model.get("recompute_method") or "uniform", model.get("recompute_num_layers") or 1
        return {"recompute-granularity": "full", "recompute-method": method, "recompute-num-layers": layers}
    requested = model.get("recompute_modules") or []
    modules = [module for module in requested if module not in _OTHER_MODULES]
    if recompute != "selective" or (requested and not modules):
        return {}
    return {"recompute-granularity": "selective", "recompute-modules": modules or None}


def _layout(split: list[int] | None, mtp: int) -> str | None:
    """Return layers per stage as a layout: E (embedding), t (layer), m (prediction module), L (loss)."""
    if not split:
        return None
    stages = [f"t*{count}" if count > 1 else "t" * count for count in split]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return "|".join(stages)


def _without_insertions(experiment: Experiment) -> list[str]:
    """Return the parts that no framework has arguments for: offload, recomputation actions, grids of encoders."""
    choice = experiment.schedule
    return [
        *(["parallel.encoder: a program creates its grid"] if experiment.parallel.grids else []),
        *(["schedule.offload"] if choice.offload else []),
        *(["schedule.recompute"] if choice.recompute else []),
    ]


_SINGLE_STAGE = {"1f1b": "1F1B", "gpipe": "GPipe"}
_SEVERAL_STAGES = {"interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS", "dualpipe-v": "DualPipeV"}
"""Schedules with PyTorch's order for all costs, unlike zero-bubble schedules of the same name."""
_LAYERS_PER_STAGE = "layers per stage: write module_fqns_per_model_part in the configuration"
_SEQUENTIAL_PAIRS = "overlapped pairs: it runs their actions one after the other"


def torchtitan_schedule(experiment: Experiment, table: Schedule) -> str:
    """Return torchtitan's name of the configured schedule; empty if it has none with this order."""
    if any(experiment.schedule.options.values()):
        return ""
    names = _SINGLE_STAGE if table.stages == table.ranks else _SEVERAL_STAGES
    return names.get(experiment.schedule.name, "")


def torchtitan_arguments(experiment: Experiment, table: Schedule, file: str | None = None) -> Arguments:
    """Return the launch arguments of torchtitan; without a model, those of the pipeline.

    Args:
        experiment: the configuration with all options of its cost model.
        table: the schedule's table.
        file: the CSV file of the table; by default :data:`TABLE_FILE` if torchtitan has no schedule of the same
            name with this order.
    """
    parallel, batch = experiment.parallel, experiment.batch
    values, without, notes = _pipeline(experiment, table, file)
    words: list[str] = []
    if experiment.model is not None:
        sharding, differences = _sharding(experiment)
        values = {
            "parallelism.tensor_parallel_degree": parallel.tp,
            "parallelism.context_parallel_degree": parallel.cp,
            "parallelism.expert_parallel_degree": parallel.ep,
            **sharding, **values,
            "training.global_batch_size": batch.global_batch, "training.seq_len": batch.sequence,
        }  # fmt: skip
        is_old = experiment.stack in _OLD
        if parallel.tp > 1 and not parallel.sequence_parallel:
            words += [] if is_old else ["--parallelism.no-enable_sequence_parallel"]
            without += ["sequence_parallel false: it splits activations"] if is_old else []
        recompute, recompute_differences = _torchtitan_recompute(experiment.model.values, is_old=is_old)
        words += recompute
        differences += ["data_parallel.units weights: it gathers layers"] * _has_weight_shards(experiment)
        without += [*differences, *recompute_differences, *_without_insertions(experiment)]
    if experiment.stack == _MAIN:
        values = _in_tokens(values, batch.micro, batch.sequence)
    if experiment.stack not in _OLD and (table.ranks > 1 or parallel.ep > 1):
        words.insert(0, "--training.disable_cuda_graphs")
    return Arguments(values=values, commands=tuple(words), without=tuple(without), notes=tuple(notes))


_OLD, _MAIN = ("torchtitan-0.1", "torchtitan-0.2"), "torchtitan-main"
"""Stacks with other arguments than 0.3."""


def _in_tokens(values: Mapping[str, Any], micro: int, sequence: int | None) -> dict[str, Any]:
    """Return arguments with batches in tokens, from those with batches in sequences.

    Args:
        values: the arguments by name.
        micro: sequences of a microbatch.
        sequence: tokens of a sequence; None for unknown, and arguments that need it are then omitted.
    """
    local, total = values["training.local_batch_size"], values.get("training.global_batch_size")
    tokens: dict[str, tuple[str, Any]] = {
        "parallelism.pipeline_parallel_microbatch_size": ("parallelism.num_pp_microbatches", local // micro),
        "training.local_batch_size": (
            "training.num_tokens_per_microbatch_per_dp_rank", micro * sequence if sequence else None
        ),
        "training.global_batch_size": (
            "training.num_tokens_per_train_step",
            total * sequence if total and sequence else None,
        ),
        "training.seq_len": ("training.max_context_length", sequence),
    }  # fmt: skip
    counted = (tokens.get(name, (name, value)) for name, value in values.items())
    return {name: value for name, value in counted if value is not None}


def _torchtitan_recompute(model: dict[str, Any], *, is_old: bool) -> tuple[list[str], list[str]]:
    """Return the words that select recomputation, after all flags, and differences from the model's."""
    recompute, without = str(model.get("recompute") or "none"), []
    if recompute == "selective" and model.get("recompute_modules") != ["alternate_products"]:
        without.append("recompute selective: it keeps the attention core and every other matrix product")
    elif model.get("recompute_method"):
        without.append("recompute_method: it recomputes every layer")
    without += [f"model.{key}" for key in ("offloaded_layers", "offload_modules") if model.get(key)]
    if not is_old:
        return [f"activation-checkpoint:{recompute}"], without
    option = ["--activation_checkpoint.selective_ac_option", "op"] if recompute == "selective" else []
    return ["--activation_checkpoint.mode", recompute, *option], without


def _pipeline(
    experiment: Experiment, table: Schedule, file: str | None
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the arguments of the pipeline and its microbatches, the parts that torchtitan rejects, and notes."""
    batch, ranks = experiment.batch, table.ranks
    if ranks == 1:
        return {"parallelism.pipeline_parallel_degree": 1, "training.local_batch_size": batch.micro}, [], []
    name, schedule, faults = (
        "parallelism.pipeline_parallel_{}",
        torchtitan_schedule(experiment, table),
        list[str](),
    )
    order = {"schedule": schedule}
    if file or not schedule:
        faults = list(_table_faults(table, batch.known_microbatches))
        order = {"schedule": _schedule_of_placement(table), "schedule_csv": file or TABLE_FILE}
    split = _stages(values_of(experiment.model), ranks, table.stages // ranks)
    values = {
        name.format("degree"): ranks,
        **{name.format(key): value for key, value in order.items() if not faults},
        **split,
        name.format("microbatch_size"): batch.micro,
        "training.local_batch_size": batch.micro * batch.known_microbatches,
    }
    if table.has_pairs:
        faults.append(_SEQUENTIAL_PAIRS)
    return values, faults, [] if split else [_LAYERS_PER_STAGE]


def _schedule_of_placement(table: Schedule) -> str:
    """Return the schedule whose stages of each rank are those of a table; empty without one.

    A schedule's name selects only the stages of each rank where a file has the order.
    """
    ranks, chunks = table.ranks, table.stages // table.ranks
    if _is_placed(table, Placement.looped(ranks, 1, chunks)):
        return "1F1B" if chunks == 1 else "Interleaved1F1B"
    return "ZBVZeroBubble" if _is_placed(table, Placement.v_shaped(ranks, 1)) else ""


def _is_placed(table: Schedule, placement: Placement) -> bool:
    return table.stages == placement.stages and bool((table.placement.stage_rank == placement.stage_rank).all())


def _table_faults(table: Schedule, microbatches: int) -> Iterator[str]:
    """Yield the parts of a table that torchtitan does not run from a file."""
    if not _schedule_of_placement(table):
        yield "the placement of stages: it has one stage on a rank, loops, or a V of two stages on a rank"
    if table.updates == 1 and table.microbatches != microbatches:
        yield "slices of sequences"
    yield from map(": ".join, unsupported_parts(table))


def titan_split(layers: int, stages: int, first: int, last: int) -> list[int] | None:
    """Return torchtitan's layers per stage for ends that count as layers; None if it rejects them."""
    even, remainder = divmod(layers + first + last, stages)
    if not even or first > even or last > even:
        return None
    split = [even + (stage < remainder) for stage in range(stages)]
    split[0] -= first
    split[-1] -= last
    return split


def _sharding(experiment: Experiment) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of sharding, and the differences of FSDP from the configuration."""
    parallel, zero = experiment.parallel, int(values_of(experiment.costs).get("zero") or 0)
    degree = "parallelism.data_parallel_{}_degree"
    if not zero:
        remainder = (parallel.tp or 1) * (parallel.cp or 1) % (parallel.ep or 1)
        reason = f"expert parallelism of weights that are not sharded: ep {parallel.ep} does not divide tp x cp"
        return {degree.format("replicate"): parallel.dp, degree.format("shard"): 1}, [reason] * bool(remainder)
    has_units = parallel.pp == 1 and experiment.data_parallel.units != 1
    reshard = experiment.data_parallel.reshard_rule or (Reshard.ALWAYS if has_units else Reshard.NEVER)
    is_resharded = zero == max(_SHARDS) and reshard not in {Reshard.NEVER, Reshard.BACKWARD}
    # Without a pipeline, the default keeps the last unit between its forward and its backward, as units do.
    rule = "default" if has_units else "always"
    shard = experiment.data_parallel.shard or parallel.dp
    words = {
        degree.format("replicate"): parallel.dp // shard, degree.format("shard"): shard,
        "parallelism.fsdp_reshard_after_forward": rule if is_resharded else "never",
    }  # fmt: skip
    subgroup = experiment.data_parallel.subgroup
    differences = [f"data_parallel.reshard {subgroup}: it gathers weights in the whole group"] * bool(subgroup)
    return words, [*differences, *[f"zero {zero}: FSDP shards {_SHARDS[zero]}, too"] * bool(_SHARDS[zero])]


_SHARDS = {1: "gradients and weights", 2: "weights", 3: ""}
"""State that FSDP shards beyond each of ZeRO's stages."""


def _stages(model: dict[str, Any], ranks: int, chunks: int) -> dict[str, Any]:
    """Return the arguments of the configured split of layers; empty if no arguments express it."""
    stages, layers = ranks * chunks, int(model.get("layers") or 0)
    is_even = layers > 0 and layers % stages == 0
    split = model.get("layers_per_stage") or ([layers // stages] * stages if is_even else None)
    if not split or model.get("layout"):
        return {}
    name, limit = "parallelism.pipeline_parallel_{}", max(split) + 1
    for first in range(limit):
        for last in range(limit):
            total = sum(split) + first + last
            layers_per_stage = -(-total // stages)
            # torchtitan derives the number of stages from the layers per stage, rounded up.
            has_equal_stages = chunks == 1 or -(-total // layers_per_stage) == stages
            if has_equal_stages and titan_split(sum(split), stages, first, last) == list(split):
                return {
                    name.format("first_stage_less_layers"): first, name.format("last_stage_less_layers"): last,
                    **({name.format("layers_per_stage"): layers_per_stage} if chunks > 1 else {}),
                }  # fmt: skip
    return {}


def pytorch_arguments(experiment: Experiment, table: Schedule) -> Arguments:
    """Return the file of the table as the argument of PyTorch's pipeline runtime.

    Model, parallelism and optimizer are the program's own.
    """
    without = [*map(": ".join, unsupported_parts(table)), *_without_insertions(experiment)]
    without += [_SEQUENTIAL_PAIRS] if table.has_pairs else []
    notes = (f"_PipelineScheduleRuntime loads {TABLE_FILE}",)
    return Arguments(commands=(TABLE_FILE,), without=tuple(without), notes=notes)


class Framework(Struct, frozen=True, kw_only=True):
    """A framework that runs a plan."""

    title: str
    """Its name in texts, with what its arguments belong to."""
    arguments: Callable[[Experiment, Schedule], Arguments]
    """Returns its launch arguments for a configuration with all options of its cost model, and a table."""
    table_faults: Callable[[str, Schedule, int], Iterator[str]] = lambda *_: iter(())
    """Yields the parts of a table that it runs in no configuration, from the name of the schedule, its table and
    the microbatches of the configuration."""
    pair_faults: Callable[[Mapping[str, Any], Mapping[str, Any], int, int], Iterator[str]] = lambda *_: iter(())
    """Yields why it runs no table with overlapped pairs, from all parameters of the model, all options of the cost
    model, the expert-parallel size and the number of pipeline ranks."""
    timed_fault: str = ""
    """Why it runs no table that a schedule builds from times; empty where it runs such tables."""
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that a plan tries for a key by default; those of other keys are the same for all frameworks."""
    shards_alone: bool = False
    """Whether a plan tries sharded weights, also in shard groups, by default for jobs without a pipeline."""
    program: tuple[str, ...] = ()
    """The program that takes the arguments; empty if the framework is a library."""

    def script(self, name: str, arguments: Arguments, file_from: str | None, gpus: int, nodes: int = 0) -> str:
        """Return a shell script that runs the program; words after its name are further arguments.

        Args:
            name: the name of the configuration.
            arguments: arguments of a step that the framework runs.
            file_from: the command that writes the table of the arguments; None without one.
            gpus: the GPUs of the job.
            nodes: the nodes that have these GPUs; 0 if unknown.
        """
        processes = ["--nnodes", str(nodes), "--nproc-per-node", str(gpus // nodes)] if nodes else []
        rendezvous = "run this script on each node, with PET_RDZV_BACKEND=c10d and PET_RDZV_ENDPOINT=HOST:PORT"
        comments = [
            f"pptrace plan: {name}", f"{self.title}: append the arguments of your model, data and checkpoints",
            *([rendezvous] if nodes > 1 else []), *arguments.notes,
            *([f"{TABLE_FILE} comes from: {file_from}"] if file_from else []),
        ]  # fmt: skip
        *lines, last = command_lines(["exec", "torchrun", *processes, *self.program, *arguments.words])
        return "\n".join(
            ["#!/usr/bin/env bash", *(f"# {comment}" for comment in comments), *lines, f'{last} "$@"', ""]
        )


FRAMEWORKS = {
    "megatron": Framework(
        title="Megatron-LM",
        arguments=megatron_arguments,
        table_faults=_megatron_table_faults,
        pair_faults=_combined_faults,
        timed_fault=_OTHER_ORDER,
        shards_alone=True,
        program=("pretrain_gpt.py",),
    ),
    "torchtitan": Framework(
        title="torchtitan",
        arguments=torchtitan_arguments,
        pair_faults=lambda *_: iter([_SEQUENTIAL_PAIRS]),
        shards_alone=True,
        program=("-m", "torchtitan.train"),
        values={"costs.zero": (0, 3), "model.recompute": ("none", "selective", "full")},
    ),
    "pytorch": Framework(
        title="PyTorch", arguments=pytorch_arguments, pair_faults=lambda *_: iter([_SEQUENTIAL_PAIRS])
    ),
}
"""Frameworks by the names that ``pptrace plan --for`` takes."""
ANY = "any"
"""The name for all frameworks, also those that a plan has no arguments for."""


_RECIPES = {
    "llama2-7b": "llama2_7b", "llama3-8b": "llama3_8b", "llama3-70b": "llama3_70b", "llama3-405b": "llama31_405b",
    "deepseek-v2": "deepseek_v2", "deepseek-v3": "deepseek_v3", "kimi-k2": "kimi_k2", "gpt3-175b": "gpt3_175b",
    "qwen3-30b-a3b": "qwen3_30b_a3b", "qwen3-235b-a22b": "qwen3_235b_a22b", "gpt-oss-120b": "gpt_oss_120b",
}  # fmt: skip
"""First words of the library's pretraining recipes by model preset."""
_UNSET = {
    "model.virtual_pipeline_model_parallel_size": None, "model.expert_tensor_parallel_size": None,
    "model.pipeline_model_parallel_layout": None, "model.account_for_embedding_in_pipeline_split": False,
    "model.account_for_loss_in_pipeline_split": False, "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None, "model.microbatch_group_size_per_vp_stage": None,
    "model.sequence_parallel": False, "model.recompute_granularity": None, "model.recompute_method": None,
    "model.recompute_num_layers": None, "model.recompute_modules": None, "ddp.use_distributed_optimizer": False,
    "ddp.use_megatron_fsdp": False, "optimizer.use_precision_aware_optimizer": False,
    "optimizer.main_params_dtype": "fp32", "optimizer.exp_avg_dtype": "fp32", "optimizer.exp_avg_sq_dtype": "fp32",
    "comm_overlap.tp_comm_overlap": False, "comm_overlap.overlap_grad_reduce": False,
    "comm_overlap.overlap_moe_expert_parallel_comm": False, "comm_overlap.delay_wgrad_compute": False,
    "mixed_precision.grad_reduce_in_fp32": True,
}  # fmt: skip
"""Settings without their argument, since the library's recipe may have them."""
_SECTIONS = {
    "micro-batch-size": "train", "global-batch-size": "train", "use-megatron-fsdp": "ddp",
    "data-parallel-sharding-strategy": "ddp", "ckpt-format": "checkpoint", "tp-comm-overlap": "comm_overlap",
    "overlap-grad-reduce": "comm_overlap", "overlap-moe-expert-parallel-comm": "comm_overlap",
    "delay-wgrad-compute": "comm_overlap", "use-distributed-optimizer": "ddp",
    "use-precision-aware-optimizer": "optimizer", "main-params-dtype": "optimizer", "exp-avg-dtype": "optimizer",
    "exp-avg-sq-dtype": "optimizer", "num-distributed-optimizer-instances": "ddp",
    "outer-dp-sharding-strategy": "ddp",
}  # fmt: skip
"""Sections of the settings that have their argument's name; by default the model."""
_SETTINGS = {
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "microbatch-group-size-per-virtual-pipeline-stage": "model.microbatch_group_size_per_vp_stage",
    "overlap-p2p-communication-warmup-flush": "model.overlap_p2p_comm_warmup_flush",
    "no-overlap-p2p-communication": "comm_overlap.overlap_p2p_comm",
    "grad-reduce-in-bf16": "mixed_precision.grad_reduce_in_fp32",
}
"""Settings that have another name than their argument."""
_OPPOSITES = {"no-overlap-p2p-communication", "grad-reduce-in-bf16"}
"""Arguments that make their setting false."""
_SAME_SETTINGS = {
    "model.seq_length": "dataset.seq_length",
    "ddp.use_distributed_optimizer": "optimizer.use_distributed_optimizer",
    "comm_overlap.overlap_grad_reduce": "ddp.overlap_grad_reduce",
}
"""Settings that the library keeps twice."""
_TYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
_FP8_RECIPES = {
    "tensorwise": ("fp8cs", "fp8_current_scaling"), "delayed": ("fp8ds", "fp8_delayed_scaling"),
    "blockwise": ("fp8sc", "fp8_subchannel_scaling"),
}  # fmt: skip
_PRECISIONS = {
    "bf16": ("bf16", "bf16_mixed"), "fp16": ("fp16", "fp16_mixed"),
    "mxfp8": ("fp8mx", "bf16_with_mxfp8_mixed"), "nvfp4": ("nvfp4", "bf16_with_nvfp4_mixed"),
}  # fmt: skip
"""Words of recipes' names, and names of mixed precision."""
_HYBRID_EP_DEVICES = ("gb200", "gb300", "vr200")
"""Devices of NVLink domains of many nodes, for which the library takes HybridEP in place of DeepEP."""


def check_recipe(model: str | None) -> str:
    """Return the first words of the library's recipes of a model preset.

    Raises:
        ConfigError: the library has no recipe of the model.
    """
    if model not in _RECIPES:
        raise ConfigError(
            f"Megatron-Bridge has recipes of {', '.join(_RECIPES)}; -o run.sh writes Megatron-LM's arguments",
            key="model.preset",
        )
    return _RECIPES[model]


def bridge_recipe(experiment: Experiment, arguments: Arguments, table: Schedule, name: str) -> str:
    """Return a Python file with a recipe: the library's recipe of the model, with the settings of a plan.

    The configuration has all options of its cost model. The arguments are Megatron-LM's, of a step that it runs.

    Raises:
        ConfigError: the library has no recipe of the model, or no mixed precision of its products.
    """
    parallel, model, device = experiment.parallel, experiment.model, experiment.device
    stem = check_recipe(model.preset if isinstance(model, Preset) else model)
    accelerator = (
        ((device.preset if isinstance(device, Preset) else device) or "gpu").removesuffix("-sxm").replace("-", "_")
    )
    tag, mixed_precision = _precision(experiment)
    gpus, chunks = parallel.tp * parallel.cp * parallel.dp * table.ranks, table.stages // table.ranks
    function, base = f"{stem}_pretrain_{gpus}gpu_{accelerator}_{tag}_config", f"{stem}_pretrain_config"
    settings = dict(_settings(arguments.values))
    settings["model.virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    if "model.cpu_offloading_num_layers" in settings:
        settings["model.cpu_offloading"] = True
    if settings.get("model.moe_token_dispatcher_type") == "flex":
        backend = "hybridep" if accelerator in _HYBRID_EP_DEVICES else "deepep"
        settings |= {"model.moe_flex_dispatcher_backend": backend, "model.moe_shared_expert_overlap": False}
    lines = [
        f'"""pptrace plan: {name}', "",
        f"Megatron-Bridge runs this file: torchrun --nproc-per-node N --nnodes N recipe.py, on {gpus} GPUs.",
        "Data and checkpoints are those of the library's recipe.",
        *arguments.notes, '"""', "",
        "import torch", f"from megatron.bridge.recipes import {base}",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "from megatron.bridge.training.pretrain import pretrain", "", "",
        f"def {function}():", f"    cfg = {base}()",
        f'    cfg.mixed_precision = get_mixed_precision_config("{mixed_precision}")',
        "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)",
        *(f"    cfg.{key} = {_literal(key, value)}" for key, value in settings.items()),
        "    return cfg", "", "",
        'if __name__ == "__main__":', f"    pretrain({function}(), forward_step)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _precision(experiment: Experiment) -> tuple[str, str]:
    """Return the word of a recipe's name for the precision, and the name of the library's mixed precision."""
    precision = values_of(experiment.model).get("precision") or "bf16"
    if precision in _PRECISIONS:
        return _PRECISIONS[precision]
    if precision != "fp8":
        known = ", ".join([*_PRECISIONS, "fp8"])
        raise ConfigError(f"Megatron-Bridge has mixed precision of {known}", key="model.precision")
    tag, scaling = _FP8_RECIPES[values_of(experiment.costs).get("fp8_recipe") or "tensorwise"]
    return tag, f"bf16_with_{scaling}_mixed"


def _settings(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of Megatron-LM's arguments, then those of absent arguments."""
    written = {}
    for argument, value in arguments.items():
        setting = f"{_SECTIONS.get(argument, 'model')}.{argument.replace('-', '_')}"
        written[_SETTINGS.get(argument, setting)] = False if argument in _OPPOSITES else value
    for key, value in {**written, **{key: value for key, value in _UNSET.items() if key not in written}}.items():
        yield key, value
        if key in _SAME_SETTINGS:
            yield _SAME_SETTINGS[key], value


def _literal(key: str, value: Any) -> str:
    return _TYPES[value] if key.endswith("_dtype") else repr(value).replace("'", '"')
