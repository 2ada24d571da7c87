"""The keys of a configuration as pydantic models."""

import json
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from pptrace.config.choices import (
    Balance,
    Bridge,
    CopyStream,
    PolicyName,
    Receive,
    ReduceGroups,
    Reshard,
    Sharing,
    StreamPer,
    Validation,
)
from pptrace.config.flags import FLAGS
from pptrace.config.quantities import Duration, Rate, Size, parse_size
from pptrace.config.validation import Parameters

DEFAULT_COSTS = "unit"
"""The cost model of a step without a model."""


_YAML = (".yaml", ".yml")

DEFAULT_STACK = "megatron-core"
"""The stack of a step with a model."""

_LARGEST = 2**31 - 1
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Speed = Annotated[float, Field(ge=0.001, le=1)]
_Places = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


def is_yaml_file(name: str) -> bool:
    """Return whether a name is that of a YAML file, in place of a preset's.

    >>> is_yaml_file("mine.yaml"), is_yaml_file("llama3-8b")
    (True, False)
    """
    return name.lower().endswith(_YAML)


class OpenSection(Parameters):
    """A section that takes keys of plugins."""

    model_config = ConfigDict(extra="allow")

    @property
    def values(self) -> dict[str, Any]:
        """Keys of the section that only its plugin can check."""
        return dict(self.__pydantic_extra__ or {})


class Preset(OpenSection):
    """A model or device: a preset's name, its parameters, or a preset with some changed."""

    preset: str | None = Field(default=None, min_length=1)
    """A preset that a plugin offers, or a file of parameters (.yaml), named after the file; keys beside it
    override its values."""


class Device(Preset):
    """A device, and the devices of other pipeline ranks where they differ."""

    ranks: dict[str, str | dict[str, Any]] | None = Field(
        default=None, min_length=1, examples=[{"4-7": "a100-sxm"}, {"3": {"compute_efficiency": 0.5}}]
    )
    """Devices of some pipeline ranks, by rank or range of ranks: a preset's name, or parameters. Parameters with a
    preset define a separate device, others override the device beside ranks, which all other ranks have."""

    def limited(self, size_bytes: int, written: Self | None = None) -> dict[str, str]:
        """Return settings by which no device has more memory than a limit; none without ``ranks``.

        Args:
            size_bytes: the limit.
            written: the section before presets' values were filled in, for settings as short as it is; this one
                has them filled in.
        """
        if not self.ranks:
            return {}

        def least(values: Mapping[str, Any]) -> str:
            return f"{min(size_bytes, parse_size(values['memory']))} B"

        ranks = {}
        for key, filled in self.ranks.items():
            entry = written.ranks.get(key, filled) if written and written.ranks else filled
            parameters = {"preset": entry} if isinstance(entry, str) else entry
            ranks[key] = {**parameters, "memory": least(filled if isinstance(filled, dict) else self.values)}
        return {"device.memory": least(self.values), "device.ranks": json.dumps(ranks)}


class NetworkChoice(OpenSection):
    """A network by name, with its options beside the name."""

    name: str
    """Name of a network, such as hockney; its options are keys next to the name. With a cluster, set keys of
    cluster.fabric and cluster.node in place of a network."""


class CostChoice(OpenSection):
    """A cost model by name, with its options beside the name."""

    name: str | None = None
    """Name of a cost model; its options are keys next to the name. The default is unit, and with a model the cost
    model that reads models, roofline."""


