"""A plan as plain text: the first places with reasons, what became of all others, and what to do next."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pptrace.config.quantity import DURATION, format_size
from pptrace.experiment.summary import devices_text
from pptrace.study.plan.candidate import Fate
from pptrace.study.plan.pricing import LAYERS
from pptrace.study.plan.question import OBJECTIVES, gpus_text
from pptrace.study.plan.reasons import why_behind
from pptrace.study.plan.space import PLAIN
from pptrace.study.plan.ties import MARGIN
from pptrace.study.ranking import listed

if TYPE_CHECKING:
    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.result import Plan

__all__ = ["plan_lines"]

_HEAD = ("#", "schedule", "pp", "vp", "tp", "cp", "ep", "dp", "mbs", "gbs", "settings", "step", "tok/s/GPU", "MFU",
         "memory", "exposed", "waiting", "behind")  # fmt: skip
_LEFT = {1, 10}
_OPTIONAL = ("vp", "cp", "ep", "gbs", "settings")
"""Columns that go where no row has anything to say in them."""
_SHORT = {"model.recompute": "recompute", "costs.zero": "zero", "parallel.order": "order",
          "model.layers_per_stage": "layers", "model.recompute_modules": "modules",
          "model.recompute_method": "method", "model.recompute_num_layers": "num_layers"}  # fmt: skip
_OWN = frozenset({
    "parallel.pp", "parallel.tp", "parallel.cp", "parallel.ep", "parallel.dp", "parallel.vp", "batch.micro",
    "batch.global", "schedule.name", "parallel.sequence_parallel",
})  # fmt: skip
_WIDTH = 110
_FREE = "ideal"
"""The network on which messages take no time, which is there unless another is given."""
_MARGIN = f"{float(100 * MARGIN):g} %"


def plan_lines(plan: Plan) -> list[str]:
    """Return the lines."""
    return [
        *_question(plan), "", *_table(plan), "", *_reasons(plan), *_ties(plan), *_twins(plan), *_robustness(plan),
        "", *_counts(plan), "", *_frameworks(plan),
    ]  # fmt: skip


def _question(plan: Plan) -> list[str]:
    experiment = plan.experiment
    model = (experiment.model.preset if experiment.model else None) or "a model of one's own"
    own = experiment.device
    device = devices_text(own) if own is not None and own.preset else "a device of one's own"
    memory = f", {plan.question.memory} per rank" if plan.question.memory else ""
    free = ", a free network" if experiment.cluster is None and experiment.network.name == _FREE else ""
    up_to = "up to " if plan.question.objective == "gpus" else ""
    machine = f"{up_to}{gpus_text(plan.question.gpus)} ({device}{memory}{free})"
    return [f"{model} on {machine}: {OBJECTIVES[plan.question.objective]}", plan.heading]


def _table(plan: Plan) -> list[str]:
    rows = [list(_HEAD), *(_cells(plan, place, one) for place, one in enumerate(plan.ranked, 1))]
    gone = {
        at for at, name in enumerate(_HEAD)
        if name in _OPTIONAL and len({row[at] for row in rows[1:]} - {"", "1"}) <= (name == "gbs")
    }  # fmt: skip
    kept = [at for at in range(len(_HEAD)) if at not in gone]
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    return [
        "  ".join(row[at].ljust(widths[at]) if at in _LEFT else row[at].rjust(widths[at]) for at in kept).rstrip()
        for row in rows
    ]


def _cells(plan: Plan, place: int, one: Candidate) -> list[str]:
    layout, row, step = one.layout, one.row, int(one.row["step_ns"] or 0)
    behind = float(one.worth[-1] / plan.best.worth[-1] - 1)
    each, mfu = row["tokens_per_s_per_gpu"], row["mfu"]
    exposed = (float(row["mean_collectives_ns"] or 0) + float(row["mean_messages_ns"] or 0)
               + float(row["mean_reduction_ns"] or 0))  # fmt: skip
    sizes = (layout.pp, one.chunks, layout.tp, layout.cp, layout.ep, layout.dp, layout.micro, layout.sequences)
    return [
        str(place), one.schedule, *map(str, sizes), _settings(one), DURATION.rounded(step),
        f"{float(each):,.0f}" if each else "-", f"{float(mfu):.1%}" if mfu else "-",
        format_size(int(row["peak_memory_bytes"] or 0)), f"{exposed / step:.1%}",
        f"{float(row['mean_waiting_ns'] or 0) / step:.1%}", "-" if place == 1 else f"{behind:+.1%}",
    ]  # fmt: skip


def _settings(one: Candidate) -> str:
    """Return what a configuration sets beside its sizes, without what has no effect."""
    found = []
    for key, value in one.settings.items():
        if key in _OWN or key.startswith("schedule.options.") or value in (None, "none", 0, []):
            continue
        short = _said(key, value)
        found.append(f"{_SHORT.get(key, key)} {short}")
    return ", ".join(found)


def _reasons(plan: Plan) -> list[str]:
    lines = [f"why behind #1{'':>2}#{place}: {why_behind(plan.best, one) or 'nothing above 0.1 %'}"
             for place, one in enumerate(plan.ranked, 1) if place > 1]  # fmt: skip
    return [lines[0], *(f"{'':>14}{line[14:]}" for line in lines[1:])] if lines else []


def _ties(plan: Plan) -> list[str]:
    """Return which places are too near to the first to be behind it."""
    count = len(plan.tied)
    if count == 1:
        return []
    named = f"#1 {'to' if plan.tied[2:] else 'and'} #{count}"
    text = f"{named} are within {_MARGIN}, nearer than a simulation tells apart: measure these"
    more = f"; others may be as near, --top {2 * count} names them" if count == plan.question.top else ""
    return _folded("alike         ", text + more)


def _twins(plan: Plan) -> list[str]:
    """Return which other settings share a place."""
    named: dict[str, list[str]] = {}
    for place, one in enumerate(plan.ranked, 1):
        if one.twins:
            words = " or ".join(dict.fromkeys(_apart(one, twin) for twin in one.twins))
            named.setdefault(words, []).append(f"#{place}")
    text = "; ".join(f"{', '.join(places)} with {words}" for words, places in named.items())
    return _folded("equal         ", f"as long, in as much memory: {text}") if named else []


def _apart(one: Candidate, twin: Candidate) -> str:
    """Return what a twin sets otherwise."""
    own, other = one.settings, twin.settings
    words = [
        f"{_SHORT.get(key, key)} {_said(key, other.get(key))}"
        for key in dict.fromkeys([*own, *other])
        if own.get(key) != other.get(key)
    ]
    return " and ".join(words)


def _said(key: str, value: Any) -> str:
    """Return a setting's value in a word."""
    if value is None:
        return "even" if key == LAYERS else "none"
    if isinstance(value, list):
        return "balanced" if key == LAYERS else " ".join(map(str, value)) or "none"
    return str(value)


