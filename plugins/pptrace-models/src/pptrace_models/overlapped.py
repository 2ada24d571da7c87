"""What tensor-parallel collectives show that run beside matrix products.

Where a product reads what is gathered, or writes what is summed, both are cut into a piece per device: the piece
that is there already is computed while the next one is on its way (Wang et al., Overlap Communication with
Dependent Computation via Decomposition, ASPLOS 2023; Transformer Engine's ring exchange). A piece is a product of
its own, with its own tiles and waves: together they take longer than the whole (Chang et al., Flux, 2024).
A backward has collectives that no product depends on, too: the input is gathered again for the weight gradient
beside the product of the input gradient, and that product's result is summed beside the product of the weight
gradient (Korthikanti et al., 2022, and Transformer Engine's bulk overlap).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace_models.collectives import Passes
    from pptrace_models.work import Operation, Product

__all__ = ["beside_products"]

_HALVES = (("attention projections", "expansion"), ("mlp",))
"""Operations of a layer's halves whose products are cut; the first ends with the one whose result is summed."""
_TAKEN = 0.19
"""What a collective takes of its time from the product beside it: 8.605 ms become 9.251 ms beside one of 3.364 ms
(the overlap micro-benchmark of the STP paper, on A800)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Products of a half beside its collectives."""

    devices: int
    taken: Callable[[Product], int]

    def ring(self, products: Sequence[Product], collective_ns: int) -> int:
        """Return what is left of a collective in pieces; where pieces lose more than they hide, it stays whole."""
        if not (products and collective_ns):
            return collective_ns
        piece = self._sum([replace(one, m=-(-one.m // self.devices)) for one in products])
        step = collective_ns / (self.devices - 1)
        together = piece + (self.devices - 1) * max(_slowed(piece, step), step)
        return min(round(together) - self._sum(products), collective_ns)

    def bulk(self, products: Sequence[Product], collective_ns: int) -> int:
        """Return what is left of a collective beside products that do not depend on it."""
        alone = self._sum(products)
        return round(max(_slowed(alone, collective_ns), collective_ns)) - alone

    def _sum(self, products: Sequence[Product]) -> int:
        return sum(map(self.taken, products))


def _slowed(product_ns: float, beside_ns: float) -> float:
    return product_ns + _TAKEN * min(product_ns, beside_ns)


def beside_products(
    group: Passes, operations: Sequence[Operation], devices: int, taken: Callable[[Product], int]
) -> Passes:
    """Return a layer's collectives with what is left of those that run beside products.

    Args:
        group: the layer's collectives.
        operations: the layer's operations.
        devices: how many devices the tensor-parallel group has; 1 has none to hide.
        taken: the time of one product in ns.
    """
    if devices == 1:
        return group
    beside, named = _Beside(devices=devices, taken=taken), {one.name: one for one in operations}
    forward, backward = group.forward_ns, group.backward_ns
    for (gather, reduce), names in zip(group.halves_ns, _HALVES, strict=True):
        found = [named[name] for name in names if name in named]
        if not found:
            continue
        through, summed = _split([one.forward.products for one in found])
        back, back_summed = _split([one.input_gradient.products for one in found])
        weights, _ = _split([one.weight_gradient.products for one in found])
        forward += beside.ring(through, gather) + beside.ring(summed, reduce) - gather - reduce
        backward += beside.ring(back_summed, gather) + beside.bulk(weights, reduce) - gather - reduce
        if weights:
            backward += beside.bulk(back, gather)
    return replace(group, forward_ns=forward, backward_ns=backward)


def _split(products: Sequence[Sequence[Product]]) -> tuple[list[Product], list[Product]]:
    """Return the products behind the gathering, and the one before the sum: the first operation's last."""
    first, *others = products
    return [*first[:-1], *(one for products in others for one in products)], list(first[-1:])