class DataParallel(Parameters):
    """What data-parallel replicas do together: gradients are reduced, sharded weights gathered."""

    overlap: bool = False
    """Reduce a stage's gradients as soon as they are whole, while the pipeline drains; else when every rank has
    finished."""
    bandwidth: Rate | None = None
    """Rate per direction between replicas; as the pipeline's network by default."""
    latency: Duration = 0
    """Latency of one message between replicas; as the pipeline's network where that gives the bandwidth."""
    validation: Validation = Field(
        default=Validation.BEFORE,
        description=f"When a step learns the norm of all gradients. {Validation.explanations()}.",
    )
    stage_replicas: bool = True
    """Reduce gradients also between the ranks of one pipeline that hold the same stage, as Chimera's do; by
    all-reduce over the pipeline's network or cluster. With false they are not exchanged."""

    reduce_each: bool | None = None
    """Reduce a stage's gradients after each microbatch's backward, as Megatron-FSDP does with sharded gradients.
    By default only if the stage has units, else once, after the last backward. Needs overlap."""
    reshard: Reshard | _Count | None = Field(
        default=None,
        description="When a rank frees the gathered weights of a stage, if costs shard them (costs.zero: 3). By "
        f"default always if the stage has units, else never. {Reshard.explanations()}. A number, which divides "
        "the GPUs of a shard group, is also a rule for units (PyTorch's reshard_after_forward). Between forward "
        "and backward, weights are sharded over so many consecutive GPUs, and the backward gathers them there.",
    )
    units: Annotated[int, Field(ge=1, le=2**20)] | Literal["weights"] | None = None
    """Without a pipeline, the units whose weights are gathered, and whose gradients are reduced, separately. By
    default, with overlapped reductions or with costs.zero of 2 or more, these are embedding, each layer, and LM
    head. With `weights`, each matrix of a layer is a unit, as with Megatron-LM's GTP."""
    prefetch: Annotated[int, Field(ge=0, le=2**20)] | None = None
    """Units that a pass gathers ahead of the unit that computes; 1 by default. Memory has the gathered weights of
    one more."""
    shard: _Count | None = None
    """Replicas that share a shard group (HSDP, data_parallel_shard_degree): state is sharded in the group, and
    gradients are then reduced between the groups. It divides parallel.dp, the default. With Megatron-LM's GTP, it
    is tensor-parallel-num-weight-shards over tp."""
    expert_shard: _Count | None = None
    """Replicas of an expert that share its state, if not those in a shard group. It divides the replicas of an
    expert. With Megatron-LM's GTP, it is expert-tensor-parallel-num-weight-shards over etp."""
    reduce_groups: ReduceGroups | None = Field(
        default=None,
        description="When shard groups reduce gradients between them, if gradients are reduced after each "
        f"microbatch's backward; each by default. {ReduceGroups.explanations()}",
    )
    active_stages: _Count | None = None
    """Under reshard: never, number of stages of a rank whose sharded weights are gathered at the same time. They
    are the stages that compute next. 3 by default, as in PyTorch's pipeline runtime."""

    speeds: dict[str, _Speed] | None = Field(
        default=None, min_length=1, examples=[{"3": 0.5, "8-11": 0.9, "0/2": 0.7}]
    )
    """Relative speeds of slower devices (stragglers) in forwards and backwards. Keys are a replica, a range of
    replicas, or a rank of a pipeline (3/2 is rank 2 of replica 3). All others have 1. A rank is as fast as its
    slowest GPU, and reductions wait for the slowest replica."""
    spread: Annotated[float, Field(ge=0, le=0.5)] | None = None
    """Relative standard deviation of the times of forwards and backwards between GPUs. Each GPU of the job has a
    random factor around 1. It cannot be combined with costs.spread."""
    seed: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    """Seed of the random numbers of spread, 1 by default."""

    @property
    def reshard_rule(self) -> Reshard | None:
        """When gathered weights are freed; None for the default."""
        return Reshard.ALWAYS if isinstance(self.reshard, int) else self.reshard

    @property
    def subgroup(self) -> int:
        """GPUs of a shard group over which weights stay sharded from forward to backward; 0 for all of it."""
        return self.reshard if isinstance(self.reshard, int) else 0

    def reduces_each(self, *, units: bool = False) -> bool:
        """Return whether sharded gradients are reduced after each backward: by default those of units."""
        return (units and self.overlaps) if self.reduce_each is None else self.reduce_each

    @property
    def overlaps(self) -> bool:
        """Whether a stage's gradients are reduced as soon as they are whole."""
        return self.overlap or self.validation is not Validation.BEFORE


