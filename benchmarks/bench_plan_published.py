"""Where plans rank the configurations that authors published as the best for a model on so many GPUs.

    python benchmarks/bench_plan_published.py steps.csv [--source 'Kwai ATC24 Fig. 9'] [--rows 1,5,9]

Each row of ``steps.csv`` (the columns of ``pptrace accuracy``) is one author's choice. The model, the machine and
the recomputation are its own; how GPUs and model are divided is planned, out of what the authors chose from:
stages of whole layers, all alike, and interleaved schedules whose ranks divide the microbatches, as their programs
ask for. Only the choice was measured, so what is told is its place in the simulated order of divisions, and by how
much its simulated tokens per second are behind the first's.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.given import given_document
from pptrace.errors import PptraceError
from pptrace.hooks.registry import Registry
from pptrace.study.accuracy.rows import cases_of, read_rows
from pptrace.study.accuracy.rules import read_rules
from pptrace.study.plan.question import Question
from pptrace.study.plan.run import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.study.accuracy.rows import Case
    from pptrace.study.plan.candidate import Candidate

Division = tuple[int, ...]
"""pp, vp, tp, cp and the sequences in a microbatch."""

NEAR = 3
"""Places that count as found."""
FIRST = 20
"""Places that each plan is asked for, at most five shares of each division: the first three are among them."""
LEAST_COPIED = 3
"""Pipeline ranks from which Kwai's program copies activations to the host (megatron/arguments.py)."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the authors of a source chose from."""

    tp: tuple[int, ...] = (1, 2, 4, 8)
    cp: tuple[int, ...] = (1,)
    most_pp: int = 64
    most_vp: int = 12
    """1 where their program does not interleave."""
    uneven: bool = False
    """Whether stages may differ by a layer."""
    micro: tuple[int, ...] = ()
    """Sequences in a microbatch; the row's own unless given."""
    zero: tuple[int, ...] = ()
    """As the row has it unless given."""
    shares: tuple[float, ...] = ()
    """Shares of activations that are copied to the host, where the division does not fit without."""
    sequences: tuple[int, int] | None = None
    """The least and the most in a step: the largest multiple of dp x pp that lies between; those of the row unless
    given."""
    again: tuple[str, ...] | None = None
    """Modules that may be computed again; as the row has it unless given."""


SOURCES = {
    "Kwai*": Choices(
        cp=(1, 2, 4),
        most_pp=32,
        shares=(0, 0.25, 0.5, 0.75, 1),
        sequences=(240, 272),
        again=("layernorm", "mlp_act"),
    ),
    "Megatron SC21*": Choices(micro=(1, 2, 4, 8)),
    "Reducing activation*": Choices(micro=(1, 2, 4, 8)),
    "nanotron*": Choices(tp=(1, 2, 4, 8, 16, 32), most_vp=1, uneven=True, micro=(1, 2, 4, 8, 16, 32), zero=(0, 1)),
}
"""By source: each of Kwai's 41 steps has the largest multiple of dp x pp from 240 to 272, and nanotron's are those
of ``scripts/scaling_benchmarks.py``."""


def division(one: Candidate) -> Division:
    """Return how a configuration divides the model and the GPUs."""
    return (one.layout.pp, one.chunks, one.layout.tp, one.layout.cp, one.layout.micro)


