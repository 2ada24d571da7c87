"""What this distribution offers: twenty-four schedules; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ScheduleOffer


@hookimpl
def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Offer the schedules."""
    from pptrace_schedules import (
        bitpipe,
        chimera,
        combined_1f1b,
        dualpipe,
        gpipe,
        hanayo,
        helixpipe,
        interleaved_1f1b,
        one_f_one_b,
        optimus,
        roundpipe,
        seq_1f1b,
        vocab_1f1b,
    )
    from pptrace_schedules.zero_bubble import split_1f1b, v_schedules

    yield gpipe.OFFER
    yield one_f_one_b.OFFER
    yield interleaved_1f1b.OFFER
    yield gpipe.LOOPED_BFS
    yield chimera.OFFER
    yield hanayo.OFFER
    yield bitpipe.OFFER
    yield split_1f1b.ZB_H1
    yield split_1f1b.ZB_H2
    yield v_schedules.ZB_V
    yield v_schedules.V_HALF
    yield v_schedules.V_MIN
    yield split_1f1b.INTERLEAVED_ZB
    yield dualpipe.OFFER
    yield dualpipe.DUALPIPE_V
    yield combined_1f1b.OFFER
    yield one_f_one_b.EAGER
    yield one_f_one_b.PIPEDREAM_2BW
    yield one_f_one_b.PACI
    yield seq_1f1b.OFFER
    yield vocab_1f1b.OFFER
    yield optimus.OFFER
    yield helixpipe.OFFER
    yield roundpipe.OFFER
