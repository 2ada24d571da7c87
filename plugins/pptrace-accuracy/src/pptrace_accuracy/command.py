"""``pptrace accuracy``: errors of simulated steps against a table of measured steps, with text and chart."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct, to_builtins

from pptrace.config.overrides import parse_value
from pptrace.files import write_csv
from pptrace.plugin import (
    ConfigError,
    Document,
    OutputError,
    PptraceError,
    Registry,
    Section,
    Table,
    write_picture,
)
from pptrace.report.charts import check_picture
from pptrace_accuracy.records import build_cases, read_rows, read_rules, run_cases, unread_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pptrace_accuracy.records import Case

    _Row = dict[str, Any]
    _Group = list[tuple[Case, _Row]]
    _Pair = tuple[float, float]  # measured and simulated ratio of two steps

_COMPARABLE = ("source", "series", "model", "layers", "hidden", "gpu", "n_gpus", "precision", "gbs", "seq")
"""Columns with equal values in comparable configurations, which are alternatives for the same job."""


class Errors(Struct, frozen=True, kw_only=True):
    """Errors of a group of rows, in percent of the measured value."""

    name: str
    """The group."""
    rows: int
    """Simulated rows."""
    skipped: int
    """Rows that were not simulated."""
    mean_absolute: float
    """Mean of the absolute errors."""
    mean: float
    """Mean error; negative if the simulated value is smaller."""
    least: float
    """The minimum."""
    most: float
    """The maximum."""
    default: float | None = None
    """Mean of the absolute errors with default settings; None for memory, or if no row was simulated."""


class Series(Struct, frozen=True, kw_only=True):
    """Steps that differ only in the microbatch."""

    name: str
    """Source and sizes."""
    measured: tuple[tuple[int, float], ...]
    """Microbatch and measured step in seconds."""
    best: int
    """The microbatch with the shortest measured step."""
    chosen: int
    """The microbatch with the shortest simulated step."""
    regret: float
    """The measured step of the chosen microbatch over that of the best, in percent."""


class Scale(Struct, frozen=True, kw_only=True):
    """Steps with the same work per device on different numbers of devices."""

    name: str
    """Source, model and precision."""
    devices: tuple[int, int]
    """Minimum and maximum number of devices."""
    measured: float
    """The measured step on the most devices over that on the fewest, in percent."""
    simulated: float
    """The ratio of the simulated steps, in percent."""


class PairErrors(Struct, frozen=True, kw_only=True):
    """Errors of the ratio of two simulated steps, whose configurations are alternatives for the same job."""

    sizes: str
    """Whether the parallel sizes of both configurations are ``equal`` or ``different``."""
    pairs: int
    """All pairs."""
    typical: float
    """Percentage that two of three errors do not exceed."""
    root_mean_square: float
    """Root mean square of the errors in percent."""
    close: tuple[int, int]
    """Pairs in the measured order, and all pairs, whose simulated steps differ by at most the typical error."""
    distant: tuple[int, int]
    """The same of pairs whose simulated steps differ by more."""


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of a table of measured steps."""

    sources: tuple[Errors, ...]
    """By source, in the order of the file."""
    groups: tuple[Errors, ...]
    """Of all rows, and by kind of model and precision."""
    series: tuple[Series, ...]
    """Choices of a microbatch."""
    scales: tuple[Scale, ...]
    """Slowdown by scale."""
    memory: tuple[Errors, ...]
    """Errors of the fullest rank's peak memory, by source with published memory."""
    pairs: tuple[PairErrors, ...]
    """Errors of ratios, of pairs with equal and with different parallel sizes."""


