"""What a plan is asked: GPUs, memory, what counts, and what may vary."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from pptrace.config.flags import key_of
from pptrace.config.places import key_text
from pptrace.errors import ConfigError, nearest
from pptrace.study.axes import axes_of, parse_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from pptrace.study.axes import Axis

__all__ = ["ALIASES", "OBJECTIVES", "Question", "Worth", "gpus_text", "varied_axes"]

Worth: TypeAlias = "tuple[Fraction, ...]"
"""What a configuration is worth under an objective: the smaller the better."""

OBJECTIVES = {
    "tokens": "most tokens per second",
    "mfu": "highest model FLOPs utilisation",
    "step": "shortest step",
    "gpus": "fewest GPUs, then most tokens per second",
}
"""What may count, with what it means."""

ALIASES = {
    "recompute": "model.recompute",
    "zero": "costs.zero",
    "offload": "schedule.offload.ratio",
    "order": "parallel.order",
    "layers": "model.layers_per_stage",
}
"""Names that may stand for a key of what varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    gpus: int
    """As many the job has; under ``gpus``, at most so many."""
    memory: str | None = None
    """What a rank may hold, such as ``76GiB``; what the device has unless given."""
    objective: str = "tokens"
    """One of :data:`OBJECTIVES`."""
    top: int = 10
    """How many are asked for."""
    exhaustive: bool = False
    """Whether to simulate everything that can run, without bounds."""

    def check(self) -> None:
        """Refuse what cannot be asked.

        Raises:
            ConfigError: no GPUs, nothing asked for, or an unknown objective.
        """
        if self.gpus < 1:
            raise ConfigError(f"{self.gpus} is no number of GPUs: write 1 or more", file="--gpus")
        if self.top < 1:
            raise ConfigError(f"{self.top} is nothing: write 1 or more", file="--top")
        if self.objective not in OBJECTIVES:
            message = f"{self.objective!r} is no objective{nearest(self.objective, OBJECTIVES)}"
            raise ConfigError(message, file="--objective")

    def worth(self, step_ns: int, sequences: int, gpus: int) -> Worth:
        """Return what a step, or a lower bound on one, is worth.

        Args:
            step_ns: its length.
            sequences: the global batch.
            gpus: how many it takes.
        """
        if self.objective == "step":
            return (Fraction(step_ns),)
        each = Fraction(step_ns, sequences)
        return (Fraction(gpus), each) if self.objective == "gpus" else (each * gpus,)


def gpus_text(count: int) -> str:
    """Return so many GPUs in words.

    >>> gpus_text(1), gpus_text(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,} GPU{'s' * (count != 1)}"


def varied_axes(texts: Sequence[str], written: Mapping[str, Iterable[Any]]) -> dict[str, Axis]:
    """Return what varies by the key that it varies; texts win over what a configuration has under ``plan``.

    Args:
        texts: as for ``--over`` of a sweep, with names of :data:`ALIASES` too.
        written: values by key.

    Raises:
        ConfigError: as for the axes of a sweep; or a key twice.
    """
    named = {_whole(key): values for key, values in written.items()}
    found = {_key(axis): axis for axis in axes_of(named, "plan")}
    given: dict[str, Axis] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        (axis,) = parse_axes([f"{_whole(key.strip())}{equals}{values}"], "--vary")
        if _key(axis) in given:
            raise ConfigError(f"{key.strip()} is there twice: write all values behind one --vary", file="--vary")
        given[_key(axis)] = axis
    return found | given


def _whole(key: str) -> str:
    return ALIASES.get(key, key)


def _key(axis: Axis) -> str:
    """Return the key that an axis sets; of coupled keys and files, its name."""
    first = axis.values[0].varied
    return key_of(axis.key) if axis.is_coupled else key_text(first[0].path)
