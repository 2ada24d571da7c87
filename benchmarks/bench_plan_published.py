"""Where plans rank the configurations that authors published as the best for a model on so many GPUs.

    python benchmarks/bench_plan_published.py steps.csv [--source 'Kwai ATC24 Fig. 9'] [--rows 1,5,9]

Each row of ``steps.csv`` (the columns of ``pptrace accuracy``) is one author's choice. The model, the machine and
the recomputation are its own; how GPUs and model are divided is planned, out of what the authors chose from:
stages of whole layers, all alike, and interleaved schedules whose ranks divide the microbatches, as their programs
ask for. Only the choice was measured, so the output is its place in the simulated order of divisions, and by how
much its simulated tokens per second are fewer than those of the first place.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pptrace import simulate
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.search.plan import MARGIN, MARGIN_EQUAL_SIZES, differences_ns, plan
from pptrace_accuracy.records import build_cases, read_rows, read_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.search.candidates import Candidate
    from pptrace_accuracy.records import Case

Division = tuple[int, ...]
"""pp, vp, tp, cp and the sequences in a microbatch."""

NEAR = 3
"""Places that count as found."""
FIRST = 20
"""Places that a plan is asked for at first, at most five shares of each division."""
GIB = 2**30
EVEN, SPLIT = "even", {"balance", "layers_per_stage"}
"""The split of layers by the stack; keys of a row that set another one for its own number of stages."""
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
    """Sequences in a microbatch; the row's own by default."""
    zero: tuple[int, ...] = ()
    """As the row has it by default."""
    shares: tuple[float, ...] = ()
    """Shares of activations that are copied to the host, where the division does not fit without."""
    host: str | None = None
    """Rate at which a device copies to the host; a plan offers copies only if they take time."""
    sequences: tuple[int, int] | None = None
    """The least and the most in a step: the largest multiple of dp x pp that lies between; those of the row unless
    given."""
    reserved: str | None = None
    """Memory that a plan sets aside; what the row says by default."""
    again: tuple[str, ...] | None = None
    """Modules that may be computed again; as the row has it by default."""


SOURCES = {
    "Kwai*": Choices(
        cp=(1, 2, 4),
        most_pp=32,
        shares=(0, 0.25, 0.5, 0.75, 1),
        host="54 GB/s",
        sequences=(240, 272),
        again=("layernorm", "mlp_act"),
    ),
    "Megatron SC21*": Choices(micro=(1, 2, 4, 8)),
    "Reducing activation*": Choices(micro=(1, 2, 4, 8)),
    "Megatron-Bridge*": Choices(cp=(1, 2), micro=(1, 2, 4), uneven=True),
    "nanotron*": Choices(
        tp=(1, 2, 4, 8, 16, 32), most_vp=1, uneven=True, micro=(1, 2, 4, 8, 16, 32), zero=(0, 1), reserved="2GiB"
    ),
}
"""By source: each of Kwai's 41 steps has the largest multiple of dp x pp from 240 to 272, and nanotron's are those
of ``scripts/scaling_benchmarks.py``, whose printed memory is PyTorch's alone: a context and NCCL's buffers
come beside it. Kwai's host link is PCI Express 5.0 x16: 54.3 GB/s in p2pmark (github.com/lukealonso/p2pmark)."""


def division(one: Candidate) -> Division:
    """Return how a configuration divides the model and the GPUs."""
    return (one.layout.pp, one.chunks, one.layout.tp, one.layout.cp, one.layout.micro)