def compute_figures(cases: Sequence[Case], rows: Sequence[_Row]) -> Figures:
    """Return the figures of cases and their rows from :func:`~pptrace_accuracy.records.run_cases`."""
    simulated = [(case, row) for case, row in zip(cases, rows, strict=True) if row["error_pct"] is not None]
    sources = dict.fromkeys(str(row["source"]) for row in rows)
    kinds = sorted({(str(row["kind"]), str(row["precision"])) for _, row in simulated})
    groups = [("all", rows), ("dense", [row for row in rows if row["kind"] == "dense"])]
    groups += [("mixture of experts", [row for row in rows if row["kind"] == "moe"])]
    groups += [
        (f"{kind}, {precision}", [row for row in rows if (row["kind"], row["precision"]) == (kind, precision)])
        for kind, precision in kinds
    ]
    return Figures(
        sources=tuple(_errors(name, [row for row in rows if row["source"] == name]) for name in sources),
        groups=tuple(_errors(name, group) for name, group in groups if group),
        series=_series(simulated),
        scales=_scales(simulated),
        memory=_memory(rows, sources),
        pairs=_pair_errors(simulated),
    )


def _memory(rows: Sequence[_Row], sources: Iterable[str]) -> tuple[Errors, ...]:
    printed = [row for row in rows if row["memory_error_pct"] is not None]
    by_source = [(name, [row for row in printed if row["source"] == name]) for name in sources]
    return tuple(_errors(name, group, "memory_error_pct") for name, group in by_source if group)


def _errors(name: str, rows: Sequence[_Row], column: str = "error_pct") -> Errors:
    errors = [float(row[column]) for row in rows if row[column] is not None]
    defaults = [abs(float(row["default_error_pct"])) for row in rows if row["default_error_pct"] is not None]
    count = max(len(errors), 1)
    return Errors(
        name=name, rows=len(errors), skipped=sum(bool(row["skipped"]) for row in rows),
        mean_absolute=sum(map(abs, errors)) / count, mean=sum(errors) / count,
        least=min(errors, default=0.0), most=max(errors, default=0.0),
        default=sum(defaults) / len(defaults) if defaults and column == "error_pct" else None,
    )  # fmt: skip


def _groups_by_settings(simulated: Iterable[tuple[Case, _Row]], *varied: str) -> list[_Group]:
    """Return groups of rows of a source whose configurations differ only in the varied keys."""
    groups: dict[str, _Group] = defaultdict(list)
    for case, row in simulated:
        settings = {key: dict(value) if isinstance(value, dict) else value for key, value in case.settings.items()}
        for path in varied:
            section, _, key = path.partition(".")
            if isinstance(settings.get(section), dict):
                settings[section].pop(key, None)
        identity = json.dumps([case.row["source"], case.row.get("series", ""), settings], sort_keys=True)
        groups[identity].append((case, row))
    return list(groups.values())


def _measured_s(case: Case, row: Mapping[str, Any]) -> float:
    return float(case.measured_s or row["measured_s"])


def _series(simulated: Iterable[tuple[Case, _Row]]) -> tuple[Series, ...]:
    series = []
    for group in _groups_by_settings(simulated, "batch.micro"):
        measured: dict[int, float] = {}
        predicted: dict[int, float] = {}
        for case, row in group:
            micro = int(case.settings["batch"]["micro"])
            step_s = _measured_s(case, row)
            measured[micro] = min(step_s, measured.get(micro, step_s))
            predicted[micro] = float(row["simulated_s"])
        if len(measured) > 1:
            best, chosen = min(measured, key=measured.__getitem__), min(predicted, key=predicted.__getitem__)
            first = group[0][0].row
            sizes = " ".join(f"{axis}{first[axis]}" for axis in ("tp", "pp") if first.get(axis))
            series.append(
                Series(
                    name=f"{first['source']}: {first['model']}, {sizes}", measured=tuple(sorted(measured.items())),
                    best=best, chosen=chosen, regret=100 * (measured[chosen] / measured[best] - 1),
                )
            )  # fmt: skip
    return tuple(series)


