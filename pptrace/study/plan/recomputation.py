"""Recomputation with its options: modules belong to one kind of it, methods and numbers of layers to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.places import key_text
from pptrace.study.plan.ground import setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.overrides import Assignment

__all__ = ["OPTIONS", "RECOMPUTE", "agreeing"]

RECOMPUTE = "model.recompute"
OPTIONS: dict[str, tuple[str, Any]] = {
    "model.recompute_modules": ("selective", []), "model.recompute_method": ("full", None),
    "model.recompute_num_layers": ("full", None),
}  # fmt: skip
"""Options of one kind of recomputation, and what they are under any other."""


def agreeing(settings: Sequence[Assignment], model: Mapping[str, Any]) -> tuple[Assignment, ...]:
    """Return settings without those of other recomputation than theirs.

    Args:
        settings: what a configuration sets.
        model: the model as it is written; what it says of other recomputation is taken away, too.
    """
    words = [one.value for one in settings if key_text(one.path) == RECOMPUTE]
    if not words:
        return tuple(settings)
    others = {key: empty for key, (word, empty) in OPTIONS.items() if word != words[-1]}
    kept = tuple(one for one in settings if key_text(one.path) not in others)
    own = [key for key in others if model.get(key.partition(".")[2])]
    return (*kept, *(setting(key, others[key]) for key in own))