def plans(case: Case, choices: Choices) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Yield the sequences in a step and what varies, for each number of pipeline ranks and of sequences."""
    gpus, layers = int(case.row["n_gpus"]), int(case.row["layers"])
    batch = case.settings["batch"]
    vary: dict[str, list[Any]] = {}
    vary["micro"] = list(choices.micro or (batch["micro"],))
    vary["zero"] = list(choices.zero or (case.settings["costs"]["zero"],))
    for pp in (size for size in divisors(gpus) if size <= min(choices.most_pp, layers)):
        if layers % pp and not choices.uneven:
            continue
        held = range(layers // pp + 1) if choices.uneven else divisors(layers // pp)
        chunks = [size for size in held if 1 < size <= choices.most_vp] if pp > 1 else []
        given = case.settings["model"].get("layers_per_stage") or []
        split = [given] if len(given) == pp else [EVEN]
        copied = {"offload": list(choices.shares)} if choices.shares and pp >= LEAST_COPIED else {}
        sizes_by_batch: dict[tuple[int, bool], set[tuple[int, int, int]]] = {}
        for dp in divisors(gpus // pp):
            inner = {
                (dp, tp, cp) for tp in choices.tp for cp in choices.cp
                if tp * cp * dp * pp == gpus and int(case.settings["model"].get("heads", tp)) % tp == 0
            }  # fmt: skip
            each = dp * pp
            least, most = choices.sequences or (batch["global"], batch["global"])
            sequences = most // each * each if choices.sequences else most
            if inner and sequences >= least and sequences % dp == 0:
                is_interleaved = bool(chunks) and sequences % each == 0
                sizes_by_batch.setdefault((sequences, is_interleaved), set()).update(inner)
        for (sequences, is_interleaved), sizes in sizes_by_batch.items():
            lists = [sorted(set(values)) for values in zip(*sizes, strict=True)]
            inner_sizes = dict(zip(("dp", "tp", "cp"), lists, strict=True))
            vp = [1, *chunks] if is_interleaved else [1]
            schedules = ["1f1b", "interleaved-1f1b"] if is_interleaved else ["1f1b"]
            sizes_of_stages = {"pp": [pp], "vp": vp, "schedule": schedules, "layers": split}
            yield sequences, {**vary, **copied, **inner_sizes, **sizes_of_stages}


def models(case: Case, choices: Choices) -> list[dict[str, Any]]:
    """Return the case's settings, with and without what may be computed again where authors chose that, too."""
    settings = dict(case.settings)
    if choices.reserved:
        settings["costs"] = {**settings["costs"], "reserved": choices.reserved}
    if choices.host:
        settings["device"] = {**settings["device"], "host_bandwidth": choices.host}
    if choices.again is None:
        return [settings]
    plain = {**case.settings["model"], "recompute": "none", "recompute_modules": []}
    again = {**plain, "recompute": "selective", "recompute_modules": list(choices.again)}
    return [{**settings, "model": model} for model in (plain, again)]


def divisors(count: int) -> list[int]:
    """Return all divisors of a number."""
    return [size for size in range(1, count + 1) if count % size == 0]


@dataclass(frozen=True, slots=True)
class Place:
    """The best that was simulated of a division."""

    rate: float
    """Tokens per second."""
    one: Candidate


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans what the authors of a case chose from."""

    case: Case
    choices: Choices
    registry: Registry

    def best(
        self, sequences: int, sizes: dict[str, list[Any]], own: dict[str, Any], top: int
    ) -> tuple[dict[Division, Place], bool]:
        """Return the best of each division among the first ``top`` of one plan, and whether these are all."""
        if sizes["layers"] == [EVEN]:
            own = {**own, "model": {key: own["model"][key] for key in own["model"].keys() - SPLIT}}
        settings = {**own, "batch": {**self.case.settings["batch"], "global": sequences}}
        gpus = int(self.case.row["n_gpus"])
        vary = {**sizes, "recompute": [own["model"].get("recompute", "none")]}
        try:
            found = plan(
                settings,
                gpus=gpus,
                top=top,
                vary=vary,
                framework="any",
                robust=False,
                executor="serial",
                registry=self.registry,
            )
        except PptraceError as error:
            print(f"{self.case.row['model']} on {gpus} GPUs: {error}", flush=True)
            return {}, True
        best: dict[Division, Place] = {}
        for one in found.ranked:
            rate = sequences * self.case.settings["batch"]["sequence"] * 1e9 / one.row["step_ns"]
            if division(one) not in best or rate > best[division(one)].rate:
                best[division(one)] = Place(rate, one)
        return best, len(found.ranked) < top

    def order(self, theirs: Division) -> list[tuple[Division, Place]]:
        """Return divisions in their simulated order, all of those that are before the authors' own.

        The plan that holds their own is asked for first, for more places until it is among them; of each other one
        its first place, and for more as long as the last of them is before theirs.
        """
        best: dict[Division, Place] = {}
        asked = list(product(plans(self.case, self.choices), models(self.case, self.choices)))
        gpus = int(self.case.row["n_gpus"])
        asked.sort(key=lambda one: not holds(one[0][1], theirs, gpus))
        for (sequences, sizes), own in asked:
            held = holds(sizes, theirs, gpus)
            least = best[theirs].rate if theirs in best else 0
            top, has_all, found = FIRST if held or not least else 1, False, dict[Division, Place]()
            while not has_all and (
                theirs not in found
                if held
                else not found or min(place.rate for place in found.values()) > least > 0
            ):
                found, has_all = self.best(sequences, sizes, own, top)
                top = max(2 * top, FIRST)
            for key, place in found.items():
                if key not in best or place.rate > best[key].rate:
                    best[key] = place
        return sorted(best.items(), key=lambda item: -item[1].rate)


def with_defaults(case: Case) -> Case:
    """Return a case with the layers and heads of its preset, and the sharding of its stack."""
    values = {key: value for key, value, _ in simulate(case.settings).prepared.resolved.explain()}
    model = {**case.settings["model"], "heads": values["model.heads"]}
    row = {**case.row, "layers": str(values["model.layers"])}
    costs = {**case.settings.get("costs", {}), "zero": values["costs.zero"]}
    return replace(case, row=row, settings={**case.settings, "model": model, "costs": costs})


def holds(sizes: dict[str, list[Any]], theirs: Division, gpus: int) -> bool:
    """Return whether a plan holds the authors' own division."""
    pp, _, tp, cp, _ = theirs
    named = zip(("pp", "vp", "tp", "cp", "micro"), theirs, strict=True)
    return gpus // (pp * tp * cp) in sizes["dp"] and all(size in sizes[name] for name, size in named)


