"""Accelerators, their links, and collectives of tensor, context and expert-parallel groups.

A ring's gather or scatter of V bytes over n devices has n - 1 steps: (n - 1) latency + (n - 1)/n V / rate. An
all-reduce is a scatter and a gather. Messages of an exchange between experts start together, with one latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, comb, gcd
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from pptrace.plugin import ConfigError, Duration, Flops, Parameters, Power, Rate, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import CostRequest
    from pptrace_models.layer import Part, Shard
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import Precision, Transformer


Peak = Annotated[Flops, Field(ge=1, le=10**20)]
Bandwidth = Annotated[Rate, Field(ge=1, le=10**17)]
Latency = Annotated[Duration, Field(ge=0, le=10**12)]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Limit = Annotated[Power, Field(ge=1, le=100_000)]


_MULTIPLIED = (
    "compute_efficiency", "attention_efficiency", "attention_attainable", "attention_flash_2",
    "attainable_bf16", "attainable_fp8", "attainable_mxfp8", "attainable_nvfp4",
)  # fmt: skip
"""Shares of the peaks that depend on the clock of the multiprocessors."""
_CLOCK_EXPONENT = 0.22
"""Exponent of the rate of products over the power limit.

The best products that mamf-finder found (ml-engineering) on boards with the same chip: 252.9 and 271.2 TFLOP/s on
A100 with 300 and 400 W, 794.5 and 828.6 on H100 and GH200 with 700 and 900 W, 1745 and 1822 on B200 and GB200 with
1000 and 1200 W. Their exponents are 0.24, 0.17 and 0.24. With voltage proportional to frequency it would be 1/3.
"""
_GIVES = {"mxfp8": "device.peak_fp8 and device.attainable_mxfp8", "nvfp4": "device.peak_fp4"}


class Accelerator(Parameters):
    """A device of a rank's group; peaks are dense and bandwidths are per direction.

    On a cluster, the links have rates with their own efficiency, so ``scale_up_*`` and ``network_efficiency`` are
    not used.
    """

    peak_bf16: Peak
    """Dense BF16 peak."""
    peak_fp16: Peak | None = None
    """Dense FP16 peak; that of BF16 by default."""
    peak_fp8: Peak | None = None
    """Dense FP8 peak, also of MXFP8; none if the device has no FP8."""
    peak_fp4: Peak | None = None
    """Dense FP4 peak; none if the device has no FP4."""
    peak_fp32: Peak | None = None
    """FP32 peak, without TF32; none if unknown."""
    memory: Annotated[Size, Field(ge=1)]
    """Device memory."""
    memory_bandwidth: Bandwidth
    """Total rate to and from device memory."""
    memory_latency: Latency = 1_000
    """Latency of the memory traffic of a group of kernels."""
    launch_latency: Latency = 5_000
    """Launch latency of the computation of a group of kernels."""
    scale_up_bandwidth: Bandwidth
    """Rate per direction to the other devices of the node."""
    scale_up_latency: Latency = 2_000
    """Latency of one step of a collective inside the node."""
    scale_up_size: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Devices that the node's links join; a wider group has the rate of the data-parallel network."""
    host_bandwidth: Bandwidth | None = None
    """Rate per direction to and from host memory, for copies of activations; without it, copies take no time."""
    compute_efficiency: Efficiency = 0.7
    """Share of the peak that linear layers reach."""
    attention_efficiency: Efficiency = 0.5
    """Share of the peak that the attention core reaches."""
    memory_efficiency: Efficiency = 0.8
    """Share of the memory bandwidth that is reached."""
    network_efficiency: Efficiency = 0.8
    """Share of the scale-up bandwidth that collectives reach; not applied on a cluster."""
    exchange_efficiency: Efficiency | None = None
    """Share of the scale-up bandwidth that exchanges between experts reach; by default that of other
    collectives."""

    multiprocessors: Annotated[int, Field(ge=1, le=100_000)] = 132
    """Multiprocessors that compute the tiles of a matrix product (``kernels: shapes``)."""
    attainable_bf16: Efficiency = 0.75
    """Share of the BF16 and FP16 peak that a large matrix product attains (``kernels: shapes``)."""
    attainable_fp8: Efficiency = 0.65
    """Share of the FP8 peak that a large matrix product attains (``kernels: shapes``)."""
    attainable_mxfp8: Efficiency | None = None
    """Share of the FP8 peak that a large MXFP8 product attains; none if the device has no MXFP8 (``kernels:
    shapes``)."""
    attainable_nvfp4: Efficiency = 0.5
    """Share of the FP4 peak that a large NVFP4 product attains (``kernels: shapes``)."""
    attention_attainable: Efficiency = 0.65
    """Share of the BF16 peak that the forward of flash attention attains on heads of 128 and long sequences
    (``kernels: shapes``)."""

    attention_flash_2: Efficiency | None = None
    """Share of the BF16 peak that FlashAttention-2 attains (``costs.attention: flash-2``); by default that of the
    device's best kernel."""

    attention_backward: Efficiency = 0.65
    """Rate of the backward of flash attention, relative to the forward's (``kernels: shapes``)."""

    recurrence_flops: Peak = 1_200_000_000_000
    """Rate of a multiprocessor in the Triton kernels of recurrences, beside their memory traffic (``kernels:
    shapes``). The default is measured on H800: mamba_ssm 2.2.6's chunk scan has 90 to 110 TFLOP/s, 99 on average
    (tilelang, benchmark/mamba2). A token takes 26.5 ns, of which 9.9 are memory traffic; in the other 16.6,
    132 multiprocessors have 2.62 million operations."""

    power: Limit | None = None
    """Power limit at which matrix products and attention attain their shares of the peaks: the board's default."""
    power_limit: Limit | None = None
    """A lower limit, as ``nvidia-smi -pl`` sets it. It lowers the clock, and with it the rates of matrix products
    and attention, by the power of 0.22; other kernels keep their rates."""
    published_bf16: Peak | None = None
    """Highest published model FLOP/s per device of a step in BF16 or FP16, with causal attention counted once.
    Faster steps have a note."""
    published_fp8: Peak | None = None
    """The same in FP8."""
    published_mxfp8: Peak | None = None
    """The same in MXFP8."""
    published_nvfp4: Peak | None = None
    """The same in NVFP4."""

    def slowed(self, times: float) -> Self:
        """Return a device with computation times multiplied by a factor and unchanged peaks."""
        return self._with_shares((*_MULTIPLIED, "memory_efficiency"), 1 / times)

    def at_power_limit(self) -> Self:
        """Return the device at the clock that its power limit leaves to matrix products and attention.

        Raises:
            ConfigError: a limit without the board's power, or above it.
        """
        if self.power_limit is None:
            return self
        if self.power is None:
            raise ConfigError("needs the power that it lowers: write power beside it", key="device.power_limit")
        if self.power_limit > self.power:
            message = f"{self.power_limit} W is above the device's {self.power} W: write at most that"
            raise ConfigError(message, key="device.power_limit")
        return self._with_shares(_MULTIPLIED, (self.power_limit / self.power) ** _CLOCK_EXPONENT)

    def _with_shares(self, names: Sequence[str], factor: float) -> Self:
        given = {name: getattr(self, name) for name in names}
        return self.model_copy(update={name: share * factor for name, share in given.items() if share})

    def attainable(self, precision: Precision) -> float:
        """Return the share of a precision's peak that a large matrix product attains."""
        shares = {"fp8": self.attainable_fp8, "mxfp8": self.attainable_mxfp8, "nvfp4": self.attainable_nvfp4}
        return shares.get(precision) or self.attainable_bf16

    def plausible(self, precision: Precision) -> int:
        """Return the highest plausible model FLOP/s: the published, and 3 % of the BF16 peak; 0 for unknown.

        >>> Accelerator(
        ...     peak_bf16=1000, published_bf16=480, memory=1, memory_bandwidth=1, scale_up_bandwidth=1
        ... ).plausible("bf16")
        510
        """
        published = {
            "bf16": self.published_bf16, "fp16": self.published_bf16, "fp8": self.published_fp8,
            "mxfp8": self.published_mxfp8, "nvfp4": self.published_nvfp4,
        }.get(precision)  # fmt: skip
        return published + self.peak_bf16 * _PLAUSIBLE_PERCENT // 100 if published else 0

    def peak(self, precision: Precision) -> int:
        """Return the dense peak in FLOP/s of a precision.

        Raises:
            ConfigError: the device has no peak for it.
        """
        peaks = {
            "bf16": self.peak_bf16,
            "fp16": self.peak_fp16 or self.peak_bf16,
            "fp8": self.peak_fp8,
            "mxfp8": self.peak_fp8 if self.attainable_mxfp8 else None,
            "nvfp4": self.peak_fp4,
            "fp32": self.peak_fp32,
        }
        peak = peaks[precision]
        if peak is None:
            known = ", ".join(name for name, value in peaks.items() if value)
            gives = _GIVES.get(precision, f"device.peak_{precision}")
            message = f"{precision} has no peak on this device; use {known}, or give {gives}"
            raise ConfigError(message, key="model.precision")
        return peak


