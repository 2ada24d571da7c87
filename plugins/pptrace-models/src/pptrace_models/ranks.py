"""The device of each pipeline rank and of each stage: one for all, or unlike ones."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError
from pptrace_models.accelerator import Accelerator
from pptrace_models.checked import checked
from pptrace_models.extremes import expected_maximum
from pptrace_models.shapes import Shaped
from pptrace_models.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from pptrace.plugin import CostRequest
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import Precision

__all__ = ["Devices", "devices_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What ranks and stages run on."""

    of_ranks: tuple[Accelerator, ...]
    """Shape (ranks,): each pipeline rank's device."""
    of_stages: tuple[Accelerator, ...]
    """Shape (stages,): that of each stage's ranks."""

    @property
    def distinct(self) -> tuple[Accelerator, ...]:
        """Each device of a stage once, in the order of stages."""
        once = {id(device): device for device in self.of_stages}
        return tuple(dict.fromkeys(once.values()))

    @property
    def memories(self) -> list[int]:
        """Shape (ranks,): memory of each rank's device in bytes."""
        return [device.memory for device in self.of_ranks]

    @property
    def scale_up_size(self) -> int:
        """Devices that each node's links join, at least."""
        return min(device.scale_up_size for device in self.of_ranks)

    def peaks(self, precision: Precision) -> int:
        """Return the sum of one device's dense peak of each rank, in FLOP/s.

        Raises:
            ConfigError: a rank's device has no peak for the precision.
        """
        total, alike = 0, self.are_alike
        for rank, device in enumerate(self.of_ranks):
            with _at_rank(rank, alike=alike):
                total += device.peak(precision)
        return total

    @property
    def are_alike(self) -> bool:
        """Whether all ranks have the same device."""
        return len({id(device): device for device in self.of_ranks}) == 1 or len({*self.of_ranks}) == 1


def devices_of(request: CostRequest, options: RooflineOptions) -> Devices:
    """Return the devices of a request, with kernels by shape and measured products where the options say so.

    Raises:
        ConfigError: parameters that are wrong, a table of measured products of another device, or a stage on ranks
            whose devices differ.
    """
    given = request.rank_devices or (request.device,)
    slowness = 1.0
    if options.spread:
        slowness += options.spread * expected_maximum(request.tp * request.cp * request.dp * request.ranks)
    made: dict[tuple[tuple[str, Any], ...], Accelerator] = {}
    for rank, values in enumerate(given):
        if tuple(values.items()) not in made:
            with _at_rank(rank, alike=len(given) == 1):
                made[tuple(values.items())] = _device(values, options).slowed(slowness)
    found = tuple(made[tuple(values.items())] for values in given)
    ranks = found if request.rank_devices else found * request.ranks
    holders = request.stage_ranks or tuple((stage % request.ranks,) for stage in range(request.stages))
    for stage, own in enumerate(holders):
        other = next((rank for rank in own[1:] if ranks[rank] != ranks[own[0]]), None)
        if other is not None:
            message = (
                f"stage {stage} is on ranks {own[0]} and {other}, whose devices differ, and a stage has one cost: "
                "give them the same device, or choose a schedule that has each stage on one rank"
            )
            raise ConfigError(message, key="device.ranks")
    return Devices(of_ranks=ranks, of_stages=tuple(ranks[own[0]] for own in holders))


def _device(values: Mapping[str, Any], options: RooflineOptions) -> Accelerator:
    if options.kernels != "shapes":
        if options.kernel_table:
            raise ConfigError("measured products need kernels: shapes", key="costs.kernel_table")
        return checked(Accelerator, values, "device")
    device = checked(Shaped, values, "device")
    if not options.kernel_table:
        return device
    return device.model_copy(update={"table": read_table(options.kernel_table, device)})


@contextmanager
def _at_rank(rank: int, *, alike: bool) -> Iterator[None]:
    """Let errors about a rank's device name the rank where devices differ."""
    try:
        yield
    except ConfigError as error:
        if alike:
            raise
        raise ConfigError(f"rank {rank}: {error.message}", key=error.key) from error
