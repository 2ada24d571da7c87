"""Results of a plan: ranking, robustness, document and pictures."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.flags import ARGUMENTS, names_arguments
from pptrace.config.places import key_text
from pptrace.config.quantities import DURATION, format_size
from pptrace.config.resolution import Config, check_arguments, document_of
from pptrace.errors import ConfigError, OutputError, PptraceError
from pptrace.files import replace_file
from pptrace.plugins.registry import Registry
from pptrace.report.charts import INK, LIMIT, columns_of, draw_points, write_picture
from pptrace.report.document import Code, Document, Printed, Table, command_lines
from pptrace.run.preparation import build_costs, prepare
from pptrace.run.summary import devices_text
from pptrace.search.bias import PARTS, Bias, fit_bias, read_runs
from pptrace.search.candidates import MACHINES, SEARCHED_TABLE, CandidateRunner, Outcome, run_candidate
from pptrace.search.launch_arguments import (
    ANY,
    FRAMEWORKS,
    TABLE_FILE,
    bridge_recipe,
    check_recipe,
    simulate_command,
    values_of,
)
from pptrace.search.plan_axes import (
    ALIASES,
    CLUSTER,
    LAYERS,
    OBJECTIVES,
    PLAIN,
    PLANNED,
    RECOMPUTE,
    RECOMPUTE_OPTIONS,
    SCHEDULE_OPTION,
    PlanRequest,
    Space,
    gpus_text,
    job_gpus,
    plan_problem,
    setting,
)
from pptrace.search.plan_search import Search
from pptrace.search.ranking import join_names
from pptrace.search.runner import choose
from pptrace.search.space_bounds import default_split
from pptrace.search.sweep import PICTURES, TABLES, check_outputs, end_journals, write_table
from pptrace.steps.actions import Form
from pptrace.steps.text_forms import parse_table
from pptrace.timeline.metrics import plausibility_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.config.flags import Settings
    from pptrace.config.schema import Experiment
    from pptrace.run.costs import Costs
    from pptrace.run.figures import Row
    from pptrace.search.candidates import Candidate
    from pptrace.search.launch_arguments import Arguments, Framework
    from pptrace.search.plan_axes import PlanProblem, Score
    from pptrace.search.plan_search import Unproved
    from pptrace.steps.schedule import Schedule

_CONTENDERS = 5
"""The largest number of contenders."""
_NEAR = Fraction(11, 10)
"""The largest score of a contender, relative to that of the first place."""
_NOT_SHOWN = frozenset({"error", "point", SEARCHED_TABLE})
"""Cells of a simulated row that are not figures."""
MARGIN, MARGIN_EQUAL_SIZES = Fraction(8, 100), Fraction(4, 100)
"""Largest lead that counts as a tie; the second one between configurations with equal parallel sizes.

Two of three pairs of published steps have an error of their ratio of at most 7.6 %, or 4.1 % with equal sizes
(``pptrace accuracy`` prints both; docs/accuracy.md)."""
_CLOSE = Fraction(2, 100)
"""Largest loss on a changed machine that is close to the best."""


class Verdict(Struct, frozen=True, kw_only=True):
    """The best configuration on a changed machine."""

    machine: str
    """The machine."""
    slowdown: float
    """Excess of the first place's score over the best score on this machine, as a share; 0 if it stays first."""
    best: int
    """Place, from 0, of the best contender on this machine."""


class Robustness(Struct, frozen=True, kw_only=True):
    """Whether the best configuration stays the best on changed machines."""

    contenders: int
    """Number of contenders, the first place among them."""
    verdicts: tuple[Verdict, ...]
    """One per machine on which the first place runs and fits."""

    @property
    def machines_first(self) -> int:
        """The number of machines on which the first place stays first."""
        return sum(verdict.slowdown <= 0 for verdict in self.verdicts)

    @property
    def machines_near(self) -> int:
        """The number of machines on which the first place is first or within 2 % of the best."""
        return sum(verdict.slowdown <= _CLOSE for verdict in self.verdicts)


def assess_robustness(
    space: Space,
    ranked: Sequence[Candidate],
    runner: CandidateRunner,
    bias: Bias,
    watch: Callable[[str], None] | None = None,
) -> Robustness | None:
    """Re-simulate the first places on every other machine; None if no other score is near the first."""
    limit = _NEAR * ranked[0].score[-1]
    contenders = [candidate for candidate in ranked[:_CONTENDERS] if candidate.score[-1] <= limit]
    if len(contenders) == 1:
        return None
    verdicts = []
    for number, machine in enumerate(MACHINES, 1):
        if watch is not None:
            watch(f"trying the first places on another machine, {number} of {len(MACHINES)}: {machine.name}")
        scores: list[Score | None] = []
        for candidate, row in zip(contenders, runner.rows(contenders, machine), strict=True):
            step = None if row.get("error") or not row.get("fits") else bias.step_ns(row)
            scores.append(None if step is None else space.score(step, candidate.layout))
        first = scores[0]
        if first is None:  # it fails here, or does not fit
            continue
        best, index = min((score, index) for index, score in enumerate(scores) if score is not None)
        slowdown = float(Fraction(first[-1], best[-1]) - 1) if best[-1] else 0.0
        verdicts.append(Verdict(machine=machine.name, slowdown=max(slowdown, 0.0), best=index))
    return Robustness(contenders=len(contenders), verdicts=tuple(verdicts))


