"""Where plans rank the configurations that authors published as the best for a model on so many GPUs.

    python benchmarks/bench_plan_published.py steps.csv [--source 'Kwai ATC24 Fig. 9'] [--rows 1,5,9] [--top 10]

Each row of ``steps.csv`` (the columns of ``pptrace accuracy``) is one author's choice. The model, the machine, the
batch and the recomputation are its own; pp, tp, cp, chunks and the share of activations that is copied to the host
are planned. Only the choice was measured, so what is told is its place in the simulated order of divisions, and by
how much its simulated step is behind the first's.
"""

from __future__ import annotations

import argparse
import time
from fnmatch import fnmatchcase
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
    from pptrace.study.accuracy.rows import Case
    from pptrace.study.plan.candidate import Candidate

SHARES = (0, 0.25, 0.5, 0.75, 1)
"""Shares of activations that are copied to the host, where the division does not fit without."""

NEAR = 3
"""Places that count as found."""


def division(one: Candidate) -> tuple[int, ...]:
    """Return how a configuration divides the model and the GPUs."""
    return (one.layout.pp, one.chunks, one.layout.tp, one.layout.cp)


def ranked(case: Case, registry: Registry, top: int) -> tuple[list[tuple[tuple[int, ...], float]], int]:
    """Return divisions in their simulated order, each with its best step behind the first, and how many ran."""
    settings = {**case.settings, "parallel": dict(case.settings["parallel"])}
    vary: dict[str, Any] = {"cp": [1, 2, 4], "micro": [settings["batch"]["micro"]], "layers": ["even"]}
    vary |= {"schedule": ["1f1b", "interleaved-1f1b"], "zero": [1], "vp": list(range(1, 13)), "offload": SHARES}
    vary["recompute"] = [settings.get("model", {}).get("recompute", "none")]
    question = Question(gpus=int(case.row["n_gpus"]), top=top)
    found = answer(given_document(settings), question, registry, flags={}, vary=vary, robust=False)
    best: dict[tuple[int, ...], float] = {}
    for one in found.ranked:
        best.setdefault(division(one), float(one.worth[-1] / found.best.worth[-1] - 1))
    return list(best.items()), sum(found.counts().values()) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--source", default="Kwai ATC24 Fig. 9")
    parser.add_argument("--rows", help="only these of the source, counted from 1")
    parser.add_argument("--top", type=int, default=20)
    options = parser.parse_args()
    registry = Registry.load()
    known = cases_of(read_rows(options.steps), read_rules())
    cases = [one for one in known if fnmatchcase(one.row["source"], options.source)]
    chosen = [int(text) for text in options.rows.split(",")] if options.rows else range(1, len(cases) + 1)
    among = 0
    for case in (cases[at - 1] for at in chosen):
        start, parallel = time.process_time(), case.settings["parallel"]
        theirs = (parallel["pp"], parallel.get("vp") or 1, parallel["tp"], parallel.get("cp") or 1)
        sizes = " ".join(f"{name} {size}" for name, size in zip(("pp", "vp", "tp", "cp"), theirs, strict=True))
        head = f"{case.row['model']} on {case.row['n_gpus']} GPUs: {sizes}"
        try:
            order, considered = ranked(case, registry, options.top)
        except PptraceError as error:
            print(f"{head}: {error}", flush=True)
            continue
        places = [division for division, _ in order]
        place = places.index(theirs) if theirs in places else -1
        among += 0 <= place < NEAR
        told = f"place {place + 1}, {order[place][1]:+.1%}" if place >= 0 else f"behind the first {len(places)}"
        spent = f"{considered:,} considered, {time.process_time() - start:.0f} s"
        print(f"{head}: {told}; first {places[0]}; {spent}", flush=True)
    print(f"among the first {NEAR}: {among} of {len(chosen)}")


if __name__ == "__main__":
    main()
