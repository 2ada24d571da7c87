"""One schedule of a comparison on equal memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pptrace.experiment.candidates import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.experiment.form import Forms
    from pptrace.experiment.tried import Tried
    from pptrace.study.entry import Entry

__all__ = ["EqualSchedule", "form_text"]

_UNSAID = frozenset({"costs.name", "batch.microbatches"})
"""Settings that follow from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualSchedule:
    """One schedule of a comparison on equal memory."""

    entry: Entry
    """The schedule, as the user wrote it."""
    forms: Forms | None = None
    """What was found among its forms; None where none could be built."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What all its forms are run with: its name, its own settings and the limit."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``p2p`` that it alone is run with, because the configuration's cannot place its messages."""
    alike_ns: int | None = None
    """The best form's step under a policy that takes any table, where the configuration's does not take all."""
    reason: str = ""
    """Why the configuration's own form, or none at all, can run, in one line."""
    remedy: Tried | None = None
    """Where no form fits, what lets the one of least memory fit, beside what varies; None where nothing does."""
    rank: int | None = None
    """By step time, from 1, among those that fit; equal ones share it."""

    @property
    def fits(self) -> bool:
        """Whether a form fits on every rank."""
        return self.forms is not None and self.forms.fits

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the best form is run with over the configuration."""
        best = self.forms.best if self.forms else None
        return {**self.given, **(best.change.settings if best else {})}

    @property
    def arguments(self) -> str:
        """What to write behind ``pptrace simulate`` and the configuration to get just the best form's step."""
        return Change(settings=self.settings).arguments

    @property
    def form(self) -> str:
        """In what the best form differs from the configuration's own."""
        best = self.forms.best if self.forms else None
        return form_text(best.change, self.forms.own.change) if best and self.forms else ""


def form_text(change: Change, own: Change | None = None) -> str:
    """Return the settings of a change that another does not have, such as ``vp 2, recompute full``."""
    known = own.settings if own else {}
    return ", ".join(
        f"{_name(key)} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in change.settings.items()
        if key not in _UNSAID and known.get(key) != value
    )


def _name(key: str) -> str:
    """Return a key as people say it, without its section."""
    return key.partition(".")[2].removeprefix("options.").replace("_", "-")