_CONFIGURATIONS = (".yaml", ".yml")
_SCRIPT = ".sh"
_RECIPE = ".py"
_OUTPUT_SUFFIXES = (
    ".yaml for the best configuration, .sh for a script that runs it, .py for a recipe of Megatron-Bridge, "
    ".csv or .parquet for all, .png, .svg or .pdf for a picture"
)
"""The suffixes of outputs in words."""


@dataclass(frozen=True, kw_only=True)
class Plan(Printed):
    """The ranked configurations of a request; prints as its summary."""

    request: PlanRequest
    """GPUs, limits and objective."""
    problem: PlanProblem = field(repr=False)
    """The common configuration."""
    ranking: tuple[Candidate, ...] = field(repr=False)
    """Simulated candidates that fit, best first; of equivalent ones, the first in the order of the space."""
    search: Search = field(repr=False)
    """The search, with the bounds of the space."""
    robustness: Robustness | None
    """The first place on other machines; None where no place is near it, or where not requested."""
    bias: Bias = field(default_factory=Bias)
    """Factors of the parts of a step, and measured steps."""
    foreign: Candidate | None = None
    """The fastest candidate that the framework does not run, if it is faster than the first place."""
    heading: str = ""
    """The varied sizes."""

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """The requested number of places, best first."""
        return self.ranking[: self.request.top]

    @property
    def best(self) -> Candidate:
        """The first place."""
        return self.ranking[0]

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates of the space that the search considered, in the order of the space."""
        return tuple(self.search.candidates())

    @cached_property
    def unproved(self) -> Unproved:
        """The configurations that the search did not exclude."""
        return self.search.unproved()

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The places within the error of their ratio to the first, the first among them, best first."""
        return tuple(place for place in self.ranked if self._is_tied(place))

    def _is_tied(self, place: Candidate) -> bool:
        *leading_scores, best = self.best.score
        has_equal_sizes = place.layout.sizes == self.best.layout.sizes
        limit = best * (1 + (MARGIN_EQUAL_SIZES if has_equal_sizes else MARGIN))
        return [*place.score[:-1]] == leading_scores and place.score[-1] <= limit

    @cached_property
    def _costs(self) -> Costs:
        return build_costs(self.problem.resolved(self.best.varied), self.problem.registry)

    @property
    def experiment(self) -> Experiment:
        """The first place's configuration with all parameters of the model and the costs."""
        return self._costs.resolved.experiment

    @cached_property
    def with_layers_per_stage(self) -> Experiment:
        """:attr:`experiment` with layers per stage, which frameworks need if stages do not divide the layers."""
        experiment, layers = self.experiment, int(self.problem.facts.get("layers") or 0)
        stages = self.best.layout.pp * self.best.chunks
        model = values_of(experiment.model)
        if (
            self.best.layout.branches
            or layers % stages == 0
            or model.get("layers_per_stage")
            or model.get("layout")
        ):
            return experiment
        split = default_split(self._costs, stages, layers)
        if split is None:
            return experiment
        resolved = self.problem.resolved((*self.best.varied, setting(LAYERS, split)))
        return build_costs(resolved, self.problem.registry).resolved.experiment

    @property
    def memory_text(self) -> str:
        """The limit per rank with its reserve, as text that follows the device; empty without a limit."""
        workload = self._costs.workload(self.best.layout.pp * self.best.chunks)
        size_bytes = workload.capacity_bytes
        limit = self.request.memory or (format_size(size_bytes) if size_bytes else "")
        return f", {limit} per rank{workload.reserve_text}" if limit else ""

    @property
    def _searched_table(self) -> str:
        """The first place's table as CSV if a search found it, else empty."""
        return str(self.best.row.get(SEARCHED_TABLE) or "")

    @cached_property
    def schedule(self) -> Schedule:
        """The first place's table of whole stages."""
        if self._searched_table:
            return parse_table(self._searched_table, form=Form.CSV).schedule
        return prepare(self.problem.resolved(self.best.varied), self.problem.registry).stage_table

    @cached_property
    def frameworks(self) -> dict[str, Arguments]:
        """Launch arguments of the first place.

        With fewer layers than stages, Megatron-LM's arguments omit layers per stage.
        """
        has_empty_stages = int(self.problem.facts.get("layers") or 0) < self.best.layout.pp * self.best.chunks
        stated = self.with_layers_per_stage
        experiments = {"megatron": self.experiment if has_empty_stages else stated}
        written = {
            name: framework.arguments(experiments.get(name, stated), self.schedule)
            for name, framework in FRAMEWORKS.items()
        }
        return {
            name: replace(arguments, notes=(*arguments.notes, *self._unwritten(FRAMEWORKS[name])))
            for name, arguments in written.items()
        }

    def _unwritten(self, framework: Framework) -> list[str]:
        """Return a note on each setting of the first place without which a framework's arguments are the same."""
        if not framework.program:
            return []
        arguments = framework.arguments(self.experiment, self.schedule)
        return [
            f"{key} {value}: no argument sets it; set it in your configuration"
            for key, value in self.best.settings.items()
            if key in self._experiments_without
            and framework.arguments(self._experiments_without[key], self.schedule) == arguments
        ]

    @cached_property
    def _experiments_without(self) -> dict[str, Experiment]:
        """:attr:`experiment` without each setting that changes it, by key.

        Sizes and the schedule are left out: frameworks have arguments for them, or run the table.
        """
        experiments = {}
        for key in self.best.settings:
            if key in PLANNED or key.startswith("schedule."):
                continue
            overrides = [override for override in self.best.varied if key_text(override.path) != key]
            with suppress(PptraceError):  # settings that need each other
                resolved = self.problem.resolved(overrides)
                experiments[key] = build_costs(resolved, self.problem.registry).resolved.experiment
        return {key: experiment for key, experiment in experiments.items() if experiment != self.experiment}

    def table_command(self, arguments: Arguments) -> str | None:
        """Return the command that writes the table that launch arguments name; None without one.

        A table that a search found is written beside ``best.yaml``, the configuration that :meth:`save` writes.
        """
        if TABLE_FILE not in arguments.words:
            return None
        command = ["pptrace", "simulate", "best.yaml"] if self._searched_table else self.command
        return shlex.join([*command, "-o", TABLE_FILE])

    @property
    def command(self) -> list[str]:
        """The command that simulates the first place."""
        return simulate_command(self.problem.document.source, {**self.problem.given, **self.best.written})

    @property
    def configuration(self) -> dict[str, Any]:
        """The first place as the content of a configuration file."""
        value: dict[str, Any] = deepcopy(self.problem.resolved(self.best.varied).written.value)
        return value

    def table(self) -> list[Row]:
        """Return a row per candidate, in the order of the space."""
        return [_row(candidate) for candidate in self.candidates]

    @cached_property
    def _outcomes(self) -> Counter[tuple[Outcome, str, str]]:
        return Counter(self.search.outcomes())

    def counts(self) -> dict[str, int]:
        """Return the number of candidates, and the number with each outcome."""
        counts: Counter[Outcome] = Counter()
        for (outcome, _, _), number in self._outcomes.items():
            counts[outcome] += number
        return {"considered": counts.total(), **{outcome.value: counts[outcome] for outcome in Outcome}}

    def refusals(self) -> dict[str, int]:
        """Return the number of refused candidates by reason, the most frequent first."""
        reasons: Counter[str] = Counter()
        for (outcome, schedule, reason), number in self._outcomes.items():
            if outcome is Outcome.REFUSED:
                # "parallel.tp: does not divide the heads" counts as "parallel.tp", other reasons by schedule.
                head, colon, _ = reason.partition(":")
                reasons[head if colon and " " not in head else f"schedule {schedule}"] += number
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, times in ns and sizes in bytes."""
        places = [
            {
                "place": place, "schedule": candidate.schedule,
                "settings": candidate.settings, "arguments": candidate.arguments,
                **{key: value for key, value in candidate.row.items() if key not in _NOT_SHOWN},
                "expected_ns": self.bias.expected_ns(candidate.row, candidate.arguments),
                "slower": float(Fraction(candidate.score[-1], self.best.score[-1]) - 1),
                "tied": self._is_tied(candidate),
                "twins": [
                    {"settings": twin.settings, "arguments": twin.arguments} for twin in candidate.equivalents
                ],
                "why": explain_gap(self.best, candidate), "differences_ns": differences_ns(self.best, candidate),
            }
            for place, candidate in enumerate(self.ranked, 1)
        ]  # fmt: skip
        robustness, unproved, bias = self.robustness, self.unproved, self.bias
        return {
            "gpus": self.request.gpus, "memory": self.request.memory, "objective": self.request.objective,
            "framework": self.problem.framework or ANY, "faster_on_any": self._faster_on_any(),
            "counts": self.counts(), "refused": self.refusals(),
            "search": {
                "ended": self.search.ended, "unproved": unproved.configurations,
                "without_bound": unproved.without_bound, "gain": unproved.gain,
            },
            "places": places,
            "tied": {
                "margin": float(MARGIN), "margin_equal_sizes": float(MARGIN_EQUAL_SIZES),
                "places": len(self.tied),
            },
            "robustness": None if robustness is None else {
                "contenders": robustness.contenders, "machines": len(robustness.verdicts),
                "first": robustness.machines_first, "within_2_percent": robustness.machines_near,
                "trials": [
                    {"machine": verdict.machine, "slower": verdict.slowdown, "best": verdict.best + 1}
                    for verdict in robustness.verdicts
                ],
            },
            "fitted": (
                {"factors": {**bias.factors}, "differences": [*bias.differences]} if bias.runs else None
            ),
            "configuration": self.configuration,
            "arguments": {
                name: {
                    "arguments": words.text, "without": list(words.without), "notes": list(words.notes),
                    "table": self.table_command(words),
                }
                for name, words in self.frameworks.items()
            },
        }  # fmt: skip

    def _faster_on_any(self) -> dict[str, Any] | None:
        """Return the fastest candidate that the framework does not run."""
        if self.foreign is None:
            return None
        return {
            "schedule": self.foreign.schedule, "arguments": self.foreign.arguments, "reason": self.foreign.reason,
            "step_ns": self.foreign.row["step_ns"],
            "slower": float(Fraction(self.foreign.score[-1], self.best.score[-1]) - 1),
        }  # fmt: skip

    def save(self, *targets: str | Path) -> list[Path]:
        """Write the best configuration (.yaml), its script (.sh), its recipe (.py), all points and pictures.

        If a search found the first place's table, it is written beside the configuration, which names it:
        ``best.table.csv`` beside ``best.yaml``.

        Raises:
            OutputError: a file that cannot be written.
            PptraceError: a package that is missing.
        """
        paths = [Path(target) for target in targets]
        check_outputs(paths, (*_CONFIGURATIONS, _SCRIPT, _RECIPE), _OUTPUT_SUFFIXES)
        check_framework(paths, self.problem)
        with ExitStack() as pending:
            for path in paths:
                self._write(path, pending)
        return self.files_of(paths)

    def files_of(self, paths: Sequence[Path]) -> list[Path]:
        """Return the files that :meth:`save` writes for paths."""
        tables = [
            _table_path(path) for path in paths if self._searched_table and path.suffix.lower() in _CONFIGURATIONS
        ]
        return [*paths, *tables]

    def _write(self, path: Path, pending: ExitStack) -> None:
        suffix = path.suffix.lower()
        if suffix in PICTURES:
            save_frontier(self, path)
            return
        temporary = pending.enter_context(replace_file(path))
        if suffix in TABLES:
            rows = self.table()
            columns = list(dict.fromkeys(key for row in rows for key in row))
            write_table(path, temporary, columns, rows)
        elif suffix == _SCRIPT:
            temporary.write_text(self.script(), encoding="utf-8", newline="\n")
            temporary.chmod(0o755)
        elif suffix == _RECIPE:
            arguments = self.frameworks["megatron"]
            recipe = bridge_recipe(self.with_layers_per_stage, arguments, self.schedule, self.best.name)
            temporary.write_text(recipe, encoding="utf-8", newline="\n")
        elif self._searched_table:
            table = pending.enter_context(replace_file(_table_path(path)))
            table.write_text(self._searched_table, encoding="utf-8", newline="\n")
            temporary.write_text(self.to_yaml(_table_path(path)), encoding="utf-8")
        else:
            temporary.write_text(self.to_yaml(), encoding="utf-8")

    def script(self) -> str:
        """Return a shell script with which the framework of the plan runs the first place."""
        name, cluster = self.problem.framework, self.experiment.cluster
        arguments = self.frameworks[name]
        nodes = (cluster.nodes if cluster else None) or 0
        table_command = self.table_command(arguments)
        return FRAMEWORKS[name].script(self.best.name, arguments, table_command, self.best.layout.gpus, nodes)

    def to_yaml(self, table: Path | None = None) -> str:
        """Return the first place as a configuration file, with the file of a table in place of its schedule."""
        from pptrace.config.yaml_document import yaml_text

        schedule = {"schedule": {"name": str(table)}} if table else {}
        return yaml_text({**self.configuration, **schedule}, head=f"# pptrace plan: {self.best.name}\n")

    def document(self) -> Document:
        """Return the tables that the command line prints."""
        about_places = (
            *_gaps(self), *_fit(self), *_ties(self), *_equivalents(self), *_robustness(self),
            *_other_frameworks(self), *_plausibility(self),
        )  # fmt: skip
        tables = [
            block for rows in (about_places, _counts(self)) if rows
            for block in ("", Table(rows=tuple(rows), words=2, splits=True))
        ]  # fmt: skip
        shared, places = _places(self)
        lead = (*_request_lines(self), *shared, "", places, *tables, "", _commands(self))
        return Document(title="plan", lead=lead)


def _table_path(configuration: Path) -> Path:
    """Return the file of the table that a configuration names."""
    return configuration.with_suffix(".table.csv")


def _row(candidate: Candidate) -> Row:
    layout, bound = candidate.layout, candidate.bound
    figures = {key: value for key, value in candidate.row.items() if key not in {*_NOT_SHOWN, "gpus"}}
    return {
        "schedule": candidate.schedule, "gpus": layout.gpus, **candidate.sizes, "global": layout.sequences,
        "command": f"pptrace simulate CONFIG {candidate.arguments}", "fate": candidate.outcome.value,
        "reason": candidate.reason or None,
        "bound_step_ns": bound.step_ns if bound else None,
        "bound_memory_bytes": bound.peak_bytes if bound else None,
        **figures,
    }  # fmt: skip


@names_arguments
def plan(
    config: Config | None = None,
    *,
    gpus: int | None = None,
    memory: str | None = None,
    objective: str = "tokens",
    vary: Mapping[str, Iterable[Any]] | Sequence[str] = (),
    top: int = 10,
    exhaustive: bool = False,
    time: str | None = None,
    framework: str = "",
    robust: bool = True,
    sets: Sequence[str] = (),
    measured: str | Path | None = None,
    outputs: Sequence[str | Path] = (),
    fresh: bool = False,
    executor: str | Mapping[str, Any] = "processes",
    workers: int | None = None,
    registry: Registry | None = None,
    progress: Callable[[str], None] | None = None,
    **values: Unpack[Settings],
) -> Plan:
    """Find the best configuration of a model on a number of GPUs: division of the model, and schedule.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        gpus: number of GPUs of the job; with ``objective="gpus"``, the maximum number. By default, those of the
            configured parallel sizes.
        memory: memory limit per rank, ``"76GiB"``; the device's memory by default.
        objective: ``tokens``, ``mfu``, ``step``, or ``gpus`` for the fewest GPUs that fit.
        vary: values by key, ``{"pp": [4, 8], "zero": [1]}``, or texts as for ``--vary``; other keys keep the
            values that practitioners vary.
        top: number of ranked configurations.
        exhaustive: simulate all valid configurations, without bounds.
        time: time of the search, ``"60s"``; then the best so far is returned. No limit by default.
        framework: the framework that has to run all places: ``megatron``, ``torchtitan``, ``pytorch``, or ``any``
            for all configurations; by default that of the stack.
        robust: re-simulate the first places on other machines.
        sets: ``key.path=value`` texts, as for ``--set``; sizes among them are fixed.
        measured: a table with the columns ``command`` and ``measured_s``, seconds, as :func:`read_runs` takes it:
            the bias of the simulation is fitted to these runs, and places are ranked by expected steps.
        outputs: the best (.yaml), a script (.sh) or a recipe (.py) that runs it, tables of all points, pictures;
            finished simulations are reused after an interruption.
        fresh: reuse no finished simulation.
        executor: executor of the simulations, as for :func:`sweep`.
        workers: number of parallel simulations; one per core by default.
        registry: the plugins; all installed plugins by default. A registry needs an executor in this process.
        progress: called with the progress as text.
        values: as for :func:`simulate`; sizes among them are fixed.

    Raises:
        PptraceError: invalid input; or no configuration that fits, with the smallest sufficient memory.

    >>> found = plan("step.yaml", gpus=256, memory="76GiB")  # doctest: +SKIP
    >>> found.best.name, found.save("best.yaml", "points.csv")  # doctest: +SKIP
    """
    check_arguments(values, ARGUMENTS)
    paths = [Path(output) for output in outputs]
    check_outputs(paths, (*_CONFIGURATIONS, _SCRIPT, _RECIPE), _OUTPUT_SUFFIXES)
    document = document_of(config)
    request = PlanRequest(
        gpus=job_gpus(document) if gpus is None else gpus, memory=memory, objective=objective, top=top,
        exhaustive=exhaustive, time=time, framework=framework,
    )  # fmt: skip
    plugins = registry or Registry.load()
    chosen = choose(executor, plugins, workers or 0, shared=registry is not None)
    problem = plan_problem(document, sets, values, vary, request, plugins)
    check_framework(paths, problem)
    space = Space(problem, request)
    bias = _bias(Path(measured), problem) if measured is not None else Bias()
    with CandidateRunner(problem.document, plugins, chosen, paths[0] if paths else None, fresh=fresh) as runner:
        search = Search(space, runner, bias, progress)
        search.run()
        assesses = robust and search.ended != "interrupt"
        robustness = assess_robustness(space, search.best, runner, bias, progress) if assesses else None
    result = Plan(
        request=request, problem=problem, ranking=tuple(search.best), search=search, robustness=robustness,
        bias=bias, foreign=search.foreign, heading=space.heading,
    )  # fmt: skip
    result.save(*paths)
    if search.ended == "complete":
        end_journals(paths)
    return result


def check_framework(paths: Sequence[Path], problem: PlanProblem) -> None:
    """Refuse files for a framework that the plan is not for.

    Raises:
        OutputError: a script for any framework or one without a program, or a recipe for another than Megatron-LM.
        ConfigError: a recipe of a model without a recipe in Megatron-Bridge.
    """
    for path in paths:
        suffix, framework = path.suffix.lower(), problem.framework
        if suffix == _SCRIPT and not (framework and FRAMEWORKS[framework].program):
            names = " or ".join(name for name, known in FRAMEWORKS.items() if known.program)
            raise OutputError(f"a script runs a framework with a program: plan --for {names}", file=path)
        if suffix == _RECIPE:
            if framework != "megatron":
                raise OutputError("a recipe is of Megatron-Bridge: plan --for megatron", file=path)
            model = problem.document.value.get("model")
            check_recipe(model.get("preset") if isinstance(model, dict) else model)


def _bias(path: Path, problem: PlanProblem) -> Bias:
    """Return the bias of the simulation, fitted to the measured runs of a file.

    Raises:
        ConfigError: an invalid file, or a run that cannot be simulated.
    """
    runs, rows = read_runs(path, problem.given), []
    for run in runs:
        row = run_candidate((run.settings, None, ""), document=problem.document, registry=problem.registry)
        if row.get("error"):
            raise ConfigError(f"cannot run: {row['error']}", file=path, line=run.line)
        rows.append(row)
    return fit_bias(runs, rows)


_SIZE_NAMES = {"micro": "mbs"}
"""Headings of sizes with another name."""
_OPTIONAL = frozenset({"vp", "cp", "ep"})
"""Sizes that are left out if they are 1 in all places."""
_NONE = "none"
_UNSEEN = frozenset({_NONE, "even", "0", "False", "-"})
"""Words of settings without an effect."""
_SHORT = {key: name for name, key in ALIASES.items()} | {
    key: key.removeprefix(f"{RECOMPUTE}_") for key in RECOMPUTE_OPTIONS
}  # fmt: skip
"""Short names of keys of settings."""
_LAYOUT_KEYS = frozenset({*PLANNED, "parallel.sequence_parallel"})
"""Keys whose values have separate columns, or follow from such keys."""
_IDEAL = "ideal"
"""The default network, on which messages take no time."""
_SEEN = 0.0005
"""Smallest distance from 1 of a factor that is printed."""
_MARGINS = f"{float(100 * MARGIN):g} %, or {float(100 * MARGIN_EQUAL_SIZES):g} % with equal sizes"


def _request_lines(plan: Plan) -> list[str]:
    experiment = plan.experiment
    model = (experiment.model.preset if experiment.model else None) or "a custom model"
    choice = experiment.device
    device = devices_text(choice) if choice is not None and choice.preset else "a custom device"
    memory = plan.memory_text
    network = ", a free network" if experiment.cluster is None and experiment.network.name == _IDEAL else ""
    usual_cluster = next((each.value for each in plan.problem.derived if key_text(each.path) == CLUSTER), None)
    if usual_cluster is not None:
        network = f", cluster {usual_cluster} by default"
    stack = f", stack {experiment.stack}" if experiment.stack else ""
    up_to = "up to " if plan.request.objective == "gpus" else ""
    gpus = f"{up_to}{gpus_text(plan.request.gpus)}"
    return [
        f"{model} on {gpus}: {OBJECTIVES[plan.request.objective]}", f"{device}{memory}{network}{stack}",
        plan.heading,
    ]  # fmt: skip


def _places(plan: Plan) -> tuple[list[str], Table]:
    """Return the lines above the table of places, and the table.

    A value that all places share is in a line, not in a column.
    """
    choices = _choices(plan)
    shared, choice_names = [], list[str]()
    for name in dict.fromkeys(name for choice in choices for name in choice):
        values = {choice.get(name, "-") for choice in choices}
        if len(values) > 1 or name == "schedule":
            choice_names.append(name)
        elif not values <= ({"1"} if name in _OPTIONAL else _UNSEEN):
            shared.append(f"{name} {choices[0][name]}")
    figures = [_figures(plan, place, candidate) for place, candidate in enumerate(plan.ranked, 1)]
    head = ("#", *choice_names, *figures[0])
    rows = tuple(
        (str(place), *(choice.get(name, "-") for name in choice_names), *cells.values())
        for place, (choice, cells) in enumerate(zip(choices, figures, strict=True), 1)
    )
    left = tuple(
        index
        for index, name in enumerate(head)
        if name in choice_names and not all(row[index].isdigit() for row in rows)
    )
    lines = [f"all places: {', '.join(shared)}"] if shared else []
    return lines, Table(head=head, rows=rows, words=0, left=left, splits=True)


def _choices(plan: Plan) -> list[dict[str, str]]:
    """Return the words of the schedule, sizes and settings of each place by name."""
    derived = {key_text(each.path) for each in plan.problem.derived}
    has_several_batches = len({candidate.layout.sequences for candidate in plan.ranked}) > 1
    choices = []
    for candidate in plan.ranked:
        sizes = {_SIZE_NAMES.get(name, name): str(size) for name, size in candidate.sizes.items()}
        choice = {"schedule": candidate.schedule, **sizes}
        if has_several_batches:
            choice["gbs"] = str(candidate.layout.sequences)
        for key, value in candidate.settings.items():
            if not (key in _LAYOUT_KEYS or key in derived or key.startswith(SCHEDULE_OPTION)):
                choice[_SHORT.get(key, key)] = _word(key, value)
        choices.append(choice)
    return choices


def _figures(plan: Plan, place: int, candidate: Candidate) -> dict[str, str]:
    """Return the texts of a place's figures by the heading of the column."""
    row, step = candidate.row, int(candidate.row["step_ns"] or 0)
    expected = plan.bias.expected_ns(row, candidate.arguments)
    share = step / (expected or 1)  # figures of the expected step
    tokens_per_s, mfu = row["tokens_per_s_per_gpu"], row["mfu"]
    exposed = (float(row["mean_collectives_ns"] or 0) + float(row["mean_messages_ns"] or 0)
               + float(row["mean_reduction_ns"] or 0))  # fmt: skip
    has_several_jobs = len({(each.layout.gpus, each.layout.sequences) for each in plan.ranked}) > 1
    slowdown = float(Fraction(candidate.score[-1], plan.best.score[-1]) - 1)
    return {
        "step": DURATION.rounded(step),
        **({"expected": DURATION.rounded(expected)} if plan.bias.runs else {}),
        "slower": "-" if place == 1 else f"{slowdown:+.1%}",
        **({"tok/s/GPU": f"{float(tokens_per_s or 0) * share:,.0f}"} if has_several_jobs else {}),
        "MFU": f"{float(mfu) * share:.1%}" if mfu else "-",
        "GiB": f"{float(row['peak_memory_bytes'] or 0) / _GIB:.1f}",
        "comm": f"{exposed / step:.1%}",
        "wait": f"{float(row['mean_waiting_ns'] or 0) / step:.1%}",
    }