def _scales(simulated: Iterable[tuple[Case, _Row]]) -> tuple[Scale, ...]:
    groups: dict[tuple[int, float], _Group] = defaultdict(list)
    for number, group in enumerate(_groups_by_settings(simulated, "parallel.dp", "batch.global")):
        for case, row in group:
            per_replica = case.settings["batch"]["global"] / case.settings["parallel"]["dp"]
            groups[number, per_replica].append((case, row))
    scales = []
    for group in groups.values():
        by_devices = sorted(group, key=lambda member: _devices(member[0]))
        fewest, most = by_devices[0], by_devices[-1]
        devices = _devices(fewest[0]), _devices(most[0])
        if devices[0] < devices[1]:
            first = fewest[0].row
            scales.append(
                Scale(
                    name=f"{first['source']}: {first['model']}, {first['precision']}", devices=devices,
                    measured=100 * (_measured_s(*most) / _measured_s(*fewest) - 1),
                    simulated=100 * (float(most[1]["simulated_s"]) / float(fewest[1]["simulated_s"]) - 1),
                )
            )  # fmt: skip
    return tuple(scales)


def _devices(case: Case) -> int:
    return int(float(case.row["n_gpus"]))


def _pair_errors(simulated: Iterable[tuple[Case, _Row]]) -> tuple[PairErrors, ...]:
    """Return the errors of all pairs of alternatives; steps of equal configurations are repeated measurements."""
    groups: dict[tuple[str, ...], _Group] = defaultdict(list)
    for case, row in simulated:
        heads = str(case.settings.get("model", {}).get("heads", ""))
        groups[*(case.row.get(name, "") for name in _COMPARABLE), heads].append((case, row))
    pairs: dict[bool, list[_Pair]] = {True: [], False: []}
    for group in groups.values():
        for first, second in combinations(group, 2):
            if first[0].settings != second[0].settings:
                ratios = (
                    _measured_s(*first) / _measured_s(*second),
                    float(first[1]["simulated_s"]) / float(second[1]["simulated_s"]),
                )
                pairs[_sizes(first[0]) == _sizes(second[0])].append(ratios)
    return tuple(
        _pair_errors_of("equal" if is_equal else "different", ratios)
        for is_equal, ratios in pairs.items()
        if ratios
    )


def _sizes(case: Case) -> list[int]:
    return [int(case.settings["parallel"].get(name) or 1) for name in ("tp", "pp", "cp", "ep", "dp")]


def _pair_errors_of(sizes: str, pairs: Sequence[_Pair]) -> PairErrors:
    errors = sorted(abs(math.log(simulated / measured)) for measured, simulated in pairs)
    typical = errors[math.ceil(2 * len(errors) / 3) - 1]

    def count(group: Sequence[_Pair]) -> tuple[int, int]:
        return sum((measured < 1) == (simulated < 1) for measured, simulated in group), len(group)

    close: list[_Pair] = []
    distant: list[_Pair] = []
    for pair in pairs:
        (close if abs(math.log(pair[1])) <= typical else distant).append(pair)
    return PairErrors(
        sizes=sizes, pairs=len(pairs), typical=100 * typical,
        root_mean_square=100 * math.sqrt(sum(error**2 for error in errors) / len(errors)),
        close=count(close), distant=count(distant),
    )  # fmt: skip


def accuracy_document(figures: Figures, rows: Sequence[_Row]) -> Document:
    """Return tables of errors, choices and slowdowns, and of rows that do not fit, have a note or are skipped."""
    reasons = Counter((str(row["source"]), str(row["skipped"])) for row in rows if row["skipped"])
    excess = Counter(
        str(row["source"]) for row in rows if (row["memory_gib"] or 0) > (row["device_gib"] or math.inf)
    )
    notes = Counter(str(row["note"]) for row in rows if row["note"])
    tables = {
        "error in % of the measured step; negative: simulated is shorter":
            _error_table((*figures.sources, *figures.groups)),
        "peak memory, error in % of the printed one": _error_table(figures.memory),
        "best microbatch": Table(
            head=("series", "measured s by microbatch", "best", "chosen", "regret"),
            rows=tuple(
                (series.name, ", ".join(f"{micro}: {step_s:.1f}" for micro, step_s in series.measured),
                 str(series.best), str(series.chosen), f"{series.regret:+.1f}%")
                for series in figures.series
            ),
        ),
        "slowdown by scale": Table(
            head=("series", "devices", "measured", "simulated"),
            rows=tuple(
                (scale.name, f"{scale.devices[0]} to {scale.devices[1]}", f"{scale.measured:+.1f}%",
                 f"{scale.simulated:+.1f}%")
                for scale in figures.scales
            ),
        ),
        "error of the ratio of two simulated steps, in %": Table(
            head=("parallel sizes", "pairs", "two of three within", "root mean square",
                  "closer pairs in measured order", "other pairs"),
            rows=tuple(
                (errors.sizes, str(errors.pairs), f"{errors.typical:.1f}", f"{errors.root_mean_square:.1f}",
                 "{} of {}".format(*errors.close), "{} of {}".format(*errors.distant))
                for errors in figures.pairs
            ),
        ),
        f"simulated memory above the device's, {excess.total()} rows: check zero and recompute": Table(
            rows=tuple((str(count), source) for source, count in excess.items()), words=0, left=(1,),
        ),
        f"another release of the stack, {notes.total()} rows": Table(
            rows=tuple((str(count), note) for note, count in notes.items()), words=0, left=(1,),
        ),
        f"skipped, {reasons.total()} rows": Table(
            rows=tuple((str(count), f"{source}: {reason}") for (source, reason), count in reasons.items()),
            words=0, left=(1,),
        ),
    }  # fmt: skip
    sections = (Section(title=title, blocks=(table,)) for title, table in tables.items() if table.rows)
    return Document(title="accuracy", lead=(), sections=tuple(sections))


