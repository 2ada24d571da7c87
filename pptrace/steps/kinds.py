"""Kinds of actions, their roles and streams, and their codes in kernels.

Code that depends on properties of kinds reads this table. Code for one kind, such as its cost or its insertion,
names that kind; ``docs/additions.md`` lists the places that a new kind changes.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from pptrace_kernel import fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s


class Stream(IntEnum):
    """In-order queue of a rank; each lane of a timeline is one."""

    COMPUTE = 0
    """Kernels of the model."""
    COMM = 1
    """The rank's communication with any peer, or with ``lane_peer``."""
    SEND = 2
    """Messages to one peer."""
    RECV = 3
    """Messages from one peer."""
    COPY_OUT = 4
    """Offloads to host memory."""
    COPY_IN = 5
    """Reloads from host memory."""
    DATA_PARALLEL = 6
    """Collectives over the rank's data-parallel replicas."""
    TENSOR_PARALLEL = 7
    """Collectives of the rank's tensor-parallel group, where actions consist of segments."""
    EXPERT_PARALLEL = 8
    """Collectives of the rank's expert-parallel group: dispatch and combine."""
    CONTEXT_PARALLEL = 9
    """Collectives of the rank's context-parallel group."""

    @property
    def is_group(self) -> bool:
        """Whether it carries collectives inside actions (tensor, expert or context parallel)."""
        return self >= Stream.TENSOR_PARALLEL


class Role(IntEnum):
    """Resource that an action uses."""

    COMPUTE = 0
    """Occupies the compute stream."""
    SEND = 1
    """Sender's side of a message between ranks."""
    RECEIVE = 2
    """Receiver's side of a message between ranks."""
    COPY = 3
    """Copy between the device and its host."""
    COLLECTIVE = 4
    """Communication with the stage's data-parallel replicas, or its end."""
    WAIT = 5
    """Holds the compute stream until a send or a reduction of its rank has completed; takes no time itself."""


class Pass(IntEnum):
    """Pass through the model that an action belongs to."""

    NEITHER = 0
    FORWARD = 1
    BACKWARD = 2


class Result(IntEnum):
    """Result of an action, which exists at most once per stage and microbatch."""

    ACTIVATION = 0
    GRADIENT = 1
    WEIGHT_GRADIENT = 2
    SENT_ACTIVATION = 3
    RECEIVED_ACTIVATION = 4
    SENT_GRADIENT = 5
    RECEIVED_GRADIENT = 6
    OFFLOADED = 7
    RELOADED = 8
    RECOMPUTED = 9
    AWAITED_ACTIVATION = 10
    AWAITED_GRADIENT = 11


@unique
class Kind(IntEnum):
    """What an action does."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradient."""
    I = 2  # noqa: E741 - PyTorch's name
    """Backward for the input gradient."""
    W = 3
    """Backward for the weight gradient."""
    SEND_F = 4
    """Send an activation to the next stage."""
    RECV_F = 5
    """Receive an activation from the previous stage."""
    SEND_B = 6
    """Send an input gradient to the previous stage."""
    RECV_B = 7
    """Receive an output gradient from the next stage."""
    UNSHARD = 8
    """Gather a stage's sharded weights."""
    RESHARD = 9
    """Free a stage's gathered weights."""
    REDUCE_GRAD = 10
    """Reduce a stage's gradients over its data-parallel replicas."""
    OFFLOAD = 11
    """Copy an activation to host memory."""
    RELOAD = 12
    """Copy an activation back from host memory."""
    RECOMPUTE = 13
    """Recompute an activation."""
    OPTIMIZER = 14
    """Update a stage's weights."""
    SYNC = 15
    """Synchronize all ranks after the last gradient, to reduce the gradient norm."""
    WAIT_SEND_F = 16
    """Wait until the SEND_F of the stage and microbatch has completed."""
    WAIT_SEND_B = 17
    """Wait until the SEND_B of the stage and microbatch has completed."""
    WAIT_REDUCE_GRAD = 18
    """Wait until the REDUCE_GRAD of the stage has completed."""
    FORWARD_ONLY = 19
    """Forward without a backward, which keeps no activation."""
    GENERATION = 20
    """Generation of the step's sequences, before its passes."""
    REDUCE_GROUPS = 21
    """Reduce a stage's gradients between shard groups, after its last reduction in the groups."""
    UNSHARD_SUBGROUP = 22
    """Gather a stage's weights in the part of a shard group to which its forward resharded them."""

    @property
    def traits(self) -> Traits:
        """Its row of the table."""
        return KINDS[self]

    @property
    def word(self) -> str:
        """Its legend text without the kind's letter, such as ``input gradient``."""
        return self.traits.meaning.removeprefix(f"{self.name} ")


