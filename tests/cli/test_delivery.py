"""The trace is delivered once every byte of it went out."""

from __future__ import annotations

from pptrace.cli.viewer import Delivery


def test_parts_in_any_order_add_up_to_the_whole() -> None:
    parts = sorted(((start, min(start + 7, 50)) for start in range(0, 50, 5)), key=lambda part: part[0] * 7 % 50)
    delivery = Delivery()

    for part in parts:
        assert not delivery.complete
        delivery.sent(*part, size=50)

    assert delivery.complete


def test_a_gap_keeps_it_open() -> None:
    delivery = Delivery()

    for part in ((0, 10), (11, 20), (0, 9)):
        delivery.sent(*part, size=20)

    assert not delivery.complete


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