def _error_table(errors: Iterable[Errors]) -> Table:
    head = ("source", "rows", "skipped", "mean absolute", "mean", "least", "most", "default settings")
    errors = tuple(errors)
    columns = len(head) - all(group.default is None for group in errors)
    return Table(head=head[:columns], rows=tuple(_cells(group)[:columns] for group in errors))


def _cells(errors: Errors) -> tuple[str, ...]:
    if not errors.rows:
        return errors.name, "0", str(errors.skipped), "-", "-", "-", "-", "-"
    default = "-" if errors.default is None else f"{errors.default:.1f}"
    signed = [f"{error:+.1f}" for error in (errors.mean, errors.least, errors.most)]
    return errors.name, str(errors.rows), str(errors.skipped), f"{errors.mean_absolute:.1f}", *signed, default


_SIZE = (7.0, 6.0)
_MARKERS = "osD^vP*X"
_LINES = "#8c959f"


def save_scatter(rows: Sequence[_Row], path: Path) -> None:
    """Write a scatter of measured and simulated steps, with lines of 5 % error.

    Raises:
        OutputError: the suffix is not that of a picture, or the file cannot be written.
        PptraceError: no row was simulated.
    """
    simulated = [row for row in rows if row["error_pct"] is not None]
    if not simulated:
        raise PptraceError(f"{path}: no row was simulated, so there is nothing to draw")
    write_picture(path, _SIZE, lambda figure: _draw(figure, simulated))


def _draw(figure: Any, rows: Sequence[_Row]) -> None:
    axes = figure.add_subplot()
    steps_s = [float(row[name]) for row in rows for name in ("measured_s", "simulated_s")]
    limits = [min(steps_s) * 0.8, max(steps_s) * 1.25]
    axes.plot(limits, limits, color=_LINES, linewidth=1)
    for factor in (0.95, 1.05):
        axes.plot(limits, [factor * limit for limit in limits], color=_LINES, linewidth=0.6, linestyle="--")
    for number, source in enumerate(dict.fromkeys(str(row["source"]) for row in rows)):
        group = [row for row in rows if row["source"] == source]
        axes.plot(
            [float(row["measured_s"]) for row in group], [float(row["simulated_s"]) for row in group],
            linestyle="none", marker=_MARKERS[number // 8 % len(_MARKERS)], markersize=5, color=f"C{number % 8}",
            alpha=0.8, label=source,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel="measured step (s)",
        ylabel="simulated step (s)",
    )  # fmt: skip
    axes.legend(fontsize=7, loc="upper left")


_EXAMPLES = """\b
pptrace accuracy steps.csv
pptrace accuracy steps.csv -o errors.csv -o scatter.svg
pptrace accuracy mine.csv --rules mine.yaml --set costs.gradients=bf16 --json
"""
_PICTURES = (".png", ".svg", ".pdf")
_REDRAW_S = 0.1


def _complete_executor(
    _context: click.Context, _parameter: click.Parameter, start: str
) -> list[CompletionItem[str]]:
    executors = Registry.load(warn=lambda _: None).executors
    names = [name for name in sorted(executors) if name.startswith(start)]
    return [CompletionItem(name, help=executors[name].offer.summary) for name in names]


@click.command("accuracy", epilog=_EXAMPLES)
@click.argument("steps", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="STEPS")
@click.option(
    "--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Rules for values that rows do not have; by default those of known published sources.",
)  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of every row's configuration.")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Write the rows (.csv) or a scatter (.png, .svg, .pdf); may be repeated.",
)  # fmt: skip
@click.option(
    "--executor", default="processes", show_default=True, metavar="NAME[:KEY=VALUE]",
    shell_complete=_complete_executor, help="Executor of the simulations.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Parallel simulations; one per core.")
