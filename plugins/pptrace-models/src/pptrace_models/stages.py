"""What lies on each stage: a layout as Megatron-LM writes it, a count of layers per stage, or an even split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from pptrace.plugin import ConfigError, ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace_models.transformer import Layer, Transformer

__all__ = ["Stage", "in_front", "items_of", "parse_layout", "partition", "stages_of", "summed"]


class _Adds(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


_Item = TypeVar("_Item")
_Sum = TypeVar("_Sum", bound=_Adds)
_KEY = "model.layout"
_LETTERS = {"E": "embedding", "t": "layer", "m": "multi-token prediction", "L": "loss"}
_ALLOWED = "E, t, m, L, |, a group in parentheses, or * and a count behind one of these"
_MOST = 1_000_000
_ENDS = 2
"""Ends of a pipeline that may hold no layer: the embedding's and the LM head's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What lies on one stage."""

    layers: tuple[Layer, ...] = ()
    """Its layers, in order."""
    embedding: bool = False
    """Whether the embedding is on it."""
    mtp: int = 0
    """Modules of multi-token prediction."""
    head: bool = False
    """Whether the LM head and the loss are."""
    tower: int = 0
    """Layers of the encoder, in front of all else."""
    projector: bool = False
    """Whether the encoder's last layer is on it, and its projector."""


def stages_of(model: Transformer, stages: int) -> list[Stage]:
    """Return what lies on each stage; without a layout, multi-token prediction is on the last.

    Layouts and counts of layers are those of the stages behind the encoder's own.

    Raises:
        ConfigError: a layout that cannot be read, or is of another model or number of stages.
        ConstraintError: more stages than layers, or none left for the decoder.
    """
    if model.encoder is None:
        return _decoder(model, stages)
    layers, own = model.encoder.layers, model.encoder.stages
    if own >= stages:
        message = f"{own} of {stages} stages leave none for the decoder"
        raise ConstraintError(message, nearest=str(stages - 1), key="model.encoder.stages")
    decoder = _decoder(model, stages - own)
    if not own:
        return [replace(decoder[0], tower=layers, projector=True), *decoder[1:]]
    base, more = divmod(layers, own)
    front = [Stage(tower=base + (stage < more), projector=stage == own - 1) for stage in range(own)]
    return [*front, *decoder]


def in_front(
    items: list[list[_Item]], stages: Sequence[Stage], layer: _Item, projector: _Item
) -> list[list[_Item]]:
    """Return the values of all items of each stage, with those of the encoder and the projector first."""
    return [
        [*[layer] * stage.tower, *[projector] * stage.projector, *own]
        for stage, own in zip(stages, items, strict=True)
    ]


def _decoder(model: Transformer, stages: int) -> list[Stage]:
    if model.layout is not None:
        return _laid_out(model, stages, model.layout)
    found, first, last = [], 0, stages - 1
    for stage, count in enumerate(partition(model, stages)):
        layers = tuple(model.layer(first + place, place) for place in range(count))
        own = model.mtp if stage == last else 0
        found.append(Stage(layers=layers, embedding=stage == 0, mtp=own, head=stage == last))
        first += count
    return found


def items_of(
    model: Transformer,
    stages: Sequence[Stage],
    *,
    layer: Callable[[Layer], _Item],
    embedding: _Item,
    prediction: _Item,
    head: _Item,
    heads: int = 0,
) -> list[list[_Item]]:
    """Return what something is of each item of each stage, such as its time.

    Args:
        model: whose last layer is that of multi-token prediction, too.
        stages: what lies on each.
        layer: what it is of a layer.
        embedding: of the embedding.
        prediction: of a module of multi-token prediction beside its layer.
        head: of the LM head and the loss.
        heads: how often that counts; 0 for once, and again for each module of multi-token prediction.
    """
    kinds = {kind: layer(kind) for kind in {kind for stage in stages for kind in stage.layers}}
    last = model.layer(model.layers)
    predicted = [kinds.get(last) or layer(last), prediction] if any(stage.mtp for stage in stages) else []
    return [
        [
            *([embedding] if stage.embedding else []),
            *(kinds[kind] for kind in stage.layers),
            *predicted * stage.mtp,
            *([head] * (heads or 1 + model.mtp) if stage.head else []),
        ]
        for stage in stages
    ]


def summed(nothing: _Sum, items: Iterable[_Sum]) -> _Sum:
    """Return the sum of items that add up."""
    total = nothing
    for item in items:
        total = total + item
    return total


def parse_layout(text: str) -> list[str]:
    """Return the letters of each stage of a layout; commas and spaces say nothing.

    >>> parse_layout("Et*3|(t|)*2,m|L")
    ['Ettt', 't', 't', 'm', 'L']

    Raises:
        ConfigError: the first position that cannot be read, counted from 1, and what may stand there.
    """
    whole, end = _sequence(text, 0)
    if end < len(text):
        raise _misplaced(text, end, "no parenthesis is open here")
    return whole.split("|")