def _gaps(plan: Plan) -> list[tuple[str, str]]:
    gaps = [explain_gap(plan.best, candidate) or "no part above 0.1 %" for candidate in plan.ranked[1:]]
    return [("" if index else "gap to #1", f"#{index + 2}: {gap}") for index, gap in enumerate(gaps)]


def _fit(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the factors that were fitted to measured runs."""
    bias = plan.bias
    if not bias.runs:
        return []
    factors = ", ".join(
        f"{name} x {factor:.3f}" for name, factor in bias.factors.items() if abs(factor - 1) >= _SEEN
    )
    count = len(bias.runs)
    runs = "1 measured run" if count == 1 else f"{count} measured runs"
    largest = max(map(abs, bias.differences))
    return [("fitted", f"to {runs}: {factors or 'nothing to change'}; largest remaining difference {largest:.1%}")]


def _ties(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the places that tie with the first."""
    tied = [place for place, candidate in enumerate(plan.ranked, 1) if candidate in plan.tied]
    if len(tied) == 1:
        return []
    text = f"{_ranges(tied)} are within the error of a simulated lead ({_MARGINS}): measure them"
    hint = f"; further places may tie, --top {2 * tied[-1]} shows them" if tied[-1] == plan.request.top else ""
    return [("tied", text + hint)]


def _ranges(places: Sequence[int]) -> str:
    """Return ascending places as text, ``#1 to #3 and #5``."""
    starts = [place for place in places if place - 1 not in places]
    ends = [place for place in places if place + 1 not in places]
    return join_names([
        f"#{start}" if start == end else f"#{start} {'to' if end > start + 1 else 'and'} #{end}"
        for start, end in zip(starts, ends, strict=True)
    ])  # fmt: skip


def _equivalents(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of other settings with the same step and memory."""
    named: dict[str, list[str]] = {}
    for place, candidate in enumerate(plan.ranked, 1):
        if candidate.equivalents:
            words = " or ".join(dict.fromkeys(_difference(candidate, twin) for twin in candidate.equivalents))
            named.setdefault(words, []).append(f"#{place}")
    text = "; ".join(f"{', '.join(places)} with {words}" for words, places in named.items())
    return [("equal", f"same step and memory: {text}")] if named else []


def _difference(candidate: Candidate, equivalent: Candidate) -> str:
    """Return the settings in which an equivalent candidate differs."""
    first, second = candidate.settings, equivalent.settings
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return " and ".join(f"{_SHORT.get(key, key)} {_word(key, second.get(key))}" for key in keys)


def _word(key: str, value: Any) -> str:
    if value is None:
        return "even" if key == LAYERS else _NONE
    if isinstance(value, list):
        return "balanced" if key == LAYERS else " ".join(map(str, value)) or _NONE
    return str(value)


def _robustness(plan: Plan) -> list[tuple[str, str]]:
    robustness = plan.robustness
    if robustness is None:
        return []
    total = len(robustness.verdicts)
    lost_places = [
        f"{verdict.machine}: #{verdict.best + 1} by {verdict.slowdown:.1%}"
        for verdict in robustness.verdicts
        if verdict.slowdown > 0
    ]
    text = (
        f"#1 stays first on {robustness.machines_first} of {total} other machines, and first or within 2 % "
        f"on {robustness.machines_near}, among {robustness.contenders} contenders"
    )
    skipped = len(MACHINES) - total
    failures = [f"it fails or does not fit on {skipped}"] if skipped else []
    return [("robustness", "; ".join([text, *failures, *lost_places]))]


def _plausibility(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the places that are faster than published steps make plausible."""
    steps = [(f"#{place}", candidate.row) for place, candidate in enumerate(plan.ranked, 1)]
    notes = plausibility_notes((name, _share(row, "mfu"), _share(row, "plausible_mfu")) for name, row in steps)
    return [("note", note) for note in notes]


def _share(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if value else None


def _counts(plan: Plan) -> list[tuple[str, str]]:
    counts = plan.counts()
    unproved = min(plan.unproved.configurations, counts[Outcome.BOUNDED])
    title = FRAMEWORKS[plan.problem.framework].title if plan.problem.framework else ""
    parts = [
        f"{counts['considered']:,} configurations: {counts[Outcome.REFUSED]:,} cannot run",
        f"{counts[Outcome.MEMORY]:,} need more memory", f"{counts[Outcome.EQUAL]:,} are duplicates",
        *([f"{counts[Outcome.COVERED]:,} equal {PLAIN} on one rank"] if counts[Outcome.COVERED] else []),
        *([f"{title} does not run {counts[Outcome.FOREIGN]:,} of the fastest"] if counts[Outcome.FOREIGN] else []),
        f"{counts[Outcome.BOUNDED] - unproved:,} cannot be among the first {plan.request.top}",
        *([f"{unproved:,} were not simulated"] if unproved else []),
        f"{counts[Outcome.SIMULATED]:,} simulated",
    ]  # fmt: skip
    refused = [f"{count:,} because of {reason}" for reason, count in list(plan.refusals().items())[:4]]
    return [
        ("considered", ", ".join(parts)), *([("cannot run", ", ".join(refused))] if refused else []),
        *_unproved(plan), *_default_chunks(plan), *_missing_options(plan),
    ]  # fmt: skip


_ENDS = {"time": "the time limit was reached", "interrupt": "interrupted", "complete": ""}


def _unproved(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of what a search did not exclude before it ended."""
    unproved, end = plan.unproved, _ENDS[plan.search.ended]
    if not (unproved.configurations or unproved.without_bound):
        return []
    parts = [f"{unproved.configurations:,} configurations could be among the first {plan.request.top}"]
    if unproved.without_bound:
        groups = plan.search.space.groups
        parts.append(f"{unproved.without_bound:,} of {groups:,} layouts with their settings have no bound yet")
    elif unproved.gain is not None:
        parts.append(f"none is more than {unproved.gain:.1%} better than #1")
    return [("unproved", f"{end}: {'; '.join(parts)}")]


def _default_chunks(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the schedules that accept none of the requested chunks per rank."""
    axis = plan.problem.axes.get("parallel.vp")
    requested = [value.varied[0].value for value in axis.values] if axis else []
    schedules = dict.fromkeys(
        candidate.schedule for candidate in (plan.candidates if requested else ())
        if candidate.chunks not in requested
        and candidate.outcome not in {Outcome.REFUSED, Outcome.COVERED}
    )  # fmt: skip
    if not schedules:
        return []
    chunks = ", ".join(map(str, requested))
    text = f"{chunks} where a schedule accepts it; {join_names([*schedules])} with default chunks"
    return [("vp", text)]


def _missing_options(plan: Plan) -> list[tuple[str, str]]:
    """Return a row per varied option with the schedules that do not have it."""
    rows = []
    options = {key: axis for key, axis in plan.problem.axes.items() if key.startswith(SCHEDULE_OPTION)}
    for key, axis in options.items():
        schedules = dict.fromkeys(
            candidate.schedule for candidate in plan.candidates if key not in candidate.settings
        )
        values = ", ".join(value.text for value in axis.values)
        if schedules:
            text = f"{values} where a schedule has this option; {join_names([*schedules])} without it"
            rows.append((key.removeprefix(SCHEDULE_OPTION), text))
    return rows


def _other_frameworks(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the fastest configuration that the framework does not run, if it gains 0.1 % or more."""
    gain = float(1 - Fraction(plan.foreign.score[-1], plan.best.score[-1])) if plan.foreign else 0.0
    if plan.foreign is None or round(gain, 3) == 0:
        return []
    title, candidate = FRAMEWORKS[plan.problem.framework].title, plan.foreign
    text = f"{candidate.name} is {gain:.1%} shorter, but {title} does not run it: {candidate.reason}"
    return [(f"--for {ANY}", text)]


def _commands(plan: Plan) -> Code:
    """Return the command that reproduces the first place, and the arguments of frameworks, for a shell."""
    lines = ["# pptrace", *command_lines(plan.command)]
    for name, framework in FRAMEWORKS.items():
        if plan.problem.framework not in {"", name}:
            continue
        arguments = plan.frameworks[name]
        if arguments.without:
            lines += ["", f"# {framework.title} does not run this step: {', '.join(arguments.without)}"]
            continue
        lines += ["", f"# {framework.title}", *arguments.lines]
        if command := plan.table_command(arguments):
            lines += [f"# {TABLE_FILE} comes from", *command_lines(shlex.split(command))]
    return Code(lines=tuple(lines))


_NAMED_SHARE = 0.001
"""Smallest named difference, as a share of the first step."""


def differences_ns(first: Candidate, other: Candidate) -> dict[str, int]:
    """Return the difference of each part of the step, scaled to the first place's batch.

    The differences sum to the difference of the steps.
    """
    share = first.layout.sequences / other.layout.sequences
    return {
        name: round(float(other.row[column] or 0) * share - float(first.row[column] or 0))
        for column, name in PARTS.items()
    }


def explain_gap(first: Candidate, other: Candidate) -> str:
    """Return the largest differences of a step from the first place's, in words."""
    if first is other:
        return ""
    step = float(first.row["step_ns"] or 0)
    differences = differences_ns(first, other)
    named = sorted(
        ((time, name) for name, time in differences.items() if abs(time) >= _NAMED_SHARE * step),
        key=lambda part: (-part[0], part[1]),
    )
    longer = [(time, name) for time, name in named if time > 0]
    shorter = [(time, name) for time, name in named if time < 0][-1:]
    return ", ".join(
        f"{name} {'+' if time > 0 else '-'}{DURATION.rounded(abs(time))}" for time, name in [*longer[:2], *shorter]
    )


_GIB = 2**30


def frontier(points: Sequence[Candidate]) -> list[Candidate]:
    """Return the Pareto frontier of step per sequence and memory, in order of memory."""
    best: list[Candidate] = []
    order = sorted(
        points, key=lambda point: (int(point.row["peak_memory_bytes"] or 0), _sequence_ns(point), point.number)
    )
    for point in order:
        if not best or _sequence_ns(point) < _sequence_ns(best[-1]):
            best.append(point)
    return best


def save_frontier(plan: Plan, path: Path) -> None:
    """Draw a plan into a .png, .svg or .pdf file; the same plan gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
    """
    points = [candidate for candidate in plan.candidates if candidate.outcome is Outcome.SIMULATED]
    names = list(dict.fromkeys(candidate.schedule for candidate in (*plan.ranking, *points)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        coordinates = {name: _coordinates([point for point in points if point.schedule == name]) for name in names}
        draw_points(axes, coordinates)
        edge = columns_of(_coordinates(frontier(plan.ranking)))
        axes.plot(*edge, color=INK, lw=1.2, drawstyle="steps-post", label="frontier", zorder=0.9)
        limit = int(plan.best.row["device_memory_bytes"] or 0)
        if limit:
            axes.axvline(limit / _GIB, color=LIMIT, lw=1.2, ls="--", label="memory of a device")
        [best] = _coordinates([plan.best])
        axes.margins(0.06, 0.12)
        is_right = best[0] > sum(axes.get_xlim()) / 2
        axes.annotate(
            f"#1 {plan.best.name}", best, xytext=(-6 if is_right else 6, -12), textcoords="offset points",
            ha="right" if is_right else "left", fontsize=8,
        )  # fmt: skip
        batches = {point.layout.sequences for point in points}
        scaled = f", scaled to {max(batches):,} sequences" if len(batches) > 1 else ""
        axes.set(xlabel="peak memory of a rank [GiB]", ylabel=f"step time{scaled} [s]")
        title = f"{len(points):,} simulated configurations on {gpus_text(plan.request.gpus)}"
        axes.set_title(title, fontweight="bold")
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    write_picture(path, (9.0, 5.0), draw)


def _sequence_ns(point: Candidate) -> float:
    """Return the step time per sequence."""
    return float(point.row["step_ns"] or 0) / point.layout.sequences


def _coordinates(points: Sequence[Candidate]) -> list[tuple[float, float]]:
    """Return memory in GiB and step in seconds of each point, scaled to the largest batch."""
    scale = max((point.layout.sequences for point in points), default=1)
    return [
        (int(point.row["peak_memory_bytes"] or 0) / _GIB, _sequence_ns(point) * scale / 1e9) for point in points
    ]