@click.option("--fresh", is_flag=True, help="Simulate every row again, also those of an interrupted run.")
@click.option("--json", "as_json", is_flag=True, help="Print figures and rows as JSON.")
def command(
    steps: Path,
    rules: Path | None,
    sets: tuple[str, ...],
    outputs: tuple[Path, ...],
    executor: str,
    workers: int | None,
    *,
    fresh: bool,
    as_json: bool,
) -> int:
    """Simulate the measured steps in STEPS, and print the error of each simulation.

    Each row is a step. Columns of the step are source, model, gpu, n_gpus, precision, mbs, gbs, seq, recompute,
    zero and schedule. Columns of the layout are tp, pp, cp, ep, etp, vp and dp. The measured value is
    step_s, tok_s_gpu or tflops_gpu. A column with the name of a configuration key, such as stack or
    model.heads, sets it. Exits with 1 if no row could be simulated.
    """
    _check_outputs(outputs)
    measured, completing = read_rows(steps), read_rules(rules)
    unread = unread_columns(measured[0][1], completing)
    if unread:
        click.echo(f"note: columns without effect: {', '.join(unread)}", err=True)
    cases = build_cases(measured, completing, _overrides(sets))
    tables = [path for path in outputs if path.suffix.lower() == ".csv"]
    with _progress() as progress:
        rows = run_cases(
            cases, executor=executor, workers=workers or 0, journal=_journal(tables[0]) if tables else None,
            fresh=fresh, progress=progress,
        )  # fmt: skip
    figures = compute_figures(cases, rows)
    if as_json:
        click.echo(json.dumps({**to_builtins(figures), "rows": rows}, indent=2, ensure_ascii=False))
    else:
        click.echo(accuracy_document(figures, rows))
    _save(rows, outputs)
    return 0 if any(row["error_pct"] is not None for row in rows) else 1


def _overrides(sets: Sequence[str]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"write --set KEY=VALUE, not {text!r}", key="--set")
        overrides[key.strip()] = parse_value(value, f"--set {text}")
    return overrides


def _check_outputs(outputs: Sequence[Path]) -> None:
    for path in outputs:
        if path.suffix.lower() in _PICTURES:
            check_picture(path)
        elif path.suffix.lower() != ".csv":
            raise OutputError(
                f"no such format; write .csv for rows, {', '.join(_PICTURES)} for a scatter", file=path
            )


def _journal(table: Path) -> Path:
    return Path(f"{table}.journal")


def _save(rows: Sequence[dict[str, Any]], outputs: Sequence[Path]) -> None:
    for path in outputs:
        if path.suffix.lower() == ".csv":
            write_csv(path, rows)
            _journal(path).unlink(missing_ok=True)
        else:
            save_scatter(rows, path)
        sys.stderr.write(f"wrote {path}\n")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows the number of finished rows; None if the standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    drawn_s = 0.0

    def show(finished: int, total: int) -> None:
        nonlocal drawn_s
        if time.monotonic() - drawn_s > _REDRAW_S or finished == total:
            drawn_s = time.monotonic()
            sys.stderr.write(f"\r{finished} of {total} rows" + ("\n" if finished == total else ""))
            sys.stderr.flush()

    yield show
