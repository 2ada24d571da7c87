"""What the study's page on arXiv:2605.24006 says below its table of claims, from its recorded tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recorded_study import (
    BASELINE,
    CAPPED,
    CONCATENATED,
    COUNTS,
    EVEN,
    FAST_SLOW,
    LAST,
    PLAIN,
    POLICIES,
    SLOW_FAST,
    SLOW_MID,
    SYSTEMS,
    activations,
    apart,
    behind,
    bubbles,
    gib,
    listed,
    replayed,
    seconds,
    steps,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable

VARIANTS = {
    "in proportion": "figure-4",
    "with the root": "figure-4-root",
    "of constant size": "figure-4-constant",
    "50 ms per message": "figure-4-per-message",
    "50 ms per computation": "figure-4-per-computation",
}
"""Tables by what messages and computations cost."""

_ROOT = "figure-4-root-sender-blocking"


def variant(name: str) -> str:
    """Return a row of steps on the network-bound system."""
    cells = []
    for count in COUNTS:
        lengths = steps(
            ("gpipe", "chimera", CONCATENATED), SLOW_FAST, count, name=f"{VARIANTS[name]}-sender-blocking"
        )
        cells.append(", ".join(f"{length / 1e9:.1f}" for length in lengths))
    return f"| {name} | {' | '.join(cells)} |"


def round_trips() -> str:
    few, many = behind("1f1b", "gpipe", SLOW_FAST, 8, LAST)
    return f"on a slow network with fast compute that costs {few:.0f} % at 8 microbatches and {many:.0f} % at 256"


def held_senders() -> str:
    return f"agree within {within(apart('sender-blocking', *SYSTEMS), 10)} %"


def only_gpipe() -> str:
    fast, mid = (behind("chimera", "gpipe", system, LAST)[0] for system in (SLOW_FAST, SLOW_MID))
    first, second = (behind("chimera", "1f1b", system, LAST)[0] for system in (SLOW_FAST, SLOW_MID))
    others = [system for system in SYSTEMS if system not in (SLOW_FAST, SLOW_MID)]
    assert max(behind("chimera", "gpipe", system, count)[0] for system in others for count in COUNTS) < 0
    assert behind("chimera", "gpipe", SLOW_MID, 64)[0] < 0 < behind("chimera", "gpipe", SLOW_MID, 128)[0]
    return (
        f"at 256 microbatches Chimera is {fast:.1f} % behind it on slow_nw_fast_cp and {mid:.1f} % on "
        f"slow_nw_mid_cp (from 32 and 128 on), {-first:.1f} and {-second:.1f} % ahead of 1F1B, and on the other "
        "seven systems it is ahead of both"
    )


def ahead_of_both() -> str:
    ahead = [
        -behind("chimera", first, system, LAST, name="figure-4-sender-blocking")[0]
        for system in SYSTEMS
        for first in ("gpipe", "1f1b")
    ]
    return f"by {min(ahead):.1f} to {max(ahead):.1f} % at 256"


def one_curve_of_each() -> str:
    largest = max(
        abs(each)
        for name in VARIANTS.values()
        for each in behind("1f1b", "gpipe", SLOW_FAST, *COUNTS, name=f"{name}-sender-blocking")
    )
    return f"within {within(largest, 10)} % in each row"


def last_in_units() -> str:
    for policy in POLICIES:
        for name in VARIANTS.values():
            for count in COUNTS:
                gpipe, other, chimera = steps(PLAIN, SLOW_FAST, count, name=f"{name}-{policy}")
                assert chimera < max(gpipe, other)
    merged = [
        -behind("chimera", "gpipe", SLOW_FAST, LAST, name=f"{name}-sender-blocking")[0]
        for name in VARIANTS.values()
    ]
    root, constant = (
        behind(CONCATENATED, "gpipe", SLOW_FAST, LAST, name=f"figure-4-{name}-sender-blocking")[0]
        for name in ("root", "constant")
    )
    return (
        f"it is never the slowest of the three under either policy, and here {min(merged):.1f} to "
        f"{max(merged):.1f} % ahead at 256; in units it is {root:.1f} % behind with the root, and {constant:.1f} "
        "% with constant messages"
    )


def all_at_once() -> str:
    gpipe, units = (steps([name], SLOW_FAST, name=_ROOT) for name in ("gpipe", CONCATENATED))
    assert (min(gpipe), min(units)) == (gpipe[3], units[1])
    base = behind(CONCATENATED, "gpipe", BASELINE, 32, LAST, name=_ROOT)
    return (
        f"GPipe's step then grows from {gpipe[3] / 1e9:.1f} s at 64 to {gpipe[-1] / 1e9:.1f} s at 256, Chimera's "
        f"from {units[1] / 1e9:.1f} s at 16 to {units[-1] / 1e9:.1f} s, and on the baseline Chimera is behind "
        f"from 32 on, by {base[0]:.1f} to {base[1]:.1f} %"
    )


def not_on_a_fast_network() -> str:
    (behind_by,) = behind(CONCATENATED, "gpipe", FAST_SLOW, 64, name="figure-4-sender-blocking")
    return f"are {behind_by:.1f} % behind at 64 already, where the paper has Chimera ahead"


def root_beside_computation() -> str:
    gpipe, other, chimera = (each / 1e9 for each in steps(PLAIN, SLOW_FAST, LAST, name="figure-4-root-async"))
    (baseline,) = behind("chimera", "gpipe", BASELINE, LAST, name="figure-4-root-async")
    return (
        f"With the root they take {gpipe:.1f} and {other:.1f} s at 256, and merged Chimera {chimera:.1f} s; on "
        f"the baseline it is {baseline:.1f} % behind GPipe then, and ahead of 1F1B"
    )


def axis() -> str:
    ranges = [seconds(steps(PLAIN, SLOW_FAST, name=f"{name}-sender-blocking")) for name in VARIANTS.values()]
    return (
        f"In the order of the rows, GPipe, 1F1B and merged Chimera take {', '.join(ranges[:-1])} and {ranges[-1]}"
    )


def units_on_the_baseline() -> str:
    bubble = min(bubbles("table", CONCATENATED, COUNTS))
    four = bubbles("table", CONCATENATED, [16], 4)[0]
    (late,) = behind(CONCATENATED, "gpipe", BASELINE, LAST)
    return (
        f"As basic units one after another it has a bubble of at least {bubble:.1f} %, and is behind from 32 "
        f"microbatches on, by {late:.1f} % at 256; but Figure 3 does not hold then, with {four:.1f} % at (4, 16)"
    )


def few_in_flight() -> str:
    merged = [activations("chimera", count) for count in COUNTS[1:]]
    capped, units = (activations(name, LAST) for name in (CAPPED, CONCATENATED))
    (bubble,), (other,) = bubbles("table", CAPPED, [LAST]), bubbles("table", "1f1b", [LAST])
    assert all(
        gib(CONCATENATED, count, ranks) == gib("1f1b", count, ranks) for count in COUNTS for ranks in (4, 8)
    )
    return (
        f"The merged construction that meets Figure 3 keeps {min(merged):g} to {max(merged):g} stages' "
        f"activations where 1F1B keeps {activations('1f1b', LAST):g}. With at most D - s in flight per pipeline "
        f"the peak falls to {capped:g}, but the bubble is still {bubble:.1f} % at B = 256, where 1F1B has "
        f"{other:.1f} %. Basic units one after another keep {units:g}, as many as 1F1B and no fewer: no "
        "construction that we tried meets both figures"
    )


def other_stages() -> str:
    kept = [replayed(EVEN, "uneven", ranks, 8, 16) for ranks in (8, 4)]
    reversed_ = [replayed("chimera", "reversed", ranks, 8, 16) for ranks in (8, 4)]
    assert kept[0][0] == 0
    return (
        "Played anew for the durations, light stages first as the paper says, the uneven table is never slower "
        f"under `async`. The table of even stages replayed with uneven ones is, by {kept[0][1]:.1f} % at 16, and "
        f"so is one with the heavy stages first, by {listed(reversed_[0])} % at 8 and 16; but both are slower at "
        f"S = 4 too, by {listed(kept[1])} % and by {listed(reversed_[1])} %"
    )


PHRASES: list[Callable[[], str]] = [
    round_trips, held_senders, only_gpipe, ahead_of_both, one_curve_of_each, last_in_units, all_at_once,
    not_on_a_fast_network, root_beside_computation, axis, units_on_the_baseline, few_in_flight, other_stages,
]  # fmt: skip
"""Statements below the table of claims."""
