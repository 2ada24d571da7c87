"""Cells are what a protobuf decoder reads, whatever their padding."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.internal.decoder import _DecodeVarint
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

from pptrace.traces.perfetto.wire import BEGIN, Cell, RecordLayout, cell_size, packet, varint

TRACK_UUID, COUNTER_VALUE, FLOW_IDS, EXTENSION = 11, 30, 47, 7610
VALUES = st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.sampled_from([2**bits - 1 for bits in range(1, 64)])


@given(value=VALUES, width=st.integers(1, 10))
def test_a_padded_varint_is_the_same_number(value: int, width: int) -> None:
    raw = varint(value, width)
    assert len(raw) == max(width, -(-value.bit_length() // 7), 1)
    assert _DecodeVarint(raw, 0) == (value, len(raw))


@given(values=st.lists(VALUES, min_size=1), number=st.sampled_from([TRACK_UUID, COUNTER_VALUE, EXTENSION]))
def test_a_cell_of_the_right_size_holds_its_values(values: list[int], number: int) -> None:
    cell = Cell("x", number, cell_size(len(varint(number << 3)), max(values)))
    for record, value in zip(_records(cell, values), values, strict=True):
        assert record.startswith(cell.tag)
        assert _DecodeVarint(record, len(cell.tag)) == (value, cell.size)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_a_cell_of_twelve_bytes_holds_numbers_below_zero(values: list[int]) -> None:
    cell = Cell("x", COUNTER_VALUE, 12)
    assert [TrackEvent.FromString(record).counter_value for record in _records(cell, values)] == values


@pytest.mark.parametrize(
    "cell",
    [Cell("x", EXTENSION, size, optional=True) for size in (4, 8, 12)]
    + [Cell("x", FLOW_IDS, 10, fixed=True, optional=True)],
    ids=lambda cell: f"{cell.number}-{cell.size}",
)
def test_an_absent_value_leaves_only_the_type_of_its_event(cell: Cell) -> None:
    absent, _ = _records(cell, [-1, 1])
    event = TrackEvent.FromString(absent)
    assert [(field.name, value) for field, value in event.ListFields()] == [("type", BEGIN)]


@given(values=st.lists(st.sampled_from([-1, 0, 127]) | VALUES, min_size=1))
def test_what_was_encoded_is_decoded(values: list[int]) -> None:
    layout = RecordLayout(tuple(packet(BEGIN, Cell("t", 8, 10), [Cell("x", EXTENSION, 12, optional=True)])))
    columns = {"t": np.abs(np.array(values, dtype=np.int64)), "x": np.array(values, dtype=np.int64)}
    records = layout.blank(len(values))
    layout.encode(columns, records)
    again = layout.decode(records, layout.shared_bits(len(values)))
    assert again is not None
    assert {name: column.tolist() for name, column in again.items()} == {n: c.tolist() for n, c in columns.items()}


def test_a_record_of_another_layout_is_not_decoded() -> None:
    cells = [
        Cell("x", EXTENSION, 4, optional=True),
        Cell("y", 3, 2),
        Cell("z", 10, 4),
        Cell("w", EXTENSION + 1, 12),
    ]
    layout = RecordLayout(tuple(packet(BEGIN, Cell("t", 8, 8), cells)))
    records = layout.blank(3)
    values = dict.fromkeys("twxyz", np.arange(3))
    layout.encode(values, records)
    for byte in range(layout.size):
        changed = records.copy()
        changed[1, byte] ^= 0x80
        columns = layout.decode(changed, layout.shared_bits(3))
        assert columns is None or any((columns[name] != column).any() for name, column in values.items())


def _records(cell: Cell, values: list[int]) -> list[bytes]:
    layout = RecordLayout((cell,))
    records = layout.blank(len(values))
    layout.encode({"x": np.array(values, dtype=np.int64)}, records)
    return [bytes(record) for record in records]