class _Modifier(Parameters):
    stages: _Places | None = None
    """Stages that this applies to, from 0; all by default."""
    chunks: _Places | None = None
    """Which of each rank's stages, from 0 in the model's order; all by default."""


class Offload(_Modifier):
    """Activations that are in host memory between forward and backward."""

    ratio: Annotated[float, Field(gt=0, le=1)] = 1
    """Share of each activation's bytes that is copied."""
    ahead: Annotated[int, Field(ge=0)] | None = None
    """Computations, or overlapped pairs, by which a copy back is ahead of its backward. By default the smallest
    number that hides the copy in the step without copies."""
    behind: Annotated[int, Field(ge=0)] | None = None
    """The rank waits for a copy out before the computation that follows its forward by this number. This frees
    memory in time. By default it does not wait."""
    gap: Annotated[float, Field(ge=0)] = 3
    """Activations are copied only if the time between forward and backward, in the step without copies, exceeds
    this multiple of the time of both copies. With 0 all are copied."""
    alone: Annotated[float, Field(gt=0, le=1)] = 1
    """Share of its time that a copy takes if no copy in the other direction overlaps with it on its rank. With
    `pair`, both ranks count. The overlap is that of a step in which all copies take their whole time.
    PipeOffload's program has 0.7."""
    stream: CopyStream = Field(
        default=CopyStream.DIRECTION,
        description=f"Granularity of copy streams. {CopyStream.explanations()}",
    )


class Recompute(_Modifier):
    """Forwards that are computed again, by actions of their own, before the backward."""

    early: bool = False
    """Recompute forwards as soon as the rank is free, without waiting for their gradients."""


class ScheduleChoice(Parameters):
    """A schedule: a plugin's by name, a function in a Python file, or a table in a file."""

    name: str = Field(min_length=1, examples=["1f1b", "./mine.py:make", "table.csv"])
    """A schedule that a plugin offers, FILE.py:FUNCTION, or a table file (.csv or .txt)."""
    options: dict[str, Any] = Field(default={})
    """Options of the schedule; of a table file only slices, into how many each sequence is cut: its microbatches
    are then slices."""
    interleave: dict[str, _Places] | None = Field(
        default=None, min_length=1, examples=[{"F+B": [0, 1, 1, 0, 1, 1]}]
    )
    """Order of computations in an overlapped pair, by its kinds, such as F+B: the member of each next computation,
    from 0, repeated. By default the schedule's order, or whichever is ready first."""
    offload: Offload | None = None
    """Activations that are copied to host memory and back; none by default."""
    recompute: Recompute | None = None
    """Forwards that are recomputed before their backward; none by default."""

    @property
    def kind(self) -> Literal["plugin", "python", "table"]:
        """Where the schedule comes from, by the form of its name."""
        file, colon, function = self.name.rpartition(":")
        if colon and file.endswith(".py") and function.isidentifier():
            return "python"
        return "table" if self.name.lower().endswith((".csv", ".txt")) else "plugin"


class TableFileOptions(Parameters):
    """What a table file does not contain."""

    slices: _Count = 1
    """Slices of each microbatch's sequence; as many consecutive microbatches of the table are one."""


_Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class EncoderParallel(Parameters):
    """How an encoder's processes are divided, where it has sizes other than the decoder's."""

    pp: Annotated[int, Field(ge=0, le=_LARGEST)] = 0
    """Pipeline ranks with only the encoder: the first of parallel.pp, with one stage each, on separate GPUs before
    those of the decoder. With 0, the encoder is on the GPUs of the first stage."""
    tp: _Count | None = None
    """Tensor-parallel size of the encoder; parallel.tp by default."""
    dp: _Count | None = None
    """Replicas of the encoder, which divide the items of a microbatch, of all replicas of the decoder together. By
    default parallel.dp, or without pp as many as fill the GPUs of the decoder."""
    cp: _Count | None = None
    """Context-parallel size of the encoder; parallel.cp by default."""
    bridge: Bridge | None = Field(
        default=None,
        description="Which GPUs exchange the messages between both modules with pp; pieces by default. "
        f"{Bridge.explanations()}",
    )


