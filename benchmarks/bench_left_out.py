"""How far off published steps are when their source had no part in any constant.

    python benchmarks/bench_left_out.py steps.csv

What was fitted to a source is replaced by what other sources give, or by a default; the share that products attain
on A100, B200 and GB300 is fitted anew to the other sources' rows. The last lines say what a row of an unseen
source may be off by. ``docs/accuracy.md`` has the figures. It takes some 5 minutes of one core.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace_accuracy.records import Rule, build_cases, read_rows, read_rules, run_cases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS = ("dense", "moe", "other layers")
"""Dense models, mixtures, and models with layers of other kinds, which have no pipeline."""
GRID = [round(0.38 + 0.02 * step, 2) for step in range(25)]

Rows: TypeAlias = list[tuple[int, dict[str, str]]]
"""Lines and their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A share of the peak that products attain, fitted anew to other sources' rows."""

    gpu: str
    """A pattern of devices."""
    precisions: tuple[str, ...] = ("bf16",)
    """Precisions that have one share, where other sources measure in others."""
    rows: str = "*"
    """A pattern of the precision of the rows that it is fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A source that is left out, and what its machines have then."""

    sources: str
    """A pattern of names."""
    rules: tuple[dict[str, Any], ...] = ()
    """What takes the place of what was fitted to it."""
    fits: tuple[Fit, ...] = ()
    """Shares that are fitted anew, one after another."""


def _device(gpu: str, **values: float | str) -> dict[str, Any]:
    return {"where": {"gpu": gpu}, "set": {f"device.{name}": value for name, value in values.items()}}


def _host(gpu: str, launch: str) -> dict[str, Any]:
    """Return a rule for mixtures, whose experts are divided."""
    return {"where": {"gpu": gpu, "ep": "*[2-9]*"}, "set": {"costs.host_launch": launch}}


LEFT = (
    *(
        Left(sources=one, fits=(Fit(gpu="A100*"),), rules=rules)
        for one, rules in (
            # Products without tensor cores attain 0.8 of 19.5 TFLOP/s, as those with them, in place of 0.56.
            ("BLOOM*", ({"where": {"source": "*"}, "set": {"device.peak_fp32": "27.9 TFLOP/s"}},)),
            ("Megatron SC21*", ()),
            ("Reducing activation*", ()),
        )
    ),
    Left(sources="Kwai*", rules=(_device("H800*", attainable_bf16=0.725),)),
    Left(
        sources="dgxc*",
        rules=({"where": {"source": "*"}, "set": {"costs.spread": 0.0175, "costs.host_kernel": "0 ms"}},),
    ),
    Left(sources="NeMo*"),
    Left(
        sources="Megatron-Bridge*",
        # MLPerf has rows on GB300 in two precisions.
        fits=(
            Fit(gpu="GB300", precisions=("bf16", "fp8", "mxfp8"), rows="MXFP8"),
            Fit(gpu="GB300", precisions=("nvfp4",), rows="NVFP4"),
        ),
        rules=(
            *(
                _device(
                    gpu, attainable_bf16=0.57, attainable_fp8=0.5, attainable_mxfp8=0.5, attainable_nvfp4=0.5
                )
                for gpu in ("GB200", "GB300")
            ),
            _device(
                "B300", attainable_bf16=0.47, attainable_fp8=0.49, attainable_mxfp8=0.49, attainable_nvfp4=0.4,
                attention_attainable=0.54, attention_backward=0.69,
            ),
            # What other sources measure on Hopper.
            *(_device(gpu, recurrence_flops="1.2 TFLOP/s") for gpu in ("B?00", "GB?00")),
            # What fits the mixtures of other sources best.
            *(_host(gpu, "17 us") for gpu in ("H100*", "B200", "B300")),
            _host("GB?00", "27 us"),
        ),
    ),
    Left(sources="Megatron MoE*"),
    Left(sources="SimuMax*", fits=(Fit(gpu="B200", precisions=("bf16", "fp8", "mxfp8")),)),
    Left(sources="torchtitan*"),
    Left(sources="MLPerf*"),
    Left(sources="DeepSeek*"),
)  # fmt: skip


def _of(rows: Rows, pattern: str) -> Rows:
    return [(line, row) for line, row in rows if fnmatchcase(row["source"], pattern)]


def _errors(rows: Rows, rules: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    own = [*read_rules(), *(Rule.model_validate(rule) for rule in rules)]
    found = run_cases(build_cases(rows, own), executor="serial")
    return [
        ("other layers" if _has_other_layers(row) else str(row["kind"]), float(row["error_pct"]))
        for row in found if row["error_pct"] is not None
    ]  # fmt: skip


def _has_other_layers(row: Mapping[str, Any]) -> bool:
    return row["pp"] == "1" and not fnmatchcase(str(row["source"]), "torchtitan*")


def _size(errors: Sequence[tuple[str, float]]) -> float:
    return fmean(abs(error) for _, error in errors)


def left_out(rows: Rows, left: Left) -> list[tuple[str, float]]:
    """Return kind and error of each row of a source that is left out."""
    rules = list(left.rules)
    own = {line for line, _ in _of(rows, left.sources)}
    for fit in left.fits:
        others = [
            (line, row) for line, row in rows
            if line not in own and fnmatchcase(row["gpu"], fit.gpu) and fnmatchcase(row["precision"], fit.rows)
        ]  # fmt: skip
        names = [f"attainable_{name}" for name in fit.precisions]
        shares = [_device(fit.gpu, **dict.fromkeys(names, share)) for share in GRID]
        sizes = [_size(_errors(others, [*rules, share])) for share in shares]
        rules.append(shares[sizes.index(min(sizes))])
        print(rules[-1]["set"], end=" ")
    return _errors(_of(rows, left.sources), rules)


def main() -> None:
    """Print each source left out, all rows and those of each kind, and how errors of all are spread."""
    rows = read_rows(Path(sys.argv[1]))
    found: list[tuple[str, float]] = []
    for left in LEFT:
        errors = left_out(rows, left)
        found += errors
        by_kind = [[one for one in errors if one[0] == kind] for kind in KINDS]
        sizes = " ".join(f"{_size(own):6.1f}" if own else "     -" for own in (errors, *by_kind))
        print(f"{left.sources:24}{len(errors):4} rows {sizes} %", flush=True)
    for kind in KINDS:
        errors = sorted(abs(error) for own, error in found if own == kind)
        half, most, nearly = (quantiles(errors, n=20)[at] for at in (9, 15, 17))
        print(
            f"{kind:24}{len(errors):4} rows {fmean(errors):6.1f} %; half of them within {half:.1f}, "
            f"four of five within {most:.1f}, nine of ten within {nearly:.1f} %"
        )


if __name__ == "__main__":
    main()
