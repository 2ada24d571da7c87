"""A ranked plan and its document."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import DURATION, format_size
from pptrace.errors import OutputError
from pptrace.files import replace_file
from pptrace.report.charts import CYCLE, INK, MUTED, check_picture, write_picture
from pptrace.run.preparation import costs_alone
from pptrace.run.summary import devices_text
from pptrace.search.candidate import Fate
from pptrace.search.launch_arguments import megatron_arguments, torchtitan_arguments, values_of
from pptrace.search.pricing import LAYERS, own_split
from pptrace.search.problem import OBJECTIVES, gpus_text, setting
from pptrace.search.ranking import listed
from pptrace.search.result_table import TABLES, check_table, write_table
from pptrace.search.runner import TRIALS
from pptrace.search.space import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.config.schema import Experiment
    from pptrace.run.figures import Row
    from pptrace.search.best_first import Found
    from pptrace.search.candidate import Candidate
    from pptrace.search.launch_arguments import Arguments
    from pptrace.search.problem import Ground, Question, Worth
    from pptrace.search.runner import Runner

__all__ = [
    "MARGIN",
    "PARTS",
    "Plan",
    "Robustness",
    "Verdict",
    "check_plan_outputs",
    "differences_ns",
    "frontier",
    "plan_lines",
    "robustness_of",
    "save_frontier",
    "tied",
    "why_behind",
]

_CONTENDERS = 5
_NEAR = Fraction(11, 10)
"""How far behind the first a contender is at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the first place is worth on one other machine."""

    trial: str
    """The machine."""
    behind: float
    """By what part it is behind the best there; 0 where it stays first."""
    best: int
    """The place, from 0, of the best there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """The first place on all other machines."""

    contenders: int
    """How many were simulated on each, the first place among them."""
    verdicts: tuple[Verdict, ...]
    """One per machine."""

    @property
    def first(self) -> int:
        """On how many it stays the first."""
        return sum(one.behind <= 0 for one in self.verdicts)

    @property
    def near(self) -> int:
        """On how many it is first, or within 2 % of it."""
        return sum(one.behind <= MARGIN for one in self.verdicts)


def robustness_of(
    question: Question, ranked: Sequence[Candidate], runner: Runner, watch: Callable[[str], None] | None = None
) -> Robustness | None:
    """Simulate the first places on every other machine; None where there is nobody to compare with."""
    first = ranked[0]
    contenders = [one for one in ranked[:_CONTENDERS] if one.worth[-1] <= _NEAR * first.worth[-1]]
    if len(contenders) == 1:
        return None
    verdicts = []
    for number, trial in enumerate(TRIALS, 1):
        if watch is not None:
            watch(f"trying the first places on another machine, {number} of {len(TRIALS)}: {trial.name}")
        worths: list[Worth | None] = []
        for one, row in zip(contenders, runner.rows(contenders, trial), strict=True):
            step = None if row.get("error") or not row.get("fits") else int(row["step_ns"] or 0)
            layout = one.layout
            worths.append(None if step is None else question.worth(step, layout.sequences, layout.gpus))
        able = [(worth, at) for at, worth in enumerate(worths) if worth is not None]
        own = worths[0]
        if own is None or not able:
            continue
        best, at = min(able)
        behind = float(own[-1] / best[-1] - 1) if best[-1] else 0.0
        verdicts.append(Verdict(trial=trial.name, behind=max(behind, 0.0), best=at))
    return Robustness(contenders=len(contenders), verdicts=tuple(verdicts))


