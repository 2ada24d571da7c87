"""A span is a numeric key of a configuration and the range that a search moves it over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.config.experiment import Experiment
from pptrace.config.flags import key_of
from pptrace.config.overrides import Assignment, assignment
from pptrace.errors import ConfigError, PptraceError, nearest
from pptrace.experiment.prepare import prepare
from pptrace.study.bisection import rounded
from pptrace.study.scale import Real, Whole, scale_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.resolve import Resolved
    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry
    from pptrace.study.scale import Scale

__all__ = ["Span", "parse_span"]

_MICROBATCHES = "batch.microbatches"
_MOST_MICROBATCHES = 1024

_COUNTS = ("parallel.", "batch.")
"""Sections whose numbers are all whole."""

_NETWORK = ("bandwidth", "latency")
"""Words for a key of the network, or of the cluster's fabric."""

_HALF_RANGE, _HUNDREDTHS = 3162, 100
"""A range of three decades ends at 31.62 times its middle, and begins at that part of it."""

_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A numeric key and its range."""

    key: str
    """Its path, such as ``network.bandwidth``."""
    word: str
    """As the user wrote it."""
    scale: Scale
    """How its values are read and written."""
    low: int
    """The first value."""
    high: int
    """The last value, above the first."""

    @property
    def is_count(self) -> bool:
        """Whether its values are whole numbers."""
        return self.key.startswith(_COUNTS)

    def at(self, value: int) -> Assignment:
        """Return what sets the key to a value."""
        return assignment(self.key, self.scale.exact(value), f"--over {self.word}")

    def shown(self, value: int) -> str:
        """Return a value for people."""
        return self.scale.shown(value)


def parse_span(text: str, basis: Basis, entries: Sequence[Entry]) -> Span:
    """Read ``KEY`` or ``KEY=LOW..HIGH``; what a range is without one, :func:`_default` says.

    Args:
        text: such as ``microbatches=8..256``, ``bandwidth`` or ``costs.forward``.
        basis: the configuration whose key it is.
        entries: the schedules that are run.

    Raises:
        ConfigError: an unknown key, one that holds no number or that an entry sets, or a range that is none.
    """
    word, equals, range_text = (part.strip() for part in text.partition("="))
    if not word:
        raise ConfigError("no key: write what varies, such as microbatches=8..256", file="--over")
    source = f"--over {word}"
    ends = _ends(range_text, source) if equals else None
    key = _key(word, basis, entries, ends)
    for entry in entries:
        if entry.sets(key):
            raise ConfigError(f"{entry.label} sets what is to vary: remove it there", key=key, file=source)
    known = _values(basis, entries, key, ends)
    scale = _scale(known.get(key), key, ends)
    if scale is None or key.partition(".")[0] not in Experiment.model_fields:
        raise _no_number(key, known, source)
    low, high = _read(scale, ends, key, source) if ends else _default(scale, key, known, source)
    return Span(key=key, word=word, scale=scale, low=low, high=high)


def _ends(text: str, source: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots or not low or not high:
        raise ConfigError(f"{text!r} is no range: write LOW..HIGH, such as 8..256", file=source)
    return low, high


def _key(word: str, basis: Basis, entries: Sequence[Entry], ends: tuple[str, str] | None) -> str:
    if word in _NETWORK:
        cluster = _loaded(basis, entries[0], _MICROBATCHES, ends).experiment.cluster
        return f"network.{word}" if cluster is None else f"cluster.fabric.{word}"
    return key_of(word)


def _loaded(basis: Basis, entry: Entry, key: str, ends: tuple[str, str] | None) -> Resolved:
    """Return the configuration, with a value for the key only where there is no configuration without."""
    try:
        return basis.resolve(entry)
    except ConfigError:
        if ends is None and key != _MICROBATCHES:
            raise
        value = ends[0] if ends and scale_of(ends[0]) else "1"
        return basis.resolve(entry, [assignment(key, value, f"--over {key}")])


def _values(
    basis: Basis, entries: Sequence[Entry], key: str, ends: tuple[str, str] | None
) -> Mapping[str, object]:
    """Return every value of the configuration, those of plugins' options as far as an entry can be prepared."""
    loaded = [_loaded(basis, entry, key, ends) for entry in entries]
    for entry, resolved in zip(entries, loaded, strict=True):
        basis.check(entry, resolved)
    known = loaded[0].explain()
    for resolved in loaded:
        # Sizes that a schedule cannot take say nothing about the key.
        with suppress(PptraceError):
            known = prepare(resolved, basis.registry).resolved.explain()
            break
    return {name: value for name, value, _ in known}


def _scale(value: object, key: str, ends: tuple[str, str] | None) -> Scale | None:
    """Return the scale of a key's value, or of its range where that says more: no value, or decimals."""
    own, written = scale_of(value), [scale_of(end) for end in ends or ()]
    if value is None:
        return Real() if Real() in written else next(iter(written), None)
    return Real() if own == Whole() and Real() in written and not key.startswith(_COUNTS) else own


def _no_number(key: str, known: Mapping[str, object], source: str) -> ConfigError:
    if key in known:
        return ConfigError(f"{known[key]!r} is no number to move", key=key, file=source)
    numbers = [name for name, value in known.items() if scale_of(value) is not None]
    section = [name for name in numbers if name.partition(".")[0] == key.partition(".")[0]]
    advice = "; one that has no value yet needs a range, KEY=LOW..HIGH" if section else ""
    return ConfigError(f"no number here has this key{nearest(key, section or numbers)}{advice}", file=source)


def _read(scale: Scale, ends: tuple[str, str], key: str, source: str) -> tuple[int, int]:
    try:
        low, high = (scale.parse(end) for end in ends)
    except ConfigError as error:
        raise ConfigError(error.message, key=key, file=source) from None
    if low == high:
        raise ConfigError(f"the range {' .. '.join(ends)} holds one value: nothing can flip", key=key, file=source)
    if low > high:
        raise ConfigError(f"the range is reversed: write {ends[1]}..{ends[0]}", key=key, file=source)
    return low, high


def _default(scale: Scale, key: str, known: Mapping[str, object], source: str) -> tuple[int, int]:
    """Return 1 to 1024 for microbatches, else three decades around the configured value."""
    if key == _MICROBATCHES:
        return 1, _MOST_MICROBATCHES
    value = scale.parse(str(known[key]))
    if not value:
        message = f"{known[key]} has no decades around it: write a range, such as {key}=LOW..HIGH"
        raise ConfigError(message, key=key, file=source)
    low = rounded(value * _HUNDREDTHS // _HALF_RANGE, _DIGITS)
    return max(1, low), rounded(value * _HALF_RANGE // _HUNDREDTHS, _DIGITS)
