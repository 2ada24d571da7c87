"""Settings that may differ between schedules on equal memory: a row of :data:`VARIED` is all that one takes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.config.quantity import exact_size
from pptrace.errors import ConfigError, nearest
from pptrace.experiment.candidates import Reach, chunks_of, literals, sizes_of, value_of, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.config.resolve import Resolved
    from pptrace.hooks.offers import ScheduleOffer
    from pptrace.hooks.registry import Registry

__all__ = ["VARIED", "Ground", "VariedSetting", "varied_settings"]

Settings: TypeAlias = "Mapping[str, Any]"

_MICRO: tuple[Fraction | float, ...] = (2, 0.5, 4, 0.25)
_LESS = (Fraction(15, 16), Fraction(7, 8), Fraction(13, 16), Fraction(3, 4))
"""Parts of a form's activations within which a generated order is made anew."""
_MIB = 2**20
_RATIOS = (0.25, 0.5, 1)
"""Shares of activations that may be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the values of a setting may depend on."""

    resolved: Resolved
    """The configuration with its schedule, all options filled in."""
    registry: Registry
    """The plugins."""
    offer: ScheduleOffer | None
    """The schedule; None for a table file."""
    options: Settings
    """Its options, defaults included."""
    chunks: int
    """Chunks per rank that the configuration runs with; 0 where it does not run, or ranks differ in them."""
    activation_bytes: int = 0
    """The most activations on a rank of the form that is varied; 0 where none was simulated yet."""
    copies_take_time: bool = False
    """Whether the costs have times for copies of activations to the host and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedSetting:
    """One setting, or several that hang together."""

    name: str
    """As ``--vary`` takes it."""
    text: str
    """What it is."""
    values: Callable[[Ground], Sequence[Settings]]
    """Other values than the configuration's own, each as settings by key."""
    is_estimated: bool = True
    """Whether estimates know what it changes; values of others are tried on the best form by estimated ones."""
    is_tried: bool = False
    """Whether estimated values are tried on the best form too: estimates do not know them beside options."""
    on_request: bool = False
    """Whether it differs only where it is named."""


def varied_settings(names: Sequence[str], source: str) -> tuple[VariedSetting, ...]:
    """Return the settings of some names, in the order of the table; all but those on request where none is named.

    Args:
        names: as ``--vary`` takes them.
        source: what to call them in errors.

    Raises:
        ConfigError: an unknown name.
    """
    known = [one.name for one in VARIED]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is nothing that differs{nearest(name, known)}", file=source)
    return tuple(one for one in VARIED if (one.name in names if names else not one.on_request))


def _chunks(ground: Ground) -> list[Settings]:
    experiment = ground.resolved.experiment
    if experiment.schedule.kind == "table":
        return []
    own = ground.chunks or experiment.parallel.vp
    counts = chunks_of(experiment, own, experiment.parallel.pp or 1, deep=True)
    return [{"parallel.vp": count} for count in counts if count != ground.chunks]


def _micro(ground: Ground) -> list[Settings]:
    experiment = ground.resolved.experiment
    written = "batch.microbatches" in ground.resolved.positions
    found: list[Settings] = []
    for sizes in sizes_of(experiment, Reach(pp=(1,), tp=(1,), micro=_MICRO)):
        count = sizes.microbatches(experiment.batch.global_batch or 0)
        if sizes.micro != experiment.batch.micro:
            found.append({"batch.micro": sizes.micro, **({"batch.microbatches": count} if written else {})})
    return found


def _words(key: str) -> Callable[[Ground], list[Settings]]:
    def values(ground: Ground) -> list[Settings]:
        own = value_of(ground.resolved, key) if words_of(ground.resolved, ground.registry, key) else None
        words = words_of(ground.resolved, ground.registry, key)
        return [{key: word} for word in words if word != own]

    return values


def _options(ground: Ground) -> list[Settings]:
    if ground.offer is None or ground.offer.options is None:
        return []
    return [
        {f"schedule.options.{name}": word}
        for name, words in literals(ground.offer.options()).items()
        for word in words
        if word != ground.options.get(name)
    ]


def _order_memory(ground: Ground) -> list[Settings]:
    """Return less memory than an order took: another order may be made for it, which is sometimes shorter."""
    if ground.offer is None or ground.options.get("order") == "fixed" or "memory" not in ground.options:
        return []
    sizes = [int(ground.activation_bytes * part) // _MIB * _MIB for part in _LESS]
    return [{"schedule.options.memory": exact_size(size)} for size in sizes if size]


def _offload(ground: Ground) -> list[Settings]:
    """Return shares of activations to copy to the host."""
    own = ground.resolved.experiment.schedule
    if not ground.copies_take_time or own.offload is not None or own.recompute is not None:
        return []
    return [{"schedule.offload.ratio": ratio} for ratio in _RATIOS]


def _recompute_actions(ground: Ground) -> list[Settings]:
    own = ground.resolved.experiment.schedule
    if own.offload is not None or own.recompute is not None:
        return []
    return [{"schedule.recompute.early": early} for early in (False, True)]


VARIED = (
    VariedSetting(name="vp", text="chunks of the model per rank", values=_chunks),
    VariedSetting(name="micro", text="sequences in a microbatch", values=_micro),
    VariedSetting(name="recompute", text="what the backward computes again", values=_words("model.recompute")),
    VariedSetting(name="zero", text="the ZeRO stage", values=_words("costs.zero"), on_request=True),
    VariedSetting(
        name="sequence-parallel", text="whether activations are split over the sequence",
        values=_words("parallel.sequence_parallel"), on_request=True,
    ),
    VariedSetting(
        name="options", text="options of the schedule that take one of a few words", values=_options,
        is_estimated=False,
    ),
    VariedSetting(
        name="offload", text="the share of activations that is copied to the host and back", values=_offload,
        is_tried=True,
    ),
    VariedSetting(
        name="recompute-actions", text="forwards computed again by actions of their own",
        values=_recompute_actions, is_tried=True,
    ),
    VariedSetting(
        name="memory", text="the memory that a generated order is made for", values=_order_memory,
        is_estimated=False,
    ),
)  # fmt: skip
"""All settings that may differ, in the order in which they are tried."""
