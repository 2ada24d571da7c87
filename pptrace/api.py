"""The same as the command line, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from pptrace.config.flags import ARGUMENTS
from pptrace.config.quantities import parse_share
from pptrace.config.resolution import Config, check_arguments, document_of, load
from pptrace.plugins.registry import Registry
from pptrace.run.run import Run
from pptrace.run.run import simulate as simulate_resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace.config.flags import Settings, SettingsBesideSchedule
    from pptrace.measured.diff_document import Diff
    from pptrace.search.basis import Basis
    from pptrace.search.compare import Comparison
    from pptrace.search.crossover import Crossover
    from pptrace.search.equal_memory import EqualComparison
    from pptrace.search.sweep import Sweep
    from pptrace.timeline.measurement import Measurement

__all__ = ["compare", "crossover", "diff", "simulate", "sweep"]


def simulate(
    config: Config | None = None,
    *,
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Unpack[Settings],
) -> Run:
    """Simulate one training step.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed ones by default.
        values: as the flags of ``pptrace simulate``: ``schedule="1f1b", pp=8, microbatches=32``; whole
            sections may be mappings.

    Raises:
        PptraceError: whatever cannot be used, in one line.

    >>> run = simulate(schedule="table.csv")  # doctest: +SKIP
    """
    check_arguments(values, ARGUMENTS)
    resolved = load(config, sets, values)
    return simulate_resolved(resolved, registry or Registry.load())


@overload
def compare(
    config: Config | None = None,
    *,
    schedules: str | Sequence[str],
    policies: bool = False,
    memory: None = None,
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> Comparison: ...


@overload
def compare(
    config: Config | None = None,
    *,
    schedules: str | Sequence[str],
    memory: str,
    vary: str | Sequence[str] = (),
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> EqualComparison: ...


def compare(
    config: Config | None = None,
    *,
    schedules: str | Sequence[str],
    policies: bool = False,
    memory: str | None = None,
    vary: str | Sequence[str] = (),
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> Comparison | EqualComparison:
    """Run schedules side by side, and rank them as formulas, as tables and simulated; or on equal memory.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        schedules: as for ``pptrace compare``: ``"gpipe,1f1b"`` or ``["1f1b", "interleaved-1f1b:vp=2"]``.
        policies: whether to run each under every point-to-point policy too, for ``.policies``.
        memory: what a rank may hold, ``"76GiB"``: each schedule is then the best of its forms that fits.
        vary: in what forms may differ, as for ``--vary``: ``"vp,recompute"``.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed ones by default.
        values: as for :func:`simulate`, but for ``schedule``.

    Raises:
        PptraceError: whatever cannot be used, in one line; or no schedule can run.

    >>> print(compare(schedules="gpipe,1f1b", pp=4, microbatches=8))  # doctest: +SKIP
    """
    from pptrace.search.basis import parse_entries
    from pptrace.search.compare import compare as compare_entries
    from pptrace.search.equal_memory import check_exclusive, compare_equal, parse_names

    basis = _basis(config, sets, registry, values)
    entries = parse_entries(_listed(schedules), "schedules")
    check_exclusive(memory=memory is not None, policies=policies, vary=bool(vary))
    if memory is not None:
        return compare_equal(basis, entries, memory, parse_names(_listed(vary)))
    return compare_entries(basis, entries, policies=policies)


def crossover(
    config: Config | None = None,
    *,
    between: str | Sequence[str],
    over: str,
    points: int = 12,
    tolerance: float | str = 0.01,
    executor: str | Mapping[str, Any] | None = None,
    workers: int | None = None,
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> Crossover:
    """Find where another schedule of two becomes the faster one as a number of the configuration grows.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        between: the two schedules, as for :func:`compare`.
        over: a numeric key with or without a range: ``"microbatches=8..256"``, ``"bandwidth"``.
        points: values of the first scan, at least 2.
        tolerance: how far apart the sides of a flip may be, in parts of its value or as ``"1%"``; counts are found
            exactly.
        executor: what steps are simulated on, as for :func:`sweep`; in this process, one by one, by default.
        workers: how many at once, on processes unless an executor is given; by default as many as there are cores.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed ones by default.
        values: as for :func:`simulate`, but for ``schedule``.

    Raises:
        PptraceError: whatever cannot be used, in one line; or no value that both schedules can run.

    >>> crossover(between="gpipe,1f1b", over="bandwidth", config="step.yaml").flips  # doctest: +SKIP
    """
    from pptrace.search.basis import parse_entries
    from pptrace.search.crossover import choose_executor
    from pptrace.search.crossover import crossover as cross

    basis = _basis(config, sets, registry, values)
    pair = parse_entries(_listed(between), "between")
    chosen = choose_executor(basis.registry, executor, workers, shared=registry is not None)
    return cross(basis, pair, over, points=points, tolerance=parse_share(tolerance, "tolerance"), chosen=chosen)


def sweep(
    config: Config | None = None,
    *,
    over: Mapping[str, Iterable[Any]] | Sequence[str],
    gpus: int | None = None,
    sets: Sequence[str] = (),
    outputs: Sequence[str | Path] = (),
    fresh: bool = False,
    executor: str | Mapping[str, Any] = "processes",
    workers: int | None = None,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] | None = None,
    **values: Unpack[Settings],
) -> Sweep:
    """Simulate every combination of some keys' values, several at once.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        over: values by key, ``{"microbatches": [8, 16], "schedule": ["gpipe", "hanayo:waves=2"]}``, or texts as
            for ``--over``.
        gpus: as many every point has: its replicas follow; as the configuration and the axes say unless given.
        sets: ``key.path=value`` texts, as for ``--set``.
        outputs: tables and pictures to write; finished rows in the tables are taken over, and after an
            interruption the same call goes on.
        fresh: run every point anew, and replace what the outputs hold.
        executor: what the points run on, ``processes`` or ``serial`` or a plugin's; with options as a mapping,
            ``{"name": ..., ...}``.
        workers: points that run at once; one per core by default.
        registry: the plugins; all installed ones by default. One of your own needs an executor in this process.
        progress: told how many points are finished, and of how many.
        values: as for :func:`simulate`.

    Raises:
        PptraceError: whatever cannot be used, in one line. Points that fail are rows with an ``error`` instead.

    >>> swept = sweep("step.yaml", over={"pp": [4, 8], "microbatches": [16, 32]})  # doctest: +SKIP
    >>> swept.save("results.csv", "figure.png")  # doctest: +SKIP
    """
    from pptrace.search import sweep as study
    from pptrace.search.axes import axes_of, parse_axes
    from pptrace.search.grid import grid_of

    check_arguments(values, ARGUMENTS)
    paths = [Path(output) for output in outputs]
    study.check_outputs(paths)
    axes = axes_of(over) if isinstance(over, Mapping) else parse_axes(over)
    grid = grid_of(document_of(config), sets, values, axes, gpus)
    swept = study.sweep(
        grid, registry or Registry.load(), executor=executor, workers=workers or 0, outputs=paths, fresh=fresh,
        shares_registry=registry is not None, progress=progress,
    )  # fmt: skip
    swept.save(*paths)
    study.end_journals(paths)
    return swept


def diff(
    first: str | Path | Run | Measurement,
    second: str | Path | Run | Measurement,
    *,
    tolerance: float | str = 0.02,
    step: str | int = "median",
    layout: str = "",
    replica: str = "",
    rules: str | Path | None = None,
    registry: Registry | None = None,
) -> Diff:
    """Compare two steps, simulated or measured, action by action.

    Args:
        first: a configuration, a table, a trace, a folder of traces, or what :func:`simulate` or an importer gave.
        second: what is compared with it.
        tolerance: which share counts as equal, such as 0.02 or ``"2%"``.
        step: which recorded step: its number, ``"median"``, or ``"all"`` for the medians over all steps; ``"1,3"``
            for each side's own.
        layout: sizes of a measured job such as ``"pp=4,tp=2"``, where its traces do not say.
        replica: which pipeline of it: ``"dp=0,tp=0"``, ``"slowest"`` or ``"median"``.
        rules: a YAML file of rules by which names are actions.
        registry: the plugins; all installed ones by default.

    Raises:
        PptraceError: whatever cannot be read, in one line.

    >>> difference = diff("step.yaml", "run/")  # doctest: +SKIP
    >>> difference.same, difference.change  # doctest: +SKIP
    (False, 0.053)
    >>> difference.save("report.html", "both.pftrace")  # doctest: +SKIP
    """
    from pptrace.measured.diff_document import compare_steps
    from pptrace.timeline.measurement import ImportRequest

    request = ImportRequest(layout=layout, replica=replica, rules=Path(rules) if rules is not None else None)
    return compare_steps(first, second, tolerance, str(step), request, registry or Registry.load())


def _basis(
    config: Config | None, sets: Sequence[str], registry: Registry | None, values: Mapping[str, Any]
) -> Basis:
    from pptrace.search.basis import Basis

    check_arguments(values, [name for name in ARGUMENTS if name != "schedule"])
    return Basis(file=document_of(config), sets=tuple(sets), flags=values, registry=registry or Registry.load())


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