class Traits(Struct, frozen=True):
    """One kind's row."""

    role: Role
    """Resource that it uses."""
    stream: Stream
    """Its stream; a message policy may split the stream of messages by peer and direction."""
    results: tuple[Result, ...] = ()
    """Results for its stage and microbatch; empty for a kind that belongs to a stage alone."""
    direction: Pass = Pass.NEITHER
    """Pass through the model that it belongs to."""
    per_stage: bool = False
    """Whether it belongs to a stage and to no microbatch."""
    waits_for: tuple[str, ...] = ()
    """Kinds on other streams of its rank that must end first, for the same stage (and microbatch)."""
    ends_stage: bool = False
    """Whether it follows the stage's last backward on its rank, once."""
    activation: int = 0
    """Multiple of ``activation_bytes`` that it allocates; negative values free."""
    weight_activation: int = 0
    """Multiple of ``weight_activation_bytes`` that it allocates; negative values free."""
    copied: int = 0
    """Multiple of the bytes of a host copy that it allocates on the device; negative values free."""
    recomputed: int = 0
    """Multiple of the bytes that it allocates by recomputation."""
    slots: int = 1
    """Its width in columns of the idealised table."""
    cost: str = ""
    """The workload's column of its duration; a kind without one takes no time."""
    color: tuple[str, ...] = ("#c9cdd4", "#c9cdd4")
    """Colors in pictures: on the first route, and on all other routes."""
    terminal_color: tuple[str, ...] = ("white", "white")
    """As above, for terminals of sixteen colors."""
    trace_color: str = "grey"
    """Reserved color name of chrome://tracing."""
    perfetto_text: str = ""
    """Text whose hash is its color in the Perfetto UI; by default, its name."""
    meaning: str = ""
    """Legend text; empty for a kind that pictures omit."""


_F, _B = Pass.FORWARD, Pass.BACKWARD
_GREEN, _BLUE = ("#8fd19e", "#ef9a94"), ("#9cc3f0", "#f5bd7a")
_ACTIVATIONS, _GRADIENTS = ("#dbe5f0", "#dbe5f0"), ("#dce9df", "#dce9df")
_SENT_AND_RECEIVED = "\N{RIGHTWARDS ARROW} \N{LEFTWARDS ARROW}"
_GATHERED = ("UNSHARD", "UNSHARD_SUBGROUP")

