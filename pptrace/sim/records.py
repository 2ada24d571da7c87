"""Records of columns that the lowering's kernels take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s

__all__ = ["CostColumns", "Found", "LaneColumns", "Pairs", "PartColumns", "RouteColumns", "Rules", "TaskColumns"]


class LaneColumns(NamedTuple):
    """Where each issued row goes."""

    peer: Int32s
    """Each message's other rank, -1 for other rows."""
    group: Int32s
    """Each message's group of neighbours in its row, -1 for other rows; empty where nobody asks for it."""
    of_stream: Int32s
    """The lane of each stream of which a rank has one, counted from the rank's first."""
    width: int
    """Lanes that a rank may have: a lane's key is its rank times that and its own number."""


class CostColumns(NamedTuple):
    """What actions cost, by microbatch class, kind and stage, flat."""

    classes: int
    """Number of classes of microbatches."""
    width: int
    """Kinds times stages: values of one class."""
    class_of: Int32s
    """Shape (microbatches,): each microbatch's class; empty where there is one class."""
    duration_ns: Int64s
    """Duration of one microbatch."""
    collective_ns: Int64s
    """The part in which the rank's own group communicates."""
    boundary_bytes: Int64s
    """Bytes of one microbatch over each edge, by class, direction (forward first) and edge."""


class RouteColumns(NamedTuple):
    """What lies between ranks."""

    pair_of: Int32s
    """Shape (ranks x ranks,): the first path from one rank to another."""
    first_link: int
    """The first path over a single link, which segments name by their place among them."""
    ways: int
    """Paths of one pair, and of one link."""
    overhead_ns: Int64s
    """Launch overhead of each path."""
    latency_ns: Int64s
    """Wire latency of each path."""
    rate_kbps: Int64s
    """Rate of each path; 0 where bytes take no time."""


class Rules(NamedTuple):
    """A point-to-point policy."""

    mode: int
    """Where a message's two sides are."""
    receive: int
    """What a receiver's side is."""
    batched: int
    """Whether neighbouring messages are launched and waited for together."""
    eager_bytes: int
    """The largest message that does not wait for its receiver, -1 for none."""
    rows: int
    """Issued rows; a batch's launch and join are tasks behind them."""
    called: int = 0
    """Whether a program's calls say what waits for messages."""


class Found(NamedTuple):
    """Rows that others are linked to, by where they are in the model."""

    made_at: Int32s
    """Shape (2 x stages x microbatches,): where a forward's result is made, then a gradient's; first segments."""
    recv_at: Int32s
    """Shape (2 x edges x microbatches,): each message's receiver's side; empty where there is none."""


class TaskColumns(NamedTuple):
    """What each row takes, by its place on its lane; placing leaves alone what is zero in most rows."""

    size_bytes: Int64s
    path: Int32s
    fork: Int32s
    collective_ns: Int64s
    duration_ns: Int64s
    lag_ns: Int64s


class PartColumns(NamedTuple):
    """What kernels need of segments, one value per issued row; empty columns where no action is in parts."""

    number: Int32s
    """Place of the segment in its action; -1 for a row that is a whole action or a message."""
    stream: Int32s
    """Where it runs; -1 as above."""
    duration_ns: Int64s
    """What it takes."""
    release: Int32s
    """The row of the computation behind which it is issued; -1 for the one before it in its row, -2 for none."""
    path: Int32s
    """Which path of the expansion's links its bytes go over, -1 for none."""
    size_bytes: Int64s
    """Bytes that it moves."""


class Pairs(NamedTuple):
    """Edges: the second waits for the first; for its start alone where it is below zero."""

    source: Int32s
    target: Int32s
