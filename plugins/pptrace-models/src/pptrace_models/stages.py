"""Layers and other items of each stage: from a Megatron-LM layout, layer counts per stage, or an even split."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import ConfigError, ConstraintError
from pptrace_models.layer import active_weights
from pptrace_models.transformer import encoder_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace_models.transformer import Encoder, Layer, Transformer


class _Adds(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


_Item = TypeVar("_Item")
_Sum = TypeVar("_Sum", bound=_Adds)
_KEY = "model.layout"
_LETTERS = {"E": "embedding", "t": "layer", "m": "multi-token prediction", "L": "loss"}
_ALLOWED = "E, t, m, L, |, a group in parentheses, or * and a count after one of these"
_MOST = 1_000_000
_ENDS = 2
"""Ends of a pipeline that may hold no layer: the embedding's and the LM head's."""


class EncoderPart(Struct, frozen=True):
    """Layers of an encoder on one stage."""

    encoder: int
    """Index of the encoder in the model."""
    layers: int
    """Number of layers."""
    projector: bool
    """Whether the stage has the encoder's last layer and the projector."""


class Stage(Struct, frozen=True):
    """The items of one stage."""

    layers: tuple[Layer, ...] = ()
    """Layers, in order."""
    embedding: bool = False
    """Whether the stage has the embedding."""
    predictions: tuple[Layer, ...] = ()
    """Layers of modules of multi-token prediction."""
    head: bool = False
    """Whether the stage has the LM head and the loss."""
    encoders: tuple[EncoderPart, ...] = ()
    """Layers of encoders, before all other items."""


def count_encoder_stages(model: Transformer, *, together: bool = False) -> int:
    """Return the number of first stages with encoders only; ``together`` if all encoders have the same ones."""
    counts = [encoder.stages for encoder in model.named_encoders.values()]
    return (max if together else sum)(counts or [0])


def stages_of(
    model: Transformer, stages: int, vocabulary_shares: int = 1, *, together: bool = False
) -> list[Stage]:
    """Return the items of each stage; without a layout, multi-token prediction is on the last stage.

    Layouts and layer counts refer to the stages after those of encoders and before shares of the vocabulary.
    Encoders have consecutive stages, or ``together`` the same ones. Several shares of the vocabulary are the last
    stages, and each has embedding and LM head.

    Raises:
        ConfigError: an invalid layout, or a layout of another model or number of stages; multi-token prediction
            with several shares.
        ConstraintError: more stages than layers, or no stage for the decoder.
    """
    if vocabulary_shares > 1:
        if model.mtp:
            raise ConfigError("shares of the vocabulary have no multi-token prediction: write 0", key="model.mtp")
        without_shares = stages_of(model, stages - vocabulary_shares, together=together)
        shares = [Stage(embedding=True, head=True)] * vocabulary_shares
        return [*(replace(stage, embedding=False, head=False) for stage in without_shares), *shares]
    if not model.named_encoders:
        return _decoder(model, stages)
    encoder_stages = count_encoder_stages(model, together=together)
    if encoder_stages >= stages:
        key = f"{encoder_key(next(iter(model.named_encoders)))}.stages"
        message = f"{encoder_stages} of {stages} stages leave none for the decoder"
        raise ConstraintError(message, nearest=str(stages - 1), key=key)
    decoder = _decoder(model, stages - encoder_stages)
    parts = list[list[EncoderPart]]([] for _ in range(encoder_stages))
    first = 0
    for index, (name, encoder) in enumerate(model.named_encoders.items()):
        split = _encoder_partition(name, encoder)
        if not encoder.stages:
            part = EncoderPart(index, encoder.layers, projector=True)
            decoder[0] = replace(decoder[0], encoders=(*decoder[0].encoders, part))
        for stage, layers in enumerate(split):
            is_last = stage == encoder.stages - 1
            parts[first + stage].append(EncoderPart(index, layers, projector=is_last))
        first += 0 if together else encoder.stages
    return [*(Stage(encoders=tuple(stage_parts)) for stage_parts in parts), *decoder]


def _encoder_partition(name: str, encoder: Encoder) -> list[int]:
    """Return the number of layers of each stage of an encoder; none if it is on the decoder's first stage.

    Raises:
        ConfigError: given counts with a wrong length or sum.
    """
    given = encoder.layers_per_stage
    if given is not None:
        _check_counts(given, encoder.stages, encoder.layers, encoder_key(name))
        return given
    if not encoder.stages:
        return []
    base, remainder = divmod(encoder.layers, encoder.stages)
    return [base + (stage < remainder) for stage in range(encoder.stages)]


def _check_counts(given: Sequence[int], stages: int, layers: int, section: str) -> None:
    """Refuse layers per stage with a wrong length or sum; ``section`` is that of their key."""
    key = f"{section}.layers_per_stage"
    if len(given) != stages:
        raise ConfigError(f"{len(given)} entries for {stages} stages; give one per stage", key=key)
    away = layers - sum(given)
    if away:
        change = f"{'add' if away > 0 else 'take away'} {abs(away)}"
        raise ConfigError(f"sums to {sum(given)}, not to {section}.layers ({layers}); {change}", key=key)


