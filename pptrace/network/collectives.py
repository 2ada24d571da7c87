"""What collectives take where all groups of an axis run them at once, each by the algorithm that is fastest."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pptrace.network.algorithms import Members
from pptrace.network.cluster import Cluster
from pptrace.network.plans import NOTHING, pairwise_plan, ring_plans, tree_plan
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s
    from pptrace.network.contract import Network
    from pptrace.network.plans import Plan

__all__ = ["CollectiveTime", "Grouped", "LinkCollectives"]

_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""How often a ring passes the vector."""

_ALL_TO_ALL = "all-to-all"


class Grouped(Protocol):
    """Who runs collectives with whom, such as a :class:`~pptrace.model.layout.Layout`."""

    def groups(self, axis: str) -> Int32s:
        """Return the groups along an axis, one per row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """What a collective takes, and why."""

    ns: int
    """Nanoseconds."""
    algorithm: str
    """``ring``, ``tree`` or ``pairwise``; ``none`` for a group of one."""
    channels: int
    """Rings, or pairs of trees, that share the vector."""
    link: str
    """Name of the link that bounds its rate; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkCollectives:
    """Collectives over the groups of a job's layout, on the links between its GPUs.

    All groups of an axis, of all pipeline ranks, share the links at once, and the slowest decides. Of a ring and
    a tree on one NIC per node, and on every NIC that is a group's, the fastest for the size is taken;
    :mod:`pptrace.network.plans` says what each takes. An all-gather and a reduce-scatter are rings alone, as in
    NCCL, whose other algorithms for them need one GPU per node or the switch's help (``src/graph/tuning.cc``,
    2.30). Reductions inside switches are left out.

    Raises:
        ConfigError: on use, two members of a group that no route joins.
    """

    network: Network
    """What lies between GPUs; one that is no cluster counts as one node."""
    layout: Grouped
    """Which GPUs take part."""
    _rings: dict[str, list[dict[int, Plan]]] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[tuple[str, str], list[Plan]] = field(default_factory=dict, init=False, repr=False)
    _times: dict[tuple[str, str, int], CollectiveTime] = field(default_factory=dict, init=False, repr=False)

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        """Return what a collective takes.

        Args:
            collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``.
            axis: any along which the layout has groups.
            size_bytes: bytes of the whole vector: what each GPU holds before an all-reduce, a reduce-scatter
                or an all-to-all, and after an all-gather.

        Raises:
            ValueError: another collective or axis.
        """
        return self.explain(collective, axis, size_bytes).ns

    def explain(self, collective: str, axis: str, size_bytes: int) -> CollectiveTime:
        """Return what a collective takes, by which algorithm, and on which link it is bound; see :meth:`ns`."""
        key = (collective, axis, size_bytes)
        if key not in self._times:
            plans = self._plans_of(collective, axis)
            best = min(plans, key=lambda plan: plan.ns(size_bytes))
            self._times[key] = CollectiveTime(
                ns=best.ns(size_bytes), algorithm=best.algorithm, channels=best.channels, link=best.link
            )
        return self._times[key]

    def _plans_of(self, collective: str, axis: str) -> list[Plan]:
        """Return every way to do a collective; of equally fast ones the first is taken."""
        key = (collective, axis)
        if key not in self._plans:
            if collective not in {*_ROUNDS, _ALL_TO_ALL}:
                raise ValueError(f"no collective {collective!r}: {', '.join([*_ROUNDS, _ALL_TO_ALL])}")
            groups = np.sort(self.layout.groups(axis), axis=1)
            self._plans[key] = self._found(collective, axis, groups) if groups.shape[1] > 1 else [NOTHING]
        return self._plans[key]

    def _found(self, collective: str, axis: str, groups: Int32s) -> list[Plan]:
        if collective == _ALL_TO_ALL:
            return [pairwise_plan(self.network, groups)]
        alike = _alike(groups, self.network)
        most = max(members.channels for members, _ in alike)
        if axis not in self._rings:
            self._rings[axis] = [ring_plans(self.network, alike, channels) for channels in sorted({1, most})]
        plans = [by_rounds[_ROUNDS[collective]] for by_rounds in self._rings[axis]]
        if collective == "all-reduce":
            plans += [tree_plan(self.network, alike, channels) for channels in sorted({1, most})]
        return plans


def _alike(groups: Int32s, network: Network) -> list[tuple[Members, Int32s]]:
    """Return groups by where their members are; ``groups`` rise along each row, so nodes stay together."""
    gpus, nics = (network.gpus, network.nics) if isinstance(network, Cluster) else (int(groups.max()) + 1, 1)
    node, nic = groups // gpus, groups // gpus * max(nics, 1) + groups % gpus * nics // gpus
    starts = np.stack([np.diff(of, prepend=-1) != 0 for of in (node, nic)], axis=1)
    kinds, kind = np.unique(starts, axis=0, return_inverse=True)
    return [(_members(*starting), groups[kind.ravel() == number]) for number, starting in enumerate(kinds)]


def _members(new_node: Sequence[bool], new_nic: Sequence[bool]) -> Members:
    """Return the members of which each one starts a node, or a NIC, or neither."""
    nodes: list[list[list[int]]] = []
    for member, (other_node, other_nic) in enumerate(zip(new_node, new_nic, strict=True)):
        if other_node:
            nodes.append([])
        if other_nic:
            nodes[-1].append([])
        nodes[-1][-1].append(member)
    return Members(nodes=tuple(tuple(map(tuple, nics)) for nics in nodes))
