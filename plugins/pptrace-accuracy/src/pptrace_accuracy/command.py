"""``pptrace accuracy``: errors of simulated steps against a table of measured steps."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from pptrace.plugin import ConfigError, OutputError, Registry, check_picture, csv_of, parse_value, replace_file
from pptrace_accuracy.figures import accuracy_document, compute_figures, save_scatter
from pptrace_accuracy.records import build_cases, read_rows, read_rules, run_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

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
    help="Values that the rows lack; by default those of known published sources.",
)  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of every row's configuration.")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Write the rows (.csv) or a scatter (.png, .svg, .pdf); may be repeated.",
)  # fmt: skip
@click.option(
    "--executor", default="processes", show_default=True, metavar="NAME[:KEY=VALUE]",
    shell_complete=_complete_executor, help="Platform of the rows.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Rows that run at once; one per core.")
@click.option("--fresh", is_flag=True, help="Simulate every row anew, also those that an interrupted run kept.")
@click.option("--json", "as_json", is_flag=True, help="Print figures and rows as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
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
    as_csv: bool,
) -> int:
    """Simulate the measured steps in STEPS, and print the error of each simulation.

    Each row is a step: source, model, gpu, n_gpus, precision, tp, pp, cp, ep, vp, dp, mbs, gbs, seq, recompute,
    zero, schedule, and step_s, tok_s_gpu or tflops_gpu. A column called as a configuration key is, such as
    model.heads, sets that key.
    Exits with 1 where no row could be simulated.
    """
    _check_outputs(outputs)
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    cases = build_cases(read_rows(steps), read_rules(rules), _overrides(sets))
    tables = [path for path in outputs if path.suffix.lower() == ".csv"]
    with _progress() as progress:
        rows = run_cases(
            cases, executor=executor, workers=workers or 0, journal=_journal(tables[0]) if tables else None,
            fresh=fresh, progress=progress,
        )  # fmt: skip
    figures = compute_figures(cases, rows)
    if as_json:
        click.echo(json.dumps({**asdict(figures), "rows": rows}, indent=2, ensure_ascii=False))
    elif as_csv:
        click.echo(csv_of(rows), nl=False)
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
            with replace_file(path) as temporary:
                temporary.write_text(csv_of(rows), encoding="utf-8")
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