def partition(model: Transformer, stages: int) -> list[int]:
    """Return the layers of each stage: those given, or an even split.

    The remainder goes to the middle stages, later ones first: the last stage has the LM head, the first the
    embedding, and earlier stages hold more microbatches. One or two stages more than layers leave the last without
    a layer, then the first: head and embedding take a slot each, as Megatron-LM's accounting for them in the
    pipeline's split has it.

    Raises:
        ConfigError: a given split of another length or sum.
        ConstraintError: more stages than layers.
    """
    given = model.layers_per_stage
    if model.balance == "products":
        return _by_products(model, stages)
    if given is not None:
        key = "model.layers_per_stage"
        if len(given) != stages:
            raise ConfigError(f"{len(given)} entries for {stages} stages; give one per stage", key=key)
        if sum(given) != model.layers:
            message = f"sums to {sum(given)}, not to model.layers ({model.layers}); "
            away = model.layers - sum(given)
            raise ConfigError(f"{message}{'add' if away > 0 else 'take away'} {abs(away)}", key=key)
        return list(given)
    ends = stages - model.layers
    if 0 < ends <= min(_ENDS, stages - 1):
        return [int(ends < _ENDS), *[1] * (stages - 2), 0]
    if stages > model.layers:
        message = f"{stages} stages are more than model.layers ({model.layers})"
        raise ConstraintError(message, nearest=f"{model.layers} stages", key="parallel")
    base, remainder = divmod(model.layers, stages)
    favoured = [*range(stages - 2, 0, -1), 0, stages - 1][:remainder]
    return [base + (stage in favoured) for stage in range(stages)]


def _by_products(model: Transformer, stages: int) -> list[int]:
    """Return the layers of each stage where each takes layers until it passes its share of all products' weights.

    The LM head counts, the embedding does not; the layer that passes a share is still the stage's (``build_model``
    in nanotron's models/base.py).

    Raises:
        ConstraintError: more stages than layers and LM head fill.
    """
    layer = model.attention_products + model.hidden * model.matrices * model.ffn
    layers, head = model.layers * layer, model.vocabulary * model.hidden
    # Each stage but the last has a layer, and all but the last pass their shares, which the head's is not one of.
    most = min(model.layers, (layers - 1) // head) + 1
    if stages > most:
        message = f"{stages} stages are more than layers and LM head fill where a stage ends by what it multiplies"
        raise ConstraintError(message, nearest=f"{most} stage{'s' * (most > 1)}", key="parallel")
    found = [0] * stages
    stage = 0
    for index in range(model.layers):
        found[stage] += 1
        stage += (index + 1) * layer * stages > (layers + head) * (stage + 1)
    return found


def _sequence(text: str, at: int) -> tuple[str, int]:
    """Return what stands from a position to the closing parenthesis or the end, spelt out, and that place."""
    found = ""
    while at < len(text) and text[at] != ")":
        start = at
        if text[at] in ", ":
            at += 1
            continue
        if text[at] == "(":
            item, at = _sequence(text, at + 1)
            if at == len(text):
                raise _misplaced(text, start, "this parenthesis is never closed")
        elif text[at] in _LETTERS or text[at] == "|":
            item = text[at]
        else:
            raise _misplaced(text, at, f"{_ALLOWED} may stand here, not {text[at]!r}")
        times, at = _times(text, at + 1)
        if len(found) + len(item) * times > _MOST:
            raise _misplaced(text, start, f"more than {_MOST} items")
        found += item * times
    return found, at


def _times(text: str, at: int) -> tuple[int, int]:
    if text[at : at + 1] != "*":
        return 1, at
    end = at + 1
    while text[end : end + 1].isdecimal() and text[end].isascii():
        end += 1
    if not 0 < int(text[at + 1 : end][:9] or 0) <= _MOST:
        raise _misplaced(text, at + 1, f"a count from 1 to {_MOST} is needed behind *")
    return int(text[at + 1 : end][:9]), end


def _misplaced(text: str, at: int, reason: str) -> ConfigError:
    return ConfigError(f"{text!r}, position {at + 1}: {reason}", key=_KEY)


def _laid_out(model: Transformer, stages: int, text: str) -> list[Stage]:
    """Return the stages of a layout: the embedding is the first item, the loss the last, m between t and L."""
    letters = parse_layout(text)
    if len(letters) != stages:
        message = f"{text!r} has {len(letters)} stages, and pp x vp is {stages}"
        raise ConfigError(message, key=_KEY)
    joined = "".join(letters)
    wanted = {"E": 1, "t": model.layers, "m": model.mtp, "L": 1}
    names = {"t": " (model.layers)", "m": " (model.mtp)"}
    for letter, count in wanted.items():
        if joined.count(letter) != count:
            message = f"{text!r} has {joined.count(letter)} {letter} ({_LETTERS[letter]}), "
            raise ConfigError(f"{message}and {count}{names.get(letter, '')} are needed", key=_KEY)
    if joined != "E" + "t" * model.layers + "m" * model.mtp + "L":
        raise ConfigError(f"{text!r} is out of order: E comes first, then every t, every m, and L", key=_KEY)
    found, first = [], 0
    for own in letters:
        count = own.count("t")
        layers = tuple(model.layer(first + place, place) for place in range(count))
        found.append(Stage(layers=layers, embedding="E" in own, mtp=own.count("m"), head="L" in own))
        first += count
    return found