class Parallel(Parameters):
    """How the job's processes are divided."""

    pp: _Count | None = Field(default=None, description=FLAGS["pp"].text)
    tp: _Count = Field(default=1, description=FLAGS["tp"].text)
    dp: _Count = Field(default=1, description=FLAGS["dp"].text)
    cp: _Count = Field(default=1, description=FLAGS["cp"].text)
    ep: _Count = Field(default=1, description=FLAGS["ep"].text)
    etp: _Count | None = None
    """Processes that an expert's matrices are split over; as many as tp by default. With another number ep divides
    tp x cp x dp / etp."""
    vp: _Count = Field(default=1, description=FLAGS["vp"].text)
    sequence_parallel: bool = False
    """Split activations between tensor-parallel regions over the sequence."""
    order: str = "tp-cp-ep-dp-pp"
    """Which neighbours along the axes are neighbouring GPUs of a cluster, the nearest first."""
    encoder: EncoderParallel | None = None
    """Sizes of the grid of processes that the model's encoder has, or all its encoders together; by default those
    of the decoder."""
    encoders: dict[_Name, EncoderParallel] | None = None
    """Sizes of the grid of each encoder of model.encoders by name, with the keys of encoder."""

    @property
    def grids(self) -> dict[str, EncoderParallel]:
        """Grids of encoders by the name of their encoder, in the order of their ranks; empty for all encoders."""
        return {"": self.encoder} if self.encoder else self.encoders or {}

    def grid_sizes(self, grid: EncoderParallel) -> tuple[int, int, int]:
        """Return replicas, context-parallel and tensor-parallel size of a grid of encoders."""
        cp, tp = grid.cp or self.cp, grid.tp or self.tp
        filling, rest = divmod(self.dp * self.cp * self.tp, cp * tp)
        fills = not (grid.pp or rest)
        return grid.dp or (filling if fills else self.dp), cp, tp

    @property
    def branches(self) -> tuple[int, ...]:
        """Pipeline ranks of each grid on separate GPUs, which precede the decoder's; grids run side by side."""
        return tuple(grid.pp for grid in self.grids.values() if grid.pp)

    @property
    def depth(self) -> int:
        """Pipeline ranks of the longest path through the modules."""
        return (self.pp or 1) - sum(self.branches) + max(self.branches, default=0)

    @property
    def processes(self) -> int:
        """Processes of the job."""
        of_encoders = sum(grid.pp * prod(self.grid_sizes(grid)) for grid in self.grids.values())
        return of_encoders + ((self.pp or 1) - sum(self.branches)) * self.dp * self.cp * self.tp


def grid_key(name: str) -> str:
    """Return the key of the grid of an encoder, or of all encoders for an empty name."""
    return f"parallel.encoders.{name}" if name else "parallel.encoder"


def module_title(name: str) -> str:
    """Return the title of an encoder in texts, which is ``encoder`` without a name."""
    return f"encoder {name}".rstrip()


class Lognormal(Parameters):
    """Lengths whose logarithms are normally distributed."""

    median: Annotated[float, Field(gt=0, le=_LARGEST)]
    """Median length in tokens."""
    sigma: Annotated[float, Field(ge=0, le=10)]
    """Standard deviation of the logarithm."""