KINDS: dict[Kind, Traits] = {
    Kind.F: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.ACTIVATION,), direction=_F, waits_for=_GATHERED,
        activation=1, cost="f", color=_BLUE, terminal_color=("blue", "yellow"),
        trace_color="thread_state_runnable", perfetto_text="F: forward of a stage", meaning="F forward",
    ),
    Kind.B: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.GRADIENT, Result.WEIGHT_GRADIENT), direction=_B,
        waits_for=(*_GATHERED, "RELOAD"), activation=-1, slots=2, cost="b", color=_GREEN,
        terminal_color=("green", "red"), trace_color="thread_state_running",
        perfetto_text="B: backward step", meaning="B backward",
    ),
    Kind.I: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.GRADIENT,), direction=_B,
        waits_for=(*_GATHERED, "RELOAD"), activation=-1, weight_activation=1, cost="i", color=_GREEN,
        terminal_color=("green", "red"), trace_color="rail_load",
        perfetto_text="I: input grad", meaning="I input gradient",
    ),
    Kind.W: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.WEIGHT_GRADIENT,), direction=_B,
        waits_for=_GATHERED, weight_activation=-1, cost="w", color=("#cdebc3", "#f7cfc6"),
        terminal_color=("cyan", "magenta"), trace_color="cq_build_passed",
        perfetto_text="W: weight gradient", meaning="W weight gradient",
    ),
    Kind.SEND_F: Traits(
        role=Role.SEND, stream=Stream.COMM, results=(Result.SENT_ACTIVATION,), direction=_F, color=_ACTIVATIONS,
        trace_color="thread_state_iowait", meaning=f"{_SENT_AND_RECEIVED} activations sent, received",
    ),
    Kind.RECV_F: Traits(
        role=Role.RECEIVE, stream=Stream.COMM, results=(Result.RECEIVED_ACTIVATION,), direction=_F,
        color=_ACTIVATIONS, trace_color="thread_state_iowait",
        meaning=f"{_SENT_AND_RECEIVED} activations sent, received",
    ),
    Kind.SEND_B: Traits(
        role=Role.SEND, stream=Stream.COMM, results=(Result.SENT_GRADIENT,), direction=_B, color=_GRADIENTS,
        trace_color="rail_response", meaning=f"{_SENT_AND_RECEIVED} gradients sent, received",
    ),
    Kind.RECV_B: Traits(
        role=Role.RECEIVE, stream=Stream.COMM, results=(Result.RECEIVED_GRADIENT,), direction=_B,
        color=_GRADIENTS, trace_color="rail_response",
        meaning=f"{_SENT_AND_RECEIVED} gradients sent, received",
    ),
    Kind.UNSHARD: Traits(
        role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, cost="unshard", trace_color="olive",
    ),
    Kind.RESHARD: Traits(role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True),
    Kind.REDUCE_GRAD: Traits(
        role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, ends_stage=True, cost="reduce",
        trace_color="startup",
    ),
    Kind.OFFLOAD: Traits(
        role=Role.COPY, stream=Stream.COPY_OUT, results=(Result.OFFLOADED,), copied=-1, cost="offload",
        color=("#5b6b7f", "#5b6b7f"), meaning="offload to the host",
    ),
    Kind.RELOAD: Traits(
        role=Role.COPY, stream=Stream.COPY_IN, results=(Result.RELOADED,), waits_for=("OFFLOAD",), copied=1,
        cost="reload", color=("#b8860b", "#b8860b"), meaning="reload",
    ),
    Kind.RECOMPUTE: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.RECOMPUTED,), waits_for=(*_GATHERED, "RELOAD"),
        recomputed=1, cost="recompute", color=("#d5c6ee", "#d5c6ee"), trace_color="detailed_memory_dump",
        perfetto_text="RECOMPUTE: recompute forward", meaning="recompute",
    ),
    Kind.OPTIMIZER: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, per_stage=True, ends_stage=True,
        waits_for=(*_GATHERED, "REDUCE_GRAD", "REDUCE_GROUPS", "SYNC"), cost="optimizer",
        trace_color="generic_work",
    ),
    Kind.SYNC: Traits(
        role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, cost="sync", trace_color="startup",
    ),
    Kind.WAIT_SEND_F: Traits(
        role=Role.WAIT, stream=Stream.COMPUTE, results=(Result.AWAITED_ACTIVATION,), direction=_F,
        waits_for=("SEND_F",), trace_color="thread_state_iowait",
    ),
    Kind.WAIT_SEND_B: Traits(
        role=Role.WAIT, stream=Stream.COMPUTE, results=(Result.AWAITED_GRADIENT,), direction=_B,
        waits_for=("SEND_B",), trace_color="rail_response",
    ),
    Kind.WAIT_REDUCE_GRAD: Traits(
        role=Role.WAIT, stream=Stream.COMPUTE, per_stage=True, waits_for=("REDUCE_GRAD",), trace_color="startup",
    ),
    Kind.FORWARD_ONLY: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, results=(Result.ACTIVATION,), direction=_F,
        color=("#c9b8e8", "#e8c9b8"), terminal_color=("magenta", "yellow"), trace_color="good",
        perfetto_text="FORWARD_ONLY: forward", meaning="forward only",
    ),
    Kind.GENERATION: Traits(
        role=Role.COMPUTE, stream=Stream.COMPUTE, per_stage=True, color=("#d9d2c0", "#d9d2c0"),
        trace_color="generic_work", meaning="generation",
    ),
    Kind.REDUCE_GROUPS: Traits(
        role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, ends_stage=True, cost="reduce_groups",
        trace_color="startup", perfetto_text="REDUCE_GRAD",
    ),
    Kind.UNSHARD_SUBGROUP: Traits(
        role=Role.COLLECTIVE, stream=Stream.DATA_PARALLEL, per_stage=True, cost="unshard_subgroup",
        trace_color="olive", perfetto_text="UNSHARD",
    ),
}  # fmt: skip
"""One row per kind."""