_CONFIGURATIONS = (".yaml", ".yml")
_PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to a question; prints as the command line has it."""

    question: Question
    """What was asked."""
    ground: Ground = field(repr=False)
    """What all configurations have in common."""
    found: Found = field(repr=False)
    """What was found."""
    robustness: Robustness | None
    """The first place on other machines; None without others near it, or where nobody asked."""
    heading: str = ""
    """What varied."""

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """The first places, as many as were asked for, the best first."""
        return self.found.ranked[: self.question.top]

    @property
    def best(self) -> Candidate:
        """The first place."""
        return self.found.ranked[0]

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The first places that are too near to the first to be behind it, the best first."""
        return tied(self.ranked)

    @cached_property
    def experiment(self) -> Experiment:
        """The first place's configuration, the model's and costs' parameters filled in."""
        return costs_alone(self.ground.resolved(self.best.varied), self.ground.registry).resolved.experiment

    @cached_property
    def stated(self) -> Experiment:
        """That with the layers of each stage, which frameworks ask for where stages do not divide them."""
        experiment, layers = self.experiment, int(self.ground.facts.get("layers") or 0)
        stages = self.best.layout.pp * self.best.chunks
        model = values_of(experiment.model)
        if layers % stages == 0 or model.get("layers_per_stage") or model.get("layout"):
            return experiment
        costs = costs_alone(self.ground.resolved(self.best.varied), self.ground.registry)
        split = own_split(costs, stages, layers)
        if split is None:
            return experiment
        said = self.ground.resolved((*self.best.varied, setting(LAYERS, split)))
        return costs_alone(said, self.ground.registry).resolved.experiment

    @property
    def frameworks(self) -> dict[str, Arguments]:
        """The first place as frameworks take it; for stages without layers Megatron-LM has its own arguments."""
        has_few = int(self.ground.facts.get("layers") or 0) < self.best.layout.pp * self.best.chunks
        megatron = self.experiment if has_few else self.stated
        return {
            "megatron-lm": megatron_arguments(megatron, self.best.chunks),
            "torchtitan": torchtitan_arguments(self.stated, self.best.chunks),
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """The first place as a configuration file has it, which simulates as it stands."""
        value: dict[str, Any] = self.ground.resolved(self.best.varied).written.value
        return value

    def table(self) -> list[Row]:
        """Return a row per configuration that was considered, in the order of the space."""
        return [_point(one) for one in self.found.candidates]

    def counts(self) -> dict[str, int]:
        """Return how many were considered, and what became of them."""
        kinds = {fate.value: self.found.count(fate) for fate in Fate}
        return {"considered": len(self.found.candidates), **kinds}

    def refusals(self) -> dict[str, int]:
        """Return how many were refused for what, the most frequent first."""
        reasons: dict[str, int] = {}
        for one in self.found.candidates:
            if one.fate is Fate.REFUSED:
                head, colon, _ = one.reason.partition(":")
                key = head if colon and " " not in head else f"schedule {one.schedule}"
                reasons[key] = reasons.get(key, 0) + 1
        return dict(sorted(reasons.items(), key=lambda one: (-one[1], one[0])))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, times in ns and sizes in bytes."""
        places = [
            {
                "place": place, "schedule": one.schedule, "settings": one.settings, "arguments": one.arguments,
                **{key: value for key, value in one.row.items() if key not in {"error", "point"}},
                "behind": float(one.worth[-1] / self.best.worth[-1] - 1),
                "tied": one in self.tied,
                "twins": [{"settings": twin.settings, "arguments": twin.arguments} for twin in one.twins],
                "why": why_behind(self.best, one), "differences_ns": differences_ns(self.best, one),
            }
            for place, one in enumerate(self.ranked, 1)
        ]  # fmt: skip
        robustness = self.robustness
        return {
            "gpus": self.question.gpus, "memory": self.question.memory, "objective": self.question.objective,
            "counts": self.counts(), "refused": self.refusals(), "places": places,
            "tied": {"margin": float(MARGIN), "places": len(self.tied)},
            "robustness": None if robustness is None else {
                "contenders": robustness.contenders, "machines": len(robustness.verdicts),
                "first": robustness.first, "within_2_percent": robustness.near,
                "trials": [
                    {"machine": one.trial, "behind": one.behind, "best": one.best + 1}
                    for one in robustness.verdicts
                ],
            },
            "configuration": self.configuration,
            "arguments": {
                name: {"arguments": told.text, "without": list(told.without)}
                for name, told in self.frameworks.items()
            },
        }  # fmt: skip

    def save(self, *targets: str | Path) -> list[Path]:
        """Write the best configuration (.yaml), all points (.csv, .parquet) and pictures (.png, .svg, .pdf).

        Raises:
            OutputError: a file that cannot be written.
            PptraceError: a package that is missing.
        """
        paths = [Path(target) for target in targets]
        check_plan_outputs(paths)
        with ExitStack() as pending:
            for path in paths:
                self._write(path, pending)
        return paths

    def _write(self, path: Path, pending: ExitStack) -> None:
        suffix = path.suffix.lower()
        if suffix in _PICTURES:
            save_frontier(self, path)
            return
        temporary = pending.enter_context(replace_file(path))
        if suffix in TABLES:
            rows = self.table()
            columns = list(dict.fromkeys(key for row in rows for key in row))
            write_table(path, temporary, columns, rows)
        else:
            temporary.write_text(self.to_yaml(), encoding="utf-8")

    def to_yaml(self) -> str:
        """Return the first place as a configuration file."""
        import yaml

        said = f"# pptrace plan: {self.best.name}\n"
        return said + yaml.safe_dump(
            self.configuration, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
        )

    def summary(self) -> str:
        """Return the lines that the command line prints."""
        return "\n".join(plan_lines(self))

    def __str__(self) -> str:
        return self.summary()


def check_plan_outputs(paths: Sequence[Path]) -> None:
    """Refuse, before anything runs, files that could not be written in the end.

    Raises:
        OutputError: another suffix than those of configurations, tables and pictures; a file named twice.
        PptraceError: a package that is missing.
    """
    for at, path in enumerate(paths):
        suffix = path.suffix.lower()
        if path in paths[:at]:
            raise OutputError("two outputs are this file; name each file once", file=path)
        if suffix in TABLES:
            check_table(path)
        elif suffix in _PICTURES:
            check_picture(path)
        elif suffix not in _CONFIGURATIONS:
            known = ".yaml for the best configuration, .csv or .parquet for all, .png, .svg or .pdf for a picture"
            raise OutputError(f"no such format; write {known}", file=path)


def _point(one: Candidate) -> Row:
    layout, bound = one.layout, one.bound
    figures = {key: value for key, value in one.row.items() if key not in {"error", "point", "gpus"}}
    return {
        "schedule": one.schedule, "gpus": layout.gpus, "pp": layout.pp, "vp": one.chunks, "tp": layout.tp,
        "cp": layout.cp, "ep": layout.ep, "dp": layout.dp, "micro": layout.micro, "global": layout.sequences,
        "command": f"pptrace simulate CONFIG {one.arguments}", "fate": one.fate.value,
        "reason": one.reason or None,
        "bound_step_ns": bound.step_ns if bound else None,
        "bound_memory_bytes": bound.peak_bytes if bound else None,
        **figures,
    }  # fmt: skip


MARGIN = Fraction(2, 100)
"""Leads up to this say little: of published steps of one model on the same GPUs, two whose simulated steps are as
near come in the measured order 22 of 37 times (``pptrace accuracy`` counts them; docs/plan.md)."""


def tied(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the first places that are within :data:`MARGIN` of the first, the first among them.

    Args:
        ranked: candidates that were simulated and fit, the best first.
    """
    if not ranked:
        return ()
    *before, best = ranked[0].worth
    return tuple(one for one in ranked if [*one.worth[:-1]] == before and one.worth[-1] <= best * (1 + MARGIN))


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


PARTS = {
    "mean_compute_ns": "compute",
    "mean_collectives_ns": "collectives",
    "mean_waiting_ns": "waiting",
    "mean_messages_ns": "messages",
    "mean_reduction_ns": "reduction",
}
"""Columns whose parts sum to the step, with what they are called."""

_NAMED = 0.001
"""Parts of the first's step from which a difference is named."""


def differences_ns(first: Candidate, other: Candidate) -> dict[str, int]:
    """Return by how much each part of another's step is longer than the first's, for as many sequences.

    They sum to how much longer its step is.
    """
    share = first.layout.sequences / other.layout.sequences
    return {
        name: round(float(other.row[column] or 0) * share - float(first.row[column] or 0))
        for column, name in PARTS.items()
    }


def why_behind(first: Candidate, other: Candidate) -> str:
    """Return in words what another's step has more than the first's, the largest part first."""
    if first is other:
        return ""
    step = float(first.row["step_ns"] or 0)
    differences = differences_ns(first, other)
    named = sorted(
        ((time, name) for name, time in differences.items() if abs(time) >= _NAMED * step),
        key=lambda one: (-one[0], one[1]),
    )
    more = [(time, name) for time, name in named if time > 0]
    less = [(time, name) for time, name in named if time < 0][-1:]
    return ", ".join(
        f"{name} {'+' if time > 0 else '-'}{DURATION.rounded(abs(time))}" for time, name in [*more[:2], *less]
    )


_GIB = 2**30
_SCHEDULE_MARKERS = "osD^vP*X"
_MOST_NAMED_POINTS = 8
"""Schedules with a colour of their own, the most frequent among the first."""


def frontier(points: Sequence[Candidate]) -> list[Candidate]:
    """Return those than which none has both a shorter step per sequence and less memory, by memory."""
    found: list[Candidate] = []
    for one in sorted(points, key=lambda one: (int(one.row["peak_memory_bytes"] or 0), _each(one), one.number)):
        if not found or _each(one) < _each(found[-1]):
            found.append(one)
    return found


def save_frontier(plan: Plan, path: Path) -> None:
    """Draw a plan into a .png, .svg or .pdf file; the same plan gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    points = [one for one in plan.found.candidates if one.fate is Fate.SIMULATED]
    names = list(dict.fromkeys(one.schedule for one in (*plan.found.ranked, *points)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for at, name in enumerate(names):
            own = [one for one in points if one.schedule == name]
            style = {
                "color": CYCLE[min(at, _MOST_NAMED_POINTS - 1)],
                "marker": _SCHEDULE_MARKERS[min(at, _MOST_NAMED_POINTS - 1)],
            }
            axes.scatter(*_point_places(own), s=26, label=name, alpha=0.8, linewidths=0, **style)
        edge = frontier(plan.found.ranked)
        axes.plot(*_point_places(edge), color=INK, lw=1.2, drawstyle="steps-post", label="frontier", zorder=0)
        limit = int(plan.best.row["device_memory_bytes"] or 0)
        if limit:
            axes.axvline(limit / _GIB, color="#d55e00", lw=1.2, ls="--", label="memory of a device")
        x, y = _point_places([plan.best])
        axes.annotate(f"#1 {plan.best.name}", (x[0], y[0]), xytext=(6, -12), textcoords="offset points",
                      fontsize=8, color=INK)  # fmt: skip
        axes.margins(0.06, 0.12)
        axes.set_xlabel("memory of the fullest rank (GiB)", fontsize=9, color=INK)
        axes.set_ylabel("step for as many sequences (s)", fontsize=9, color=INK)
        axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
        axes.grid(color="#eaeef2", lw=0.8)
        axes.set_axisbelow(True)
        axes.set_title(f"{len(points):,} simulated configurations on {gpus_text(plan.question.gpus)}", loc="left",
                       fontsize=10, fontweight="bold", color=INK)  # fmt: skip
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    write_picture(path, (9.0, 5.0), draw)


def _each(one: Candidate) -> float:
    return float(one.row["step_ns"] or 0) / one.layout.sequences


def _point_places(points: Sequence[Candidate]) -> tuple[list[float], list[float]]:
    scale = max((one.layout.sequences for one in points), default=1)
    memory = [int(one.row["peak_memory_bytes"] or 0) / _GIB for one in points]
    return memory, [_each(one) * scale / 1e9 for one in points]