class Documents(Parameters):
    """Documents that sequences consist of, in order of arrival, with attention inside each document."""

    lengths: Annotated[list[_Count], Field(min_length=1)] | str | None = None
    """Tokens of each document, or a file of them, separated by commas, spaces or lines; from the first again where
    the step needs more."""
    lognormal: Lognormal | None = Field(default=None, examples=[{"median": 800, "sigma": 1.5}])
    """Lengths with a lognormal distribution."""
    uniform: Annotated[list[_Count], Field(min_length=2, max_length=2)] | None = Field(
        default=None, examples=[[64, 8192]]
    )
    """Shortest and longest of uniformly distributed lengths."""
    fixed: _Count | None = None
    """The length of all documents."""
    histogram: dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None, min_length=1, examples=[{"512": 0.6, "4096": 0.3, "32768": 0.1}]
    )
    """Share of documents by the longest length of a bin; lengths are uniform within a bin."""
    seed: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    """Seed of random lengths, 1 by default."""
    count: _Count | None = None
    """Documents of a step, each in one sequence; by default as many as fill its microbatches. A replica has as
    many microbatches as its documents fill."""
    equal: bool = False
    """With count, give all replicas as many microbatches, as Megatron-LM and verl do: the last documents of full
    sequences move to sequences of their own."""
    whole: bool = False
    """Put each document into one sequence, in order up to batch.sequence tokens, as Megatron's dp_balanced does;
    longer ones end there. By default a document continues in the next sequence, and all sequences are full. count
    and dynamic_cp imply true."""
    balance: Balance = Field(
        default=Balance.NONE,
        description=f"How sequences are assigned to replicas, and whole documents to sequences. "
        f"{Balance.explanations()}",
    )
    dynamic_cp: bool = False
    """Compute each document on as few context-parallel ranks as it needs, as Megatron's default_dynamic_cp. Their
    number is a power of two, at most parallel.cp, with batch.sequence / parallel.cp tokens per rank. A microbatch
    fills parallel.cp ranks with such groups, and the group with the most work determines its time."""

    @property
    def sources(self) -> list[str]:
        """Names of the keys with lengths."""
        names = ("lengths", "lognormal", "uniform", "fixed", "histogram")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def is_whole(self) -> bool:
        """Whether a document is in one sequence."""
        return self.whole or self.dynamic_cp or self.count is not None


class Batch(Parameters):
    """What one training step works on; ``global`` and ``microbatches`` follow from each other."""

    global_batch: _Count | None = Field(default=None, alias="global", description=FLAGS["global"].text)
    micro: _Count = Field(default=1, description=FLAGS["micro"].text)
    microbatches: _Count | None = Field(default=None, description=FLAGS["microbatches"].text)
    sequence: _Count | None = Field(default=None, description=FLAGS["sequence"].text)
    lengths: Annotated[list[_Count], Field(min_length=1)] | str | None = Field(
        default=None, examples=[[8192, 3072, 5120, 8192]]
    )
    """Tokens in each microbatch's sequences. One number per microbatch, for all replicas or for each replica in
    turn, or a file with numbers between commas, spaces or lines. None exceeds sequence, by default the longest of
    them. With parallel.sequence_parallel they are padded to multiples of tp."""
    documents: Documents | None = None
    """Documents that sequences are packed from: equal tokens and unequal attention."""
    replica: int | None = Field(default=None, ge=0)
    """Data-parallel replica that the step shows where lengths differ, from 0; by default the one that computes
    longest. The step takes the same time in all of them."""

    @property
    def known_microbatches(self) -> int:
        """Microbatches of a step, or 0 where a table file knows them."""
        return self.microbatches or 0


class PostTraining(Parameters):
    """What precedes the training microbatches of a step of reinforcement learning."""

    generation: Duration = 0
    """Time of generation before the passes, on all ranks."""
    forward_passes: Annotated[int, Field(ge=0, le=100)] = 0
    """Forward-only passes over all microbatches, such as 2 for log-probabilities of the policy and of the
    reference. Each starts when all ranks and replicas have finished the pass before it."""


class NetworkPart(OpenSection):
    """A part of a cluster: a network by name, with its options beside the name."""

    name: str | None = None
    """Network that a plugin offers, with its options beside the name; the preset's by default."""


class Cluster(Parameters):
    """Nodes of GPUs and the fabric between them: a preset, one's own, or a preset with some changed."""

    preset: str | None = Field(default=None, min_length=1, examples=["dgx-h100x32"])
    """A preset of one node and its fabric; dgx-h100x32 is 32 nodes of dgx-h100."""
    nodes: _Count | None = None
    """Nodes; as many as the job needs by default."""
    gpus: _Count | None = None
    """GPUs of a node."""
    tray: _Count | None = None
    """GPUs of a tray, a part of a node that jobs get as a whole. A job on several nodes has equal numbers of trays
    in each, if these are at least half of a node. Other trays are unused. Nodes are filled one after another
    without this key, and if the GPUs of a node are given."""
    nics: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    """NICs of a node; GPU g uses NIC g x nics / gpus."""
    node: NetworkPart | None = None
    """The network of the GPUs and NICs of a node."""
    fabric: NetworkPart | None = None
    """The network that joins the NICs of all nodes."""
    spare: bool = False
    """Let GPUs that the job does not need stay unused."""


