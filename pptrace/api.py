"""Python API with the functions of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from pptrace.config.flags import ARGUMENTS, names_arguments
from pptrace.config.quantities import parse_share
from pptrace.config.resolution import Config, check_arguments, document_of, load
from pptrace.plugins.registry import Registry
from pptrace.run.run import Run
from pptrace.run.run import simulate as simulate_resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pptrace.config.flags import Settings, SettingsBesideSchedule
    from pptrace.measured.diff_document import Diff
    from pptrace.measured.operations_diff import OperationsDiff
    from pptrace.search.basis import Basis
    from pptrace.search.compare import Comparison
    from pptrace.search.crossover import Crossover
    from pptrace.search.equal_memory import EqualComparison
    from pptrace.search.sweep import Sweep
    from pptrace.timeline.measurement import Measurement

__all__ = ["compare", "crossover", "diff", "simulate", "sweep"]


@names_arguments
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
        registry: the plugins; all installed plugins by default.
        values: as the flags of ``pptrace simulate``: ``schedule="1f1b", pp=8, microbatches=32``; whole
            sections may be mappings.

    Raises:
        PptraceError: invalid input, in one line.

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
    progress: Callable[[str], None] | None = None,
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
    progress: Callable[[str], None] | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> EqualComparison: ...


@names_arguments
def compare(
    config: Config | None = None,
    *,
    schedules: str | Sequence[str],
    policies: bool = False,
    memory: str | None = None,
    vary: str | Sequence[str] = (),
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    progress: Callable[[str], None] | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> Comparison | EqualComparison:
    """Compare schedules by formula, by table and by simulation; or on equal memory.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        schedules: as for ``pptrace compare``: ``"gpipe,1f1b"`` or ``["1f1b", "interleaved-1f1b:vp=2"]``.
        policies: whether to also run each schedule under every point-to-point policy, for ``.policies``.
        memory: memory limit per rank, ``"76GiB"``; each schedule then has its best settings that fit.
        vary: settings that may vary, as for ``--vary``: ``"vp,recompute"``.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed plugins by default.
        progress: called with the progress as text.
        values: as for :func:`simulate`, without ``schedule``.

    Raises:
        PptraceError: invalid input, in one line; or no schedule can run.

    >>> print(compare(schedules="gpipe,1f1b", pp=4, microbatches=8))  # doctest: +SKIP
    """
    from pptrace.search.basis import parse_entries
    from pptrace.search.compare import compare as compare_entries
    from pptrace.search.equal_memory import check_exclusive, compare_equal, parse_names

    basis = _basis(config, sets, registry, values)
    entries = parse_entries(_listed(schedules), "--schedules")
    check_exclusive(memory=memory is not None, policies=policies, vary=bool(vary))
    if memory is not None:
        return compare_equal(basis, entries, memory, parse_names(_listed(vary)), progress)
    return compare_entries(basis, entries, progress, policies=policies)


@names_arguments
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
    progress: Callable[[str], None] | None = None,
    **values: Unpack[SettingsBesideSchedule],
) -> Crossover:
    """Find the values of a numeric key at which the faster of two schedules changes.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        between: the two schedules, as for :func:`compare`.
        over: a numeric key with or without a range: ``"microbatches=8..256"``, ``"bandwidth"``.
        points: values of the first scan, at least 2.
        tolerance: maximum distance of the sides of a crossover, relative to its value, or ``"1%"``; counts are
            exact.
        executor: executor of the simulations, as for :func:`sweep`; sequential in this process by default.
        workers: number of parallel simulations, in processes without ``executor``; one per core by default.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed plugins by default.
        progress: called with the progress as text.
        values: as for :func:`simulate`, without ``schedule``.

    Raises:
        PptraceError: invalid input, in one line; or no value that both schedules can run.

    >>> crossover(between="gpipe,1f1b", over="bandwidth", config="step.yaml").crossovers  # doctest: +SKIP
    """
    from pptrace.search.basis import parse_entries
    from pptrace.search.crossover import crossover as cross
    from pptrace.search.runner import choose

    basis = _basis(config, sets, registry, values)
    pair = parse_entries(_listed(between), "--between")
    chosen = None
    if executor is not None or workers is not None:
        chosen = choose(executor or "processes", basis.registry, workers or 0, shared=registry is not None)
    share = parse_share(tolerance, "tolerance")
    return cross(basis, pair, over, points=points, tolerance=share, watch=progress, chosen=chosen)


@names_arguments
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
    """Simulate every combination of the values of keys, in parallel.

    Args:
        config: a YAML file, the mapping that it would hold, or None for ``values`` alone.
        over: values by key, ``{"microbatches": [8, 16], "schedule": ["gpipe", "hanayo:waves=2"]}``, or texts as
            for ``--over``.
        gpus: GPUs of every point, which determine its replicas; by default, the replicas are configured.
        sets: ``key.path=value`` texts, as for ``--set``.
        outputs: tables and pictures to write; finished rows in the tables are reused, and after an interruption
            the same call continues.
        fresh: simulate every point again, and replace the outputs.
        executor: executor of the points, ``processes`` or ``serial`` or a plugin's; with options as a mapping,
            ``{"name": ..., ...}``.
        workers: number of points in parallel; one per core by default.
        registry: the plugins; all installed plugins by default. A registry needs an executor in this process.
        progress: called with the number of finished points and of all points.
        values: as for :func:`simulate`.

    Raises:
        PptraceError: invalid input, in one line. Points that fail are rows with an ``error`` instead.

    >>> swept = sweep("step.yaml", over={"pp": [4, 8], "microbatches": [16, 32]})  # doctest: +SKIP
    >>> swept.save("results.csv", "figure.png")  # doctest: +SKIP
    """
    from pptrace.search import sweep as sweeps
    from pptrace.search.grid import axes_of, grid_of, parse_axes

    check_arguments(values, ARGUMENTS)
    paths = [Path(output) for output in outputs]
    sweeps.check_outputs(paths)
    axes = axes_of(over) if isinstance(over, Mapping) else parse_axes(over)
    grid = grid_of(document_of(config), sets, values, axes, gpus)
    swept = sweeps.sweep(
        grid, registry or Registry.load(), executor=executor, workers=workers or 0, outputs=paths, fresh=fresh,
        shares_registry=registry is not None, progress=progress,
    )  # fmt: skip
    swept.save(*paths)
    sweeps.end_journals(paths)
    return swept


@names_arguments
def diff(
    first: str | Path | Run | Measurement,
    second: str | Path | Run | Measurement,
    *,
    tolerance: float | str = 0.02,
    step: str | int = "median",
    layout: str = "",
    replica: str = "",
    rules: str | Path | None = None,
    iteration: int | None = None,
    registry: Registry | None = None,
) -> Diff | OperationsDiff:
    """Compare two steps, simulated or measured, action by action.

    Two traces without actions of a pipeline are compared by kernel, stream and operator.

    Args:
        first: a configuration, a table, a trace, a folder of traces, or a result of :func:`simulate` or importers.
        second: the other step, in the same form.
        tolerance: relative difference that counts as equal, such as 0.02 or ``"2%"``.
        step: the recorded step: its number, ``"median"``, or ``"all"`` for the medians over all steps; ``"1,3"``
            for one step per side.
        layout: sizes of a measured job such as ``"pp=4,tp=2"``, if its traces do not have them.
        replica: the pipeline of the job: ``"dp=0,tp=0"``, ``"slowest"`` or ``"median"``.
        rules: a YAML file of rules that map names to actions.
        iteration: the folder to read of several ``iteration_N``; the last complete one by default.
        registry: the plugins; all installed plugins by default.

    Raises:
        PptraceError: unreadable input, in one line.

    >>> difference = diff("step.yaml", "run/")  # doctest: +SKIP
    >>> difference.same, difference.change  # doctest: +SKIP
    (False, 0.053)
    >>> difference.save("report.html", "both.pftrace")  # doctest: +SKIP
    """
    from pptrace.measured.diff_document import compare_steps
    from pptrace.timeline.measurement import ImportRequest

    path = Path(rules) if rules is not None else None
    request = ImportRequest(layout=layout, replica=replica, rules=path, iteration=iteration)
    return compare_steps(first, second, tolerance, str(step), request, registry or Registry.load())


def _basis(
    config: Config | None, sets: Sequence[str], registry: Registry | None, values: Mapping[str, Any]
) -> Basis:
    from pptrace.search.basis import Basis

    check_arguments(values, [name for name in ARGUMENTS if name != "schedule"])
    return Basis(
        document=document_of(config), sets=tuple(sets), flags=values, registry=registry or Registry.load()
    )


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
