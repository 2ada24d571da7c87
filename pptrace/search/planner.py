"""The search for a plan, from its request to its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pptrace.config.flags import ARGUMENTS
from pptrace.config.resolution import Config, check_arguments, document_of
from pptrace.plugins.registry import Registry
from pptrace.search.best_first import Search
from pptrace.search.execution import ExecutorPool, choose
from pptrace.search.plan import Plan, check_plan_outputs, robustness_of
from pptrace.search.problem import PlanRequest, plan_problem
from pptrace.search.runner import Runner
from pptrace.search.space import Space
from pptrace.search.sweep import cores, end_journals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.config.flags import Settings
    from pptrace.config.yaml_document import Document


def find_plan(
    file: Path | Document | None,
    request: PlanRequest,
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
    """Return the ranked plan of a job; :func:`plan` describes most arguments.

    ``file`` is the configuration, ``flags`` are values by flag name, and ``watch`` receives the progress. With
    ``shares_registry``, the registry is the caller's own, which other processes do not have.

    Raises:
        PptraceError: invalid input, an empty or too large space, or no configuration that fits.
    """
    check_plan_outputs(outputs)
    chosen = choose(executor, registry, workers or cores())
    chosen.check_registry(shared=shares_registry)
    problem = plan_problem(file, sets, flags, vary, request, registry)
    space = Space(problem, request)
    first = outputs[0] if outputs else None
    with (
        ExecutorPool(chosen.start) as pool,
        Runner(problem.document, registry, chosen, pool, first, fresh=fresh) as runner,
    ):
        result = Search(space, runner, watch).run()
        robustness = robustness_of(request, result.ranked, runner, watch) if robust else None
    return Plan(request=request, problem=problem, result=result, robustness=robustness, heading=space.heading)


def plan(
    config: Config | None = None,
    *,
    gpus: int,
    memory: str | None = None,
    objective: str = "tokens",
    vary: Mapping[str, Iterable[Any]] | Sequence[str] = (),
    top: int = 10,
    exhaustive: bool = False,
    robust: bool = True,
    sets: Sequence[str] = (),
    outputs: Sequence[str | Path] = (),
    fresh: bool = False,
    executor: str | Mapping[str, Any] = "processes",
    workers: int | None = None,
    registry: Registry | None = None,
    progress: Callable[[str], None] | None = None,
    **values: Unpack[Settings],
) -> Plan:
    """Find the best configuration of a model on so many GPUs: how to divide it, and what to schedule.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        gpus: as many the job has; with ``objective="gpus"``, at most so many.
        memory: what a rank may hold, ``"76GiB"``; the device's memory unless given.
        objective: ``tokens``, ``mfu``, ``step``, or ``gpus`` for the fewest GPUs that fit.
        vary: values by key, ``{"pp": [4, 8], "zero": [1]}``, or texts as for ``--vary``; other keys keep the
            values that practitioners vary.
        top: how many to rank.
        exhaustive: simulate all that can run, without bounds.
        robust: try the first places on other machines.
        sets: ``key.path=value`` texts, as for ``--set``; sizes among them are fixed.
        outputs: the best (.yaml), tables of all points and pictures to write; finished simulations are taken over
            after an interruption.
        fresh: take over no finished simulation.
        executor: what configurations are simulated on, as for :func:`sweep`.
        workers: how many at once; one per core by default.
        registry: the plugins; all installed ones by default. One of your own needs an executor in this process.
        progress: told how far it is, in words.
        values: as for :func:`simulate`; sizes among them are fixed.

    Raises:
        PptraceError: whatever cannot be used, in one line; nothing that fits, with the smallest memory that would.

    >>> found = plan("step.yaml", gpus=256, memory="76GiB")  # doctest: +SKIP
    >>> found.best.name, found.save("best.yaml", "points.csv")  # doctest: +SKIP
    """
    check_arguments(values, ARGUMENTS)
    paths = [Path(output) for output in outputs]
    found = find_plan(
        document_of(config),
        PlanRequest(gpus=gpus, memory=memory, objective=objective, top=top, exhaustive=exhaustive),
        registry or Registry.load(), sets=sets, flags=values, vary=vary, robust=robust, executor=executor,
        workers=workers or 0, outputs=paths, fresh=fresh, shares_registry=registry is not None, watch=progress,
    )  # fmt: skip
    found.save(*paths)
    end_journals(paths)
    return found