class Contending(Parameters):
    """What traffic and computation that meet do to each other."""

    links: Sharing = Field(default=Sharing.MAX_MIN, description=Sharing.explanations())
    compute: _Speed = 1
    """Speed of computation while its rank communicates, relative to its speed alone."""
    communication: _Speed = 1
    """Speed of communication while one of its ranks computes, relative to its speed alone."""


class PointToPoint(Parameters):
    """How transfers between pipeline ranks are issued and matched."""

    policy: str = Field(
        default=PolicyName.ASYNC.value,
        min_length=1,
        description=f"{PolicyName.explanations()}. Plugins offer the policies of frameworks by name.",
        examples=["megatron"],
    )
    options: dict[str, Any] = Field(default={})
    """The options of a policy that a plugin offers."""
    stream: StreamPer = Field(
        default=StreamPer.DIRECTION,
        description=f"Under ordered, the granularity of communication streams. {StreamPer.explanations()}",
    )
    eager: Size = 0
    """Under ordered, messages up to this size leave without waiting for their receiver; with 0 B none does."""
    receive: Receive | None = Field(
        default=None,
        description="Under blocking, ordered and batched, the position of receives in a schedule without them. By "
        f"default deferred under batched, else asap. {Receive.explanations()}",
    )

    @property
    def unused(self) -> dict[str, tuple[str, ...]]:
        """Settings other than their defaults that this policy does not take, and the policies that do."""
        fields = PointToPoint.model_fields
        return {
            name: takers for name, takers in _TAKEN_BY.items()
            if self.policy not in takers and getattr(self, name) != fields[name].default
        }  # fmt: skip

    @property
    def taken(self) -> Self:
        """These settings, those that this policy does not take at their defaults."""
        return self.model_copy(update={name: PointToPoint.model_fields[name].default for name in self.unused})


_TAKEN_BY = {"stream": ("ordered",), "eager": ("ordered",), "receive": ("blocking", "ordered", "batched")}


class Experiment(Parameters):
    """One simulated training step."""

    model: Preset | None = Field(default=None, description=FLAGS["model"].text)
    parallel: Parallel = Parallel()
    """How the job's processes are divided: pp x tp x dp x cp of them."""
    batch: Batch = Batch()
    """Sequences and microbatches of one step."""
    rl: PostTraining | None = None
    """Generation and forward-only passes of a step of reinforcement learning."""
    schedule: ScheduleChoice = Field(description=FLAGS["schedule"].text)
    device: Device | None = Field(default=None, description=FLAGS["device"].text)
    stack: str | None = Field(
        default=None, min_length=1, description=FLAGS["stack"].text, examples=["megatron-core-0.19", "ideal"]
    )
    network: NetworkChoice = Field(default=NetworkChoice(name="ideal"), description=FLAGS["network"].text)
    cluster: Cluster | None = Field(default=None, description=FLAGS["cluster"].text)
    contention: Contending = Field(default=Contending(), description=FLAGS["contention"].text)
    p2p: PointToPoint = Field(default=PointToPoint(), description=FLAGS["p2p"].text)
    costs: CostChoice = Field(default=CostChoice(), description=FLAGS["costs"].text)
    data_parallel: DataParallel = DataParallel()
    """Reduction of gradients over replicas, before the optimizer."""
    plan: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = Field(
        default=None, examples=[{"pp": [4, 8], "schedule": ["1f1b", "interleaved-1f1b"]}]
    )
    """Values that `pptrace plan` tries, by key; as `--vary`. A single step is simulated without it."""
