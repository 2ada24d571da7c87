"""What a plan found: the first places, what became of all others, and files of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.experiment.prepare import costs_alone
from pptrace.export.output import replace_file
from pptrace.export.picture import check_picture
from pptrace.study.plan.arguments import megatron_arguments, values_of
from pptrace.study.plan.balance import own_split
from pptrace.study.plan.candidate import Fate
from pptrace.study.plan.ground import setting
from pptrace.study.plan.pricing import LAYERS
from pptrace.study.plan.reasons import differences_ns, why_behind
from pptrace.study.plan.ties import MARGIN, tied
from pptrace.study.plan.titan_arguments import torchtitan_arguments
from pptrace.study.results import TABLES, check_table, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.config.experiment import Experiment
    from pptrace.study.plan.arguments import Arguments
    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.ground import Ground
    from pptrace.study.plan.question import Question
    from pptrace.study.plan.robust import Robustness
    from pptrace.study.plan.search import Found
    from pptrace.study.row import Row

__all__ = ["Plan", "check_plan_outputs"]

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
            from pptrace.study.plan.plot import save_frontier

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
        from pptrace.study.plan.text import plan_lines

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