def _robustness(plan: Plan) -> list[str]:
    found = plan.robustness
    if found is None:
        return []
    total = len(found.verdicts)
    lost = [f"{one.trial}: #{one.best + 1} by {one.behind:.1%}" for one in found.verdicts if one.behind > 0]
    text = (
        f"#1 stays first on {found.first} of {total} other machines, and first or within {_MARGIN} on "
        f"{found.near}, among {found.contenders} contenders"
    )
    return _folded("robustness    ", f"{text}{'; ' if lost else ''}{'; '.join(lost)}")


def _counts(plan: Plan) -> list[str]:
    counts = plan.counts()
    parts = [
        f"{counts['considered']:,} configurations considered: {counts[Fate.REFUSED]:,} cannot run",
        f"{counts[Fate.MEMORY]:,} need more memory", f"{counts[Fate.EQUAL]:,} equal others",
        *([f"{counts[Fate.COVERED]:,} on one rank as {PLAIN}"] if counts[Fate.COVERED] else []),
        f"{counts[Fate.BOUNDED]:,} cannot be among the first {plan.question.top}",
        f"{counts[Fate.SIMULATED]:,} simulated",
    ]  # fmt: skip
    refused = [f"{reason} {count:,}" for reason, count in list(plan.refusals().items())[:4]]
    return [
        *_folded("", ", ".join(parts)),
        *(_folded("cannot run    ", ", ".join(refused)) if refused else []),
        *_own_chunks(plan),
    ]


def _own_chunks(plan: Plan) -> list[str]:
    """Return which schedules take none of the chunks per rank that the user named."""
    axis = plan.ground.axes.get("parallel.vp")
    named = [value.varied[0].value for value in axis.values] if axis else []
    able = [one for one in plan.found.candidates if one.fate not in {Fate.REFUSED, Fate.COVERED}]
    own = dict.fromkeys(one.schedule for one in able if named and one.chunks not in named)
    if not own:
        return []
    text = f"{', '.join(map(str, named))} where a schedule takes it; {listed([*own])} with their own chunks"
    return _folded("vp            ", text)


def _frameworks(plan: Plan) -> list[str]:
    lines = _folded("pptrace       ", plan.best.arguments)
    for name, told in zip(("Megatron-LM   ", "torchtitan    "), plan.frameworks.values(), strict=True):
        lines += _folded(name, told.text + (f" (without {', '.join(told.without)})" if told.without else ""))
    return lines


def _folded(title: str, text: str) -> list[str]:
    indent = " " * len(title)
    return wrap(
        f"{title}{text}", _WIDTH, subsequent_indent=indent or "  ", break_long_words=False, break_on_hyphens=False
    )
