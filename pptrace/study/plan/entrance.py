"""Plans from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pptrace.config.flags import ARGUMENTS
from pptrace.config.given import Config, check_arguments, given_document
from pptrace.hooks.registry import Registry
from pptrace.study.plan.question import Question
from pptrace.study.plan.run import answer
from pptrace.study.sweep import end_journals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.config.arguments import Settings
    from pptrace.study.plan.result import Plan

__all__ = ["plan"]


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
    found = answer(
        given_document(config),
        Question(gpus=gpus, memory=memory, objective=objective, top=top, exhaustive=exhaustive),
        registry or Registry.load(), sets=sets, flags=values, vary=vary, robust=robust, executor=executor,
        workers=workers or 0, outputs=paths, fresh=fresh, shares_registry=registry is not None, watch=progress,
    )  # fmt: skip
    found.save(*paths)
    end_journals(paths)
    return found