def sizes_text(one: Division, chosen: Candidate | None = None) -> str:
    """Return a division in words, with what its fullest rank holds."""
    dp = f" dp {chosen.layout.dp}" if chosen else ""
    fullest = f" ({float(chosen.row['peak_memory_bytes'] or 0) / GIB:.0f} GiB)" if chosen else ""
    return " ".join(f"{n} {s}" for n, s in zip(("pp", "vp", "tp", "cp", "micro"), one, strict=True)) + dp + fullest


def parts_text(first: Candidate, other: Candidate) -> str:
    """Return by how much of the first's step each part of another's is longer, for as many sequences."""
    step = float(first.row["step_ns"] or 0)
    return ", ".join(f"{name} {time / step:+.1%}" for name, time in differences_ns(first, other).items())


def report(case: Case, registry: Registry) -> tuple[bool, bool]:
    """Print where a case's own division is, and return whether it is among the first, and whether tied."""
    choices = next((one for name, one in SOURCES.items() if fnmatchcase(case.row["source"], name)), Choices())
    start, parallel = time.process_time(), case.settings["parallel"]
    theirs = (*(parallel.get(name) or 1 for name in ("pp", "vp", "tp", "cp")), case.settings["batch"]["micro"])
    order = Planner(case=case, choices=choices, registry=registry).order(theirs)
    own = dict(order).get(theirs)
    head = f"{case.row['model']} on {case.row['n_gpus']} GPUs: {sizes_text(theirs, own.one if own else None)}"
    if own is None:
        print(f"{head}: does not fit, {time.process_time() - start:.0f} s", flush=True)
        return False, False
    before = [(key, place) for key, place in order if place.rate > own.rate]
    slowdown = own.rate / order[0][1].rate - 1
    print(f"{head}: place {len(before) + 1}, {slowdown:+.1%}, {time.process_time() - start:.0f} s", flush=True)
    for key, place in before[:NEAR]:
        print(f"    slower than {sizes_text(key, place.one)}: {parts_text(place.one, own.one)}", flush=True)
    first = order[0][1]
    margin = MARGIN_EQUAL_SIZES if own.one.layout.sizes == first.one.layout.sizes else MARGIN
    return len(before) < NEAR, first.rate <= own.rate * (1 + float(margin))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--source", default="Kwai ATC24 Fig. 9")
    parser.add_argument("--rows", help="only these of the source, counted from 1")
    options = parser.parse_args()
    registry = Registry.load()
    rows = [(line, row) for line, row in read_rows(options.steps) if fnmatchcase(row["source"], options.source)]
    cases = build_cases([(line, {**row, "step_s": "1"}) for line, row in rows], read_rules())
    cases = [case if case.skipped else with_defaults(case) for case in cases]
    chosen = [int(text) for text in options.rows.split(",")] if options.rows else range(1, len(cases) + 1)
    among = tied = 0
    for case in (cases[at - 1] for at in chosen):
        if case.skipped:
            print(f"{case.row['model']} on {case.row['n_gpus']} GPUs: {case.skipped}", flush=True)
            continue
        is_among, is_tied = report(case, registry)
        among, tied = among + is_among, tied + is_tied
    print(f"among the first {NEAR}: {among} of {len(chosen)}; tied with the first: {tied}")


if __name__ == "__main__":
    main()