def plans(case: Case, choices: Choices) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Yield the sequences in a step and what varies, for each number of pipeline ranks and replicas."""
    gpus, layers = int(case.row["n_gpus"]), int(case.row["layers"])
    batch = case.settings["batch"]
    vary: dict[str, list[Any]] = {"layers": ["even"]}
    vary["micro"] = list(choices.micro or (batch["micro"],))
    vary["zero"] = list(choices.zero or (case.settings.get("costs", {}).get("zero", 0),))
    for pp in (size for size in divisors(gpus) if size <= min(choices.most_pp, layers)):
        if layers % pp and not choices.uneven:
            continue
        chunks = [size for size in divisors(layers // pp) if 1 < size <= choices.most_vp] if pp > 1 else []
        for dp in divisors(gpus // pp):
            inner = {
                (tp, cp) for tp in choices.tp for cp in choices.cp
                if tp * cp * dp * pp == gpus and int(case.settings["model"].get("heads", tp)) % tp == 0
            }  # fmt: skip
            each = dp * pp
            least, most = choices.sequences or (batch["global"], batch["global"])
            sequences = most // each * each if choices.sequences else most
            if not inner or sequences < least or sequences % dp:
                continue
            sizes = {
                "pp": [pp],
                "dp": [dp],
                "tp": sorted({t for t, _ in inner}),
                "cp": sorted({c for _, c in inner}),
            }
            copied = {"offload": list(choices.shares)} if choices.shares and pp >= LEAST_COPIED else {}
            yield sequences, {**vary, **sizes, **copied, "vp": [1], "schedule": ["1f1b"]}
            if chunks and sequences % each == 0:
                yield sequences, {**vary, **sizes, **copied, "vp": chunks, "schedule": ["interleaved-1f1b"]}


def models(case: Case, choices: Choices) -> list[dict[str, Any]]:
    """Return the case's settings, with and without what may be computed again where authors chose that, too."""
    if choices.again is None:
        return [dict(case.settings)]
    plain = {**case.settings["model"], "recompute": "none", "recompute_modules": []}
    again = {**plain, "recompute": "selective", "recompute_modules": list(choices.again)}
    return [{**case.settings, "model": model} for model in (plain, again)]


def divisors(count: int) -> list[int]:
    """Return all divisors of a number."""
    return [size for size in range(1, count + 1) if count % size == 0]


def ranked(case: Case, choices: Choices, registry: Registry) -> tuple[list[tuple[Division, float]], int]:
    """Return divisions in their simulated order, each with its tokens per second, and how many were considered."""
    best: dict[Division, float] = {}
    considered = 0
    for (sequences, sizes), own in product(plans(case, choices), models(case, choices)):
        settings = {**own, "batch": {**case.settings["batch"], "global": sequences}}
        question = Question(gpus=int(case.row["n_gpus"]), top=FIRST)
        vary = {**sizes, "recompute": [own["model"].get("recompute", "none")]}
        try:
            found = answer(given_document(settings), question, registry, flags={}, vary=vary, robust=False)
        except PptraceError:
            continue
        considered += sum(found.counts().values()) // 2
        for one in found.ranked:
            rate = sequences * case.settings["batch"]["sequence"] * 1e9 / one.row["step_ns"]
            best[division(one)] = max(rate, best.get(division(one), 0))
    return sorted(best.items(), key=lambda item: -item[1]), considered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--source", default="Kwai ATC24 Fig. 9")
    parser.add_argument("--rows", help="only these of the source, counted from 1")
    options = parser.parse_args()
    registry = Registry.load()
    rows = [(line, row) for line, row in read_rows(options.steps) if fnmatchcase(row["source"], options.source)]
    cases = cases_of([(line, {**row, "step_s": "1"}) for line, row in rows], read_rules())
    chosen = [int(text) for text in options.rows.split(",")] if options.rows else range(1, len(cases) + 1)
    among = 0
    for case in (cases[at - 1] for at in chosen):
        head = f"{case.row['model']} on {case.row['n_gpus']} GPUs"
        choices = next((one for name, one in SOURCES.items() if fnmatchcase(case.row["source"], name)), Choices())
        if case.skipped:
            print(f"{head}: {case.skipped}", flush=True)
            continue
        start, parallel = time.process_time(), case.settings["parallel"]
        theirs = (*(parallel.get(name) or 1 for name in ("pp", "vp", "tp", "cp")), case.settings["batch"]["micro"])
        order, considered = ranked(case, choices, registry)
        rate = dict(order).get(theirs)
        place = sum(other > rate for _, other in order) if rate else -1
        among += 0 <= place < NEAR
        told = f"does not fit, or behind the first {FIRST} of its pp and dp"
        if rate:
            told = f"place {place + 1} of {len(order)}, {rate / order[0][1] - 1:+.1%}"
        sizes = " ".join(f"{n} {s}" for n, s in zip(("pp", "vp", "tp", "cp", "micro"), theirs, strict=True))
        spent = f"{considered:,} considered, {time.process_time() - start:.0f} s"
        print(f"{head}: {sizes}: {told}; first {order[0][0] if order else 'none'}; {spent}", flush=True)
    print(f"among the first {NEAR}: {among} of {len(chosen)}")


if __name__ == "__main__":
    main()
