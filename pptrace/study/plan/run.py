"""Answer a question: read the ground, span the space, search it, and try the first place on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError
from pptrace.study.executor import choose
from pptrace.study.plan.ground import ground_of
from pptrace.study.plan.result import Plan, check_plan_outputs
from pptrace.study.plan.robust import robustness_of
from pptrace.study.plan.runner import Runner
from pptrace.study.plan.search import Search
from pptrace.study.plan.space import Space
from pptrace.study.pool import Kept
from pptrace.study.sweep import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.yaml_file import Document
    from pptrace.hooks.registry import Registry
    from pptrace.study.plan.question import Question

__all__ = ["answer"]


def answer(
    file: Path | Document | None,
    question: Question,
    registry: Registry,
    *,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any],
    vary: Sequence[str] | Mapping[str, Iterable[Any]] = (),
    robust: bool = True,
    executor: str | Mapping[str, Any] = "processes",
    workers: int = 0,
    outputs: Sequence[Path] = (),
    fresh: bool = False,
    shares_registry: bool = False,
    watch: Callable[[str], None] | None = None,
) -> Plan:
    """Return the first places among all configurations of a job.

    Args:
        file: the configuration.
        question: what is asked.
        registry: the plugins.
        sets: ``key.path=value`` texts; sizes among them are fixed.
        flags: values by flag name; likewise.
        vary: what varies, as texts such as ``pp=4,8`` or as values by key.
        robust: whether to try the first place on other machines.
        executor: what configurations are simulated on, as for a sweep.
        workers: how many at once; 0 for as many as this machine has cores.
        outputs: the files that the plan is for; finished rows are kept beside the first.
        fresh: take over no finished row.
        shares_registry: whether ``registry`` is the caller's own, which other processes do not have.
        watch: told how far it is.

    Raises:
        PptraceError: whatever cannot be used; a space of nothing or of too many; nothing that fits.
    """
    check_plan_outputs(outputs)
    chosen = choose(executor, registry, workers or cores())
    if shares_registry and not chosen.in_process:
        message = "runs in other processes, which load plugins anew: take serial, or no registry"
        raise ConfigError(f"{chosen.provided.offer.name} {message}", key="executor")
    ground = ground_of(file, sets, flags, vary, question, registry)
    space = Space(ground, question)
    first = outputs[0] if outputs else None
    with (
        Kept(chosen.start) as kept,
        Runner(ground.document, registry, chosen, kept, first, fresh=fresh) as runner,
    ):
        found = Search(space, runner, watch).found()
        robustness = robustness_of(question, found.ranked, runner, watch) if robust else None
    return Plan(question=question, ground=ground, found=found, robustness=robustness, heading=space.heading)
