"""What came out beside each claim of arXiv:2605.24006, as the study's page writes it, from its tables."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from recorded_study import (
    BASELINE,
    CONCATENATED,
    COUNTS,
    FAST_SLOW,
    LAST,
    PLAIN,
    POLICIES,
    SLOW_FAST,
    SLOW_MID,
    SYSTEMS,
    TABLE_I,
    apart,
    behind,
    bubbles,
    gib,
    listed,
    off_table_i,
    recorded,
    seconds,
    steps,
    uneven,
    uneven_peak,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def equal_bubbles() -> str:
    for ranks in (4, 8):
        given = [100 * float(Fraction(ranks - 1, count + ranks - 1)) for count in COUNTS]
        for kind, schedule in product(("formula", "table"), ("gpipe", "1f1b")):
            assert bubbles(kind, schedule, COUNTS, ranks) == given
    return "to the digit, S = 4 and 8, B = 8 … 256"


def formula() -> str:
    (eight,), (four,) = bubbles("formula", "chimera", [16]), bubbles("formula", "chimera", [16], 4)
    return f"{eight:.1f} %, {four:.1f} %"


def table() -> str:
    (eight,), (four,) = bubbles("table", "chimera", [16]), bubbles("table", "chimera", [16], 4)
    units = [round(3 * 16 / (1 - bubble / 100)) for bubble in (eight, four)]
    return f"{eight:.2f} % ({units[0]} units), {four:.2f} % ({units[1]} units), by the merged construction"


def gap() -> str:
    eight, four = (
        [
            above - below
            for above, below in zip(
                bubbles("table", "chimera", COUNTS, ranks),
                bubbles("formula", "chimera", COUNTS, ranks),
                strict=True,
            )
        ]
        for ranks in (8, 4)
    )
    assert max(eight) == eight[1]
    assert max(four) == four[1]
    return f"by {listed(eight)} points at 8 … 256 (S = 4: {listed(four)}): widest at 16"


def below_gpipe() -> str:
    for ranks in (4, 8):
        pairs = zip(
            bubbles("table", "chimera", COUNTS, ranks), bubbles("table", "gpipe", COUNTS, ranks), strict=True
        )
        assert all(chimera < gpipe for chimera, gpipe in pairs)
    return f"{listed(bubbles('table', 'chimera', COUNTS))} % against {listed(bubbles('table', 'gpipe', COUNTS))} %"


def table_i_steps() -> str:
    first, second = (within(off_table_i(policy)[1], 10) for policy in POLICIES)
    return f"within {first} % (`async`), {second} % (`sender-blocking`) of every cell"


def table_i_idle() -> str:
    first, second = (within(off_table_i(policy)[0], 20) for policy in POLICIES)
    return f"within {first} points (`async`), {second} (`sender-blocking`)"


def hanayo() -> str:
    parts = []
    for policy in POLICIES:
        table = recorded(f"table-1-{policy}")
        ahead = [table.behind("hanayo", "chimera", **system) < 0 for system in SYSTEMS]
        slower, faster = (table.behind("hanayo", "chimera", **system) for system in (SLOW_FAST, SLOW_MID))
        parts.append((sum(ahead), f"{slower:.1f} % slower", f"{-faster:.1f} % faster"))
    (eight, *first), (same, *second) = parts
    assert eight == same
    return f"{eight} of 9; {' and '.join(first)} (`async`), {' and '.join(second)} (`sender-blocking`)"


def one_curve() -> str:
    low, high = min(each := behind("1f1b", "gpipe", SLOW_FAST, *COUNTS)), max(each)
    elsewhere = apart("async", *(system for system in SYSTEMS if system["network"] == "fast"))
    return (
        f"within {within(apart('sender-blocking', *SYSTEMS), 10)} % under `sender-blocking`; under `async` "
        f"within {within(elsewhere, 10)} % on fast networks, but 1F1B is {low:.0f} to {high:.0f} % slower on "
        "slow_nw_fast_cp"
    )


def few_microbatches() -> str:
    baseline, fast = (listed(behind("chimera", "gpipe", system, 8, 16)) for system in (BASELINE, FAST_SLOW))
    return f"{baseline} % faster on the baseline, {fast} % on fast_nw_slow_cp"


def baseline() -> str:
    merged = behind("chimera", "gpipe", BASELINE, *COUNTS)
    assert max(merged) < 0
    concatenated = behind(CONCATENATED, "gpipe", BASELINE, *COUNTS)
    assert [each > 0 for each in concatenated] == [False, False, True, True, True, True]
    return (
        f"Chimera stays ahead, by {-merged[3]:.1f} % at 64 and {-merged[5]:.2f} % at 256; "
        "as concatenated units it is behind from 32 on"
    )


def fast_network() -> str:
    at_64, at_128, at_256 = behind("chimera", "gpipe", FAST_SLOW, 64, 128, 256)
    return f"{-at_64:.1f} % at 64, {-at_128:.1f} % at 128, {-at_256:.1f} % at 256"


def headline() -> str:
    gpipe = behind("chimera", "gpipe", SLOW_FAST, *COUNTS)
    assert [each > 0 for each in gpipe] == [False, False, True, True, True, True]
    (ahead,) = behind("chimera", "1f1b", SLOW_FAST, LAST)
    (blocking,) = behind("chimera", "1f1b", SLOW_FAST, LAST, name="figure-4-sender-blocking")
    return (
        f"slow_nw_fast_cp: behind GPipe from 32 on, by {listed(gpipe[3:])} % from 64 to 256, but {-ahead:.1f} % "
        f"ahead of 1F1B at 256; {-blocking:.1f} % ahead of both there under `sender-blocking`"
    )


def longer_steps() -> str:
    first, last = (steps(PLAIN, SLOW_FAST, count) for count in (8, LAST))
    return (
        f"steps get shorter, from {listed(each / 1e9 for each in first)} s at 8 to "
        f"{listed(each / 1e9 for each in last)} s at 256 (GPipe, 1F1B, Chimera); "
        "longer where messages do not shrink in proportion, see below"
    )


def axes() -> str:
    ranges = [seconds(steps(PLAIN, system)) for system in (SLOW_FAST, BASELINE, FAST_SLOW)]
    return f"{', '.join(ranges)}; the {TABLE_I['slow', 'fast']['chimera'][1]} s of Table I lie below the first too"


def one_f_one_b_activations() -> str:
    for ranks in (4, 8):
        for count in COUNTS:
            assert gib("gpipe", count, ranks) == 64 / ranks
            assert gib("1f1b", count, ranks) == 64 / ranks * ranks / count
    return "constant; S / B of it"


def activations(ranks: int) -> str:
    chimera, other = ([gib(name, count, ranks) for count in COUNTS] for name in ("chimera", "1f1b"))
    ratios = [mine / theirs for mine, theirs in zip(chimera, other, strict=True)]
    assert ratios[2:] == [ratios[-1]] * 4
    start = (
        "equal at 8, then above:" if ratios[0] == 1 else f"above: {chimera[0]:g} against {other[0]:g} GiB at 8,"
    )
    return f"{start} {chimera[1]:g} against {other[1]:g} GiB at 16, {ratios[-1]:g} times 1F1B's from 32 on"


def uneven_peaks() -> str:
    four, eight = ([uneven_peak(ranks, count) for count in COUNTS] for ranks in (4, 8))
    assert four[1:] == [0] * 5
    assert eight[:1] + eight[2:] == [0] * 5
    return f"S = 4: equal from 16 on, {four[0]:.0f} % higher at 8; S = 8: equal, but {eight[1]:.0f} % higher at 16"


def uneven_at_4() -> str:
    gains = [-uneven(4, count, network="fast") for count in COUNTS]
    return f"{listed(gains[:4])} % faster at 8, 16, 32, 64 on fast_nw_mid_cp"


def uneven_by_network() -> str:
    fast, mid, slow = (-uneven(4, 8, network=network) for network in ("fast", "mid", "slow"))
    every = [-uneven(4, 8, policy, **system) for policy in POLICIES for system in SYSTEMS]
    return (
        f"at 8 on mid compute {fast:.2f} % faster on the fast, {mid:.2f} % on the mid, {slow:.2f} % on the slow "
        f"network; {min(every):.1f} to {max(every):.1f} % on all nine systems, under both policies"
    )


def uneven_at_8() -> str:
    gains = [-uneven(8, count) for count in COUNTS]
    assert gains[0] == 0
    runs = [(policy, system) for policy in POLICIES for system in SYSTEMS]
    assert max(uneven(8, count, policy, **system) for count in COUNTS[1:] for policy, system in runs) < 0
    assert all(uneven(8, 8, "async", **system) == 0 for system in SYSTEMS)
    blocking = max(uneven(8, 8, policy, **system) for policy, system in runs)
    assert blocking == uneven(8, 8, "sender-blocking", **SLOW_FAST)
    return (
        f"baseline: equal at 8, {gains[1]:.1f} % faster at 16, {gains[2]:.1f} % at 32; slower at 8 only under "
        f"`sender-blocking`, by {blocking:.1f} % at most (slow_nw_fast_cp)"
    )


def sixteen() -> str:
    for policy in POLICIES:
        for system in SYSTEMS:
            four, eight = ([uneven(ranks, count, policy, **system) for count in COUNTS] for ranks in (4, 8))
            assert min(four) == four[0]
            assert min(eight) == eight[1]
    return "the best case of S = 4 is 8, and 16 is the best of S = 8, on all nine systems"


CELLS: dict[str, Callable[[], str]] = {
    "GPipe and 1F1B: equal tables": equal_bubbles,
    "Chimera's formula": formula,
    "Chimera's table": table,
    "its table is above": gap,
    "its table is below": below_gpipe,
    "Table I, step times": table_i_steps,
    "Table I, idle ratios": table_i_idle,
    "Hanayo is faster": hanayo,
    "GPipe and 1F1B: one curve": one_curve,
    "Chimera is better at B = 8 and 16": few_microbatches,
    "baseline: beyond 32": baseline,
    "fast_nw_slow_cp": fast_network,
    "network-bound: GPipe": headline,
    "network-bound: more": longer_steps,
    "axes of Figure 4": axes,
    "activations: GPipe's": one_f_one_b_activations,
    "activations: Chimera's below 1F1B's, S = 8": lambda: activations(8),
    "activations: Chimera's below 1F1B's, S = 4": lambda: activations(4),
    "stages of 1 : 2": uneven_peaks,
    "S = 4: about 5 %": uneven_at_4,
    "S = 4: best": uneven_by_network,
    "S = 8: slower": uneven_at_8,
    "B = 16": sixteen,
}
"""What the page has beside a claim, by how the claim begins."""
