"""One schedule of a comparison on equal memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pptrace.experiment.candidates import Change
from pptrace.experiment.moved import copies_take_time
from pptrace.study.stand_in import ANY_TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.experiment.form import Forms
    from pptrace.experiment.tried import Tried
    from pptrace.experiment.varied import VariedSetting
    from pptrace.study.entry import Entry

__all__ = ["EqualSchedule", "form_text", "without_copy_times"]

_DERIVED = "batch.microbatches"
"""A setting that follows from others."""


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
    alike: Forms | None = None
    """What was found under a policy that takes any table, where the configuration's does not."""
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
    def lacks_copy_times(self) -> bool:
        """Whether no form copies activations to the host because the costs have no times for copies."""
        run = self.forms.run if self.forms else None
        copied = run is not None and run.prepared.resolved.experiment.schedule.offload is not None
        return run is not None and not copied and not copies_take_time(run.prepared.workload)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the best form is run with over the configuration."""
        best = self.forms.best if self.forms else None
        return {**self.given, **(best.change.settings if best else {})}

    @property
    def alike_ns(self) -> int | None:
        """The step of the best form under a policy that takes any table; None where there is none."""
        return self.alike.best.step_ns if self.alike and self.alike.fits and self.alike.best else None

    @property
    def alike_form(self) -> str:
        """In what that form differs from the configuration's own; empty where it is the best one here as well."""
        best, other = (forms.best.change if forms and forms.best else None for forms in (self.forms, self.alike))
        if best is None or other is None or self.forms is None or other.settings == best.settings:
            return ""
        return form_text(other, self.forms.own.change) or "as configured"

    @property
    def given_alike(self) -> Mapping[str, Any]:
        """What all its forms are run with under a policy that takes any table."""
        return {**{key: value for key, value in self.given.items() if not key.startswith("p2p.")}, **ANY_TABLE}

    @property
    def arguments_alike(self) -> str:
        """What to write behind ``pptrace simulate`` and the configuration to get the step of that form."""
        best = self.alike.best if self.alike else None
        return Change(settings={**self.given_alike, **best.change.settings}).arguments if best else ""

    @property
    def arguments(self) -> str:
        """What to write behind ``pptrace simulate`` and the configuration to get just the best form's step."""
        return Change(settings=self.settings).arguments

    @property
    def form(self) -> str:
        """In what the best form differs from the configuration's own."""
        best = self.forms.best if self.forms else None
        return form_text(best.change, self.forms.own.change) if best and self.forms else ""


def without_copy_times(rows: Sequence[EqualSchedule], varied: Sequence[VariedSetting]) -> list[str]:
    """Return the schedules whose forms were to copy activations to the host, and do not for want of times."""
    asked = any(one.name == "offload" for one in varied)
    return [row.entry.label for row in rows if asked and row.lacks_copy_times]


def form_text(change: Change, own: Change | None = None) -> str:
    """Return the settings of a change that another does not have, such as ``vp 2, recompute full``."""
    known = own.settings if own else {}
    return ", ".join(
        f"{_name(key)} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in change.settings.items()
        if key != _DERIVED and known.get(key) != value
    )


def _name(key: str) -> str:
    """Return a key as people say it, without its section."""
    return key.partition(".")[2].removeprefix("options.").replace("_", "-")