ORDER = (
    (Result.ACTIVATION, Result.GRADIENT),
    (Result.GRADIENT, Result.WEIGHT_GRADIENT),
    (Result.ACTIVATION, Result.OFFLOADED),
    (Result.OFFLOADED, Result.RELOADED),
    (Result.RELOADED, Result.RECOMPUTED),
    (Result.RELOADED, Result.GRADIENT),
    (Result.ACTIVATION, Result.RECOMPUTED),
    (Result.RECOMPUTED, Result.GRADIENT),
    (Result.ACTIVATION, Result.SENT_ACTIVATION),
    (Result.GRADIENT, Result.SENT_GRADIENT),
    (Result.SENT_ACTIVATION, Result.AWAITED_ACTIVATION),
    (Result.SENT_GRADIENT, Result.AWAITED_GRADIENT),
    (Result.RECEIVED_ACTIVATION, Result.ACTIVATION),
    (Result.RECEIVED_GRADIENT, Result.GRADIENT),
)
"""Pairs of results: in a rank's row, the action of the first precedes that of the second."""


class KindSet(frozenset[Kind]):
    """Set of kinds with a mask over columns.

    >>> SENDS.mask(np.array([0, 4, 6, 7], dtype=np.int8)).tolist()
    [False, True, True, False]
    """

    def mask(self, kind: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which entries of a column of kinds are in the set."""
        mask, equal = np.zeros(kind.shape, dtype=bool), np.empty(kind.shape, dtype=bool)
        for member in self:
            np.equal(kind, int(member), out=equal)  # an enum member would widen the whole column
            mask |= equal
        return mask


def present(kind: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return the kinds in a column, in the order of their numbers."""
    equal, kinds, uncounted = np.empty(kind.shape, dtype=bool), [], kind.size
    for number in range(len(KINDS)):
        count = int(np.count_nonzero(np.equal(kind, number, out=equal))) if uncounted else 0
        uncounted -= count
        if count:
            kinds.append(number)
    return np.array(kinds, dtype=np.intp)


def _kinds(has: Callable[[Traits], bool]) -> KindSet:
    return KindSet(kind for kind, traits in KINDS.items() if has(traits))


COMPUTE = _kinds(lambda kind: kind.role is Role.COMPUTE)
"""Kinds that occupy the compute stream."""

TIMED = _kinds(lambda kind: bool(kind.cost))
"""Kinds whose durations costs give."""

SENDS = _kinds(lambda kind: kind.role is Role.SEND)
"""Sender's sides of messages between ranks."""

RECEIVES = _kinds(lambda kind: kind.role is Role.RECEIVE)
"""Receiver's sides of messages between ranks."""

COMMUNICATION = KindSet(SENDS | RECEIVES)
"""Both sides of messages between ranks."""

WAITS = _kinds(lambda kind: kind.role is Role.WAIT)
"""Kinds that hold the compute stream until a send or a reduction of their rank has completed."""

SEND_WAITS = _kinds(lambda kind: kind.role is Role.WAIT and not kind.per_stage)
"""Waits for sends."""

COPIES = _kinds(lambda kind: kind.role is Role.COPY)
"""Kinds that move activations between the device and its host."""

RECOMPUTES = _kinds(lambda kind: kind.recomputed > 0)
"""Kinds that recompute activations."""

GATHERS = KindSet(Kind[name] for name in _GATHERED)
"""Kinds that gather a stage's sharded weights."""

SHARDING = KindSet({*GATHERS, Kind.RESHARD})
"""Gathers of weights, and the end of gathered weights."""

PER_STAGE = _kinds(lambda kind: kind.per_stage)
"""Kinds that belong to a stage and to no microbatch."""

BACKWARD = _kinds(lambda kind: kind.role is Role.COMPUTE and kind.direction is Pass.BACKWARD)
"""Full backwards and their halves."""

PASSES = _kinds(lambda kind: kind.role is Role.COMPUTE and kind.direction is not Pass.NEITHER and bool(kind.cost))
"""Forwards and backwards of training."""

GRADIENTS = _kinds(lambda kind: Result.GRADIENT in kind.results)
"""Backwards that compute the input gradient, which the previous stage needs."""

WEIGHT_GRADIENTS = _kinds(lambda kind: Result.WEIGHT_GRADIENT in kind.results)
"""Backwards that compute the weight gradient, the last action of a microbatch on its stage."""

TOWARDS_NEXT = KindSet(
    kind for kind in COMMUNICATION if (kind in SENDS) == (kind.traits.direction is Pass.FORWARD)
)
"""Sides of messages whose other side is on the next stage; the others' is on the previous stage."""

STAGE_ENDS = _kinds(lambda kind: kind.ends_stage)
"""Kinds that follow a stage's last backward, in the order of their numbers."""


def message_kind(*, sends: bool, forward: bool) -> Kind:
    """Return the kind of one side of a message.

    >>> message_kind(sends=True, forward=False).name
    'SEND_B'
    """
    direction = Pass.FORWARD if forward else Pass.BACKWARD
    return next(kind for kind in sorted(SENDS if sends else RECEIVES) if kind.traits.direction is direction)


class KindTable(NamedTuple):
    """The table as kernels read it: columns of one value per kind, in the order of their numbers."""

    role: Int8s
    """:class:`Role`."""
    stream: Int8s
    """:class:`Stream`."""
    direction: Int8s
    """:class:`Pass`."""
    result: Int8s
    """Its result, -1 for a kind that belongs to a stage alone."""
    second_result: Int8s
    """Its second result, -1 for none."""
    feeds: Int8s
    """0 if the next stage's forward needs its result, 1 if the previous stage's backward does, else -1."""
    wait_ptr: Int8s
    """Shape (kinds + 1,): kind ``k`` waits for ``wait[wait_ptr[k]:wait_ptr[k + 1]]``."""
    wait: Int8s
    """Kinds that other kinds wait for."""
    awaited: Int8s
    """Whether any kind waits for it."""
    activation: Int8s
    """:attr:`Traits.activation`."""
    weight_activation: Int8s
    """:attr:`Traits.weight_activation`."""
    copied: Int8s
    """:attr:`Traits.copied`."""
    recomputed: Int8s
    """:attr:`Traits.recomputed`."""
    with_backward: Int8s
    """Whether it runs on the rank of the backward: backwards, their messages, recomputation and copies back."""


def kind_table() -> KindTable:
    """Return the table in columns; a kind per microbatch without a named result gets a unique result."""
    rows = [KINDS[kind] for kind in Kind]
    unnamed = iter(range(len(Result), len(Result) + len(rows)))
    result = [-1 if row.per_stage else int(row.results[0]) if row.results else next(unnamed) for row in rows]
    second = [int(row.results[1]) if len(row.results) > 1 else -1 for row in rows]
    fed = {Result.ACTIVATION: 0, Result.GRADIENT: 1}
    feeds = [fed.get(row.results[0], -1) if row.role is Role.COMPUTE and row.results else -1 for row in rows]
    wait = [[int(Kind[name]) for name in row.waits_for] for row in rows]
    awaited = {kind for kinds in wait for kind in kinds}
    columns = (
        [row.role for row in rows], [row.stream for row in rows], [row.direction for row in rows], result, second,
        feeds, np.cumsum([0, *map(len, wait)]), [kind for kinds in wait for kind in kinds],
        [kind in awaited for kind in range(len(rows))], [row.activation for row in rows],
        [row.weight_activation for row in rows], [row.copied for row in rows], [row.recomputed for row in rows],
        [row.direction is Pass.BACKWARD or row.recomputed > 0 or row.copied > 0 for row in rows],
    )  # fmt: skip
    return fixed(KindTable(*(np.array(column, dtype=np.int8) for column in columns)))


TABLE = kind_table()
"""The table of kinds in columns."""


def _with_host_state() -> KindTable:
    stream = TABLE.stream.copy()
    stream[Kind.UNSHARD], stream[Kind.REDUCE_GRAD] = Stream.COPY_IN, Stream.COPY_OUT
    return TABLE._replace(stream=stream)


HOST_STATE = _with_host_state()
"""The table where weights and gradients are in host memory: gathers and reductions are copies."""
