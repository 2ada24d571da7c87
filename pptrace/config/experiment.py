"""What an experiment may say, key by key; names are left to be looked up among the plugins' offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantity import Duration, Rate, Size

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HEADLINES",
    "Batch",
    "Cluster",
    "Contending",
    "DataParallel",
    "Experiment",
    "NamedChoice",
    "NetworkPart",
    "Parallel",
    "PointToPoint",
    "Preset",
    "ScheduleChoice",
]

HEADLINES: Mapping[str, str] = {
    "model": "preset",
    "schedule": "name",
    "device": "preset",
    "network": "name",
    "cluster": "preset",
    "contention": "links",
    "p2p": "policy",
    "costs": "name",
}
"""The key that a section's short form, a bare name, stands for."""

_LARGEST = 2**31 - 1
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Speed = Annotated[float, Field(ge=0.001, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OpenSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def values(self) -> dict[str, Any]:
        """What stands beside the section's own key, for a plugin to check."""
        return dict(self.__pydantic_extra__ or {})


class Preset(_OpenSection):
    """A model or device: a preset's name, its parameters, or a preset with some changed."""

    preset: str | None = Field(
        default=None, description="Name of a preset that a plugin offers; `pptrace plugins` lists them."
    )


class NamedChoice(_OpenSection):
    """A network or cost model by name, with its options beside the name."""

    name: str = Field(description="Name that a plugin offers; `pptrace plugins` lists them.")


class ScheduleChoice(_Section):
    """A schedule: a plugin's by name, a function in a Python file, or a table in a file."""

    name: str = Field(
        min_length=1,
        description="A schedule that a plugin offers, FILE.py:FUNCTION, or a table file (.csv or .txt).",
        examples=["1f1b", "./mine.py:make", "table.csv"],
    )
    options: dict[str, Any] = Field(default={}, description="The schedule's own options.")

    @property
    def kind(self) -> Literal["plugin", "python", "table"]:
        """Where the schedule comes from, by the form of its name."""
        file, colon, function = self.name.rpartition(":")
        if colon and file.endswith(".py") and function.isidentifier():
            return "python"
        return "table" if self.name.lower().endswith((".csv", ".txt")) else "plugin"


class Parallel(_Section):
    """How the job's processes are divided."""

    pp: _Count | None = Field(default=None, description="Pipeline ranks; a table file knows its own.")
    tp: _Count = Field(default=1, description="Tensor-parallel size.")
    dp: _Count = Field(default=1, description="Data-parallel replicas of the pipeline.")
    cp: _Count = Field(default=1, description="Context-parallel size.")
    ep: _Count = Field(default=1, description="Expert-parallel size.")
    vp: _Count = Field(default=1, description="Model chunks per pipeline rank (virtual stages).")
    sequence_parallel: bool = Field(
        default=False, description="Split activations between tensor-parallel regions over the sequence."
    )
    order: str = Field(
        default="tp-cp-ep-dp-pp",
        description="Which neighbours along the axes are neighbouring GPUs of a cluster, the nearest first.",
    )


class Batch(_Section):
    """What one training step works on; ``global`` and ``microbatches`` follow from each other."""

    global_batch: _Count | None = Field(
        default=None, alias="global", description="Sequences in a step, over all data-parallel replicas."
    )
    micro: _Count = Field(default=1, description="Sequences in a microbatch.")
    microbatches: _Count | None = Field(
        default=None, description="Microbatches that one pipeline runs in a step: global / (dp x micro)."
    )
    sequence: _Count | None = Field(
        default=None, description="Tokens in a sequence; needed where a model is given."
    )

    @property
    def units(self) -> int:
        """Microbatches of a step, or 0 where a table file knows them."""
        return self.microbatches or 0


class NetworkPart(_OpenSection):
    """A part of a cluster: a network by name, with its options beside the name."""

    name: str | None = Field(default=None, description="Network that a plugin offers; the preset's unless given.")


class Cluster(_Section):
    """Nodes of GPUs and the fabric between them: a preset, one's own, or a preset with some changed."""

    preset: str | None = Field(
        default=None,
        description="Preset of one node and its fabric; dgx-h100x32 stands for 32 nodes of dgx-h100.",
        examples=["dgx-h100x32"],
    )
    nodes: _Count | None = Field(
        default=None, description="Number of nodes; as many as the job needs unless given."
    )
    gpus: _Count | None = Field(default=None, description="GPUs of a node.")
    nics: Annotated[int, Field(ge=0, le=_LARGEST)] | None = Field(
        default=None, description="NICs of a node; GPU g uses NIC g x nics / gpus."
    )
    node: NetworkPart | None = Field(default=None, description="What joins the GPUs and NICs of a node.")
    fabric: NetworkPart | None = Field(default=None, description="What joins the NICs of all nodes.")
    spare: bool = Field(default=False, description="Let GPUs that the job does not need stay idle.")


class Contending(_Section):
    """What traffic and computation that meet do to each other."""

    links: Literal["none", "fifo", "max-min"] = Field(
        default="max-min",
        description="none: messages never slow each other. fifo: a message holds all its links, others queue. "
        "max-min: messages share links fairly at every instant.",
    )
    compute: _Speed = Field(default=1, description="Speed of computation while its rank communicates.")
    communication: _Speed = Field(
        default=1, description="Speed of communication while one of its ranks computes, of what it has alone."
    )


class PointToPoint(_Section):
    """How transfers between pipeline ranks are issued and matched."""

    policy: Literal["async", "sender-blocking", "blocking", "ordered", "batched"] = Field(
        default="async",
        description="async: a stream per pair of ranks. sender-blocking: on the sender's compute stream. "
        "blocking: SEND and RECV on their own ranks' compute streams. ordered: one rendezvous on both ranks' "
        "communication streams, in their order. batched: the same by groups.",
    )
    stream: Literal["rank", "pair", "direction"] = Field(
        default="rank",
        description="What has a communication stream of its own: a rank, a pair, a pair and direction.",
    )
    eager: Size = Field(
        default=0, description="Messages up to this size leave without waiting for their receiver; 0 B: none does."
    )
    receive: Literal["asap", "deferred"] = Field(
        default="asap", description="Where a RECV is put: as soon as its SEND is issued, or just before its use."
    )


class DataParallel(_Section):
    """The reduction of gradients over data-parallel replicas."""

    overlap: bool = Field(default=False, description="Reduce while the pipeline drains, not after it.")
    bandwidth: Rate | None = Field(
        default=None, description="Rate per direction between replicas; as the pipeline's network unless given."
    )
    latency: Duration = Field(default=0, description="Latency of one message between replicas; likewise.")
    stage_replicas: bool = Field(
        default=False,
        description="Reduce gradients also between ranks of a pipeline that hold the same stage, as Chimera's do.",
    )


class Experiment(_Section):
    """One simulated training step."""

    model: Preset | None = Field(
        default=None, description="The model that is trained; without it, costs are units."
    )
    parallel: Parallel = Field(default=Parallel(), description="How the job's processes are divided.")
    batch: Batch = Field(default=Batch(), description="What one training step works on.")
    schedule: ScheduleChoice = Field(description="The pipeline schedule.")
    device: Preset | None = Field(default=None, description="The accelerator that each process has.")
    network: NamedChoice = Field(
        default=NamedChoice(name="ideal"), description="What lies between pipeline ranks."
    )
    cluster: Cluster | None = Field(
        default=None, description="Nodes and fabric that the job's GPUs are in; stands in for network."
    )
    contention: Contending = Field(
        default=Contending(), description="What messages on shared links and computation do to each other."
    )
    p2p: PointToPoint = Field(
        default=PointToPoint(), description="How transfers between pipeline ranks are issued."
    )
    costs: NamedChoice | None = Field(
        default=None, description="What actions cost; by default units, or with a model what reads models."
    )
    data_parallel: DataParallel = Field(
        default=DataParallel(), description="Reduction of gradients over replicas."
    )
