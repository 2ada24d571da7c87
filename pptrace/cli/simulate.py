"""``pptrace simulate``: one training step, from a YAML file, from flags, or both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.cli import complete

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.experiment.run import Run

__all__ = ["command"]

_HELP = {
    "schedule": "A plugin's schedule, FILE.py:FUNCTION, or a table (.csv).",
    "pp": "Pipeline ranks.",
    "tp": "Tensor-parallel size.",
    "dp": "Data-parallel replicas.",
    "cp": "Context-parallel size.",
    "ep": "Expert-parallel size.",
    "vp": "Model chunks per rank.",
    "global": "Sequences in a step, over all replicas.",
    "microbatches": "Microbatches that one pipeline runs.",
    "micro": "Sequences in a microbatch.",
    "sequence": "Tokens in a sequence.",
    "model": "A model preset.",
    "device": "A device preset.",
    "network": "A network model.",
    "cluster": "A cluster preset, such as dgx-h100x32.",
    "contention": "What messages that meet do: none, fifo or max-min.",
    "p2p": "How messages are issued: async, sender-blocking, blocking, ordered or batched.",
    "costs": "A cost model.",
}


_COMPLETED = {
    "schedule": complete.offers("schedules", "py", "csv", "txt"),
    "model": complete.offers("models"),
    "device": complete.offers("devices"),
    "network": complete.offers("networks"),
    "cluster": complete.offers("clusters"),
    "contention": complete.words("none", "fifo", "max-min"),
    "p2p": complete.words("async", "sender-blocking", "blocking", "ordered", "batched"),
    "costs": complete.offers("cost_models"),
}


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(_HELP):
        option = click.option(
            f"--{name}", f"flag_{name}", metavar="VALUE", help=_HELP[name], shell_complete=_COMPLETED.get(name)
        )
        function = option(function)
    return function


_EXAMPLES = """\b
pptrace simulate llama.yaml -o step.pftrace
pptrace simulate --schedule 1f1b --pp 8 --microbatches 32
pptrace simulate llama.yaml --set network.bandwidth='200 Gb/s' --json"""


@click.command("simulate", epilog=_EXAMPLES)
@click.argument("config", nargs=-1, metavar="[CONFIG]", shell_complete=complete.files("yaml", "yml"))
@_flags
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", shell_complete=complete.files(),
    help="Write a trace: .pftrace or .json, with .gz for compressed; {rank} for one file per rank.",
)  # fmt: skip
@click.option(
    "--only", metavar="PART ...", multiple=True, help="Trim traces: ranks=0,7 microbatches=0:32, one or both."
)
@click.option("--color", type=click.Choice(["kind", "microbatch"]), default="kind", help="Colour slices by.")
@click.option("--json", "as_json", is_flag=True, help="Print everything measured as JSON.")
@click.option("--explain", is_flag=True, help="Print every resolved value and where it came from.")
def command(
    config: tuple[str, ...],
    sets: tuple[str, ...],
    outputs: tuple[str, ...],
    only: tuple[str, ...],
    color: str,
    *,
    as_json: bool,
    explain: bool,
    **flags: str | None,
) -> None:
    """Simulate one training step of CONFIG, a YAML file, with flags over it."""
    from pptrace.config.overrides import FLAGS
    from pptrace.config.resolve import load
    from pptrace.experiment.run import simulate
    from pptrace.hooks.registry import Registry

    # A second part behind --only arrives as an argument: --only ranks=0,7 microbatches=0:32.
    parts = tuple(word for word in config if only and word.startswith(("ranks=", "microbatches=")))
    files = [Path(word) for word in config if word not in parts]
    if len(files) > 1:
        raise click.UsageError(f"one configuration at a time, not {files[0]} and {files[1]}")
    if files and files[0].suffix.lower() in {".csv", ".txt"}:
        raise click.UsageError(f"{files[0]} is a schedule table: write --schedule {files[0]}")
    if files and not files[0].exists() and files[0].suffix.lower() not in {".yaml", ".yml"}:
        raise click.UsageError(f"{files[0]}: no such file; if it is a schedule, write --schedule {files[0]}")
    only = tuple(part for text in (*only, *parts) for part in text.split())
    given = {name.removeprefix("flag_"): value for name, value in flags.items()}
    resolved = load(files[0] if files else None, sets, {name: given.get(name) for name in FLAGS if name in given})
    registry = Registry.load()
    if only and not outputs:
        raise click.UsageError("--only trims a trace: name one with -o")
    run = simulate(resolved, registry)
    paths = run.save(*outputs, only=only, color=color) if outputs else []
    _print(run, paths, as_json=as_json, explain=explain)
    for path in paths:
        trimmed = f" ({', '.join(only)} only)" if only else ""
        sys.stderr.write(f"wrote {path}{trimmed}\n")


def _print(run: Run, written: list[Path], *, as_json: bool, explain: bool) -> None:
    if as_json:
        document = run.to_dict()
        if explain:
            document["explain"] = [
                {"key": key, "value": value, "origin": origin}
                for key, value, origin in run.prepared.resolved.explain()
            ]
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    if explain:
        rows = [(key, str(value), origin) for key, value, origin in run.prepared.resolved.explain()]
        width = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        for key, value, origin in rows:
            click.echo(f"{key:<{width[0]}}  {value:<{min(width[1], 40)}}  {origin}")
        click.echo("")
    click.echo(run.summary(written))
