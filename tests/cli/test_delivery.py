"""The server measures time without requests."""

from __future__ import annotations

from pptrace.cli.viewer import Delivery


def test_time_counts_from_the_end_of_the_last_request() -> None:
    now = 0.0
    delivery = Delivery(lambda: now)
    now = 3.0
    assert delivery.idle_s == 3.0

    with delivery.request():
        now = 100.0
        assert delivery.idle_s == 0.0
        with delivery.request():
            pass
        assert delivery.idle_s == 0.0
    now = 104.0

    assert delivery.idle_s == 4.0