_PLAUSIBLE_PERCENT = 3
"""Share of the BF16 peak by which a plausible step may be faster than published ones, in percent."""
_SECOND_NS = 10**9
_KILO = 1000


class Fabric(Struct, frozen=True):
    """Rate and latency of the links of a group."""

    rate: Fraction
    """Bytes per second and direction; 0 for no limit."""
    latency_ns: int
    """Latency of one step."""

    def carry_ns(self, size_bytes: int, parts: int = 1) -> int:
        """Return the time of one message with ``1 / parts`` of the bytes, in ns."""
        return self.latency_ns + self._carried_ns(size_bytes, parts)

    def ring_ns(self, size_bytes: int, devices: int, rounds: int) -> int:
        """Return the time of a ring that passes ``size_bytes`` ``rounds`` times, in ns; a sum has two rounds.

        >>> Fabric(rate=Fraction(10**9), latency_ns=10).ring_ns(800, 4, 2)
        1260
        """
        steps = rounds * (devices - 1)
        return steps * self.latency_ns + self._carried_ns(steps * size_bytes, devices)

    def _carried_ns(self, size_bytes: int, parts: int) -> int:
        """Return the time of ``1 / parts`` of the bytes, rounded up, without a latency."""
        bytes_per_s, share = self.rate.as_integer_ratio()
        return -(-size_bytes * _SECOND_NS * share // (parts * bytes_per_s)) if bytes_per_s else 0


class TokenExchange(NamedTuple):
    """An exchange of tokens between devices and experts."""

    size_bytes: int
    """Bytes of the tokens that a device sends; each token counts once per expert."""
    top_k: int
    """Experts of a token."""
    experts: int
    """Number of all experts."""
    groups: int = 1
    """Groups of experts from which the router chooses."""
    top_groups: int = 1
    """Groups that have the experts of a token."""

    @classmethod
    def of(cls, model: Transformer, size_bytes: int) -> TokenExchange:
        """Return the exchange of a model's tokens, of ``size_bytes`` as each counts once per expert."""
        return cls(
            size_bytes=size_bytes, top_k=model.top_k, experts=model.num_experts,
            groups=max(model.expert_groups, 1), top_groups=model.top_groups,
        )  # fmt: skip

    def to_places_bytes(self, places: int) -> int:
        """Return the bytes that a device sends if a token goes at most once to each of ``places``.

        A token's groups, and its experts in these, are random with equal probabilities. With ``c`` experts in its
        groups, of which a place has ``i``, it goes to this place with probability ``1 - C(c - i, k) / C(c, k)``.

        >>> TokenExchange(size_bytes=800, top_k=8, experts=128).to_places_bytes(8)
        532
        >>> TokenExchange(size_bytes=800, top_k=8, experts=128, groups=8, top_groups=4).to_places_bytes(8)
        364
        """
        choices = self.top_groups * self.experts // self.groups
        of_place, own = max(self.groups // places, 1), min(self.experts // self.groups, self.experts // places)
        missed = Fraction(0)
        for chosen in range(min(of_place, self.top_groups) + 1):
            others = comb(self.groups - of_place, self.top_groups - chosen)
            share = Fraction(comb(of_place, chosen) * others, comb(self.groups, self.top_groups))
            missed += share * Fraction(comb(choices - chosen * own, self.top_k), comb(choices, self.top_k))
        return ceil(self.size_bytes * places * (1 - missed) / self.top_k)


def group_fabric(device: Accelerator, network: Mapping[str, int], extent: int) -> Fabric:
    """Return the links of a group that spans ``extent`` consecutive devices: those of the node, or the network."""
    if extent > device.scale_up_size and network:
        return data_parallel_fabric(network)
    rate = reached(device.scale_up_bandwidth, device.network_efficiency)
    return Fabric(rate=rate, latency_ns=device.scale_up_latency)


@lru_cache
def reached(rate: int, share: float) -> Fraction:
    """Return a share of a rate, which is exactly its decimal text."""
    return rate * Fraction(str(share))


def duration_ns(amount: int | Fraction, rate: Fraction) -> int:
    """Return the time of an amount at a rate per second, in ns, rounded up."""
    return -(-amount * _SECOND_NS * rate.denominator // rate.numerator)


def exchange_fabric(device: Accelerator) -> Fabric:
    """Return the node's links with the rate of exchanges between experts."""
    rate = reached(device.scale_up_bandwidth, device.exchange_efficiency or device.network_efficiency)
    return Fabric(rate=rate, latency_ns=device.scale_up_latency)


def data_parallel_fabric(network: Mapping[str, int]) -> Fabric:
    """Return the network of the data-parallel group; messages take no time if it is not described."""
    return Fabric(rate=Fraction(network.get("rate_kbps", 0) * _KILO), latency_ns=int(network.get("latency_ns", 0)))


class ObservedNetwork(Mapping[str, int]):
    """A data-parallel network that records whether its rate or latency is read."""

    is_read: bool
    """Whether a value was read; whether there is a network does not count."""

    def __init__(self, values: Mapping[str, int]) -> None:
        """Observe a network; ``values`` is empty if it is not described."""
        self._values, self.is_read = values, False

    def __getitem__(self, name: str) -> int:
        self.is_read = True
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""Rounds of a ring per collective; an all-gather is one round."""


class _Groups(Struct, frozen=True, kw_only=True):
    shard: Shard
    """Sizes of the groups."""
    deduplicated: bool = False
    """Whether a token is sent once to a place that has several of its experts."""


class ByFormula(_Groups, frozen=True, kw_only=True, dict=True):
    """Rings on the device's scale-up links, and between replicas on the data-parallel network."""

    device: Accelerator
    """Device with the rates of scale-up links."""
    network: Mapping[str, int]
    """The data-parallel network; empty if not described."""
    every_nic: bool = False
    """Whether a group's devices in a node share their NICs."""
    nic_rates: Mapping[int, int] | None = None
    """Rates per NIC between replicas by number of nodes, with ``every_nic``; those of the network by default."""
    ranks: int = 1
    """Number of pipeline ranks, which have consecutive devices."""

    @cached_property
    def _replica_fabrics(self) -> dict[tuple[int, int, Part], Fabric]:
        """Known fabrics between replicas, by the arguments of :meth:`_replica_fabric`."""
        return {}

    def ns(self, axis: str, size_bytes: int, *collectives: str) -> int:
        """Return the time of collectives over ``tp``, ``cp``, ``etp`` or ``pp``, as one ring with all rounds."""
        shard = self.shard
        devices = {"tp": shard.tp, "cp": shard.cp, "etp": shard.etp, "pp": self.ranks}[axis]
        extent = devices * {"cp": shard.tp, "pp": shard.tp * shard.replicas}.get(axis, 1)
        fabric = group_fabric(self.device, self.network, extent)
        if self.every_nic and self.network and axis in {"tp", "etp"} and extent > self.device.scale_up_size:
            fabric = self._nics_fabric(1, devices, self.ranks * shard.replicas)
        rounds = sum(_ROUNDS[name] for name in collectives)
        return fabric.ring_ns(size_bytes, devices, rounds)

    def siblings_ns(self, size_bytes: int, replicas: int, extent: int) -> int:
        """Return the time to gather over ``replicas`` of one module, which ``extent`` devices hold."""
        return group_fabric(self.device, self.network, extent).ring_ns(size_bytes, replicas, 1)

    def exchange_ns(self, exchange: TokenExchange) -> int:
        """Return the time of concurrent messages: the maximum of times inside the node and over the network."""
        shard = self.shard
        if shard.ep == 1:
            return 0
        groups_per_node = shard.ep
        if self.network:
            groups_per_node = min(max(self.device.scale_up_size // shard.etp, 1), shard.ep)
        nodes = -(-shard.ep // groups_per_node)
        inner = exchange_fabric(self.device)
        if not self.deduplicated:
            network_bytes = exchange.size_bytes * (nodes - 1)
            time = inner.carry_ns(exchange.size_bytes * (groups_per_node - 1), shard.ep)
        else:
            network_bytes = exchange.to_places_bytes(nodes) * (nodes - 1)
            node_bytes = exchange.to_places_bytes(shard.ep) * (groups_per_node - 1)
            time = inner.carry_ns(node_bytes, groups_per_node)
        if nodes > 1:
            time = max(time, data_parallel_fabric(self.network).carry_ns(network_bytes, nodes))
        return time

    def maps_ns(self, size_bytes: int) -> int:
        """Return the time to gather routing maps of ``size_bytes`` in the expert-parallel group."""
        shard, fabric = self.shard, group_fabric(self.device, {}, self.shard.ep)
        if self.network:
            fabric = self._replica_fabric(shard.etp, shard.ep, "all")
        return fabric.ring_ns(size_bytes, shard.ep, 1)

    def replicas_ns(
        self, collective: str, count: int, element_bytes: int, *, experts: bool, part: Part = "all"
    ) -> int:
        """Return the time of a collective in the context-parallel group, then of each share over the network.

        The messages of an all-to-all, for which ``count`` is the elements of one device, are concurrent.
        """
        shard = self.shard
        members = shard.members(part, experts=experts)
        cp = 1 if experts or part == "replicate" else gcd(shard.cp, members)
        members //= cp
        distance = shard.ep * shard.etp if experts else shard.tp * shard.cp
        if part == "replicate":
            distance = distance * shard.members("shard", experts=experts) // (1 if experts else shard.cp)
        between = distance, members, part
        if between not in self._replica_fabrics:
            self._replica_fabrics[between] = self._replica_fabric(*between)
        outer = self._replica_fabrics[between]
        if cp == 1 and collective != "all-to-all":
            return outer.ring_ns(count * element_bytes, members, _ROUNDS[collective])
        inner = group_fabric(self.device, self.network, shard.tp * cp)
        if collective == "all-to-all":
            parts, size_bytes = members * cp, count * element_bytes
            over_network_ns = outer.carry_ns(size_bytes * (parts - cp), parts) if members > 1 else 0
            return max(over_network_ns, inner.carry_ns(size_bytes * (cp - 1), parts) if cp > 1 else 0)
        rounds = _ROUNDS[collective]
        share = -(-count // cp)
        return inner.ring_ns(count * element_bytes, cp, rounds) + outer.ring_ns(
            share * element_bytes, members, rounds
        )

    def _replica_fabric(self, distance: int, replicas: int, part: Part) -> Fabric:
        """Return the fabric between ``replicas`` with a distance of some devices."""
        outer = data_parallel_fabric(self.network)
        if part in {"shard", "subgroup"} and not self.every_nic:
            return group_fabric(self.device, self.network, distance * replicas)
        if not self.every_nic:
            return outer
        whole = self.shard.members(part) if part in {"shard", "subgroup"} else self.shard.replicas
        return self._nics_fabric(distance, replicas, self.ranks * (self.shard.replicas // whole))

    def _nics_fabric(self, distance: int, members: int, groups: int) -> Fabric:
        """Return the fabric of one of ``groups`` consecutive rings, on the NICs of all its devices."""
        outer = data_parallel_fabric(self.network)
        if not outer.rate:
            return outer
        nodes = -(-distance * members // self.device.scale_up_size)
        measured = [count for count in self.nic_rates or {} if count <= nodes]
        if self.nic_rates and measured:
            outer = replace(outer, rate=Fraction(self.nic_rates[max(measured)]))
        per_node = max(self.device.scale_up_size // distance, 1)
        fewest = _fewest_in_a_node(per_node, members, groups)
        inner = group_fabric(self.device, {}, min(per_node, members))
        return inner if fewest == members else replace(outer, rate=min(fewest * outer.rate, inner.rate))


def _fewest_in_a_node(places: int, replicas: int, groups: int) -> int:
    """Return the smallest number of replicas of a group in a node, for consecutive groups.

    In a node with one replica, a ring has one NIC. NCCL's ``init.cc`` uses the smallest number of channels of all
    nodes of a communicator. A group that does not fill whole nodes continues in the next node.
    """
    fewest = replicas
    for group in range(min(groups, places)):
        first = -group * replicas % places
        last = (replicas - first) % places
        fewest = min([fewest, *(count for count in (first, places, last) if count)])
    return fewest


class OnLinks(_Groups, frozen=True, kw_only=True):
    """Times on the links of a cluster, with its rates, latencies and efficiencies."""

    collective_ns: Callable[[str, str, int], int]
    """Time of a collective over an axis, by its name, the axis and its size in bytes."""
    nodes: int
    """Number of nodes of an expert-parallel group; 1 where its nodes have unequal numbers of members."""

    def ns(self, axis: str, size_bytes: int, *collectives: str) -> int:
        """Return the time of collectives, one after another, over ``tp``, ``cp``, ``etp`` or ``pp``."""
        return sum(self.collective_ns(name, axis, size_bytes) for name in collectives)

    def siblings_ns(self, size_bytes: int, replicas: int, extent: int) -> int:
        """Return the time to gather over ``replicas`` of one module, which ``extent`` devices hold."""
        del replicas, extent
        return self.collective_ns("all-gather", "siblings", size_bytes)

    def exchange_ns(self, exchange: TokenExchange) -> int:
        """Return the time of concurrent messages: once per node in rails, and once per device inside nodes."""
        if self.shard.ep == 1:
            return 0
        if not self.deduplicated:
            return self.collective_ns("all-to-all", "ep", exchange.size_bytes)
        return max(
            self.collective_ns("all-to-all", f"ep-{part}", exchange.to_places_bytes(places))
            for part, places in (("rail", self.nodes), ("node", self.shard.ep))
        )

    def maps_ns(self, size_bytes: int) -> int:
        """Return the time to gather routing maps of ``size_bytes`` in the expert-parallel group."""
        return self.collective_ns("all-gather", "ep", size_bytes)

    def replicas_ns(
        self, collective: str, count: int, element_bytes: int, *, experts: bool, part: Part = "all"
    ) -> int:
        """Return the time over all ``dp x cp`` replicas, or over those of experts; 0 without parameters."""
        axis = ("edp" if experts else "dp") + ("" if part == "all" else f"-{part}")
        return self.collective_ns(collective, axis, count * element_bytes) if count else 0


Groups: TypeAlias = ByFormula | OnLinks
"""Times of collectives that all groups of an axis run at once."""


def groups_of(request: CostRequest, shard: Shard, device: Accelerator, options: RooflineOptions) -> Groups:
    """Return the times of collectives: those of the cluster if the request has them, else times by formula."""
    common: dict[str, Any] = {"shard": shard, "deduplicated": options.dispatcher == "deduplicated"}
    if request.collectives is not None:
        nodes = request.collectives.members("ep-rail") if shard.ep > 1 else 1
        return OnLinks(collective_ns=request.collectives.ns, nodes=nodes, **common)
    return ByFormula(
        device=device, network=request.data_parallel, every_nic=options.every_nic, nic_rates=options.nic_rates,
        ranks=request.ranks, **common,
    )  # fmt: skip
