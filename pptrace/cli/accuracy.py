"""``pptrace accuracy``: measured steps beside simulated ones."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import completers
from pptrace.sanitize import csv_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.run.figures import Row

__all__ = ["command"]

_EXAMPLES = """\b
pptrace accuracy steps.csv
pptrace accuracy steps.csv -o errors.csv -o scatter.svg
pptrace accuracy mine.csv --rules mine.yaml --set costs.gradients=bf16 --json
"""
_PICTURES = (".png", ".svg", ".pdf")
_REDRAW_S = 0.1


@click.command("accuracy", epilog=_EXAMPLES)
@click.argument("steps", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="STEPS")
@click.option(
    "--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    shell_complete=completers.files,
    help="What the rows leave unsaid; that of known published sources by default.",
)  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of every row's configuration.")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    shell_complete=completers.files,
    help="Write the rows (.csv) or a scatter (.png, .svg, .pdf); may be repeated.",
)  # fmt: skip
@click.option(
    "--executor", default="processes", show_default=True, metavar="NAME[:KEY=VALUE]",
    shell_complete=completers.offers("executors"), help="What the rows run on.",
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
    """Simulate the measured steps in STEPS, and say how far the simulation is off.

    Each row is a step: source, model, gpu, n_gpus, precision, tp, pp, cp, ep, vp, dp, mbs, gbs, seq, recompute,
    zero, schedule, and step_s, tok_s_gpu or tflops_gpu. A column called as a configuration key is, such as
    model.heads, sets that key.
    Exits with 1 where no row could be simulated.
    """
    from pptrace.search.accuracy.figures import accuracy_text, figures_dict, figures_of
    from pptrace.search.accuracy.records import cases_of, read_rows, read_rules
    from pptrace.search.accuracy.runner import run_cases

    _check(outputs)
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    cases = cases_of(read_rows(steps), read_rules(rules), _over(sets))
    tables = [path for path in outputs if path.suffix.lower() == ".csv"]
    with _progress() as progress:
        rows = run_cases(
            cases, executor=executor, workers=workers or 0, output=tables[0] if tables else None, fresh=fresh,
            progress=progress,
        )  # fmt: skip
    figures = figures_of(cases, rows)
    if as_json:
        click.echo(json.dumps({**figures_dict(figures), "rows": rows}, indent=2, ensure_ascii=False))
    elif as_csv:
        click.echo(csv_of(rows), nl=False)
    else:
        click.echo(accuracy_text(figures, rows))
    _save(rows, outputs)
    return 0 if any(row["error_pct"] is not None for row in rows) else 1


def _over(sets: Sequence[str]) -> dict[str, object]:
    from pptrace.config.yaml_document import parse_value
    from pptrace.errors import ConfigError

    over: dict[str, object] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"write --set KEY=VALUE, not {text!r}", key="--set")
        over[key.strip()] = parse_value(value, f"--set {text}")
    return over


def _check(outputs: Sequence[Path]) -> None:
    from pptrace.errors import OutputError
    from pptrace.report.charts import check_picture

    for path in outputs:
        if path.suffix.lower() in _PICTURES:
            check_picture(path)
        elif path.suffix.lower() != ".csv":
            raise OutputError(
                f"no such format; write .csv for rows, {', '.join(_PICTURES)} for a scatter", file=path
            )


def _save(rows: Sequence[Row], outputs: Sequence[Path]) -> None:
    from pptrace.files import replace_file
    from pptrace.search.accuracy.figures import save_scatter
    from pptrace.search.execution import journal_path

    for path in outputs:
        if path.suffix.lower() == ".csv":
            with replace_file(path) as temporary:
                temporary.write_text(csv_of(rows), encoding="utf-8")
            journal_path(path).unlink(missing_ok=True)
        else:
            save_scatter(rows, path)
        sys.stderr.write(f"wrote {path}\n")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Say on a terminal how many rows are finished; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    told_s = 0.0

    def show(done: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _REDRAW_S or done == total:
            told_s = time.monotonic()
            sys.stderr.write(f"\r{done} of {total} rows" + ("\n" if done == total else ""))
            sys.stderr.flush()

    yield show