def around_attention(stages: Sequence[Stage]) -> list[Stage]:
    """Divide stages of one layer each at core attention, which has stages without other parts of layers.

    Stage ``2 k`` has the layers' parts between core attention of layers ``k - 1`` and ``k``, and stage ``2 k + 1``
    has core attention of layer ``k`` (HelixPipe, 2025, section 4).
    """
    result: list[Stage] = []
    after: tuple[Layer, ...] = ()
    for stage in stages:
        before, core, following = stage.layers[0].parts()
        result += [replace(stage, layers=(*after, before), head=False), Stage(layers=(core,))]
        after = (following,)
    return [*result, Stage(layers=after, head=True)]


def count_units(model: Transformer) -> int:
    """Return the number of a model's parts that FSDP gathers separately.

    These are the embedding, each layer of an encoder, each layer, each module of multi-token prediction and the LM
    head.
    """
    return _parts_beside_layers(model) + model.layers


def _parts_beside_layers(model: Transformer) -> int:
    return _ENDS + model.mtp + sum(encoder.layers for encoder in model.named_encoders.values())


def units_of(model: Transformer, units: int) -> list[Stage]:
    """Return the items of each unit; layers are grouped if there are fewer units than parts.

    Raises:
        ConstraintError: fewer units than parts beside the layers and a group of layers, or more than parts.
    """
    groups = units - _parts_beside_layers(model)
    most = count_units(model)
    if not 1 <= groups <= model.layers or units > most:
        nearest = str(min(max(units, _parts_beside_layers(model) + 1), most))
        raise ConstraintError(
            f"the model has no {units} units: each layer is one at most, embedding and LM head are others",
            nearest=nearest, key="data_parallel.units",
        )  # fmt: skip
    layers = [model.layer(index, index) for index in range(model.layers)]
    bounds = [len(layers) * group // groups for group in range(groups + 1)]
    return [
        *(
            Stage(encoders=(EncoderPart(index, 1, projector=layer == encoder.layers - 1),))
            for index, encoder in enumerate(model.named_encoders.values())
            for layer in range(encoder.layers)
        ),
        Stage(embedding=True),
        *(Stage(layers=tuple(layers[low:high])) for low, high in pairwise(bounds)),
        *[Stage(predictions=(model.layer(model.layers),))] * model.mtp,
        Stage(head=True),
    ]


def encoder_items(stage: Stage, encoders: Sequence[tuple[_Item, _Item]]) -> list[_Item]:
    """Return a value, such as a time, for each layer and projector of the encoders on a stage.

    Args:
        stage: the items of the stage.
        encoders: the values of a layer and of the projector of each encoder.
    """
    return [
        value
        for part in stage.encoders
        for value, count in zip(encoders[part.encoder], (part.layers, part.projector), strict=True)
        for _ in range(count)
    ]


def _decoder(model: Transformer, stages: int) -> list[Stage]:
    if model.layout is not None:
        return _stages_of_layout(model, stages, model.layout)
    result, first_layer, last_stage = [], 0, stages - 1
    for stage, count in enumerate(partition(model, stages)):
        layers = tuple(model.layer(first_layer + index, index) for index in range(count))
        is_last = stage == last_stage
        predictions = (model.layer(model.layers),) * model.mtp if is_last else ()
        result.append(Stage(layers=layers, embedding=stage == 0, predictions=predictions, head=is_last))
        first_layer += count
    return result


def items_of(
    model: Transformer,
    stage: Stage,
    *,
    layer: Callable[[Layer], _Item],
    embedding: _Item,
    prediction: _Item,
    head: _Item,
    heads: int = 0,
) -> list[_Item]:
    """Return a value, such as a time, for each item of a stage except those of encoders.

    Args:
        model: the model.
        stage: the items of the stage.
        layer: returns the value of a layer.
        embedding: the value of the embedding.
        prediction: the value of a module of multi-token prediction without its layer.
        head: the value of the LM head and the loss.
        heads: how often the LM head counts; 0 for once plus once per module of multi-token prediction.
    """
    layers = {kind: layer(kind) for kind in dict.fromkeys((*stage.layers, *stage.predictions))}
    return [
        *([embedding] if stage.embedding else []),
        *(layers[kind] for kind in stage.layers),
        *(item for kind in stage.predictions for item in (layers[kind], prediction)),
        *([head] * (heads or 1 + model.mtp) if stage.head else []),
    ]


def with_loads(stages: Sequence[Stage], received: Iterable[float], sent: Iterable[float]) -> list[Stage]:
    """Return stages whose layers with experts have the loads of one microbatch.

    Args:
        stages: the items of each stage.
        received: loads of the fullest device by layer; the last belongs to multi-token prediction, if any.
        sent: loads of the device that sends most, in the same order.
    """
    loads, loaded = list(zip(received, sent, strict=True)), []
    first_layer, last = 0, len(loads) - 1

    def layers(kinds: Sequence[Layer], places: Iterable[int]) -> tuple[Layer, ...]:
        pairs = ((kind, loads[place]) for kind, place in zip(kinds, places, strict=False))
        return tuple(
            kind._replace(received=float(load[0]), sent=float(load[1])) if kind.experts else kind
            for kind, load in pairs
        )

    for stage in stages:
        following = first_layer + len(stage.layers)
        loaded.append(replace(
            stage, layers=layers(stage.layers, range(first_layer, following)),
            predictions=layers(stage.predictions, [last] * len(stage.predictions)),
        ))  # fmt: skip
        first_layer = following
    return loaded


def summed(nothing: _Sum, items: Iterable[_Sum]) -> _Sum:
    """Return the sum of items that add up."""
    total = nothing
    for item in items:
        total = total + item
    return total


def parse_layout(text: str) -> list[str]:
    """Return the letters of each stage of a layout; commas and spaces are ignored.

    >>> parse_layout("Et*3|(t|)*2,m|L")
    ['Ettt', 't', 't', 'm', 'L']

    Raises:
        ConfigError: the first invalid position, counted from 1, and the allowed characters.
    """
    expanded, end = _sequence(text, 0)
    if end < len(text):
        raise _position_error(text, end, "no parenthesis is open here")
    return expanded.split("|")


def partition(model: Transformer, stages: int) -> list[int]:
    """Return the number of layers of each stage: the given counts, or an even split.

    The remainder goes to the middle stages, later ones first: the last stage has the LM head, the first has the
    embedding, and earlier stages hold more microbatches. With one stage more than layers, the last stage has no
    layer; with two more, neither has the first. LM head and embedding then fill a stage each, as with
    Megatron-LM's options that account for them in the pipeline split.

    Raises:
        ConfigError: given counts with a wrong length or sum.
        ConstraintError: more stages than layers.
    """
    given = model.layers_per_stage
    if model.balance == "products":
        return _by_products(model, stages)
    if given is not None:
        _check_counts(given, stages, model.layers, "model")
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
    """Return the number of layers of each stage, balanced by the weights that multiply each token.

    A stage takes layers until it exceeds its share of all weights, including the layer that exceeds it. The LM
    head counts, the embedding does not (``build_model`` in nanotron's models/base.py).

    Raises:
        ConstraintError: more stages than layers and LM head can fill.
    """
    weights = [active_weights(model, model.layer(index)) for index in range(model.layers)]
    filled = _filled(weights, model.vocabulary * model.hidden, stages)
    if filled is None:
        most_stages = next(
            count for count in range(stages - 1, 0, -1) if _filled(weights, model.vocabulary * model.hidden, count)
        )
        message = f"{stages} stages are more than layers and LM head fill where a stage ends by what it multiplies"
        raise ConstraintError(message, nearest=f"{most_stages} stage{'s' * (most_stages > 1)}", key="parallel")
    return filled


def _filled(weights: Sequence[int], head: int, stages: int) -> list[int] | None:
    """Return the number of layers of each stage; None if the weights do not fill the stages before the last."""
    counts, stage, done, total = [0] * stages, 0, 0, sum(weights) + head
    for weight in weights:
        counts[stage] += 1
        done += weight
        if done * stages > total * (stage + 1):
            stage += 1
    return counts if stage == stages - 1 else None


def _sequence(text: str, position: int) -> tuple[str, int]:
    """Expand the text from a position to the closing parenthesis or the end; also return the end position."""
    expanded = ""
    while position < len(text) and text[position] != ")":
        start = position
        if text[position] in ", ":
            position += 1
            continue
        if text[position] == "(":
            item, position = _sequence(text, position + 1)
            if position == len(text):
                raise _position_error(text, start, "this parenthesis is never closed")
        elif text[position] in _LETTERS or text[position] == "|":
            item = text[position]
        else:
            raise _position_error(text, position, f"expected {_ALLOWED}, not {text[position]!r}")
        times, position = _times(text, position + 1)
        if len(expanded) + len(item) * times > _MOST:
            raise _position_error(text, start, f"more than {_MOST} items")
        expanded += item * times
    return expanded, position


def _times(text: str, position: int) -> tuple[int, int]:
    if text[position : position + 1] != "*":
        return 1, position
    end = position + 1
    while text[end : end + 1].isdecimal() and text[end].isascii():
        end += 1
    if not 0 < int(text[position + 1 : end][:9] or 0) <= _MOST:
        raise _position_error(text, position + 1, f"write a count from 1 to {_MOST} after *")
    return int(text[position + 1 : end][:9]), end


def _position_error(text: str, position: int, reason: str) -> ConfigError:
    return ConfigError(f"{text!r}, position {position + 1}: {reason}", key=_KEY)


def _stages_of_layout(model: Transformer, stages: int, text: str) -> list[Stage]:
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
    result, first_layer = [], 0
    for stage_letters in letters:
        count = stage_letters.count("t")
        layers = tuple(model.layer(first_layer + index, index) for index in range(count))
        has_embedding, has_head = "E" in stage_letters, "L" in stage_letters
        predictions = (model.layer(model.layers),) * stage_letters.count("m")
        result.append(Stage(layers=layers, embedding=has_embedding, predictions=predictions, head=has_head))
        first_layer += count
    return result
